/*
 * slots: one direction of a link between two engines that share memory, without locks and system
 * calls. One side sends, the other receives; each has its own struct ft_slots over the same
 * segment. The segment holds four things. A ring of descriptors: each is one cache line with the
 * header and, if it is small, the payload. Memory for short payloads, which belongs to the
 * descriptors. A pool of data slots for larger payloads, which the sender manages. A ring of
 * returns, by which the receiver gives back slots and places of windows.
 *
 * Neither ring has a shared index. The sender has at most FT_SLOTS_DESCS messages that were not
 * returned, so it never overwrites a descriptor that was not taken. Each message causes at most two
 * returns, so a ring of twice as many is always large enough. Nothing read from the segment is
 * trusted: it is copied once, and the callers check the copy.
 */
#ifndef FT_SLOTS_H
#define FT_SLOTS_H

#include "transport/rxq.h"

#define FT_SLOTS_DESCS 1024
#define FT_SLOTS_RETURNS (2 * FT_SLOTS_DESCS)
#define FT_SLOTS_MOST 32 /* most slots of a pool */
/* Payloads that lie in the sender's own memory (loans). In descriptors and returns, their numbers
 * follow those of slots. */
#define FT_SLOTS_LOANS 32
/* Payloads that lie in the memory of the sender's device. Their numbers follow those of loans.
 * Enough for all windows of one context. */
#define FT_SLOTS_DEVMEM 32
/* Short payloads. Message n has the (n % FT_SLOTS_SHORTS)-th memory for one. Their number as
 * descriptors have it follows those of DEVMEM. */
#define FT_SLOTS_SHORTS 16
#define FT_SLOTS_SHORT_BYTES 512
#define FT_SLOTS_SHORT (1 + FT_SLOTS_MOST + FT_SLOTS_LOANS + FT_SLOTS_DEVMEM)

/* Where a payload lies that is not in a descriptor. With a slot: in the segment, or in pinned
 * memory. With a loan: at an offset in the arena of the sender's process, or at an address
 * elsewhere in its memory. Or at an offset in the sender's memory on its device. */
enum ft_slots_memory {
    FT_SLOTS_HERE,
    FT_SLOTS_PINNED,
    FT_SLOTS_ARENA,
    FT_SLOTS_ELSEWHERE,
    FT_SLOTS_ON_DEVICE
};
struct ft_slots_place {
    uint64_t at, memory;
};
_Static_assert(sizeof(struct ft_slots_place) <= FT_RXQ_SMALL_BYTES,
               "a place travels as a small payload does");

struct ft_slots_desc {
    struct ft_header header;
    unsigned char small[FT_RXQ_SMALL_BYTES];
    /* 0: the payload is in `small`. FT_SLOTS_SHORT: in the message's short memory. Otherwise 1 +
     * the number of its slot, and `small` says where that lies. Beyond FT_SLOTS_MOST: a loan. */
    uint32_t slot;
    /* The number of the message, from 1. publish stores with release; take loads with acquire. */
    _Atomic uint32_t turn;
};
_Static_assert(sizeof(struct ft_slots_desc) == FT_CACHE_LINE,
               "a small message costs one cache line");

struct ft_slots_return {
    uint64_t ctx;
    uint8_t lane;
    /* 0: none. Otherwise 1 + the number of the slot that is free again. Beyond FT_SLOTS_MOST: the
     * loan has ended. */
    uint8_t slot;
    uint8_t consumed; /* places that the channel's window has again */
    uint8_t zero;
    _Atomic uint32_t turn; /* give stores with release; collect loads with acquire */
};
_Static_assert(sizeof(struct ft_slots_return) == 16, "four returns share a cache line");

struct ft_slots_segment;

struct ft_slots {
    struct ft_slots_segment *segment;
    /* Parts of it: the two rings, and the memory for short payloads. */
    struct ft_slots_desc *desc;
    struct ft_slots_return *returned;
    unsigned char (*shorts)[FT_SLOTS_SHORT_BYTES];
    unsigned char *data;
    size_t stride_bytes;
    unsigned nslots;
    uint32_t descs, returns; /* entries that this side has written or read */
    uint32_t free;           /* sender: a bit per slot */
    /* sparse: pages of slots are allocated when needed. shared: another process has them, too. */
    bool sparse, shared;
    /* For each slot, what this side knows to be allocated (there), and what of that it may touch
     * without another check (used). The receiver does not learn of the sender's trims: the sender
     * allocates again before it publishes. */
    struct ft_pages pages[FT_SLOTS_MOST];
    /* The sender's pinned memory, which the receiver has mapped. NULL: none. The sender's slots may
     * lie there. */
    struct ft_pinned *pinned;
    unsigned char *at[FT_SLOTS_MOST]; /* sender: where the slot lies; NULL: in the segment */
    /* Sender: pieces of memory on the device that belongs to the pinned memory. NULL: not made yet.
     * devmem_free: those without a message. */
    unsigned char *devmem[FT_SLOTS_DEVMEM];
    uint32_t devmem_free, devmem_idle; /* devmem_idle: those that were free at the last trim */
};

