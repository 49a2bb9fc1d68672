/*
 * The steps of a short call that repeats itself, where links can post and look (transport.h). The
 * caller's thread takes them one after another, without the lane's phases. The state of the lane is
 * right at every moment at which a step cannot go on. Then its ordinary turn goes on from there,
 * and knows what to do about late messages, full windows, other calls and links that are gone.
 */
#include "core/run/run.h"

#include <sched.h>
#include <string.h>

/* Number of looks with more ranks than cores. After each the caller gives its core away. */
#define YIELDS 32

struct run {
    struct ft_comm *comm;
    struct ft_header header;     /* of the step's messages, except for their length */
    struct ft_transport *posted; /* has peers to wake; NULL: none has */
    struct ft_reduce *pass;
    char *buf[FT_BUFS]; /* the call's buffers */
    unsigned shift;     /* 2 to its power are the bytes of an element */
    int sent;           /* number of messages of this step that were sent */
    uint64_t began_ns;  /* when the first messages had been sent */
    int looks;          /* left */
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

static void *at(const struct run *run, struct ft_ref ref)
{
    return run->buf[ref.buf] + ref.off;
}

/* Sends to all to whom the step sends. False: it has not sent to all of them. */
static bool post_all(struct run *run, const struct ft_step *step)
{
    const void *data = at(run, step->send);
    run->header.len = (uint32_t)step->send_bytes;
    for (int k = 0; k < step->nsend; k++) {
        struct ft_link *tx = run->comm->peers[step->send_to[k]]->tx;
        if (!tx || !tx->ops->post || tx->ops->post(tx, &run->header, data) != FT_OK)
            return false;
        if (run->posted != tx->transport)
            wake(run);
        run->posted = tx->transport;
        run->sent = k + 1;
    }
    return true;
}

/* Looks for all messages of the step. They stay where they are, and are sources of the pass. */
static bool look_all(const struct run *run, const struct ft_step *step)
{
    const int own_at = step->src.buf == FT_BUF_NONE ? FT_STEP_PEERS : step->src_at;
    const void **src = run->pass->src;
    for (int k = 0; k < step->nrecv; k++) {
        struct ft_link *rx = run->comm->peers[step->recv_from[k]]->rx;
        const void *data = rx && rx->ops->look ? rx->ops->look(rx, &run->header) : NULL;
        if (!data)
            return false;
        src[k < own_at ? k : k + 1] = data;
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
static void combine(struct run *run, const struct ft_step *step)
{
    struct ft_reduce *pass = run->pass;
    const bool own = step->src.buf != FT_BUF_NONE;
    const bool divide = step->flags & FT_STEP_FINAL && pass->op.divisor > 1;
    const int n = step->nrecv + own;
    void *to = at(run, step->dst);
    if (own)
        pass->src[step->src_at] = at(run, step->src);
    if (n == 1 && !divide) {
        if (pass->src[0] != to)
            ft_copy_few(to, pass->src[0], step->len_bytes);
        return;
    }
    struct ft_device *device = run->comm->engine->device;
    pass->divide = divide;
    pass->nsrc = n;
    pass->dst[0] = to;
    pass->count = step->len_bytes >> run->shift;
    device->ops->reduce(device, pass, &run->comm->lanes.at[0].req);
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

/* This step cannot go on here: the lane's turn finds what is done of it. */
static void leave_at(const struct run *run, struct ft_op *op, const struct ft_step *step,
                     uint64_t index)
{
    struct ft_lane *lane = &run->comm->lanes.at[0];
    run->comm->lanes.n = 1;
    op->lanes_left = 1;
    lane->op = op;
    lane->index = index;
    lane->step = step;
    ft_lane_begin_step(lane);
    lane->sent = (1u << run->sent) - 1;
    for (int k = 0; k < run->sent; k++)
        lane->sends[k].status = FT_OK;
}

static bool take_steps(struct run *run, struct ft_op *op, const struct ft_repeat *repeat)
{
    for (uint64_t i = 0; i < repeat->plan.nsteps; i++) {
        const struct ft_step *step = &repeat->steps[i];
        run->header.step = (uint16_t)i;
        run->sent = 0;
        bool sent = step->send_bytes == 0 || post_all(run, step);
        if (i == 0) /* the first messages need not wait until the clock is read */
            run->began_ns = ft_quick_now_ns(&run->comm->fast->clock, run->comm->engine->env);
        if (!sent || !end_step(run, step)) {
            leave_at(run, op, step, i);
            return false;
        }
    }
    return true;
}

bool ft_lanes_take_short(struct ft_comm *comm, struct ft_op *op, struct ft_short *out)
{
    struct ft_repeat *repeat = comm->fast->loaded;
    bool crowded = atomic_load_explicit(&comm->engine->crowded, memory_order_relaxed);
    /* No initializer: for one, the compiler clears the whole struct by a slow instruction. */
    struct run run;
    run.comm = comm;
    run.header.ctx = comm->ctx;
    run.header.sig = op->sig;
    run.header.seq = (uint32_t)op->seq;
    run.header.lane = 0;
    run.header.crc = 0;
    run.posted = NULL;
    run.pass = &repeat->pass;
    run.buf[FT_BUF_NONE] = NULL;
    run.buf[FT_BUF_IN] = (char *)(uintptr_t)op->in;
    run.buf[FT_BUF_OUT] = op->out;
    run.buf[FT_BUF_TMP] = op->tmp;
    run.shift = (unsigned)__builtin_ctzll(op->plan.esize);
    run.began_ns = 0;
    run.looks = crowded ? YIELDS : FT_LOOKS;
    run.crowded = crowded;
    run.recorded = false;
    bool over = take_steps(&run, op, repeat);
    wake(&run);
    *out = (struct ft_short){run.began_ns, run.recorded};
    return over;
}
