/*
 * The receiving end of a link: takes messages in the order of their turns, and gives places back.
 *
 * Why no channel blocks another one: a small payload is copied when its turn comes, so its place
 * can be given back at any time. Of the data slots, a sender reserves half at most, and half of
 * them less one can be in use as views. If half of them hold messages for long, those that nobody
 * has received are copied to the landing buffers of their channels, and the slots are given back.
 */
#include "transport/rma/inside.h"

#include <string.h>

#define SPILL_TURNS 200 /* turns with half of the slots held, after which messages are copied */
#define SMALLS_MANY \
    (RMA_SMALLS / 2)    /* so many small places are kept until their messages are used */
#define LATER_SMALLS 8  /* so many are returned in one line */
#define LATER_TURNS 256 /* turns after which what is left is returned */

static uint32_t slot_bit(unsigned place)
{
    return place >= RMA_SMALLS ? 1u << (place - RMA_SMALLS) : 0;
}

static struct rma_desc desc_at(const struct rma_link *l, unsigned place)
{
    struct rma_desc d;
    memcpy(&d, l->inside + rma_offset(l->rma, place), sizeof d);
    /* The copy is checked, which the sender cannot change any more. */
    __asm__ volatile("" : : "r"(&d) : "memory");
    return d;
}

/* ---- returns --------------------------------------------------------------------------------- */

static void flush_line(struct rma_link *l)
{
    struct rma_line *line = &l->line;
    if (l->phase == RMA_OPEN && (line->nslots || line->nchannels)) {
        const unsigned place = l->out.next % RMA_TURNS;
        line->turn = l->out.next;
        memcpy(l->outside + place * sizeof *line, line, sizeof *line);
        rma_post(l, place, sizeof *line);
    }
    memset(line, 0, sizeof *line);
    l->due = false;
    l->idle = 0;
}

static void return_place(struct rma_link *l, unsigned place, size_t len_bytes, bool spilled)
{
    l->occupied[place / 64] &= ~((uint64_t)1 << place % 64);
    l->filled &= ~rma_slots_of(l->rma, place, len_bytes);
    l->held &= ~slot_bit(place);
    l->claimed &= ~slot_bit(place);
    l->nsmalls -= place < RMA_SMALLS;
    l->line.slot[l->line.nslots++] = (uint16_t)(place | (spilled ? RMA_SPILLED : 0));
    /* The sender has few slots, and short windows on all lanes but the first. */
    if (slot_bit(place) || spilled || l->line.nslots >= LATER_SMALLS)
        l->due = true;
    if (l->line.nslots == RMA_LINE_SLOTS)
        flush_line(l);
}

/* Whether lines without places must wait until the sender has handled some. */
static bool windows_wait(const struct rma_link *l)
{
    return l->out.next - l->handled >= RMA_WINDOW_LINES;
}

static void return_window(struct rma_link *l, uint64_t ctx, unsigned lane, unsigned places)
{
    const unsigned n = l->line.nchannels++;
    l->line.channel[n].ctx = ctx;
    l->line.channel[n].lane = (uint16_t)lane;
    l->line.channel[n].places = (uint16_t)places;
    l->due = true;
    if (l->line.nchannels == RMA_LINE_CHANNELS)
        flush_line(l);
}

static void return_owed(struct rma_link *l)
{
    uint64_t ctx;
    unsigned lane, places;
    while (!windows_wait(l) && ft_rxq_take_owed(&l->rxq, &ctx, &lane, &places))
        return_window(l, ctx, lane, places);
}

/* The user has finished with a message, or it was dropped. */
void rma_consumed(struct ft_rxq *q, struct ft_rxq_node *n)
{
    struct rma_link *l = FT_CONTAINER(q, struct rma_link, rxq);
    if (l->phase != RMA_OPEN)
        return;
    if (n->header.lane != 0)
        l->due = true;
    if (n->cookie)
        return_place(l, (unsigned)n->cookie - 1, n->header.len, false);
    else if (q->owed > 0 || windows_wait(l))
        ft_rxq_owe(q, n);
    else
        return_window(l, n->header.ctx, n->header.lane, n->places);
}

bool rma_return(struct rma_link *l, bool all)
{
    if (l->rxq.owed > 0)
        return_owed(l);
    if (!l->line.nslots && !l->line.nchannels)
        return false;
    if (!all && !l->due && ++l->idle < LATER_TURNS)
        return false;
    flush_line(l);
    return true;
}

/* ---- taking messages ------------------------------------------------------------------------- */

/* Gives a place back before its message is used. */
static void spill(struct rma_link *l, struct ft_rxq_node *n)
{
    const unsigned place = (unsigned)n->cookie - 1;
    if (place >= RMA_SMALLS)
        n->data = memcpy(ft_rxq_landing(n), n->data, n->header.len);
    n->cookie = 0;
    return_place(l, place, n->header.len, true);
}

bool rma_spill(struct rma_link *l, bool now)
{
    const unsigned held = (unsigned)__builtin_popcount(l->held);
    if (held < l->rma->slots / 2) {
        l->crowded = 0;
        return false;
    }
    if (!now && ++l->crowded < SPILL_TURNS)
        return false;
    l->crowded = 0;
    bool any = false;
    for (uint32_t left = l->held & ~l->claimed; left; left &= left - 1) {
        any = true;
        spill(l, l->holder[RMA_SMALLS + __builtin_ctz(left)]);
    }
    return any;
}

