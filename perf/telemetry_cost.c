/*
 * Measures the cost of telemetry: one operation record with three changes of state and its wait
 * updates, repeated over the whole ring. It prints the median and the worst of several rounds. The
 * target is at most 30 ns per operation. The loop does not read the clock, because the
 * engine already has the time.
 */
#include "telemetry/telemetry.h"

#include <stdlib.h>

#define ROUNDS 31
#define OPS 100000
#define WAITS 2 /* wait updates of a small operation between two ranks */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double round_ns(struct ft_telemetry *t, int comm)
{
    const struct ft_coll coll = {
        .kind = FT_ALLREDUCE, .type = FT_FLOAT32, .red = FT_SUM, .root = -1, .count = 2};
    uint64_t start = ft_now_ns(ft_env_real());
    for (uint64_t seq = 1; seq <= OPS; seq++) {
        uint32_t op = ft_telemetry_op(t, comm, seq, &coll, "direct",
                                      (struct ft_op_times){0, start + seq});
        ft_telemetry_op_state(t, op, FT_OP_QUEUED, FT_OK, start + seq);
        ft_telemetry_op_state(t, op, FT_OP_RUNNING, FT_OK, start + seq);
        for (int i = 0; i < WAITS; i++)
            ft_telemetry_op_wait(t, op, (uint64_t)i, ft_op_wait(0, false, 1));
        ft_telemetry_op_state(t, op, FT_OP_DONE, FT_OK, start + seq);
    }
    return (double)(ft_now_ns(ft_env_real()) - start) / OPS;
}

int main(void)
{
    struct ft_telemetry *t = ft_telemetry_open(ft_env_real(), 1, ft_host_id());
    if (!t) {
        fprintf(stderr, "no telemetry file: FTCCL_TELEMETRY=0, or /dev/shm is full\n");
        return 1;
    }
    int comm = ft_telemetry_comm_open(t, 1, 1, 2, 0, "cost");
    double ns[ROUNDS];
    round_ns(t, comm); /* touches every page */
    for (int i = 0; i < ROUNDS; i++)
        ns[i] = round_ns(t, comm);
    qsort(ns, ROUNDS, sizeof ns[0], ascending);
    printf("# one operation: a record, 3 changes of state, %d wait updates; %d rounds of %d\n",
           WAITS, ROUNDS, OPS);
    printf("telemetry_ns_per_op median %.1f best %.1f worst %.1f target 30\n", ns[ROUNDS / 2],
           ns[0], ns[ROUNDS - 1]);
    ft_telemetry_close(t);
    return 0;
}
