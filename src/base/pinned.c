/*
 * Memory of the host that a device reads and writes where it lies. A device gives some when it is opened, and the transports of its engine
 * take the buffers of their links from it as long as there is any, so that what the device has to do with a message it does in the link's own
 * memory. Allocating makes no call of a driver's: an engine does it while kernels run. Thread-safe.
 */
#include "base/base.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#define ALIGN ((size_t)4096)
#define CHUNKS 64 /* devices that are open; later ones have none */

struct extent { struct extent *next; size_t at, len_bytes; };

struct ft_pinned {
    char *at;
    size_t len_bytes;
    struct extent *extents; /* allocated, by place */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { _Atomic(char *) at; ft_atomic_u64 len_bytes; struct ft_pinned *chunk; } chunks[CHUNKS];
static atomic_int nchunks; /* of the table that were ever used */
static atomic_int late;    /* see ft_pinned_late() */

int ft_pinned_give(void *at, size_t len_bytes, struct ft_pinned **out)
{
    struct ft_pinned *chunk = calloc(1, sizeof *chunk);
    int i = 0;
    if (!chunk) return FT_NOMEM;
    chunk->at = at;
    chunk->len_bytes = len_bytes;
    pthread_mutex_lock(&lock);
    while (i < CHUNKS && chunks[i].chunk) i++;
    if (i < CHUNKS) {
        chunks[i].chunk = chunk;
        atomic_store_explicit(&chunks[i].len_bytes, len_bytes, memory_order_relaxed);
        atomic_store_explicit(&chunks[i].at, at, memory_order_release); /* pairs with ft_pinned_has() */
        if (i >= atomic_load(&nchunks)) atomic_store(&nchunks, i + 1);
    }
    pthread_mutex_unlock(&lock);
    if (i == CHUNKS) return free(chunk), FT_NOSPACE;
    *out = chunk;
    return FT_OK;
}

void ft_pinned_take_back(struct ft_pinned *chunk)
{
    assert(!chunk->extents);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < CHUNKS; i++) {
        if (chunks[i].chunk != chunk) continue;
        atomic_store_explicit(&chunks[i].at, NULL, memory_order_relaxed);
        chunks[i].chunk = NULL;
    }
    pthread_mutex_unlock(&lock);
    free(chunk);
}

/* The first gap that is long enough. */
static bool place(struct ft_pinned *chunk, size_t len, struct extent *e)
{
    size_t at = 0;
    struct extent **link = &chunk->extents;
    for (; *link && len > (*link)->at - at; link = &(*link)->next) at = (*link)->at + (*link)->len_bytes;
    if (len > chunk->len_bytes - at) return false;
    *e = (struct extent){.next = *link, .at = at, .len_bytes = len};
    *link = e;
    return true;
}

void *ft_pinned_alloc(struct ft_pinned *chunk, size_t len_bytes)
{
    struct extent *e = chunk && atomic_load(&late) == 0 ? malloc(sizeof *e) : NULL;
    if (!e) return NULL;
    pthread_mutex_lock(&lock);
    bool placed = place(chunk, ft_round_up(len_bytes, ALIGN), e);
    pthread_mutex_unlock(&lock);
    if (placed) return chunk->at + e->at;
    free(e);
    return NULL;
}

void ft_pinned_free(struct ft_pinned *chunk, void *ptr)
{
    if (!ptr) return;
    size_t at = (size_t)((char *)ptr - chunk->at);
    pthread_mutex_lock(&lock);
    struct extent **link = &chunk->extents, *gone;
    while ((*link)->at != at) link = &(*link)->next;
    gone = *link;
    *link = gone->next;
    pthread_mutex_unlock(&lock);
    free(gone);
}

bool ft_pinned_has(const void *ptr, size_t len_bytes)
{
    for (int i = 0, n = atomic_load_explicit(&nchunks, memory_order_relaxed); i < n; i++) {
        char *from = atomic_load_explicit(&chunks[i].at, memory_order_acquire); /* pairs with ft_pinned_give() */
        size_t all = atomic_load_explicit(&chunks[i].len_bytes, memory_order_relaxed), at = (size_t)((uintptr_t)ptr - (uintptr_t)from);
        if (from && at < all && len_bytes <= all - at) return true;
    }
    return false;
}

void ft_pinned_late(int more) { atomic_fetch_add(&late, more); }
