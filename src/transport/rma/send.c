/*
 * The sending end of a link: takes places, builds messages in them, and gets them back by lines.
 */
#include "transport/rma/inside.h"

#include <string.h>

static struct rma_desc *desc_at(const struct rma_link *l, unsigned place)
{
    return (struct rma_desc *)(void *)(l->outside + rma_offset(l->rma, place));
}

/* ---- places ---------------------------------------------------------------------------------- */

static int take_small(struct rma_link *l)
{
    for (unsigned i = 0; i < RMA_SMALLS / 64; i++) {
        if (!l->smalls_free[i])
            continue;
        const unsigned bit = (unsigned)__builtin_ctzll(l->smalls_free[i]);
        l->smalls_free[i] &= l->smalls_free[i] - 1;
        return (int)(i * 64 + bit);
    }
    return -1;
}

/* The first of the slots that a message fills. */
static int take_slots(struct rma_link *l, size_t len_bytes)
{
    const uint32_t want = rma_slots_of(l->rma, RMA_SMALLS, len_bytes);
    for (unsigned bit = 0; bit < l->rma->slots; bit++) {
        const uint32_t here = want << bit;
        if (here >> bit != want || (l->slots_free & here) != here)
            continue;
        l->slots_free &= ~here;
        return RMA_SMALLS + (int)bit;
    }
    return -1;
}

void rma_put_place(struct rma_link *l, unsigned place)
{
    l->post[place].state = RMA_FREE;
    if (place < RMA_SMALLS)
        l->smalls_free[place / 64] |= (uint64_t)1 << place % 64;
    else
        l->slots_free |= rma_slots_of(l->rma, place, l->post[place].len);
}

/* Takes a place for a message, and its part of the channel's window. FT_AGAIN: there is none. */
static int take_place(struct rma_link *l, const struct ft_header *h)
{
    if (l->base.state != FT_LINK_UP)
        return l->base.state == FT_LINK_DOWN ? FT_LINK : FT_AGAIN;
    if (l->phase != RMA_OPEN)
        return FT_AGAIN; /* it is about to be DOWN */
    if (h->len > ft_rxq_longest(&l->rma->set, h->lane))
        return ft_fail(FT_INVAL, "a message of %u bytes on a link for at most %zu", h->len,
                       ft_rxq_longest(&l->rma->set, h->lane));
    const unsigned window = h->lane < FT_LANES_ALL ? ft_rxq_cost(&l->rma->set, h->lane, h->len) : 1;
    int rc = ft_txq_take_places(&l->txq, h->ctx, h->lane, window);
    if (rc)
        return rc;
    const int place = h->len <= FT_RXQ_SMALL_BYTES ? take_small(l) : take_slots(l, h->len);
    if (place < 0) {
        ft_txq_put_places(&l->txq, h->ctx, h->lane, window);
        return FT_AGAIN;
    }
    struct rma_post *p = &l->post[place];
    p->from = NULL;
    p->bare = false;
    p->state = RMA_FILLING;
    p->ctx = h->ctx;
    p->len = h->len;
    p->lane = (uint8_t)h->lane;
    p->window = (uint8_t)window;
    return place;
}

/* ---- sending --------------------------------------------------------------------------------- */

static void publish(struct rma_link *l, unsigned place, const struct ft_header *h)
{
    struct rma_desc *d = desc_at(l, place);
    d->header = *h;
    d->zero = 0;
    l->base.messages++;
    l->base.bytes += h->len;
    rma_post(l, place, sizeof *d + (place < RMA_SMALLS ? 0 : h->len));
}

static void *payload_at(const struct rma_link *l, unsigned place)
{
    struct rma_desc *d = desc_at(l, place);
    return place < RMA_SMALLS ? d->small : (unsigned char *)(d + 1);
}

int ft_rma_send(struct ft_link *link, const struct ft_header *h, const void *data,
                struct ft_send *req)
{
    struct rma_link *l = rma_link_of(link);
    const int place = take_place(l, h);
    if (place < 0)
        return place;
    req->withdraw = NULL;
    req->status = FT_OK;
    if (h->len > 0 && !rma_lend(l, (unsigned)place, data, req))
        memcpy(payload_at(l, (unsigned)place), data, h->len);
    publish(l, (unsigned)place, h);
    return FT_OK;
}

int ft_rma_reserve(struct ft_link *link, const struct ft_header *h, void **slot)
{
    struct rma_link *l = rma_link_of(link);
    const bool is_long = h->len > FT_RXQ_SMALL_BYTES;
    if (is_long && l->base.state == FT_LINK_UP && l->reserved >= l->rma->slots / 2)
        return FT_AGAIN; /* the rest is for what must not wait */
    const int place = take_place(l, h);
    if (place < 0)
        return place;
    l->reserved += is_long;
    *slot = payload_at(l, (unsigned)place);
    return FT_OK;
}

