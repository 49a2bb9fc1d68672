/*
 * Boards: what an engine says of the operations that it has come to, to those that have met its
 * pinned memory: are its buffers on the device, which can read messages where no processor can? A
 * sender that knows puts them there; one that does not, or is told no, sends through the host's
 * memory. So nobody ever has to give back a message that it cannot read.
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
struct ft_board {
    _Atomic uint64_t ctx;   /* 0: unused. Release by open() */
    _Atomic uint64_t ready; /* the ranks that follow are all */
    _Atomic uint64_t collectives;
    uint64_t unused;
    struct {
        _Atomic uint64_t rank, receives;
    } from[RANKS]; /* rank: 1 + it; 0: nobody */
};
/* contexts that an engine has at the same time */
#define BOARDS (FT_PINNED_BOARD_BYTES / sizeof(struct ft_board))

static struct ft_board *boards_of(const struct ft_pinned *chunk)
{
    return ft_pinned_boards(chunk);
}

static struct ft_board *find(const struct ft_pinned *chunk, uint64_t ctx)
{
    for (struct ft_board *board = boards_of(chunk), *end = board + BOARDS; board < end; board++)
        if (atomic_load_explicit(&board->ctx, memory_order_acquire) == ctx)
            return board;
    return NULL;
}

static uint64_t word_of(uint64_t seq, bool on_device)
{
    return seq << 1 | on_device;
}

struct ft_board *ft_board_open(const struct ft_pinned *own, uint64_t ctx)
{
    struct ft_board *board = ctx ? find(own, 0) : NULL;
    if (!board)
        return NULL;
    memset(board, 0, sizeof *board);
    atomic_store_explicit(&board->ctx, ctx, memory_order_release);
    return board;
}

struct ft_board *ft_board_of(const struct ft_pinned *own, uint64_t ctx)
{
    return ctx ? find(own, ctx) : NULL;
}

void ft_board_close(const struct ft_pinned *own, uint64_t ctx)
{
    struct ft_board *board = ft_board_of(own, ctx);
    if (board)
        atomic_store_explicit(&board->ctx, 0, memory_order_release);
}

void ft_board_reach(struct ft_board *board, int rank)
{
    for (int i = 0; i < RANKS; i++) {
        uint64_t there = atomic_load_explicit(&board->from[i].rank, memory_order_relaxed),
                 wanted = (uint64_t)rank + 1;
        if (there == 0)
            atomic_store_explicit(&board->from[i].rank, wanted, memory_order_release);
        if (there == 0 || there == wanted)
            return;
    }
}

void ft_board_ready(struct ft_board *board)
{
    atomic_store_explicit(&board->ready, 1, memory_order_release);
}

void ft_board_say(struct ft_board *board, uint64_t seq, bool on_device)
{
    atomic_store_explicit(&board->collectives, word_of(seq, on_device), memory_order_release);
}

void ft_board_say_receive(struct ft_board *board, int from, uint64_t seq, bool on_device)
{
    for (int i = 0; i < RANKS; i++)
        if (atomic_load_explicit(&board->from[i].rank, memory_order_relaxed) == (uint64_t)from + 1)
            atomic_store_explicit(&board->from[i].receives, word_of(seq, on_device),
                                  memory_order_release);
}

int ft_board_ask(const struct ft_pinned *other, uint64_t ctx, int self, bool receive, uint64_t seq)
{
    const struct ft_board *board = ft_board_of(other, ctx);
    int i = 0;
    if (!board)
        return FT_NOTSUP;
    if (!atomic_load_explicit(&board->ready, memory_order_acquire))
        return FT_AGAIN;
    while (i < RANKS &&
           atomic_load_explicit(&board->from[i].rank, memory_order_acquire) != (uint64_t)self + 1)
        i++;
    if (i == RANKS)
        return FT_NOTSUP;
    uint64_t word = atomic_load_explicit(receive ? &board->from[i].receives : &board->collectives,
                                         memory_order_acquire),
             said = word >> 1;
    if (said < seq)
        return FT_AGAIN;
    return (word & 1) && (!receive || said == seq) ? FT_OK : FT_NOTSUP;
}