/* Bytes of a segment for messages of at most chunk_bytes, and of the part before its slots. */
size_t ft_slots_bytes(size_t chunk_bytes);
size_t ft_slots_head_bytes(void);
/* Makes the sender's side in zeroed memory that is aligned to a page. */
void ft_slots_format(struct ft_slots *, void *memory, size_t chunk_bytes);
/* Makes the receiver's side of a segment that a sender has formatted. FT_PROTOCOL: it is for other
 * sizes. */
int ft_slots_attach(struct ft_slots *, void *memory, size_t chunk_bytes);
/* The pages of slots are not allocated yet, because few links carry long messages. */
void ft_slots_sparse(struct ft_slots *, bool shared);
int ft_slots_allocate_more(struct ft_slots *, unsigned slot, size_t len_bytes);
/* To be called before this side touches the first len_bytes of a slot. FT_NOSPACE. */
static inline int ft_slots_allocate(struct ft_slots *s, unsigned slot, size_t len_bytes)
{
    return len_bytes <= s->pages[slot].used ? FT_OK : ft_slots_allocate_more(s, slot, len_bytes);
}
static inline unsigned char *ft_slots_data(const struct ft_slots *s, unsigned slot)
{
    return s->at[slot] ? s->at[slot] : s->data + slot * s->stride_bytes;
}

/* Ranks of one process may map the same segment at different addresses, and have device memory at
 * the same address. Then ThreadSanitizer does not see that a turn hands this memory over; this
 * tells it. */
#ifdef __SANITIZE_THREAD__
void ft_slots_handed_over(uint32_t slot);
#else
static inline void ft_slots_handed_over(uint32_t slot)
{
    (void)slot;
}
#endif

/* ---- sender ---------------------------------------------------------------------------------- */

int ft_slots_get(struct ft_slots *); /* the number of a free slot, or -1 */
void ft_slots_unget(struct ft_slots *, unsigned slot);
/* Makes room for len_bytes in the slot: in pinned memory, if there is some for messages of up to
 * most_bytes. FT_NOSPACE. */
int ft_slots_place(struct ft_slots *, unsigned slot, size_t len_bytes, size_t most_bytes);
/* Takes a free piece of memory on the device for messages of up to most_bytes. Returns its number
 * from 0, or -1 if there is none. The other function: the number of the piece at an address, or
 * -1. */
int ft_slots_devmem_get(struct ft_slots *, size_t most_bytes);
int ft_slots_devmem_at(const struct ft_slots *, const void *ptr);
struct ft_slots_place ft_slots_devmem_place(const struct ft_slots *, const void *ptr);
static inline void ft_slots_devmem_unget(struct ft_slots *s, unsigned number)
{
    s->devmem_free |= 1u << number;
}
/* From now on, slots in pinned memory and on the device are void, because that memory will be used
 * for something else. */
void ft_slots_unpin(struct ft_slots *);
/* Gives back pages of sparse slots, and memory on the device, that no message has used since the
 * last call. */
void ft_slots_trim(struct ft_slots *);
/* Where the payload of the next message goes if its slot is FT_SLOTS_SHORT. The caller has made
 * sure that the receiver has taken the message that had this memory before. */
static inline unsigned char *ft_slots_short(const struct ft_slots *s)
{
    return s->shorts[s->descs % FT_SLOTS_SHORTS];
}
/* The parts of publishing: the header, then the payload, then the turn. */
static inline struct ft_slots_desc *ft_slots_describe(struct ft_slots *s, const struct ft_header *h,
                                                      uint32_t slot)
{
    struct ft_slots_desc *d = &s->desc[s->descs++ % FT_SLOTS_DESCS];
    d->header = *h;
    d->slot = slot;
    return d;
}
static inline void ft_slots_hand_over(const struct ft_slots *s, struct ft_slots_desc *d)
{
    ft_slots_handed_over(d->slot);
    /* pairs with take and pending */
    atomic_store_explicit(&d->turn, s->descs, memory_order_release);
}
void ft_slots_publish_place(struct ft_slots *, const struct ft_header *, uint32_t slot,
                            const void *small);
