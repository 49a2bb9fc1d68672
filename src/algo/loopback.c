/*
 * Costs of ranks of one host that have nothing but TCP between them, or another network whose bytes
 * a core moves. Everything is time of a core: whoever sends carries the message through the
 * receiver's side of the stack, so a message costs more than the time until it is there, and with
 * more ranks than cores what counts is the work of all, not that of the rank on whose way the
 * others wait. Measured: docs/decisions/0004-default-costs.md.
 */
#include "algo/parts.h"

#define COPY_NS 200 /* a step without a message */
/* a message of so many bytes is longer on its way than its bytes say, by */
#define LONG_BYTES 65536
#define LONG_NS 1700
/* until a receiver has its core: for each hop, times the square of the other ranks that a core
 * has */
#define WAIT_NS 550
#define SEVERAL_MESSAGES 1.3 /* a message where a rank has several peers at once */
#define SEVERAL_BYTES 2      /* a byte there */
/* what all ranks have under way at once goes through the caches up to here, */
#define CACHED_BYTES 300e3
#define SPILLED_BYTES 900e3 /* and so many bytes later it costs SPILLED times more */
#define SPILLED 2

static double at_least_one(double x)
{
    return x > 1 ? x : 1;
}

static double each_hop(const struct ft_work *work)
{
    return (work->bytes_local - work->copied) / at_least_one(work->hops_local);
}

/* How many times as much a byte costs as in the caches. */
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
