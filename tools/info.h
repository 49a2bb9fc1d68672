/*
 * ftccl-info's sections. Each prints to `out` and says itself when there is nothing; none fails.
 */
#ifndef FTCCL_INFO_H
#define FTCCL_INFO_H

#include "base/base.h"

struct plan_request {
    const char *kind, *type; /* names as typed; type NULL: float32 */
    size_t size_bytes;       /* of the larger buffer, as nccl-tests counts */
    int nranks, nhosts, rank;
};

void info_build(FILE *out);
void info_topology(FILE *out);
/* RDMA devices, libfabric providers and the CUDA driver: found, not used */
void info_fabrics(FILE *out);
void info_params_changed(FILE *out);
void info_params_man(FILE *out); /* the parameter table as the body of a manual page's section */
/* 0, or a status with the sentence set. */
int info_plan(FILE *out, const struct plan_request *request);
/* The same; of a process that runs. */
int info_memory(FILE *out, int pid);
/* "64K" and the like; suffixes K, M, G, T are powers of 1024. False if it is not a size. */
bool info_size_parse(const char *text, size_t *bytes);

#endif
