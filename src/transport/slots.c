/*
 * The shared structure of slots.h. Every atomic in the segment is either a turn, by which one side
 * hands an entry to the other, or a flag of the sleeping protocol. That protocol is Dekker's. The
 * waker stores a turn (or `starving`), then loads `armed`. The sleeper stores `armed`, then loads
 * the turn (or `starving`). All four are sequentially consistent, or have a fence between them, so
 * at least one side sees the other. On x86 that fence is the only locked instruction of a message.
 * It waits until the message's cache line has come from the other side, so it is a call of its own
 * (ft_slots_rings()).
 */
#include "transport/slots.h"

#include <string.h>

#define SEGMENT_MAGIC 0x667463636c736c32u

struct ft_slots_segment {
    /* These three are written before the segment is shared. */
    _Alignas(FT_CACHE_LINE) uint64_t magic;
    uint64_t chunk_bytes;
    uint64_t nslots;
    /* The sender sets it, and the receiver clears it; see the protocol above. */
    _Alignas(FT_CACHE_LINE) _Atomic uint32_t starving;
    /* Each side sets and clears its own flag. The other side also clears it when it wakes that
     * side. */
    _Alignas(FT_CACHE_LINE) _Atomic uint32_t sender_armed;
    _Alignas(FT_CACHE_LINE) _Atomic uint32_t receiver_armed;
    /* A bit per loan. The sender sets it before it uses the memory for something else; pairs with
     * ft_msg_intact(). It is cleared before a loan of that number is published again. */
    _Alignas(FT_CACHE_LINE) uint32_t withdrawn;
    uint32_t unpinned; /* likewise, with value 1, for all slots in pinned memory; never cleared */
    _Alignas(FT_CACHE_LINE) struct ft_slots_return returned[FT_SLOTS_RETURNS];
    _Alignas(FT_CACHE_LINE) struct ft_slots_desc desc[FT_SLOTS_DESCS];
    _Alignas(FT_CACHE_LINE) unsigned char shorts[FT_SLOTS_SHORTS][FT_SLOTS_SHORT_BYTES];
};

#define DATA_OFFSET ft_round_up(sizeof(struct ft_slots_segment), 4096)

/* Eight slots let four lanes have two chunks each in flight. Small chunks get more slots, about 1
 * MiB in all. */
static unsigned slots_for(size_t chunk_bytes)
{
    size_t n = ((size_t)1 << 20) / ft_max(chunk_bytes, 1);
    return (unsigned)ft_min(ft_max(n, 8), FT_SLOTS_MOST);
}

static size_t stride_of(size_t chunk_bytes)
{
    return ft_round_up(ft_max(chunk_bytes, 1), FT_CACHE_LINE);
}

size_t ft_slots_head_bytes(void)
{
    return DATA_OFFSET;
}

size_t ft_slots_bytes(size_t chunk_bytes)
{
    return ft_round_up(DATA_OFFSET + slots_for(chunk_bytes) * stride_of(chunk_bytes), 4096);
}

static void lay_out(struct ft_slots *s, void *memory, size_t chunk_bytes)
{
    memset(s, 0, sizeof *s);
    s->segment = memory;
    s->desc = s->segment->desc;
    s->returned = s->segment->returned;
    s->shorts = s->segment->shorts;
    s->data = (unsigned char *)memory + DATA_OFFSET;
    s->stride_bytes = stride_of(chunk_bytes);
    s->nslots = slots_for(chunk_bytes);
    s->free = s->nslots == 32 ? UINT32_MAX : (1u << s->nslots) - 1;
    s->devmem_free = UINT32_MAX;
    for (unsigned i = 0; i < s->nslots; i++)
        s->pages[i] = (struct ft_pages){(uint32_t)s->stride_bytes, (uint32_t)s->stride_bytes};
}

void ft_slots_sparse(struct ft_slots *s, bool shared)
{
    memset(s->pages, 0, sizeof s->pages);
    s->sparse = true;
    s->shared = shared;
}

/* Allocates at least as much again as there is, so that growing messages do not stop at every
 * page. */
int ft_slots_allocate_more(struct ft_slots *s, unsigned slot, size_t len_bytes)
{
    struct ft_pages *pages = &s->pages[slot];
    if (len_bytes > pages->present) {
        size_t want = ft_min(ft_round_up(ft_max(len_bytes, 2 * (size_t)pages->present), 4096),
                             s->stride_bytes);
        int rc = ft_populate(ft_slots_data(s, slot), want);
        if (rc)
            return rc;
        pages->present = (uint32_t)want;
    }
    pages->used = (uint32_t)ft_min(ft_round_up(len_bytes, 4096), pages->present);
    return FT_OK;
}

void ft_slots_format(struct ft_slots *s, void *memory, size_t chunk_bytes)
{
    lay_out(s, memory, chunk_bytes);
    s->segment->magic = SEGMENT_MAGIC;
    s->segment->chunk_bytes = chunk_bytes;
    s->segment->nslots = s->nslots;
}

