/*
 * Gives what this side has written into its places to ways, and knows what has arrived: the common
 * part of messages and lines. Only what a lost way has not delivered is written again, to the same
 * place, and only after both ends of that way are stopped.
 */
#include "transport/rma/inside.h"

#include <string.h>

#define LONG_BYTES 4096
#define SILENT_MOST 16 /* most writes in a row that are not asked for */
#define SILENT_LONG 4  /* likewise, if the next one is long: that ways are chosen by what waits */

void rma_post_open(struct rma_link *l)
{
    l->out.post = l->post;
    l->out.places = l->base.sender ? RMA_SMALLS + l->rma->slots : RMA_TURNS;
    l->out.next = 1;
    l->in.expected = l->told = l->handled = 1;
}

static size_t offset_of(const struct rma_link *l, unsigned place)
{
    return l->base.sender ? rma_offset(l->rma, place) : place * sizeof(struct rma_line);
}

static void count_written(struct rma_way *w, bool asked)
{
    w->given++;
    w->unwritten++;
    w->silent = asked ? 0 : w->silent + 1;
}

static int write_over(struct rma_link *l, unsigned k, unsigned place)
{
    struct rma_way *w = &l->way[k];
    struct rma_post *p = &l->out.post[place];
    const struct ft_fabric *f = l->rma->fabric;
    const size_t offset = offset_of(l, place);
    const bool asked = p->from ||
                       w->silent + 1 >= (p->len_bytes > LONG_BYTES ? SILENT_LONG : SILENT_MOST);
    const struct ft_fabric_write write = {
        .piece = {{l->outside_region, offset, p->len_bytes - (p->from ? p->len : 0)},
                  {p->from, p->from_offset, p->len}},
        .npieces = p->from ? 2 : 1,
        .to = offset,
        .immediate = rma_immediate(place, p->turn),
        .inlined = p->len_bytes <= f->inline_bytes,
        .asked = asked,
    };
    int rc = f->ops->write(w->fabric, &write);
    if (rc)
        return rc;
    count_written(w, asked);
    p->number = w->given;
    p->state = RMA_SENT;
    p->way = (uint8_t)k;
    return FT_OK;
}

/* The ready way with the fewest writes on it, of those that are not in `tried`. */
static unsigned choose_way(struct rma_link *l, unsigned tried)
{
    unsigned best = RMA_NO_WAY;
    for (unsigned i = 0; i < l->nways; i++) {
        const unsigned k = (l->rotation + i) % l->nways;
        if (l->way[k].state != RMA_WAY_READY || (tried >> k & 1))
            continue;
        if (best == RMA_NO_WAY || l->way[k].unwritten < l->way[best].unwritten)
            best = k;
    }
    return best;
}

/* Tries every ready way once. */
static bool write_somewhere(struct rma_link *l, unsigned place)
{
    unsigned tried = 0;
    for (;;) {
        const unsigned k = choose_way(l, tried);
        if (k == RMA_NO_WAY)
            return false;
        if (write_over(l, k, place) == FT_OK) {
            l->rotation = k + 1;
            return true;
        }
        tried |= 1u << k; /* it is full, or poll will report that it has failed */
    }
}

bool rma_post_nothing(struct rma_link *l, uint32_t immediate)
{
    const unsigned k = choose_way(l, 0);
    if (k == RMA_NO_WAY)
        return false;
    struct rma_way *w = &l->way[k];
    const bool asked = w->silent + 1 >= SILENT_MOST;
    const struct ft_fabric_write nothing = {.immediate = immediate, .asked = asked};
    if (l->rma->fabric->ops->write(w->fabric, &nothing) != FT_OK)
        return false;
    count_written(w, asked);
    return true;
}

static void enqueue(struct rma_link *l, unsigned place)
{
    struct rma_out *out = &l->out;
    out->post[place].state = RMA_QUEUED;
    out->post[place].way = RMA_NO_WAY;
    out->queue[(out->head + out->count++) % RMA_TURNS] = (uint16_t)place;
}

