/*
 * The sections of ftccl-info. Each prints to `out`, and prints a note if there is nothing to show.
 * Only functions that return int can fail.
 */
#ifndef FTCCL_INFO_H
#define FTCCL_INFO_H

#include "base/base.h"

struct plan_request {
    const char *kind, *type; /* names as the user typed them; type NULL: float32 */
    size_t size_bytes;       /* bytes of the larger buffer, as nccl-tests counts them */
    int nranks, nhosts, rank;
};

struct paths_request {
    const char *host, *from; /* as the user typed them; from NULL: any address */
    int nports;
};

struct standbys_request {
    int nmachines;           /* 0: none */
    const char *probability; /* as the user typed it */
};

void info_build(FILE *out);
void info_topology(FILE *out);
/* the CUDA driver: present on the machine, not used */
void info_fabrics(FILE *out);
void info_params_changed(FILE *out);
/* prints the parameter table as the body of a section of a manual page */
void info_params_man(FILE *out);
/* Returns 0, or a status with the sentence set. */
int info_plan(FILE *out, const struct plan_request *request);
/* The same. It sends probes. It blocks for 5 s and 5 ms a port at most, and in the resolver. */
int info_paths(FILE *out, const struct paths_request *request);
/* The same. Prints how many standbys cover the failures of so many machines. */
int info_standbys(FILE *out, const struct standbys_request *request);
/* The same, for a process that is running. */
int info_memory(FILE *out, int pid);
/* Parses a size such as "64K". The suffixes K, M, G, T are powers of 1024. Returns false if the
 * text is not a size. */
bool info_size_parse(const char *text, size_t *bytes);

#endif