int ft_slots_attach(struct ft_slots *s, void *memory, size_t chunk_bytes)
{
    lay_out(s, memory, chunk_bytes);
    const struct ft_slots_segment *g = s->segment;
    if (g->magic == SEGMENT_MAGIC && g->chunk_bytes == chunk_bytes && g->nslots == s->nslots)
        return FT_OK;
    return ft_fail(FT_PROTOCOL,
                   "a peer offers shared memory of another layout (chunks of %llu bytes, here %zu)",
                   (unsigned long long)g->chunk_bytes, chunk_bytes);
}

/* The waker's half of the protocol, after its store. */
static bool rings(_Atomic uint32_t *armed)
{
    if (!atomic_load_explicit(armed, memory_order_seq_cst))
        return false;
    return atomic_exchange_explicit(armed, 0, memory_order_seq_cst) != 0;
}

#ifdef __SANITIZE_THREAD__
void ft_slots_handed_over(uint32_t slot)
{
    static atomic_int all;
    if (slot > FT_SLOTS_MOST + FT_SLOTS_LOANS)
        atomic_fetch_add(&all, 1);
}
#endif

/* ---- sender ---------------------------------------------------------------------------------- */

int ft_slots_get(struct ft_slots *s)
{
    if (!s->free)
        return -1;
    /* the lowest: so few slots are in use, and they stay in the cache */
    int slot = __builtin_ctz(s->free);
    s->free &= s->free - 1;
    return slot;
}

void ft_slots_unget(struct ft_slots *s, unsigned slot)
{
    s->free |= 1u << slot;
}

int ft_slots_place(struct ft_slots *s, unsigned slot, size_t len_bytes, size_t most_bytes)
{
    if (s->at[slot] && len_bytes > most_bytes) {
        ft_pinned_free(s->pinned, s->at[slot]);
        s->at[slot] = NULL;
    }
    if (s->pinned && !s->at[slot] && len_bytes <= most_bytes)
        s->at[slot] = ft_pinned_alloc(s->pinned, most_bytes);
    return s->at[slot] ? FT_OK : ft_slots_allocate(s, slot, len_bytes);
}

int ft_slots_devmem_get(struct ft_slots *s, size_t most_bytes)
{
    if (!s->devmem_free || !ft_pinned_devmem(s->pinned))
        return -1;
    unsigned number = (unsigned)__builtin_ctz(s->devmem_free);
    if (!s->devmem[number] &&
        !(s->devmem[number] = ft_pinned_alloc(ft_pinned_devmem(s->pinned), most_bytes)))
        return -1;
    s->devmem_free &= s->devmem_free - 1;
    s->devmem_idle &= s->devmem_free;
    return (int)number;
}

int ft_slots_devmem_at(const struct ft_slots *s, const void *ptr)
{
    for (int i = 0; s->pinned && i < FT_SLOTS_DEVMEM; i++)
        if (s->devmem[i] == ptr && ptr)
            return i;
    return -1;
}

struct ft_slots_place ft_slots_devmem_place(const struct ft_slots *s, const void *ptr)
{
    return (struct ft_slots_place){.at = (uintptr_t)ptr -
                                         (uintptr_t)ft_pinned_devmem(s->pinned)->at,
                                   .memory = FT_SLOTS_ON_DEVICE};
}

static void devmem_trim(struct ft_slots *s, uint32_t which)
{
    for (; which; which &= which - 1) {
        unsigned number = (unsigned)__builtin_ctz(which);
        if (s->devmem[number])
            ft_pinned_free(ft_pinned_devmem(s->pinned), s->devmem[number]);
        s->devmem[number] = NULL;
    }
}

void ft_slots_unpin(struct ft_slots *s)
{
    if (!s->pinned)
        return;
    __atomic_store_n(&s->segment->unpinned, 1, __ATOMIC_SEQ_CST);
    /* No later store may become visible before the mark. */
    (void)__atomic_load_n(&s->segment->unpinned, __ATOMIC_SEQ_CST);
    for (unsigned i = 0; i < s->nslots; i++) {
        ft_pinned_free(s->pinned, s->at[i]);
        s->at[i] = NULL;
    }
    devmem_trim(s, UINT32_MAX);
}

/* Trims only free slots. Nobody writes into those, because only this side does. Nobody reads them,
 * because the receiver has given them back or never had them. It trims up to the slot's end,
 * because the receiver may have allocated more of the slot than this side. */
void ft_slots_trim(struct ft_slots *s)
{
    for (uint32_t free = s->sparse ? s->free : 0; free; free &= free - 1) {
        unsigned i = (unsigned)__builtin_ctz(free);
        ft_pages_trim(&s->pages[i], s->data + i * s->stride_bytes, s->stride_bytes, s->shared);
    }
    devmem_trim(s, s->devmem_idle);
    s->devmem_idle = s->devmem_free;
}

