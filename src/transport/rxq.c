/*
 * The receiving queues of virtual channels, and the contexts of a transport. A context on a link
 * has one block with the nodes of all its lanes; blocks are in a small hash table. Invariant: a
 * node is FREE, or in its lane's order array (FILLING, READY), or handed out (HELD). `busy` of a
 * block counts its FILLING and HELD nodes, which survive an unbind.
 */
#include "transport/rxq.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MISSING 0xff /* in order[]: messages that come after it are here, it is not */

struct rx_lane {
    struct ft_rxq_node *node; /* one for each place of the window */
    /* Landing buffers: one of small_bytes for each node, and ft_window() of chunk_bytes. */
    unsigned char *small, *large;
    uint64_t free; /* bit i: node[i] is FREE */
    unsigned owed; /* free places of which the sender was not told */
    /* placed: `large` does not move any more. pinned: NULL, or memory that devices can reach, in
     * which `large` lies. */
    bool placed;
    void *pinned;
    uint8_t large_free; /* bit i: the i-th large landing is free */
    uint8_t places_free;
    uint8_t next;         /* number of the message at the head, if they are numbered */
    uint8_t head, queued; /* of order[], which is a ring; some of these may be missing */
    uint8_t order[FT_RXQ_DEEPEST];
    struct ft_header expected; /* the next message, to be received */
    void *expected_at;         /* here; NULL: no message is expected, or it has begun to come */
    struct ft_rxq_node *lent;  /* the message that lies there, perhaps only a part of it */
    bool expects;              /* the last message that came was expected */
    struct ft_pages large_pages[8];
};

struct ft_rxq_ctx {
    uint64_t ctx;
    struct ft_rxq_ctx *next;
    bool unbound;
    unsigned busy;
    unsigned owed; /* places of all lanes */
    void *landing;
    size_t landing_bytes;
    struct rx_lane lane[FT_LANES_ALL];
    struct ft_rxq_node node[];
};

_Static_assert(FT_WINDOW_FIRST <= 8 && FT_WINDOW_COLL <= 8 && FT_WINDOW_P2P <= 8 &&
                   FT_WINDOW_CTL <= 8 && FT_WINDOW_RMA <= 8,
               "masks of large landings hold a window");
_Static_assert(FT_RXQ_DEEPEST <= 64, "masks of nodes hold all places");

/* If a GPU handles messages, they are not pulled, and only the first lane takes longer ones. */
size_t ft_rxq_longest(const struct ft_rxq_set *set, unsigned lane)
{
    return lane == 0 || (lane <= FT_LANE_P2P && !set->pinned) ? set->first_bytes : set->chunk_bytes;
}

/* Bytes from one landing buffer to the next. */
static size_t stride_of(const struct ft_rxq_set *set, unsigned lane)
{
    return ft_max(ft_round_up(ft_rxq_longest(set, lane), FT_CACHE_LINE), FT_CACHE_LINE);
}

/* ---- receiving ------------------------------------------------------------------------------- */

static struct ft_rxq_ctx *rx_find(struct ft_rxq *q, uint64_t ctx)
{
    if (q->last && q->last->ctx == ctx)
        return q->last;
    struct ft_rxq_ctx *c = q->bucket[ft_rxq_bucket(ctx)];
    while (c && c->ctx != ctx)
        c = c->next;
    if (c)
        q->last = c;
    return c;
}

/* The large landing buffers come first, those of a lane together; then the small ones. */
static void rx_lay_out(struct ft_rxq_ctx *c, const struct ft_rxq_set *set, size_t larges_bytes)
{
    unsigned n = 0;
    unsigned char *large = c->landing, *small = large + larges_bytes;
    for (unsigned l = 0; l < FT_LANES_ALL; l++) {
        struct rx_lane *lane = &c->lane[l];
        unsigned places = ft_rxq_places(set, l), window = (unsigned)ft_window(l);
        *lane = (struct rx_lane){
            .node = &c->node[n], .large = large, .small = small, .places_free = (uint8_t)places};
        lane->free = UINT64_MAX >> (64 - places);
        lane->large_free = (uint8_t)((1u << window) - 1);
        large += window * stride_of(set, l);
        small += places * ft_round_up(set->small_bytes, FT_CACHE_LINE);
        for (unsigned i = 0; i < places; i++, n++) {
            c->node[n].home = c;
            c->node[n].index = (uint8_t)i;
        }
    }
}