void rma_post(struct rma_link *l, unsigned place, size_t len_bytes)
{
    struct rma_post *p = &l->out.post[place];
    p->len_bytes = (uint32_t)len_bytes;
    p->turn = l->out.next++;
    if (l->base.sender)
        ((struct rma_desc *)(void *)(l->outside + offset_of(l, place)))->turn = p->turn;
    if (l->out.count > 0 || !write_somewhere(l, place))
        enqueue(l, place);
}

bool rma_post_queued(struct rma_link *l)
{
    struct rma_out *out = &l->out;
    bool any = false;
    while (out->count > 0 && write_somewhere(l, out->queue[out->head])) {
        out->head = (out->head + 1) % RMA_TURNS;
        out->count--;
        any = true;
    }
    return any;
}

/* Whether an answer says that a turn has arrived. */
static bool answered(const struct rma_answer *a, uint32_t turn)
{
    const uint32_t ahead = turn - a->expected;
    if (ahead >= RMA_TURNS)
        return true; /* before what is expected: the link has no others */
    return a->early[ahead / 8] >> ahead % 8 & 1;
}

/* Whether it could be written again, if it has to be. */
static bool post_one_again(struct rma_link *l, unsigned place, bool has_arrived)
{
    const struct rma_post *p = &l->out.post[place];
    if (has_arrived || p->state == RMA_RETURNED)
        rma_lent_end(l, place, FT_OK);
    else if (p->bare && !p->from)
        return false; /* the network has said that it will arrive */
    else
        enqueue(l, place);
    return true;
}

void rma_post_again(struct rma_link *l, unsigned k)
{
    bool all = true;
    for (unsigned place = 0; place < l->out.places; place++) {
        const struct rma_post *p = &l->out.post[place];
        if ((p->state == RMA_SENT || p->state == RMA_RETURNED) && p->way == k)
            all &= post_one_again(l, place, answered(&l->way[k].answer, p->turn));
    }
    l->told = l->in.expected - RMA_TELL; /* what was told may be lost */
    if (!all)
        rma_link_close(l, ft_fail(FT_LINK, "a message that had been written did not arrive"),
                       false);
}

/* Asks when all writes of a way have ended, if the last ones were not asked for. */
static void ask(struct rma_link *l, struct rma_way *w)
{
    const struct ft_fabric_write nothing = {.immediate = RMA_NOTHING, .asked = true};
    if (w->silent > 0 && !l->rma->fabric->counts_all &&
        l->rma->fabric->ops->write(w->fabric, &nothing) == FT_OK)
        count_written(w, true);
}

bool rma_post_flushed(struct rma_link *l)
{
    bool all = l->out.count == 0;
    for (unsigned k = 0; k < l->nways; k++) {
        struct rma_way *w = &l->way[k];
        const bool moves = w->state == RMA_WAY_STOPPING || w->state == RMA_WAY_STOPPED;
        if (w->state == RMA_WAY_READY && w->unwritten > 0) {
            ask(l, w);
            all = false;
        } else if (moves) {
            all = false;
        }
    }
    return all;
}

void rma_written(struct rma_link *l, unsigned k, unsigned count)
{
    struct rma_way *w = &l->way[k];
    w->unwritten -= (unsigned)ft_min(count, w->unwritten);
    w->silent = (unsigned)ft_min(w->silent, w->unwritten);
    if (l->lent)
        rma_lent_written(l, k);
}

void rma_answer(const struct rma_link *l, struct rma_answer *a)
{
    memset(a, 0, sizeof *a);
    a->expected = l->in.expected;
    for (unsigned i = 0; i < RMA_TURNS; i++)
        if (l->in.ring[(a->expected + i) % RMA_TURNS])
            a->early[i / 8] |= (unsigned char)(1u << i % 8);
}

int rma_arrive(struct rma_in *in, uint32_t turn, unsigned place)
{
    if (turn - in->expected >= RMA_TURNS)
        return ft_fail(FT_PROTOCOL, "a peer's write has the number %u, expected is %u", turn,
                       in->expected);
    if (in->ring[turn % RMA_TURNS])
        return ft_fail(FT_PROTOCOL, "a peer wrote number %u twice", turn);
    in->ring[turn % RMA_TURNS] = (uint16_t)(place + 1);
    return FT_OK;
}
