/*
 * Costs for ranks of one host that have only TCP between them. All costs are CPU time: the sender
 * also executes the receiver's side of the network stack, so a message costs more than the time
 * until it arrives. With more ranks than cores, the sum of all ranks' work counts, not the work of
 * the rank on the critical path. Measured: docs/decisions/0004-default-costs.md.
 */
#include "algo/parts.h"

#define COPY_NS 200 /* a step without a message */
/* extra latency of a message of LONG_BYTES or more, beyond its cost per byte; less in proportion
 * for shorter ones */
#define LONG_BYTES 65536
#define LONG_NS 1700
/* time until a receiver gets its core: per hop, times the square of the number of other ranks per
 * core */
#define WAIT_NS 550
/* factor on the cost of a message if a rank has several peers at the same time */
#define SEVERAL_MESSAGES 1.3
#define SEVERAL_BYTES 2 /* factor on the cost of a byte in the same case */
/* up to this number of bytes under way on all ranks together, copies stay in the caches */
#define CACHED_BYTES 300e3
#define SPILLED_BYTES 900e3 /* after this many more bytes, a byte costs SPILLED times more */
#define SPILLED 2

static double at_least_one(double x)
{
    return x > 1 ? x : 1;
}

static double each_hop(const struct ft_work *work)
{
    return (work->bytes_local - work->copied) / at_least_one(work->hops_local);
}

/* Factor on the cost of a byte because copies no longer stay in the caches. */
static double spilled(const struct ft_view *view, const struct ft_tuning *tuning,
                      const struct ft_work *work, double share)
{
    double under_way = each_hop(work), over;
    if ((!work->several || share < 1) && under_way > (double)tuning->chunk_bytes)
        under_way = (double)tuning->chunk_bytes;
    over = (under_way * share * view->nranks - CACHED_BYTES) / SPILLED_BYTES;
    return 1 + SPILLED * (over < 0 ? 0 : over > 1 ? 1 : over);
}

double ft_work_loopback_ns(const struct ft_view *view, const struct ft_tuning *tuning,
                           const struct ft_work *work)
{
    const struct ft_costs *c = &tuning->costs;
    double shared = ft_work_sharing(view, tuning),
           share_steps = work->share_steps > 0 ? work->share_steps : 1;
    double share_bytes = work->share_bytes > 0 ? work->share_bytes : 1;
    double long_part = each_hop(work) / LONG_BYTES;
    double hop_ns = c->loopback_latency_ns + LONG_NS * (long_part < 1 ? long_part : 1);
    double message_ns = c->loopback_message_ns * (work->several ? SEVERAL_MESSAGES : 1);
    double byte_ns = c->loopback_ns_per_byte *
                     (work->several && share_bytes >= 1 && !work->straight ? SEVERAL_BYTES : 1);
    double steps_ns = work->hops_local * hop_ns + (work->steps - work->copies) * message_ns +
                      work->copies * COPY_NS;
    double bytes_ns = (work->bytes_local - work->copied) * byte_ns +
                      (work->reduced + work->copied) * c->reduce_ns_per_byte;

    if (shared > 1 && !work->straight)
        bytes_ns *= spilled(view, tuning, work, share_bytes);
    return at_least_one(shared * share_steps) * steps_ns +
           at_least_one(shared * share_bytes) * bytes_ns +
           work->hops_local * (shared - 1) * (shared - 1) * WAIT_NS;
}