static void hold(struct rma_link *l, unsigned place, const struct rma_desc *d,
                 struct ft_rxq_node *n)
{
    l->holder[place] = n;
    n->cookie = place + 1;
    if (place >= RMA_SMALLS) {
        l->held |= slot_bit(place);
        n->data = l->inside + rma_offset(l->rma, place) + sizeof *d;
        if (d->header.len > l->rma->chunk_bytes) {
            l->longs = true;
            spill(l, n);
        }
        return;
    }
    memcpy(n->small, d->small, sizeof n->small);
    n->data = n->small;
    if (++l->nsmalls > SMALLS_MANY)
        spill(l, n);
}

/* Whether a message lies within its place, and not in slots of others. */
static bool fits(const struct rma_link *l, unsigned place, size_t len_bytes)
{
    if (place < RMA_SMALLS)
        return len_bytes <= FT_RXQ_SMALL_BYTES;
    if (len_bytes >
        (RMA_SMALLS + l->rma->slots - place) * l->rma->stride_bytes - sizeof(struct rma_desc))
        return false;
    return !(l->filled & rma_slots_of(l->rma, place, len_bytes));
}

/* Puts the message whose turn has come into its channel. */
static int handle_message(struct rma_link *l, unsigned place)
{
    const struct rma_desc d = desc_at(l, place);
    struct ft_rxq_node *n;
    if (d.turn != l->in.expected - 1)
        return ft_fail(FT_PROTOCOL, "a peer changed a message after it had arrived");
    if (!fits(l, place, d.header.len))
        return ft_fail(FT_PROTOCOL, "a peer's message of %u bytes does not fit its place",
                       d.header.len);
    l->filled |= rma_slots_of(l->rma, place, d.header.len);
    int rc = ft_rxq_admit(&l->rxq, &d.header, &n);
    if (rc)
        return rc;
    l->base.messages++;
    l->base.bytes += d.header.len;
    if (!n) {
        l->base.transport->dropped++;
        l->nsmalls += place < RMA_SMALLS;
        return_place(l, place, d.header.len, false);
        l->due = true;
        return FT_OK;
    }
    hold(l, place, &d, n);
    ft_rxq_ready(&l->rxq, n);
    return FT_OK;
}

int rma_take_message(struct rma_link *l, uint32_t immediate)
{
    const unsigned place = immediate >> 16;
    if (place >= RMA_SMALLS + l->rma->slots)
        return ft_fail(FT_PROTOCOL, "a peer's immediate names place %u of %u", place,
                       RMA_SMALLS + l->rma->slots);
    if (l->occupied[place / 64] >> place % 64 & 1)
        return ft_fail(FT_PROTOCOL, "a peer wrote into place %u, which it does not have", place);
    const uint32_t turn = desc_at(l, place).turn;
    if ((turn & 0xffff) != (immediate & 0xffff))
        return ft_fail(FT_PROTOCOL, "a peer's immediate %08x does not fit its message of turn %u",
                       immediate, turn);
    int rc = rma_arrive(&l->in, turn, place);
    if (rc == FT_OK)
        l->occupied[place / 64] |= (uint64_t)1 << place % 64;
    uint16_t *next;
    while (rc == FT_OK && *(next = &l->in.ring[l->in.expected % RMA_TURNS])) {
        const unsigned first = *next - 1u;
        *next = 0;
        l->in.expected++;
        rc = handle_message(l, first);
    }
    return rc;
}

/* An older word may come after a newer one, over another way: it changes nothing. */
int rma_take_handled(struct rma_link *l, uint32_t immediate)
{
    const uint32_t ahead = (immediate - l->handled) & 0xffff;
    if (ahead >= 0x8000)
        return FT_OK;
    if (ahead > l->out.next - l->handled)
        return ft_fail(FT_PROTOCOL, "a peer says that it has handled %u lines more than there were",
                       ahead);
    l->handled += ahead;
    return FT_OK;
}

/* ---- receiving ------------------------------------------------------------------------------- */

int ft_rma_recv(struct ft_link *link, uint64_t ctx, unsigned lane, struct ft_msg *msg)
{
    struct rma_link *l = rma_link_of(link);
    int rc = ft_rxq_recv(&l->rxq, ctx, lane, msg);
    if (rc)
        return l->base.state == FT_LINK_DOWN ? FT_LINK : rc;
    struct ft_rxq_node *n = msg->owner;
    if (n->cookie <= RMA_SMALLS)
        return FT_OK;
    const unsigned claimed = (unsigned)__builtin_popcount(l->claimed) + 1;
    if (l->phase == RMA_OPEN && (l->longs || claimed >= l->rma->slots / 2)) {
        spill(l, n);
        msg->data = n->data;
        msg->cookie = n->cookie;
    } else {
        l->claimed |= slot_bit((unsigned)n->cookie - 1);
    }
    return FT_OK;
}

int ft_rma_peek(struct ft_link *link, uint64_t ctx, unsigned lane, struct ft_header *h)
{
    struct rma_link *l = rma_link_of(link);
    int rc = ft_rxq_peek(&l->rxq, ctx, lane, h);
    return rc && l->base.state == FT_LINK_DOWN ? FT_LINK : rc;
}

void ft_rma_release(struct ft_link *link, struct ft_msg *msg)
{
    ft_rxq_release(&rma_link_of(link)->rxq, msg);
}
