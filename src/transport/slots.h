/*
 * slots: one direction of a link between two engines that share memory, without locks and system
 * calls. One side sends, the other receives; each has a struct ft_slots of its own over the same
 * segment. The segment holds a ring of descriptors (one cache line: header, and the payload if it
 * is small), a pool of data slots for larger payloads, which the sender manages, and a ring of
 * returns, by which the receiver gives back slots and places of windows.
 *
 * Neither ring has a shared index. The sender has at most FT_SLOTS_DESCS messages that were not
 * returned, so a descriptor is never written before it was taken; each message causes at most two
 * returns, so twice as many always fit. Nothing read from the segment is believed: it is copied
 * once, then checked by the callers.
 */
#ifndef FT_SLOTS_H
#define FT_SLOTS_H

#include "transport/rxq.h"

#define FT_SLOTS_DESCS 1024
#define FT_SLOTS_RETURNS (2 * FT_SLOTS_DESCS)
#define FT_SLOTS_MOST 32 /* slots of a pool */
/* payloads that lie in the sender's own memory; in descriptors and returns they follow the slots */
#define FT_SLOTS_LOANS 32
/* payloads that lie in the memory of the sender's device: these numbers follow the loans. All
 * windows of a context together */
#define FT_SLOTS_DEVMEM 32

/* Where a payload lies that is not in the segment: from the beginning of the arena of the sender's
 * process or of its pinned memory, or elsewhere in its memory, at an address. With a slot, where
 * that lies: in the segment, or in pinned memory. Or from the beginning of the sender's memory on
 * its device. */
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
    /* 0: the payload is in small; else 1 + its number, `small` says where it lies; beyond
     * FT_SLOTS_MOST a loan */
    uint32_t slot;
    /* release by publish, acquire by take: the number of the message, from 1 */
    _Atomic uint32_t turn;
};
_Static_assert(sizeof(struct ft_slots_desc) == FT_CACHE_LINE,
               "a small message costs one cache line");

struct ft_slots_return {
    uint64_t ctx;
    uint8_t lane;
    /* 0: none; else 1 + its number is free again; beyond FT_SLOTS_MOST: a loan is over */
    uint8_t slot;
    uint8_t consumed; /* 1: and the channel's window has a place again */
    uint8_t zero;
    _Atomic uint32_t turn; /* release by give, acquire by collect */
};
_Static_assert(sizeof(struct ft_slots_return) == 16, "four returns share a cache line");

struct ft_slots_segment;

struct ft_slots {
    struct ft_slots_segment *segment;
    unsigned char *data;
    size_t stride_bytes;
    unsigned nslots;
    uint32_t descs, returns; /* how many of each this side has written or read */
    uint32_t free;           /* sender: a bit per slot */
    /* pages of slots come when they are needed; and they are another process's too */
    bool sparse, shared;
    /* Of each slot: what this side knows to be allocated (there), and what of that may be touched
     * without a further look (used). A receiver is not told of the sender's trims: that allocates
     * again before it publishes. */
    struct ft_pages pages[FT_SLOTS_MOST];
    /* The sender's pinned memory, which the receiver has met; NULL: none. The sender's slots may
     * lie there. */
    struct ft_pinned *pinned;
    unsigned char *at[FT_SLOTS_MOST]; /* sender: where; NULL: in the segment */
    /* Sender: pieces of memory on the device, which goes along with the pinned one; none yet: NULL.
     * And which of them no message has. */
    unsigned char *devmem[FT_SLOTS_DEVMEM];
    uint32_t devmem_free, devmem_idle; /* idle: free since the trim before */
};

/* Bytes of a segment for messages of at most chunk_bytes, and of what lies before its slots. */
size_t ft_slots_bytes(size_t chunk_bytes);
size_t ft_slots_head_bytes(void);
/* The sender's side over zeroed memory, aligned to a page. */
void ft_slots_format(struct ft_slots *, void *memory, size_t chunk_bytes);
/* The receiver's side of what a sender has formatted; FT_PROTOCOL if it is for other sizes. */
int ft_slots_attach(struct ft_slots *, void *memory, size_t chunk_bytes);
/* The slots' pages are not allocated yet: few links carry long messages. */
void ft_slots_sparse(struct ft_slots *, bool shared);
int ft_slots_allocate_more(struct ft_slots *, unsigned slot, size_t len_bytes);
/* Before this side touches the first len_bytes of a slot; FT_NOSPACE. */
static inline int ft_slots_allocate(struct ft_slots *s, unsigned slot, size_t len_bytes)
{
    return len_bytes <= s->pages[slot].used ? FT_OK : ft_slots_allocate_more(s, slot, len_bytes);
}
static inline unsigned char *ft_slots_data(const struct ft_slots *s, unsigned slot)
{
    return s->at[slot] ? s->at[slot] : s->data + slot * s->stride_bytes;
}

