/*
 * Readiness tables: what an engine says of the operations that it has come to, to those that have
 * met its pinned memory: are its buffers on the device, which can read messages where no processor
 * can? A sender that knows puts them there; one that does not, or is told no, sends through the
 * host's memory. So nobody ever has to give back a message that it cannot read.
 *
 * Each word has one writer, the engine that owns the memory, and stands for itself: no other data
 * depends on it. A reader believes nothing: what it reads decides where its message lies, never
 * whether the receiver checks it.
 */
#include "base/base.h"

#include <string.h>

/* of others on the machine that a context has; messages of more go through the host's memory */
#define RANKS 30

/* A word is a number, and above bit 0, which says whether the device has the buffers. */
struct ft_readiness {
    _Atomic uint64_t ctx;   /* 0: unused. Release by open() */
    _Atomic uint64_t ready; /* the ranks that follow are all */
    _Atomic uint64_t collectives;
    uint64_t unused;
    struct {
        _Atomic uint64_t rank, receives;
    } from[RANKS]; /* rank: 1 + it; 0: nobody */
};
/* contexts that an engine has at the same time */
#define READINESS (FT_PINNED_READINESS_BYTES / sizeof(struct ft_readiness))

static struct ft_readiness *readiness_area_of(const struct ft_pinned *chunk)
{
    return ft_pinned_readiness_area(chunk);
}

static struct ft_readiness *find(const struct ft_pinned *chunk, uint64_t ctx)
{
    for (struct ft_readiness *readiness = readiness_area_of(chunk), *end = readiness + READINESS;
         readiness < end; readiness++)
        if (atomic_load_explicit(&readiness->ctx, memory_order_acquire) == ctx)
            return readiness;
    return NULL;
}

static uint64_t word_of(uint64_t seq, bool on_device)
{
    return seq << 1 | on_device;
}

struct ft_readiness *ft_readiness_open(const struct ft_pinned *own, uint64_t ctx)
{
    struct ft_readiness *readiness = ctx ? find(own, 0) : NULL;
    if (!readiness)
        return NULL;
    memset(readiness, 0, sizeof *readiness);
    atomic_store_explicit(&readiness->ctx, ctx, memory_order_release);
    return readiness;
}

struct ft_readiness *ft_readiness_of(const struct ft_pinned *own, uint64_t ctx)
{
    return ctx ? find(own, ctx) : NULL;
}

void ft_readiness_close(const struct ft_pinned *own, uint64_t ctx)
{
    struct ft_readiness *readiness = ft_readiness_of(own, ctx);
    if (readiness)
        atomic_store_explicit(&readiness->ctx, 0, memory_order_release);
}

void ft_readiness_reach(struct ft_readiness *readiness, int rank)
{
    for (int i = 0; i < RANKS; i++) {
        uint64_t there = atomic_load_explicit(&readiness->from[i].rank, memory_order_relaxed),
                 wanted = (uint64_t)rank + 1;
        if (there == 0)
            atomic_store_explicit(&readiness->from[i].rank, wanted, memory_order_release);
        if (there == 0 || there == wanted)
            return;
    }
}

void ft_readiness_ready(struct ft_readiness *readiness)
{
    atomic_store_explicit(&readiness->ready, 1, memory_order_release);
}

void ft_readiness_say(struct ft_readiness *readiness, uint64_t seq, bool on_device)
{
    atomic_store_explicit(&readiness->collectives, word_of(seq, on_device), memory_order_release);
}

void ft_readiness_say_receive(struct ft_readiness *readiness, int from, uint64_t seq,
                              bool on_device)
{
    for (int i = 0; i < RANKS; i++)
        if (atomic_load_explicit(&readiness->from[i].rank, memory_order_relaxed) ==
            (uint64_t)from + 1)
            atomic_store_explicit(&readiness->from[i].receives, word_of(seq, on_device),
                                  memory_order_release);
}

int ft_readiness_ask(const struct ft_pinned *other, uint64_t ctx, int self, bool receive,
                     uint64_t seq)
{
    const struct ft_readiness *readiness = ft_readiness_of(other, ctx);
    int i = 0;
    if (!readiness)
        return FT_NOTSUP;
    if (!atomic_load_explicit(&readiness->ready, memory_order_acquire))
        return FT_AGAIN;
    while (i < RANKS && atomic_load_explicit(&readiness->from[i].rank, memory_order_acquire) !=
                            (uint64_t)self + 1)
        i++;
    if (i == RANKS)
        return FT_NOTSUP;
    uint64_t word = atomic_load_explicit(receive ? &readiness->from[i].receives
                                                 : &readiness->collectives,
                                         memory_order_acquire),
             said = word >> 1;
    if (said < seq)
        return FT_AGAIN;
    return (word & 1) && (!receive || said == seq) ? FT_OK : FT_NOTSUP;
}
