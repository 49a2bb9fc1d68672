/*
 * Readiness tables. An engine with a GPU tells the engines that have mapped its pinned memory which
 * operations it has reached, and whether their buffers are on the device. A device can read
 * messages that lie where no CPU can read them. A sender that knows that the receiver's buffers are
 * on the device puts its messages into device memory. A sender that does not know, or that reads a
 * no, sends through host memory. So a receiver never gets a message that it cannot read.
 *
 * Each word has one writer, the engine that owns the memory, and is complete by itself: no other
 * data depends on it. A reader does not trust what it reads. The word only decides where the reader
 * puts its message; the receiver checks every message anyway.
 */
#include "base/base.h"

#include <string.h>

/* Entries for peers of this machine in one context. Messages of further peers go through host
 * memory. */
#define RANKS 30

/* A word holds a sequence number above bit 0. Bit 0 says whether the buffers are on the device. */
struct ft_readiness {
    _Atomic uint64_t ctx;   /* 0: unused; stored with release by ft_readiness_open() */
    _Atomic uint64_t ready; /* 1: the list of ranks below is complete */
    _Atomic uint64_t collectives;
    uint64_t unused;
    struct {
        _Atomic uint64_t rank, receives;
    } from[RANKS]; /* rank: 1 + the rank; 0: unused entry */
};
/* number of tables: contexts that an engine can have at the same time */
#define READINESS (FT_PINNED_READINESS_BYTES / sizeof(struct ft_readiness))

static struct ft_readiness *readiness_area_of(const struct ft_pinned *chunk)
{
    return ft_pinned_readiness_area(chunk);
}

static struct ft_readiness *find_table(const struct ft_pinned *chunk, uint64_t ctx)
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
    struct ft_readiness *readiness = ctx ? find_table(own, 0) : NULL;
    if (!readiness)
        return NULL;
    memset(readiness, 0, sizeof *readiness);
    atomic_store_explicit(&readiness->ctx, ctx, memory_order_release);
    return readiness;
}

struct ft_readiness *ft_readiness_find(const struct ft_pinned *own, uint64_t ctx)
{
    return ctx ? find_table(own, ctx) : NULL;
}

void ft_readiness_close(const struct ft_pinned *own, uint64_t ctx)
{
    struct ft_readiness *readiness = ft_readiness_find(own, ctx);
    if (readiness)
        atomic_store_explicit(&readiness->ctx, 0, memory_order_release);
}

void ft_readiness_add_rank(struct ft_readiness *readiness, int rank)
{
    for (int i = 0; i < RANKS; i++) {
        uint64_t present = atomic_load_explicit(&readiness->from[i].rank, memory_order_relaxed),
                 wanted = (uint64_t)rank + 1;
        if (present == 0)
            atomic_store_explicit(&readiness->from[i].rank, wanted, memory_order_release);
        if (present == 0 || present == wanted)
            return;
    }
}

void ft_readiness_set_complete(struct ft_readiness *readiness)
{
    atomic_store_explicit(&readiness->ready, 1, memory_order_release);
}

void ft_readiness_publish(struct ft_readiness *readiness, uint64_t seq, bool on_device)
{
    atomic_store_explicit(&readiness->collectives, word_of(seq, on_device), memory_order_release);
}

void ft_readiness_publish_receive(struct ft_readiness *readiness, int from, uint64_t seq,
                                  bool on_device)
{
    for (int i = 0; i < RANKS; i++)
        if (atomic_load_explicit(&readiness->from[i].rank, memory_order_relaxed) ==
            (uint64_t)from + 1)
            atomic_store_explicit(&readiness->from[i].receives, word_of(seq, on_device),
                                  memory_order_release);
}

int ft_readiness_query(const struct ft_pinned *other, uint64_t ctx, int self, bool receive,
                       uint64_t seq)
{
    const struct ft_readiness *readiness = ft_readiness_find(other, ctx);
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
