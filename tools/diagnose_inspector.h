/*
 * What NCCL's Inspector tells of operations, as metrics (diagnose_metrics.c) and as lines of JSON
 * (the agent) need it.
 */
#ifndef FT_TOOLS_DIAGNOSE_INSPECTOR_H
#define FT_TOOLS_DIAGNOSE_INSPECTOR_H

#include "diagnose_ranks.h"

/* Whether an operation has ended well and its numbers make sense. */
bool inspector_is_sound(const struct ft_snapshot *, const struct ft_snap_op *);
/* Bytes of the larger buffer, and what the bus carries of each, as nccl-tests count. */
double inspector_bytes(uint64_t sig, int nranks, double *share);
/* [nmembers] the hosts of the communicator of each, as far as telemetry knows. The caller frees it.
 * NULL: no memory. */
int *inspector_hosts(const struct ranks *);

#endif
