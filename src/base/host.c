/*
 * The identity of this machine, the number of its CPUs, and a hash function.
 */
#include "base/base.h"

#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* FNV-1a, byte by byte, with a final avalanche (Stafford's variant 13). It is for inputs of a few
 * dozen bytes. */
uint64_t ft_hash64(const void *data, size_t len_bytes, uint64_t seed)
{
    const unsigned char *p = data;
    uint64_t h = 0xcbf29ce484222325u ^ seed;
    for (size_t i = 0; i < len_bytes; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
    h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
    return h ^ (h >> 31);
}

uint64_t ft_host_id(void)
{
    const char *named = ft_param_str(FT_PARAM_HOSTID);
    if (*named)
        return ft_hash64(named, strlen(named), 1);
    char boot[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, boot, sizeof boot - 1) < 0)
            boot[0] = '\0';
        close(fd);
    }
    if (!boot[0])
        gethostname(boot, sizeof boot - 1);
    struct stat ns = {0};
    /* Shared memory is passed over abstract sockets, which work only within one network
     * namespace. */
    stat("/proc/self/ns/net", &ns);
    uint64_t inode = ns.st_ino;
    return ft_hash64(&inode, sizeof inode, ft_hash64(boot, strlen(boot), 2));
}

int ft_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return (int)sysconf(_SC_NPROCESSORS_ONLN);
    return CPU_COUNT(&set);
}