/* Ends a reservation. Returns its place. */
static unsigned unreserve(struct rma_link *l, const void *slot)
{
    const size_t offset = (size_t)((const unsigned char *)slot - l->outside);
    const size_t smalls = rma_offset(l->rma, RMA_SMALLS);
    if (offset < smalls)
        return (unsigned)(offset / sizeof(struct rma_desc));
    l->reserved--;
    return RMA_SMALLS + (unsigned)((offset - smalls) / l->rma->stride_bytes);
}

void ft_rma_cancel(struct ft_link *link, const struct ft_header *h, void *slot)
{
    struct rma_link *l = rma_link_of(link);
    const unsigned place = unreserve(l, slot);
    ft_txq_put_places(&l->txq, h->ctx, h->lane, l->post[place].window);
    rma_put_place(l, place);
}

void ft_rma_commit(struct ft_link *link, const struct ft_header *h, void *slot)
{
    struct rma_link *l = rma_link_of(link);
    if (l->phase != RMA_OPEN)
        ft_rma_cancel(link, h, slot);
    else
        publish(l, unreserve(l, slot), h);
}

bool ft_rma_drained(struct ft_link *link)
{
    return rma_link_of(link)->txq.outstanding == 0;
}

bool ft_rma_flushed(struct ft_link *link)
{
    struct rma_link *l = rma_link_of(link);
    return l->phase != RMA_OPEN || rma_post_flushed(l);
}

/* ---- what comes back ------------------------------------------------------------------------- */

/* The peer returns a place; if `consumed`, also its message's part of the window. That the message
 * has arrived does not end its write here: the device may still repeat it, and then reads memory of
 * the user again. */
static int take_back(struct rma_link *l, unsigned place, bool consumed)
{
    if (place >= l->out.places || l->post[place].state != RMA_SENT)
        return ft_fail(FT_PROTOCOL, "a peer gave back place %u, where no message was sent", place);
    struct rma_post *p = &l->post[place];
    if (consumed)
        ft_txq_put_places(&l->txq, p->ctx, p->lane, p->window);
    if (p->from)
        p->state = RMA_RETURNED;
    else
        rma_put_place(l, place);
    return FT_OK;
}

static int handle_line(struct rma_link *l, const struct rma_line *line)
{
    if (line->nslots > RMA_LINE_SLOTS || line->nchannels > RMA_LINE_CHANNELS)
        return ft_fail(FT_PROTOCOL, "a peer's line of returns has %u and %u entries", line->nslots,
                       line->nchannels);
    for (unsigned i = 0; i < line->nslots; i++) {
        int rc = take_back(l, line->slot[i] & ~RMA_SPILLED, !(line->slot[i] & RMA_SPILLED));
        if (rc)
            return rc;
    }
    for (unsigned i = 0; i < line->nchannels; i++)
        ft_txq_put_places(&l->txq, line->channel[i].ctx, line->channel[i].lane,
                          line->channel[i].places);
    return FT_OK;
}

/* A copy, which the peer cannot change any more. */
static struct rma_line line_at(const struct rma_link *l, unsigned place)
{
    struct rma_line line;
    memcpy(&line, l->inside + place * sizeof line, sizeof line);
    __asm__ volatile("" : : "r"(&line) : "memory");
    return line;
}

int rma_take_line(struct rma_link *l, uint32_t immediate)
{
    const unsigned place = immediate >> 16;
    if (place >= RMA_TURNS)
        return ft_fail(FT_PROTOCOL, "a peer's immediate names line %u of %u", place, RMA_TURNS);
    struct rma_line line = line_at(l, place);
    if (line.turn % RMA_TURNS != place || (line.turn & 0xffff) != (immediate & 0xffff))
        return ft_fail(FT_PROTOCOL, "a peer's immediate %08x does not fit its line of turn %u",
                       immediate, line.turn);
    int rc = rma_arrive(&l->in, line.turn, place);
    uint16_t *next;
    while (rc == FT_OK && *(next = &l->in.ring[l->in.expected % RMA_TURNS])) {
        line = line_at(l, *next - 1u);
        if (line.turn != l->in.expected)
            return ft_fail(FT_PROTOCOL, "a peer changed a line after it had arrived");
        *next = 0;
        l->in.expected++;
        rc = handle_line(l, &line);
    }
    return rc;
}

void rma_tell_handled(struct rma_link *l)
{
    if (l->in.expected - l->told >= RMA_TELL &&
        rma_post_nothing(l, rma_immediate(RMA_HANDLED, l->in.expected)))
        l->told = l->in.expected;
}
