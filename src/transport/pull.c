/*
 * Reads memory of another process; see pull.h. One system call moves at most PULL_BYTES.
 */
#include "transport/pull.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#define PULL_BYTES ((size_t)1 << 20)
#define SEEN_NS 100000000u
/* It fits into the core's own cache. There the kernel's way to the pages costs most, compared with
 * the copy. */
#define PROBE_BYTES ((size_t)64 << 10)
#define PROBES 8 /* the fastest one counts, because other processes may need the core */
/* A pull is slow if it takes this many times as long as memcpy: 5 to 6 on virtual Zen 3, 2.3 on
 * Sapphire Rapids. */
#define SLOW 3

static bool readable(const void *data, size_t len_bytes)
{
    char ends[2];
    char *first = (char *)(uintptr_t)data;
    struct iovec here = {ends, sizeof ends}, there[2] = {{first, 1}, {first + len_bytes - 1, 1}};
    return process_vm_readv(getpid(), &here, 1, there, 2, 0) == (ssize_t)sizeof ends;
}

/* The level of the Yama security module, see Documentation/admin-guide/LSM/Yama.rst of the kernel.
 * From 1 on, only parents and privileged processes may read. */
static int yama_scope(void)
{
    int scope = 0;
    FILE *file = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
    if (file && fscanf(file, "%d", &scope) != 1)
        scope = 0;
    if (file)
        fclose(file);
    return scope;
}

bool ft_pull_usable(void)
{
    char here = 0;
    return ft_param_int(FT_PARAM_CMA) > 0 && ft_can_populate() && readable(&here, 1) &&
           (geteuid() == 0 || (yama_scope() == 0 && prctl(PR_GET_DUMPABLE) == 1));
}

/* read_ns 0: unknown. */
static struct {
    pthread_once_t once;
    uint64_t copy_ns, read_ns;
} probe = {.once = PTHREAD_ONCE_INIT};

static void measure(void)
{
    struct ft_env *env = ft_env_real();
    char *from = mmap(NULL, 2 * PROBE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                      -1, 0);
    if (from == MAP_FAILED)
        return;
    memset(from, 1, 2 * PROBE_BYTES);
    struct iovec there = {from, PROBE_BYTES}, here = {from + PROBE_BYTES, PROBE_BYTES};
    for (int i = 0; i < PROBES; i++) {
        uint64_t begin_ns = ft_now_ns(env);
        memcpy(here.iov_base, there.iov_base, PROBE_BYTES);
        __asm__ volatile("" : : "r"(here.iov_base) : "memory");
        uint64_t middle_ns = ft_now_ns(env);
        if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != (ssize_t)PROBE_BYTES)
            break;
        uint64_t copy_ns = ft_max(middle_ns - begin_ns, 1),
                 read_ns = ft_max(ft_now_ns(env) - middle_ns, 1);
        probe.copy_ns = i > 0 ? ft_min(probe.copy_ns, copy_ns) : copy_ns;
        probe.read_ns = i > 0 ? ft_min(probe.read_ns, read_ns) : read_ns;
    }
    munmap(from, 2 * PROBE_BYTES);
}

bool ft_pull_is_slow(void)
{
    if (ft_param_int(FT_PARAM_CMA_SLOW) >= 0)
        return ft_param_int(FT_PARAM_CMA_SLOW) == 1;
    pthread_once(&probe.once, measure);
    return probe.read_ns > SLOW * probe.copy_ns;
}

/* Ranges that touch are joined, so a long buffer is checked once in each SEEN_NS, even if it is
 * sent in pieces. */
bool ft_pull_lendable(struct ft_pull_seen *seen, const void *data, size_t len_bytes,
                      uint64_t now_ns)
{
    uintptr_t from = (uintptr_t)data, to = from + len_bytes;
    bool fresh = now_ns < seen->until_ns;
    if (fresh && from >= seen->from && to <= seen->to)
        return true;
    if (len_bytes == 0 || !readable(data, len_bytes))
        return false;
    bool touch = fresh && from <= seen->to && to >= seen->from;
    if (touch)
        from = ft_min(from, seen->from), to = ft_max(to, seen->to);
    else
        seen->until_ns = now_ns + SEEN_NS;
    seen->from = from;
    seen->to = to;
    return true;
}

int ft_pull(int pid, uint64_t at, void *to, size_t len_bytes)
{
    for (size_t done = 0; done < len_bytes;) {
        struct iovec here = {(char *)to + done, ft_min(len_bytes - done, PULL_BYTES)};
        struct iovec there = {(void *)(uintptr_t)(at + done), here.iov_len};
        ssize_t n = process_vm_readv(pid, &here, 1, &there, 1, 0);
        if (n > 0)
            done += (size_t)n;
        else if (n == 0 || errno != EINTR)
            return ft_fail(FT_LINK, "process_vm_readv: %s",
                           n == 0 ? "nothing was read" : strerror(errno));
    }
    return FT_OK;
}

void ft_pull_describe(FILE *out)
{
    char here = 0;
    int scope = yama_scope();
    bool can = readable(&here, 1);
    fprintf(out, "process_vm_readv: %s", can ? "works in this process" : strerror(errno));
    if (can && scope > 0)
        fprintf(out, "; kernel.yama.ptrace_scope=%d may forbid it between processes", scope);
    if (!ft_param_int(FT_PARAM_CMA))
        fprintf(out, "; not used (FTCCL_CMA=0)");
    else if (can && ft_pull_is_slow())
        fprintf(out, "; slow, used where it still gains");
    if (probe.read_ns)
        fprintf(out, "; %.1f GB/s where memcpy moves %.1f",
                (double)PROBE_BYTES / (double)probe.read_ns,
                (double)PROBE_BYTES / (double)probe.copy_ns);
    fputc('\n', out);
}