/* ---- sender ---------------------------------------------------------------------------------- */

int ft_slots_get(struct ft_slots *); /* a slot's number, or -1 */
void ft_slots_unget(struct ft_slots *, unsigned slot);
/* Room for len_bytes in the slot, in pinned memory if there is any for messages up to most_bytes.
 * FT_NOSPACE. */
int ft_slots_place(struct ft_slots *, unsigned slot, size_t len_bytes, size_t most_bytes);
/* A piece of memory on the device for messages up to most_bytes, that no message has: its number,
 * from 0; -1: there is none. And the number of the one at an address; -1. */
int ft_slots_devmem_get(struct ft_slots *, size_t most_bytes);
int ft_slots_devmem_at(const struct ft_slots *, const void *ptr);
struct ft_slots_place ft_slots_devmem_place(const struct ft_slots *, const void *ptr);
static inline void ft_slots_devmem_unget(struct ft_slots *s, unsigned number)
{
    s->devmem_free |= 1u << number;
}
/* Slots in pinned memory and on the device are void from now on, and that is used for something
 * else. */
void ft_slots_unpin(struct ft_slots *);
/* Gives back the pages of sparse slots, and memory on the device, that no message has taken since
 * the call before. */
void ft_slots_trim(struct ft_slots *);
/* Publishes a message whose payload lies in slot - 1, or for slot 0 is the len bytes of `small`, or
 * for a loan lies where the struct ft_slots_place at `small` says, as for memory on the device. The
 * caller has made sure that fewer than FT_SLOTS_DESCS are unreturned; ft_slots_rings() follows. */
void ft_slots_publish(struct ft_slots *, const struct ft_header *, uint32_t slot,
                      const void *small);
/* The next return, if there is one. */
bool ft_slots_collect(struct ft_slots *, struct ft_slots_return *out);
/* Loans (bits) that the sender does not stand by any more, and that it may make again. */
void ft_slots_withdraw(struct ft_slots *, uint32_t loans);
void ft_slots_restore(struct ft_slots *, uint32_t loans);
/* Says that a slot is missing. True: wake the receiver. */
bool ft_slots_starve(struct ft_slots *);

/* ---- receiver -------------------------------------------------------------------------------- */

/* the next message, if there is one */
bool ft_slots_take(struct ft_slots *, struct ft_slots_desc *out);
/* Where the payload of a message in a slot lies, by the sender's word; NULL: nowhere where it may
 * be. *pinned: it is in pinned memory, and void as soon as ft_slots_unpinned() says 1. */
const unsigned char *ft_slots_payload(const struct ft_slots *, const struct ft_slots_desc *,
                                      bool *pinned);
uint32_t *ft_slots_unpinned(const struct ft_slots *);
/* The next message where it lies, NULL if there is none; and past it. */
const struct ft_slots_desc *ft_slots_next(const struct ft_slots *);
void ft_slots_pass(struct ft_slots *);
/* Gives something back; ft_slots_rings() follows. */
void ft_slots_give(struct ft_slots *, const struct ft_slots_return *);
uint32_t *ft_slots_withdrawn(const struct ft_slots *);
bool ft_slots_starving(const struct ft_slots *);
void ft_slots_fed(struct ft_slots *); /* the sender's word was heard */

/* ---- sleeping -------------------------------------------------------------------------------- */

/* After publishing or giving: does the other side sleep, and is to be woken? It may be asked once
 * for several of them, and a little later, when a locked instruction does not wait for the line of
 * the message any more. */
bool ft_slots_rings(struct ft_slots *, bool sender);
/* After arming, look once more at what is waited for: the one who wakes publishes first and looks
 * at the flag then. */
void ft_slots_arm(struct ft_slots *, bool sender, bool on);
/* is there something to collect or to take */
bool ft_slots_pending(const struct ft_slots *, bool sender);

#endif
