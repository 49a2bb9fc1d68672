/*
 * The steps of a short call that repeats itself, where links can post and look (transport.h):
 * inside a host. The caller's thread takes them one after another, without the lane's phases. The
 * state of the lane is right at every moment at which a step cannot go on. Then its ordinary turn
 * goes on from there, and knows what to do about late messages, full windows, other calls and links
 * that are gone.
 */
#include "core/run/run.h"

#include <sched.h>
#include <string.h>

/* How often a caller looks for its messages: about a microsecond. With more ranks than cores: how
 * often it gives its core away first. */
#define LOOKS 100
#define YIELDS 32

struct run {
    struct ft_comm *comm;
    struct ft_lane *lane;
    struct ft_header header;     /* of the step's messages, except for their length */
    struct ft_transport *posted; /* has peers to wake; NULL: none has */
    struct ft_reduce *pass;
    unsigned shift;    /* 2 to its power are the bytes of an element */
    uint64_t began_ns; /* when the first messages had been sent */
    int looks;         /* left */
    bool crowded, recorded;
};

static bool all_post(const struct ft_comm *comm, const struct ft_step *step)
{
    bool all = true;
    for (int k = 0; k < step->nsend; k++) {
        const struct ft_link *tx = comm->peers[step->send_to[k]]->tx;
        all &= tx && tx->ops->post;
    }
    for (int k = 0; k < step->nrecv; k++) {
        const struct ft_link *rx = comm->peers[step->recv_from[k]]->rx;
        all &= rx && rx->ops->look;
    }
    return all;
}

void ft_lanes_prepare_short(const struct ft_comm *comm, struct ft_repeat *repeat)
{
    repeat->is_short = !repeat->redop.scaled && !comm->readiness;
    for (uint64_t i = 0; i < repeat->plan.nsteps; i++)
        repeat->is_short &= repeat->steps[i].nfwd == 0 && all_post(comm, &repeat->steps[i]);
    repeat->pass = (struct ft_reduce){.type = repeat->coll.type, .op = repeat->redop, .ndst = 1};
}

static void wake(struct run *run)
{
    if (run->posted && run->posted->ops->wake)
        run->posted->ops->wake(run->posted);
    run->posted = NULL;
}

/* Sends to all to whom the step sends. False: it has not sent to all of them. */
static bool post_all(struct run *run, const struct ft_step *step)
{
    const char *data = ft_lane_at(run->lane->op, step->send);
    run->header.len = (uint32_t)step->send_bytes;
    for (int k = 0; k < step->nsend; k++) {
        struct ft_link *tx = run->comm->peers[step->send_to[k]]->tx;
        if (!tx || !tx->ops->post || tx->ops->post(tx, &run->header, data) != FT_OK)
            return false;
        if (run->posted != tx->transport)
            wake(run);
        run->posted = tx->transport;
        run->lane->sends[k].status = FT_OK;
        run->lane->sent |= 1u << k;
    }
    return true;
}

/* Looks for all messages of the step. They stay where they are. */
static bool look_all(const struct run *run, const struct ft_step *step)
{
    for (int k = 0; k < step->nrecv; k++) {
        struct ft_link *rx = run->comm->peers[step->recv_from[k]]->rx;
        if (!rx || !rx->ops->look || !(run->lane->msgs[k].data = rx->ops->look(rx, &run->header)))
            return false;
    }
    return true;
}

/* The first look was in vain, so there is time for what else a call has to do. */
static void use_the_time(struct run *run)
{
    wake(run);
    if (!run->recorded)
        ft_fast_record(run->comm, run->began_ns);
    run->recorded = true;
}

static bool wait_for_all(struct run *run, const struct ft_step *step)
{
    if (look_all(run, step))
        return true;
    use_the_time(run);
    while (!look_all(run, step)) {
        if (run->looks-- == 0)
            return false;
        if (run->crowded)
            sched_yield();
    }
    return true;
}

/* Combines the messages of the step, and what it has itself. */
static void combine(const struct run *run, const struct ft_step *step)
{
    const struct ft_lane *lane = run->lane;
    struct ft_reduce *pass = run->pass;
    struct ft_device *device = run->comm->engine->device;
    void *to = ft_lane_at(lane->op, step->dst);
    bool has_own = step->src.buf != FT_BUF_NONE;
    int n = 0;
    for (int k = 0; k < step->nrecv; k++) {
        if (has_own && k == step->src_at)
            pass->src[n++] = ft_lane_at(lane->op, step->src);
        pass->src[n++] = lane->msgs[k].data;
    }
    if (has_own && step->src_at >= step->nrecv)
        pass->src[n++] = ft_lane_at(lane->op, step->src);
    pass->divide = (step->flags & FT_STEP_FINAL) && pass->op.divisor > 1;
    if (n == 1 && !pass->divide) {
        if (pass->src[0] != to)
            memcpy(to, pass->src[0], step->len_bytes);
        return;
    }
    pass->nsrc = n;
    pass->dst[0] = to;
    pass->count = step->len_bytes >> run->shift;
    device->ops->reduce(device, pass, &run->lane->req);
}

/* Receives what the step receives, and makes its result. False: the lane's turn must go on. */
static bool end_step(struct run *run, const struct ft_step *step)
{
    if (step->len_bytes == 0)
        return true;
    run->header.len = (uint32_t)step->len_bytes;
    if (!wait_for_all(run, step))
        return false;
    if (step->dst.buf != FT_BUF_NONE)
        combine(run, step);
    for (int k = 0; k < step->nrecv; k++) {
        struct ft_link *rx = run->comm->peers[step->recv_from[k]]->rx;
        rx->ops->took(rx, &run->header);
    }
    return true;
}

static bool take_steps(struct run *run, const struct ft_repeat *repeat)
{
    struct ft_lane *lane = run->lane;
    for (lane->index = 0; lane->index < repeat->plan.nsteps; lane->index++) {
        const struct ft_step *step = lane->step = &repeat->steps[lane->index];
        run->header.step = (uint16_t)lane->index;
        lane->sent = 0;
        bool sent = step->send_bytes == 0 || post_all(run, step);
        if (lane->index == 0) /* while messages are on their way, the clock costs nothing */
            run->began_ns = ft_now_ns(run->comm->engine->env);
        if (!sent || !end_step(run, step))
            return false;
    }
    return true;
}

bool ft_lanes_take_short(struct ft_comm *comm, struct ft_op *op, struct ft_short *out)
{
    struct ft_lane *lane = &comm->lanes.at[0];
    struct ft_repeat *repeat = comm->fast->loaded;
    bool crowded = atomic_load_explicit(&comm->engine->crowded, memory_order_relaxed);
    struct run run = {.comm = comm,
                      .lane = lane,
                      .header = {.ctx = comm->ctx, .sig = op->sig, .seq = (uint32_t)op->seq},
                      .pass = &repeat->pass,
                      .shift = (unsigned)__builtin_ctzll(op->plan.esize),
                      .looks = crowded ? YIELDS : LOOKS,
                      .crowded = crowded};
    comm->lanes.n = 1;
    lane->op = op;
    lane->received = lane->reserved = 0;
    lane->sealed = lane->expects = false;
    lane->phase = FT_LANE_EXCHANGE;
    op->lanes_left = 1;
    bool over = take_steps(&run, repeat);
    wake(&run);
    if (over)
        lane->phase = FT_LANE_IDLE, lane->op = NULL;
    *out = (struct ft_short){run.began_ns, run.recorded};
    return over;
}
