/* Finds the launcher of this process, and its rank, from the environment that the launchers set. */
#include "perf.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Known launchers, most specific first: ftccl-run or torchrun inside a Slurm job takes precedence
 * over Slurm. `needs` must be set too. */
static const struct launcher {
    const char *how, *rank, *size, *local_size, *needs;
} launchers[] = {
    {"ftccl-run", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "FTCCL_UNIQUE_ID"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
     NULL},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", NULL},
    /* A batch script has SLURM_PROCID too, but it is not a step with several tasks. */
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", NULL, "SLURM_STEP_ID"},
    {"environment", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "FTCCL_COMM_ID"},
};

static int number(const char *name, int lowest)
{
    const char *text = name ? getenv(name) : NULL;
    char *end;
    if (!text || !*text)
        return -1;
    long value = strtol(text, &end, 10);
    if (*end || value < lowest || value > INT_MAX) {
        fprintf(stderr, "%s=%s is not a number from %d\n", name, text, lowest);
        return -2;
    }
    return (int)value;
}

int perf_launch_find(struct perf_launch *l)
{
    *l = (struct perf_launch){.how = "alone", .nprocs = 1, .local_procs = 1};
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const struct launcher *from = &launchers[i];
        if (!getenv(from->rank) || !getenv(from->size) || (from->needs && !getenv(from->needs)))
            continue;
        l->how = from->how;
        l->proc = number(from->rank, 0);
        l->nprocs = number(from->size, 1);
        int local = number(from->local_size, 1);
        l->local_procs = local > 0 ? local : 0;
        if (l->proc >= 0 && l->nprocs > l->proc)
            return 0;
        fprintf(stderr, "%s and %s name no rank of a job\n", from->rank, from->size);
        return -1;
    }
    return 0;
}
