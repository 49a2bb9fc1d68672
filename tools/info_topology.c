/*
 * Prints the machine, from hwloc if it is built in, otherwise a few facts from /sys.
 */
#include "info.h"

#ifdef FT_HAVE_HWLOC
#include <hwloc.h>

static void print_level(FILE *out, hwloc_topology_t topology, hwloc_obj_type_t type)
{
    int n = hwloc_get_nbobjs_by_type(topology, type);
    if (n <= 0)
        return;
    hwloc_obj_t first = hwloc_get_obj_by_type(topology, type, 0);
    fprintf(out, "  %d %s", n, hwloc_obj_type_string(type));
    if (hwloc_obj_type_is_cache(type))
        fprintf(out, " of %llu KiB", (unsigned long long)first->attr->cache.size / 1024);
    fputc('\n', out);
}

static void print_memory(FILE *out, hwloc_topology_t topology)
{
    hwloc_obj_t node = NULL;
    while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)))
        fprintf(out, "  NUMA node %u: %llu MiB, %d processors\n", node->os_index,
                (unsigned long long)node->attr->numanode.local_memory >> 20,
                hwloc_bitmap_weight(node->cpuset));
}

/* The NUMA node to which a device is attached; -1 if it is equally near to all. */
static int locality(hwloc_topology_t topology, hwloc_obj_t device)
{
    hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(topology, device);
    bool one = near && hwloc_bitmap_weight(near->nodeset) == 1;
    return one ? hwloc_bitmap_first(near->nodeset) : -1;
}

static void print_io(FILE *out, hwloc_topology_t topology)
{
    static const struct {
        hwloc_obj_osdev_type_t type;
        const char *name;
    } kind[] = {{HWLOC_OBJ_OSDEV_NETWORK, "network"},
                {HWLOC_OBJ_OSDEV_OPENFABRICS, "RDMA"},
                {HWLOC_OBJ_OSDEV_GPU, "GPU"},
                {HWLOC_OBJ_OSDEV_COPROC, "accelerator"}};
    hwloc_obj_t device = NULL;
    while ((device = hwloc_get_next_osdev(topology, device)))
        for (size_t k = 0; k < FT_ARRAY_LEN(kind); k++) {
            if (device->attr->osdev.type != kind[k].type)
                continue;
            fprintf(out, "  %s %s at NUMA node %d\n", kind[k].name, device->name,
                    locality(topology, device));
        }
    hwloc_obj_t pci = NULL;
    while ((pci = hwloc_get_next_pcidev(topology, pci))) {
        unsigned base = pci->attr->pcidev.class_id >> 8;
        /* network, display, accelerator */
        if (base != 0x02 && base != 0x03 && base != 0x12)
            continue;
        fprintf(out, "  PCI %04x:%02x:%02x.%x class %04x %s at NUMA node %d, %.1f GB/s\n",
                pci->attr->pcidev.domain, pci->attr->pcidev.bus, pci->attr->pcidev.dev,
                pci->attr->pcidev.func, pci->attr->pcidev.class_id, pci->name ? pci->name : "",
                locality(topology, pci), (double)pci->attr->pcidev.linkspeed);
    }
}

void info_topology(FILE *out)
{
    hwloc_topology_t topology;
    fprintf(out, "topology (hwloc): this process may use %d processors\n", ft_cores());
    if (hwloc_topology_init(&topology))
        return;
    hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (hwloc_topology_load(topology) == 0) {
        static const hwloc_obj_type_t level[] = {HWLOC_OBJ_PACKAGE, HWLOC_OBJ_L3CACHE,
                                                 HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L1CACHE,
                                                 HWLOC_OBJ_CORE,    HWLOC_OBJ_PU};
        for (size_t i = 0; i < FT_ARRAY_LEN(level); i++)
            print_level(out, topology, level[i]);
        print_memory(out, topology);
        print_io(out, topology);
    } else {
        fputs("  cannot be read\n", out);
    }
    hwloc_topology_destroy(topology);
}

#else
#include <dirent.h>
#include <string.h>

/* Returns the first line of a file, or "" if there is none. */
static const char *line_of(const char *path, char *buf, int len)
{
    buf[0] = '\0';
    FILE *file = fopen(path, "re");
    if (!file)
        return buf;
    if (fgets(buf, len, file))
        buf[strcspn(buf, "\n")] = '\0';
    fclose(file);
    return buf;
}

static void print_caches(FILE *out)
{
    for (int i = 0; i < 8; i++) {
        char path[96], level[16], size[32], type[32];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level", i);
        if (!*line_of(path, level, sizeof level))
            return;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        line_of(path, size, sizeof size);
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/type", i);
        fprintf(out, "  L%s %s cache of %s\n", level, line_of(path, type, sizeof type), size);
    }
}

static void print_class(FILE *out, const char *class)
{
    char path[320], node[16];
    snprintf(path, sizeof path, "/sys/class/%s", class);
    DIR *list = opendir(path);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/sys/class/%s/%.200s/device/numa_node", class, entry->d_name);
        if (*line_of(path, node, sizeof node))
            fprintf(out, "  %s %s at NUMA node %s\n", class, entry->d_name, node);
    }
    if (list)
        closedir(list);
}

void info_topology(FILE *out)
{
    char nodes[64];
    fprintf(out,
            "topology (/sys; more when built with hwloc): this process may use %d processors\n",
            ft_cores());
    fprintf(out, "  NUMA nodes: %s\n",
            line_of("/sys/devices/system/node/online", nodes, sizeof nodes));
    print_caches(out);
    print_class(out, "net");
    print_class(out, "infiniband");
    print_class(out, "drm");
}
#endif