static int rx_add(struct ft_rxq *q, uint64_t ctx)
{
    const struct ft_rxq_set *set = q->set;
    unsigned nodes = 0;
    size_t larges_bytes = 0;
    for (unsigned l = 0; l < FT_LANES_ALL; l++) {
        nodes += ft_rxq_places(set, l);
        larges_bytes += (size_t)ft_window(l) * stride_of(set, l);
    }
    struct ft_rxq_ctx *c = calloc(1, sizeof *c + nodes * sizeof c->node[0]);
    if (!c)
        return ft_fail(FT_NOMEM, "no memory for a context of a link");
    c->ctx = ctx;
    c->landing_bytes = larges_bytes + ft_round_up(set->small_bytes, FT_CACHE_LINE) * nodes;
    c->landing = mmap(NULL, c->landing_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (c->landing == MAP_FAILED) {
        free(c);
        return ft_fail(
            FT_NOMEM,
            "no address space for the landing buffers of a link (%zu bytes of large ones)",
            larges_bytes);
    }
    (void)madvise(c->landing, c->landing_bytes, MADV_DONTFORK);
    rx_lay_out(c, set, larges_bytes);
    struct ft_rxq_ctx **at = &q->bucket[ft_rxq_bucket(ctx)];
    c->next = *at;
    *at = c;
    return FT_OK;
}

static void rx_free(const struct ft_rxq_set *set, struct ft_rxq_ctx *c)
{
    for (unsigned l = 0; l < FT_LANES_ALL; l++)
        ft_pinned_free(set->pinned, c->lane[l].pinned);
    munmap(c->landing, c->landing_bytes);
    free(c);
}

/* Frees an unbound block once nothing refers to it. */
static void rx_reap(struct ft_rxq *q, struct ft_rxq_ctx *c)
{
    if (!c->unbound || c->busy || c->owed)
        return;
    for (struct ft_rxq_ctx **at = &q->unbound; *at; at = &(*at)->next) {
        if (*at != c)
            continue;
        *at = c->next;
        rx_free(q->set, c);
        return;
    }
}

static void rx_consume(struct ft_rxq *q, struct ft_rxq_node *n)
{
    struct rx_lane *lane = &n->home->lane[n->header.lane];
    q->consumed(q, n);
    n->state = FT_RXQ_FREE;
    lane->free |= (uint64_t)1 << n->index;
    lane->places_free = (uint8_t)(lane->places_free + n->places);
    if (n->large >= 0)
        lane->large_free |= (uint8_t)(1u << n->large);
}

/* From now on nothing is written to the caller's memory. A message that has begun to arrive there
 * is copied to the link's memory, with the part that has not come yet. */
static void expect_none(struct rx_lane *lane)
{
    struct ft_rxq_node *n = lane->lent;
    lane->expected_at = NULL;
    lane->lent = NULL;
    if (n)
        n->data = memcpy(ft_rxq_landing(n), n->data, n->header.len);
}

static void drop_queued(struct ft_rxq *q, struct rx_lane *lane)
{
    for (; lane->queued > 0; lane->queued--) {
        const uint8_t at = lane->order[lane->head];
        lane->head = (uint8_t)((lane->head + 1) % FT_RXQ_DEEPEST);
        if (at == MISSING)
            continue;
        q->queued--;
        if (lane->node[at].state == FT_RXQ_READY)
            rx_consume(q, &lane->node[at]);
    }
}

static void rx_remove(struct ft_rxq *q, uint64_t ctx)
{
    struct ft_rxq_ctx **at = &q->bucket[ft_rxq_bucket(ctx)];
    while (*at && (*at)->ctx != ctx)
        at = &(*at)->next;
    struct ft_rxq_ctx *c = *at;
    if (!c)
        return;
    *at = c->next;
    if (q->last == c)
        q->last = NULL;
    for (unsigned l = 0; l < FT_LANES_ALL; l++) {
        expect_none(&c->lane[l]);
        drop_queued(q, &c->lane[l]);
    }
    c->unbound = true;
    c->next = q->unbound;
    q->unbound = c;
    rx_reap(q, c);
}

int ft_rxq_open(struct ft_rxq *q, struct ft_rxq_set *set,
                void (*consumed)(struct ft_rxq *, struct ft_rxq_node *))
{
    memset(q, 0, sizeof *q);
    q->set = set;
    q->consumed = consumed;
    q->next = set->rxqs;
    set->rxqs = q;
    for (int i = 0; i < set->count; i++) {
        int rc = rx_add(q, set->bound[i]);
        if (rc) {
            ft_rxq_close(q);
            return rc;
        }
    }
    return FT_OK;
}

static void rx_free_all(const struct ft_rxq_set *set, struct ft_rxq_ctx **list)
{
    while (*list) {
        struct ft_rxq_ctx *c = *list;
        *list = c->next;
        rx_free(set, c);
    }
}

void ft_rxq_close(struct ft_rxq *q)
{
    if (!q->set)
        return;
    for (struct ft_rxq **at = &q->set->rxqs; *at; at = &(*at)->next) {
        if (*at != q)
            continue;
        *at = q->next;
        break;
    }
    for (unsigned b = 0; b < FT_RXQ_BUCKETS; b++)
        rx_free_all(q->set, &q->bucket[b]);
    rx_free_all(q->set, &q->unbound);
    q->last = NULL;
    q->set = NULL;
}

/* Before the first long message of a lane: tries to put its landing buffers into memory that
 * devices can reach. Only lanes with data need that. */
static void place_lane(const struct ft_rxq_set *set, struct rx_lane *lane, unsigned number)
{
    lane->placed = true;
    if (number > FT_LANE_P2P)
        return;
    lane->pinned = ft_pinned_alloc(set->pinned, (size_t)ft_window(number) * stride_of(set, number));
    if (lane->pinned)
        lane->large = lane->pinned;
}

/* One is always free: a message that needs a large landing buffer takes so many places that the
 * window has no room for more of them. */
static void take_landing(const struct ft_rxq_set *set, struct rx_lane *lane, struct ft_rxq_node *n)
{
    n->large = -1;
    n->landing = lane->small + n->index * ft_round_up(set->small_bytes, FT_CACHE_LINE);
    if (n->header.len <= set->small_bytes && set->small_bytes > 0)
        return;
    if (!lane->placed)
        place_lane(set, lane, n->header.lane);
    n->large = (int8_t)__builtin_ctz(lane->large_free);
    n->landing = lane->large + (size_t)n->large * stride_of(set, n->header.lane);
    lane->large_free &= (uint8_t)(lane->large_free - 1);
}

/* The channel's lane for a message. FT_OK with *out NULL: the context is not bound. */
static int find_lane(struct ft_rxq *q, const struct ft_header *h, struct rx_lane **out)
{
    *out = NULL;
    if (h->lane >= FT_LANES_ALL)
        return ft_fail(FT_PROTOCOL, "a message came on lane %u, which does not exist", h->lane);
    if (h->len > ft_rxq_longest(q->set, h->lane))
        return ft_fail(FT_PROTOCOL, "a message of %u bytes came over a link for at most %zu",
                       h->len, ft_rxq_longest(q->set, h->lane));
    struct ft_rxq_ctx *c = rx_find(q, h->ctx);
    if (!c)
        return FT_OK;
    *out = &c->lane[h->lane];
    if ((*out)->places_free < ft_rxq_cost(q->set, h->lane, h->len))
        return ft_fail(FT_PROTOCOL, "more messages came on lane %u than its window allows",
                       h->lane);
    return FT_OK;
}

/* `ahead`: messages of the channel that are received before it. */
static struct ft_rxq_node *admit(struct ft_rxq *q, struct rx_lane *lane, const struct ft_header *h,
                                 unsigned ahead)
{
    struct ft_rxq_node *n = &lane->node[__builtin_ctzll(lane->free)];
    const unsigned places = ft_rxq_cost(q->set, h->lane, h->len);
    lane->free &= lane->free - 1;
    lane->places_free = (uint8_t)(lane->places_free - places);
    n->places = (uint8_t)places;
    n->way = 0;
    n->header = *h;
    take_landing(q->set, lane, n);
    while (lane->queued <= ahead)
        lane->order[(lane->head + lane->queued++) % FT_RXQ_DEEPEST] = MISSING;
    lane->order[(lane->head + ahead) % FT_RXQ_DEEPEST] = n->index;
    q->queued++;
    n->data = NULL;
    n->state = FT_RXQ_FILLING;
    n->home->busy++;
    return n;
}

int ft_rxq_admit(struct ft_rxq *q, const struct ft_header *h, struct ft_rxq_node **out)
{
    struct rx_lane *lane;
    const int rc = find_lane(q, h, &lane);
    *out = rc == FT_OK && lane ? admit(q, lane, h, lane->queued) : NULL;
    return rc;
}

int ft_rxq_admit_number(struct ft_rxq *q, const struct ft_header *h, uint8_t number,
                        struct ft_rxq_node **out)
{
    struct rx_lane *lane;
    const int rc = find_lane(q, h, &lane);
    *out = NULL;
    if (rc != FT_OK || !lane)
        return rc;
    const uint8_t ahead = (uint8_t)(number - lane->next);
    const bool came = ahead < lane->queued &&
                      lane->order[(lane->head + ahead) % FT_RXQ_DEEPEST] != MISSING;
    if (ahead >= ft_rxq_places(q->set, h->lane) || came)
        return ft_fail(FT_PROTOCOL, "message %u of lane %u came where %u is the next", number,
                       h->lane, lane->next);
    *out = admit(q, lane, h, ahead);
    return FT_OK;
}

void ft_rxq_ready(struct ft_rxq *q, struct ft_rxq_node *n)
{
    struct ft_rxq_ctx *c = n->home;
    assert(c->busy > 0);
    n->state = FT_RXQ_READY;
    bool timed = n->header.len >= FT_LARGE_BYTES && q->consumer && q->set->env;
    n->ready_ns = timed ? ft_now_ns(q->set->env) : 0;
    c->busy--;
    if (!c->unbound)
        return;
    rx_consume(q, n);
    rx_reap(q, c);
}

unsigned char *ft_rxq_landing(struct ft_rxq_node *n)
{
    if (n->large >= 0)
        ft_pages_use(&n->home->lane[n->header.lane].large_pages[n->large], n->header.len);
    return n->landing;
}

void ft_rxq_expect(struct ft_rxq *q, const struct ft_header *h, void *to)
{
    struct ft_rxq_ctx *c = rx_find(q, h->ctx);
    if (!c || h->lane >= FT_LANES_ALL)
        return;
    struct rx_lane *lane = &c->lane[h->lane];
    expect_none(lane);
    lane->expected = *h;
    lane->expected_at = to;
}

/* Whether the message, which is the channel's next one, is the expected one. */
static bool is_expected(const struct rx_lane *lane, const struct ft_header *h)
{
    const struct ft_header *want = &lane->expected;
    return lane->expected_at && h->sig == want->sig && h->seq == want->seq && h->len == want->len;
}

bool ft_rxq_early(struct ft_rxq *q, const struct ft_header *h)
{
    const struct ft_rxq_ctx *c = h->lane < FT_LANES_ALL ? rx_find(q, h->ctx) : NULL;
    const struct rx_lane *lane = c ? &c->lane[h->lane] : NULL;
    return lane && lane->expects && (lane->queued > 0 || !is_expected(lane, h));
}

void *ft_rxq_expected(struct ft_rxq_node *n)
{
    struct rx_lane *lane = &n->home->lane[n->header.lane];
    void *to = lane->expected_at;
    lane->expects = lane->order[lane->head] == n->index && is_expected(lane, &n->header);
    if (!lane->expects)
        return NULL;
    lane->expected_at = NULL;
    lane->lent = n;
    return to;
}

static void rx_trim(const struct ft_rxq_set *set, struct ft_rxq_ctx *c)
{
    for (unsigned l = 0; l < FT_LANES_ALL; l++) {
        struct rx_lane *lane = &c->lane[l];
        for (unsigned free = lane->pinned ? 0 : lane->large_free; free; free &= free - 1) {
            unsigned i = (unsigned)__builtin_ctz(free);
            ft_pages_trim(&lane->large_pages[i], lane->large + i * stride_of(set, l),
                          stride_of(set, l), false);
        }
    }
}

void ft_rxq_trim(struct ft_rxq *q)
{
    for (unsigned b = 0; b < FT_RXQ_BUCKETS; b++)
        for (struct ft_rxq_ctx *c = q->bucket[b]; c; c = c->next)
            rx_trim(q->set, c);
}

static struct ft_rxq_node *rx_first(struct ft_rxq *q, uint64_t ctx, unsigned lane)
{
    struct ft_rxq_ctx *c = rx_find(q, ctx);
    if (!c || lane >= FT_LANES_ALL || !c->lane[lane].queued)
        return NULL;
    const struct rx_lane *l = &c->lane[lane];
    const uint8_t first = l->order[l->head];
    return first != MISSING && l->node[first].state == FT_RXQ_READY ? &l->node[first] : NULL;
}

const struct ft_rxq_node *ft_rxq_first(struct ft_rxq *q, uint64_t ctx, unsigned lane)
{
    return rx_first(q, ctx, lane);
}

void ft_rxq_owe(struct ft_rxq *q, struct ft_rxq_node *n)
{
    struct rx_lane *lane = &n->home->lane[n->header.lane];
    lane->owed += n->places;
    n->home->owed += n->places;
    q->owed += n->places;
}

/* A block that owes something. */
static struct ft_rxq_ctx *rx_find_owing(struct ft_rxq *q)
{
    for (unsigned b = 0; b < FT_RXQ_BUCKETS; b++)
        for (struct ft_rxq_ctx *c = q->bucket[b]; c; c = c->next)
            if (c->owed)
                return c;
    struct ft_rxq_ctx *c = q->unbound;
    while (c && !c->owed)
        c = c->next;
    return c;
}

bool ft_rxq_take_owed(struct ft_rxq *q, uint64_t *ctx, unsigned *lane, unsigned *places)
{
    struct ft_rxq_ctx *c = q->owed ? rx_find_owing(q) : NULL;
    if (!c)
        return false;
    unsigned l = 0;
    while (!c->lane[l].owed)
        l++;
    *ctx = c->ctx;
    *lane = l;
    *places = (unsigned)ft_min(c->lane[l].owed, UINT16_MAX);
    c->lane[l].owed -= *places;
    c->owed -= *places;
    q->owed -= *places;
    rx_reap(q, c);
    return true;
}

bool ft_rxq_queued(struct ft_rxq *q, uint64_t ctx, unsigned lane)
{
    const struct ft_rxq_ctx *c = rx_find(q, ctx);
    return !c || c->lane[lane].queued > 0;
}

int ft_rxq_recv(struct ft_rxq *q, uint64_t ctx, unsigned lane, struct ft_msg *msg)
{
    struct ft_rxq_node *n = rx_first(q, ctx, lane);
    if (!n)
        return FT_AGAIN;
    struct rx_lane *l = &n->home->lane[lane];
    l->expected_at = NULL;
    l->lent = NULL;
    l->head = (uint8_t)((l->head + 1) % FT_RXQ_DEEPEST);
    l->next++;
    assert(l->queued > 0 && q->queued > 0);
    l->queued--;
    q->queued--;
    n->state = FT_RXQ_HELD;
    if (n->ready_ns)
        ft_latency_add(q->consumer, ft_now_ns(q->set->env) - n->ready_ns);
    n->home->busy++;
    msg->header = n->header;
    msg->data = n->data;
    msg->owner = n;
    msg->cookie = n->cookie;
    msg->withdrawn = NULL;
    msg->unfetched = msg->devmem = false;
    return FT_OK;
}

int ft_rxq_peek(struct ft_rxq *q, uint64_t ctx, unsigned lane, struct ft_header *header)
{
    struct ft_rxq_node *n = rx_first(q, ctx, lane);
    if (!n)
        return FT_AGAIN;
    *header = n->header;
    return FT_OK;
}

void ft_rxq_release(struct ft_rxq *q, struct ft_msg *msg)
{
    struct ft_rxq_node *n = msg->owner;
    if (!n || n->state != FT_RXQ_HELD)
        return; /* it was released before */
    struct ft_rxq_ctx *c = n->home;
    assert(c->busy > 0);
    msg->owner = NULL;
    c->busy--;
    rx_consume(q, n);
    rx_reap(q, c);
}

static unsigned add_uses(const struct ft_rxq_set *set, const struct ft_rxq_ctx *c, unsigned way,
                         struct ft_rxq_use *out, unsigned n, unsigned max)
{
    for (unsigned l = 0; l < FT_LANES_ALL; l++) {
        unsigned used = 0;
        for (unsigned i = 0; i < ft_rxq_places(set, l); i++) {
            const struct ft_rxq_node *node = &c->lane[l].node[i];
            used += node->state != FT_RXQ_FREE && node->way == way ? node->places : 0;
        }
        if (used > 0 && n < max)
            out[n] = (struct ft_rxq_use){c->ctx, (uint16_t)l, (uint16_t)used};
        n += used > 0 && n <= max ? 1 : 0;
    }
    return n;
}

unsigned ft_rxq_uses(const struct ft_rxq *q, unsigned way, struct ft_rxq_use *out, unsigned max)
{
    unsigned n = 0;
    for (unsigned b = 0; b < FT_RXQ_BUCKETS; b++)
        for (const struct ft_rxq_ctx *c = q->bucket[b]; c; c = c->next)
            n = add_uses(q->set, c, way, out, n, max);
    for (const struct ft_rxq_ctx *c = q->unbound; c; c = c->next)
        n = add_uses(q->set, c, way, out, n, max);
    return n;
}

/* ---- contexts of a transport ----------------------------------------------------------------- */

void ft_rxq_set_open(struct ft_rxq_set *set, size_t chunk_bytes)
{
    memset(set, 0, sizeof *set);
    set->chunk_bytes = set->first_bytes = chunk_bytes;
}

void ft_rxq_set_close(struct ft_rxq_set *set)
{
    free(set->bound);
    set->bound = NULL;
    set->count = set->capacity = 0;
}

int ft_rxq_set_bind(struct ft_rxq_set *set, uint64_t ctx)
{
    for (int i = 0; i < set->count; i++) {
        if (set->bound[i] == ctx)
            return ft_fail(FT_INVAL, "context %016llx is bound already", (unsigned long long)ctx);
    }
    if (set->count == set->capacity) {
        int capacity = set->capacity ? 2 * set->capacity : 16;
        uint64_t *bound = realloc(set->bound, (size_t)capacity * sizeof *bound);
        if (!bound)
            return ft_fail(FT_NOMEM, "no memory for %d contexts", capacity);
        set->bound = bound;
        set->capacity = capacity;
    }
    int rc = FT_OK;
    for (struct ft_rxq *q = set->rxqs; q && !rc; q = q->next)
        rc = rx_add(q, ctx);
    for (struct ft_txq *q = set->txqs; q && !rc; q = q->next)
        rc = ft_txq_bind(q, ctx);
    set->bound[set->count++] = ctx;
    if (rc)
        ft_rxq_set_unbind(set, ctx);
    return rc;
}

void ft_rxq_set_unbind(struct ft_rxq_set *set, uint64_t ctx)
{
    for (int i = 0; i < set->count; i++) {
        if (set->bound[i] != ctx)
            continue;
        set->bound[i] = set->bound[--set->count];
        break;
    }
    for (struct ft_rxq *q = set->rxqs; q; q = q->next)
        rx_remove(q, ctx);
    for (struct ft_txq *q = set->txqs; q; q = q->next)
        ft_txq_unbind(q, ctx);
}
