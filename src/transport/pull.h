/*
 * pull: reads ordinary memory of another process of this host with process_vm_readv(2), which Linux
 * calls cross memory attach. Pid namespaces, users, Yama, seccomp and PR_SET_DUMPABLE may all
 * forbid that, so a process knows that it may read only after it has read.
 */
#ifndef FT_PULL_H
#define FT_PULL_H

#include "base/base.h"

/* Whether other processes can read this process's memory, as far as it can tell by itself, and
 * whether its links accept messages long enough for that; see ft_local_open(). */
bool ft_pull_usable(void);
/* Whether the kernel needs so long to read this process's memory that two copies by the process
 * itself are faster. FTCCL_CMA_SLOW says so, or a measurement of about 0.3 ms, once per process.
 * Virtual Zen 3 reads at a fifth of memcpy's rate, Sapphire Rapids at half. */
bool ft_pull_is_slow(void);
/* Memory that could be read a moment ago. Initialised with zeros. */
struct ft_pull_seen {
    uintptr_t from, to;
    uint64_t until_ns;
};
/* Whether another process can read the memory at data, as far as a look at its first and last byte
 * tells. Mappings of devices cannot be read, for example memory that CUDA pins. If the memory does
 * not exist, the answer is no, and the caller's own access faults. A look costs a microsecond, and
 * programs send the same buffers again, so the answer is used for some milliseconds. */
bool ft_pull_lendable(struct ft_pull_seen *, const void *data, size_t len_bytes, uint64_t now_ns);
/* Reads memory of the process that has this number now, in several calls of bounded length. FT_OK,
 * or FT_LINK with a sentence; then some of `to` may have been written. The caller checks with the
 * process's liveness page that it was the right process. */
int ft_pull(int pid, uint64_t at, void *to, size_t len_bytes);
void ft_pull_describe(FILE *out); /* for ftccl-info */

#endif
