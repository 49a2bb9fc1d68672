/*
 * Lists hardware that this build does not use: RDMA devices, libfabric providers, the CUDA driver.
 */
#include "info.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#ifndef FT_HAVE_VERBS
static void print_verbs(FILE *out)
{
    fputs("  verbs: not looked for, built without libibverbs\n", out);
}
#endif

#ifdef FT_HAVE_LIBFABRIC
#include <rdma/fabric.h>

/* True if the provider was listed before: it has an entry for each domain, address format and
 * endpoint type. */
static bool named_before(const struct fi_info *list, const struct fi_info *end)
{
    for (; list != end; list = list->next)
        if (!strcmp(list->fabric_attr->prov_name, end->fabric_attr->prov_name))
            return true;
    return false;
}

static void print_libfabric(FILE *out)
{
    struct fi_info *list = NULL;
    if (fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, NULL, &list) || !list) {
        fputs("  libfabric: no provider\n", out);
        return;
    }
    fputs("  libfabric:", out);
    for (const struct fi_info *info = list; info; info = info->next)
        if (!named_before(list, info))
            fprintf(out, " %s", info->fabric_attr->prov_name);
    fputs(" found, transport not in this build\n", out);
    fi_freeinfo(list);
}
#else
static void print_libfabric(FILE *out)
{
    fputs("  libfabric: not looked for, built without libfabric\n", out);
}
#endif

/* Loads the driver, which is never linked. Loading it changes nothing on the device. */
static void print_cuda(FILE *out)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) {
        fputs("  cuda: no driver\n", out);
        return;
    }
    int (*get_version)(int *) = NULL;
    void *symbol = dlsym(driver, "cuDriverGetVersion");
    memcpy(&get_version, &symbol, sizeof symbol);
    int version = 0;
    if (get_version && get_version(&version) == 0)
        fprintf(out, "  cuda: driver %d.%d found, device not in this build\n", version / 1000,
                version % 1000 / 10);
    else
        fputs("  cuda: a driver that does not answer\n", out);
    dlclose(driver);
}

void info_fabrics(FILE *out)
{
#ifndef FT_HAVE_VERBS
    print_verbs(out);
#endif
    print_libfabric(out);
    print_cuda(out);
}
