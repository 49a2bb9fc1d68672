/*
 * pull: ordinary memory of another process of this host, read by process_vm_readv(2): what Linux
 * calls cross memory attach. Whether one process may read another one's memory is known when it has
 * done so: pid namespaces, users, Yama, seccomp and PR_SET_DUMPABLE all have a say.
 */
#ifndef FT_PULL_H
#define FT_PULL_H

#include "base/base.h"

/* Can others read this process's memory at all in this way, as far as it can tell by itself? And do
 * its links take messages that are worth it, see ft_local_open()? */
bool ft_pull_usable(void);
/* Does the kernel take so long to read this process's memory that two copies of the process's own
 * take less? FTCCL_CMA_SLOW says, or a measurement of some 0.3 ms, once in a process: virtual Zen 3
 * reads at a fifth of memcpy's rate, Sapphire Rapids at half. */
bool ft_pull_is_slow(void);
/* Memory that could be read a moment ago; starts as zeros. */
struct ft_pull_seen {
    uintptr_t from, to;
    uint64_t until_ns;
};
/* Can this process's memory at data be read in this way, as far as a look at its ends tells? No:
 * mappings of devices, such as what CUDA pins. Memory that is not there is for the caller's own
 * hand to touch. Programs send the same buffers again, and a look costs a microsecond: it holds for
 * some milliseconds. */
bool ft_pull_lendable(struct ft_pull_seen *, const void *data, size_t len_bytes, uint64_t now_ns);
/* Reads memory of the process that has this number now, in turns of bounded length: FT_OK, or
 * FT_LINK with a sentence, and some of `to` may be written. Who asks knows by the process's life
 * page whether it was that process. */
int ft_pull(int pid, uint64_t at, void *to, size_t len_bytes);
void ft_pull_describe(FILE *out); /* for ftccl-info */

#endif