void ft_slots_publish_place(struct ft_slots *s, const struct ft_header *h, uint32_t slot,
                            const void *small)
{
    struct ft_slots_desc *d = ft_slots_describe(s, h, slot);
    struct ft_slots_place place = {.memory = FT_SLOTS_HERE};
    if (slot <= FT_SLOTS_MOST) {
        unsigned char *at = s->at[slot - 1];
        if (at)
            place = (struct ft_slots_place){.at = (uint64_t)(at - (unsigned char *)s->pinned->at),
                                            .memory = FT_SLOTS_PINNED};
        small = &place;
    }
    memcpy(d->small, small, sizeof place);
    ft_slots_hand_over(s, d);
}

void ft_slots_withdraw(struct ft_slots *s, uint32_t loans)
{
    __atomic_fetch_or(&s->segment->withdrawn, loans, __ATOMIC_SEQ_CST);
    /* No later store may become visible before the mark. */
    (void)__atomic_load_n(&s->segment->withdrawn, __ATOMIC_SEQ_CST);
}

void ft_slots_restore(struct ft_slots *s, uint32_t loans)
{
    /* The next publish releases it. */
    __atomic_fetch_and(&s->segment->withdrawn, ~loans, __ATOMIC_RELAXED);
}

bool ft_slots_starve(struct ft_slots *s)
{
    if (atomic_load_explicit(&s->segment->starving, memory_order_relaxed))
        return false;
    atomic_store_explicit(&s->segment->starving, 1, memory_order_seq_cst); /* pairs with starving */
    return rings(&s->segment->receiver_armed);
}

/* ---- receiver -------------------------------------------------------------------------------- */

bool ft_slots_take(struct ft_slots *s, struct ft_slots_desc *out)
{
    const struct ft_slots_desc *d = ft_slots_next(s);
    if (!d)
        return false;
    out->header = d->header;
    out->slot = d->slot;
    ft_slots_handed_over(out->slot);
    memcpy(out->small, d->small, sizeof out->small);
    ft_slots_pass(s);
    return true;
}

void ft_slots_give(struct ft_slots *s, const struct ft_slots_return *what)
{
    struct ft_slots_return *r = &s->returned[s->returns++ % FT_SLOTS_RETURNS];
    r->ctx = what->ctx;
    r->lane = what->lane;
    r->slot = what->slot;
    r->consumed = what->consumed;
    r->zero = 0;
    ft_slots_handed_over(what->slot);
    /* pairs with collect and pending */
    atomic_store_explicit(&r->turn, s->returns, memory_order_release);
}

const unsigned char *ft_slots_payload(const struct ft_slots *s, const struct ft_slots_desc *d,
                                      bool *pinned)
{
    struct ft_slots_place place;
    uint64_t len = d->header.len;
    memcpy(&place, d->small, sizeof place);
    *pinned = place.memory == FT_SLOTS_PINNED;
    if (!*pinned)
        return place.memory == FT_SLOTS_HERE ? s->data + (d->slot - 1) * s->stride_bytes : NULL;
    bool devmem = s->pinned && place.at <= s->pinned->len_bytes &&
                  len <= s->pinned->len_bytes - place.at;
    return devmem ? (const unsigned char *)s->pinned->at + place.at : NULL;
}

uint32_t *ft_slots_unpinned(const struct ft_slots *s)
{
    return &s->segment->unpinned;
}

uint32_t *ft_slots_withdrawn(const struct ft_slots *s)
{
    return &s->segment->withdrawn;
}

bool ft_slots_starving(const struct ft_slots *s)
{
    /* pairs with starve */
    return atomic_load_explicit(&s->segment->starving, memory_order_seq_cst) != 0;
}

void ft_slots_fed(struct ft_slots *s)
{
    atomic_store_explicit(&s->segment->starving, 0, memory_order_relaxed);
}

/* ---- sleeping -------------------------------------------------------------------------------- */

bool ft_slots_rings(struct ft_slots *s, bool sender)
{
/* ThreadSanitizer does not know fences. It does not check this protocol either, which guards no
 * data. */
#ifdef __SANITIZE_THREAD__
    static atomic_int fence;
    atomic_exchange(&fence, 0);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
    return rings(sender ? &s->segment->receiver_armed : &s->segment->sender_armed);
}

void ft_slots_arm(struct ft_slots *s, bool sender, bool on)
{
    _Atomic uint32_t *armed = sender ? &s->segment->sender_armed : &s->segment->receiver_armed;
    /* pairs with rings */
    atomic_store_explicit(armed, on, on ? memory_order_seq_cst : memory_order_relaxed);
}

bool ft_slots_pending(const struct ft_slots *s, bool sender)
{
    const struct ft_slots_segment *g = s->segment;
    if (sender) {
        return atomic_load_explicit(&g->returned[s->returns % FT_SLOTS_RETURNS].turn,
                                    memory_order_seq_cst) == s->returns + 1;
    }
    return atomic_load_explicit(&g->desc[s->descs % FT_SLOTS_DESCS].turn, memory_order_seq_cst) ==
           s->descs + 1;
}