/* Publishes a message. slot 0: its payload is the first len bytes of `small`, which may be NULL if
 * len is 0. FT_SLOTS_SHORT: it is in the short memory. Otherwise the payload lies in slot - 1 or,
 * for a loan or memory on the device, where the struct ft_slots_place at `small` says. The caller
 * has made sure that fewer than FT_SLOTS_DESCS messages are unreturned, and calls ft_slots_rings()
 * afterwards. */
static inline void ft_slots_publish(struct ft_slots *s, const struct ft_header *h, uint32_t slot,
                                    const void *small)
{
    if (slot && slot != FT_SLOTS_SHORT) {
        ft_slots_publish_place(s, h, slot, small);
        return;
    }
    struct ft_slots_desc *d = ft_slots_describe(s, h, slot);
    if (!slot && small)
        ft_copy_few(d->small, small, h->len);
    ft_slots_hand_over(s, d);
}
/* Takes the next return. False: there is none. */
static inline bool ft_slots_collect(struct ft_slots *s, struct ft_slots_return *out)
{
    struct ft_slots_return *r = &s->returned[s->returns % FT_SLOTS_RETURNS];
    /* pairs with give */
    if (atomic_load_explicit(&r->turn, memory_order_acquire) != s->returns + 1)
        return false;
    out->ctx = r->ctx;
    out->lane = r->lane;
    out->slot = r->slot;
    out->consumed = r->consumed;
    ft_slots_handed_over(out->slot);
    s->returns++;
    return true;
}
/* withdraw: marks loans (a bit each) as withdrawn. The other function clears the mark, because the
 * loans will be used again. */
void ft_slots_withdraw(struct ft_slots *, uint32_t loans);
void ft_slots_restore(struct ft_slots *, uint32_t loans);
/* Tells the receiver that a slot is missing. True: the caller must wake the receiver. */
bool ft_slots_starve(struct ft_slots *);

/* ---- receiver -------------------------------------------------------------------------------- */

/* Takes the next message. False: there is none. */
bool ft_slots_take(struct ft_slots *, struct ft_slots_desc *out);
/* Where the payload of a message in a slot lies, as the sender says. NULL: it may not lie there.
 * *pinned: it is in pinned memory, and void as soon as ft_slots_unpinned() is 1. */
const unsigned char *ft_slots_payload(const struct ft_slots *, const struct ft_slots_desc *,
                                      bool *pinned);
uint32_t *ft_slots_unpinned(const struct ft_slots *);
/* Returns the short payload of the message that was taken last; ft_slots_short() returns that of
 * the next message. */
static inline const unsigned char *ft_slots_taken_short(const struct ft_slots *s)
{
    return s->shorts[(s->descs - 1) % FT_SLOTS_SHORTS];
}
/* next: the next message, in place; NULL: there is none. pass: moves past it. */
static inline const struct ft_slots_desc *ft_slots_next(const struct ft_slots *s)
{
    const struct ft_slots_desc *d = &s->desc[s->descs % FT_SLOTS_DESCS];
    /* pairs with publish */
    return atomic_load_explicit(&d->turn, memory_order_acquire) == s->descs + 1 ? d : NULL;
}
static inline void ft_slots_pass(struct ft_slots *s)
{
    s->descs++;
    __builtin_prefetch(&s->returned[s->returns % FT_SLOTS_RETURNS], 1);
}
/* Gives something back. The caller calls ft_slots_rings() afterwards. */
void ft_slots_give(struct ft_slots *, const struct ft_slots_return *);
uint32_t *ft_slots_withdrawn(const struct ft_slots *);
bool ft_slots_starving(const struct ft_slots *);
void ft_slots_fed(struct ft_slots *); /* clears what ft_slots_starve() set */

/* ---- sleeping -------------------------------------------------------------------------------- */

/* After publish or give: whether the other side sleeps and must be woken. One call serves for
 * several of them. It is cheaper a little later, when its locked instruction need not wait for the
 * cache line of the message. */
bool ft_slots_rings(struct ft_slots *, bool sender);
/* After arming, the caller must look once more for what it waits for: the other side first
 * publishes, and then looks at the flag. */
void ft_slots_arm(struct ft_slots *, bool sender, bool on);
/* Whether there is something to collect or to take. */
bool ft_slots_pending(const struct ft_slots *, bool sender);

#endif
