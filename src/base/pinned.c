/*
 * Pinned memory: host memory that a device can read and write in place. A device provides a chunk
 * when it is opened. The transports of its engine allocate the buffers of their links from it while
 * there is room, so the device can work on a message in the link's own buffer. Allocation never
 * calls the driver, because an engine allocates while kernels run. Thread-safe.
 *
 * A chunk is a file without a name. Other engines of this host that have a GPU map ("meet") it and
 * register it with their device, so that they read messages where the owner has put them. They do
 * not write into it, except for one word, which says that they have opened the owner's device
 * memory. A met chunk stays mapped until nobody keeps it and the device has unregistered it.
 */
#include "base/base.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGN ((size_t)4096)
#define HEAD ((size_t)FT_PINNED_PAGE_BYTES)
/* Chunks of open devices and the chunks that they have met. When the table is full, further devices
 * get no chunk, and further chunks are not met. */
#define CHUNKS 512
#define NAME "ftccl-pinned"
/* largest met chunk: the largest value of FTCCL_CUDA_PINNED_BYTES */
#define MET_MOST ((size_t)1 << 30)

struct ft_extent {
    struct ft_extent *next;
    size_t at, len_bytes;
};
/* The head of the file. The token tells the reader whether this is the chunk that the owner
 * announced. */
struct head {
    uint64_t token;
    struct ft_pinned_offered offer;
};
_Static_assert(sizeof(struct head) <= FT_PINNED_PAGE_BYTES - FT_PINNED_READINESS_BYTES,
               "readiness tables are behind it");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    _Atomic(char *) at;
    ft_atomic_u64 len_bytes;
    atomic_bool on_device;
    struct ft_pinned *chunk;
} chunks[CHUNKS];
static atomic_int nchunks; /* entries of the table that were ever used */
static atomic_int late;    /* see ft_pinned_add_late_passes() */

static struct head *head_of(const struct ft_pinned *chunk)
{
    return (struct head *)(void *)((char *)chunk->at - HEAD);
}

static int map(struct ft_pinned *chunk, int fd)
{
    void *at;
    int rc = ft_map_shared(fd, HEAD + chunk->len_bytes, &at);
    if (rc == FT_OK)
        chunk->at = (char *)at + HEAD;
    return rc;
}

int ft_pinned_make(size_t len_bytes, struct ft_pinned **out)
{
    struct ft_pinned *own = calloc(1, sizeof *own);
    if (!own)
        return ft_fail(FT_NOMEM, "no memory for pinned memory");
    own->len_bytes = ft_round_up(len_bytes, ALIGN);
    own->fd = -1;
    int rc = ft_memfd(NAME, HEAD + own->len_bytes, HEAD + own->len_bytes, &own->fd);
    if (rc == FT_OK)
        rc = map(own, own->fd);
    if (rc != FT_OK) {
        ft_pinned_close(own);
        return rc;
    }
    ft_env_real()->random(ft_env_real(), &own->token, sizeof own->token);
    head_of(own)->token = own->token;
    *out = own;
    return FT_OK;
}

int ft_pinned_show(struct ft_pinned *chunk)
{
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < CHUNKS && chunks[i].chunk)
        i++;
    if (i < CHUNKS) {
        chunks[i].chunk = chunk;
        atomic_store_explicit(&chunks[i].len_bytes, chunk->len_bytes, memory_order_relaxed);
        atomic_store_explicit(&chunks[i].on_device, chunk->on_device, memory_order_relaxed);
        /* pairs with ft_pinned_has() */
        atomic_store_explicit(&chunks[i].at, chunk->at, memory_order_release);
        if (i >= atomic_load(&nchunks))
            atomic_store(&nchunks, i + 1);
    }
    pthread_mutex_unlock(&lock);
    chunk->shown = i < CHUNKS;
    return chunk->shown ? FT_OK : ft_fail(FT_NOSPACE, "too many devices have pinned memory");
}

void ft_pinned_hide(struct ft_pinned *chunk)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < CHUNKS && chunk->shown; i++) {
        if (chunks[i].chunk != chunk)
            continue;
        atomic_store_explicit(&chunks[i].at, NULL, memory_order_relaxed);
        chunks[i].chunk = NULL;
    }
    chunk->shown = false;
    pthread_mutex_unlock(&lock);
}

void ft_pinned_close(struct ft_pinned *chunk)
{
    assert(!chunk->extents && !chunk->shown && !chunk->met && !chunk->devmem);
    if (chunk->at && !chunk->on_device)
        ft_unmap(head_of(chunk), HEAD + chunk->len_bytes);
    ft_fd_close(&chunk->fd);
    free(chunk);
}

/* ---- chunks of other engines ----------------------------------------------------------------- */

void ft_pinned_locate(const struct ft_pinned *own, struct ft_pinned_place *out)
{
    *out = (struct ft_pinned_place){.pid = (uint32_t)getpid(),
                                    .fd = (uint32_t)own->fd,
                                    .len_bytes = own->len_bytes,
                                    .token = own->token};
}

/* As for liveness pages: only a file with the right name is opened, and the open does not block if
 * it is replaced in between. */
static int open_place(const struct ft_pinned_place *place)
{
    static const char name[] = "/memfd:" NAME;
    char path[64], target[sizeof name];
    snprintf(path, sizeof path, "/proc/%u/fd/%u", place->pid, place->fd);
    bool named = readlink(path, target, sizeof target) == (ssize_t)sizeof target &&
                 memcmp(target, name, sizeof name - 1) == 0;
    return ft_fd_own(named ? open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1);
}

static int map_other(struct ft_pinned *own, int fd, const struct ft_pinned_place *place,
                     struct ft_pinned **out)
{
    size_t all = HEAD + place->len_bytes;
    if (place->len_bytes % ALIGN != 0 || place->len_bytes > MET_MOST)
        return ft_fail(FT_PROTOCOL, "a peer offers something else than pinned memory");
    struct ft_pinned *other = calloc(1, sizeof *other);
    if (!other)
        return ft_fail(FT_NOMEM, "no memory for a peer's pinned memory");
    *other = (struct ft_pinned){.fd = -1, .len_bytes = place->len_bytes, .token = place->token};
    int rc = ft_memfd_check(fd, all, all);
    if (rc == FT_OK)
        rc = map(other, fd);
    if (rc == FT_OK && head_of(other)->token != place->token)
        rc = ft_fail(FT_NOTSUP, "the pinned memory of process %u is another one's", place->pid);
    if (rc != FT_OK) {
        ft_pinned_close(other);
        return rc;
    }
    other->next = own->met;
    own->met = other;
    *out = other;
    return FT_OK;
}

int ft_pinned_map(struct ft_pinned *own, int fd, const struct ft_pinned_place *place,
                  struct ft_pinned **out)
{
    struct ft_pinned *found;
    int rc = FT_OK;
    pthread_mutex_lock(&lock);
    for (found = own->met; found && found->token != place->token; found = found->next) {}
    int opened = found || fd >= 0 ? -1 : open_place(place);
    if (!found && fd < 0 && opened < 0)
        rc = ft_fail(FT_NOTSUP, "the pinned memory of process %u cannot be seen from here",
                     place->pid);
    if (!found && rc == FT_OK)
        rc = map_other(own, fd >= 0 ? fd : opened, place, &found);
    if (rc == FT_OK)
        found->keepers++, *out = found;
    pthread_mutex_unlock(&lock);
    ft_fd_close(&opened);
    return rc;
}

void ft_pinned_release(struct ft_pinned *other)
{
    if (!other)
        return;
    pthread_mutex_lock(&lock);
    other->keepers--;
    pthread_mutex_unlock(&lock);
}

struct ft_pinned *ft_pinned_unshown(struct ft_pinned *own)
{
    pthread_mutex_lock(&lock);
    struct ft_pinned *other = own->met;
    while (other && (other->shown || other->refused))
        other = other->next;
    pthread_mutex_unlock(&lock);
    return other;
}

struct ft_pinned *ft_pinned_take_unkept(struct ft_pinned *own, bool all)
{
    struct ft_pinned **at = &own->met, *other;
    pthread_mutex_lock(&lock);
    while (*at && !all && (*at)->keepers > 0)
        at = &(*at)->next;
    other = *at;
    if (other)
        *at = other->next;
    pthread_mutex_unlock(&lock);
    return other;
}

/* ---- device memory --------------------------------------------------------------------------- */

struct ft_pinned *ft_pinned_of_devmem(void *at, size_t len_bytes)
{
    struct ft_pinned *devmem = calloc(1, sizeof *devmem);
    if (!devmem)
        return ft_fail(FT_NOMEM, "no memory for a device's"), NULL;
    devmem->at = at;
    devmem->len_bytes = len_bytes;
    devmem->fd = -1;
    devmem->on_device = true;
    return devmem;
}

void ft_pinned_set_devmem(struct ft_pinned *pinned, struct ft_pinned *devmem)
{
    __atomic_store_n(&pinned->devmem, devmem, __ATOMIC_RELEASE);
}

void ft_pinned_offer(struct ft_pinned *own, struct ft_pinned *devmem, const void *handle)
{
    struct ft_pinned_offered *offer = &head_of(own)->offer;
    if (handle)
        memcpy(offer->handle, handle, sizeof offer->handle);
    offer->has_handle = handle != NULL;
    offer->len_bytes = devmem->len_bytes; /* safe: nobody has mapped the chunk yet */
    ft_pinned_set_devmem(own, devmem);
}

void ft_pinned_read_offer(const struct ft_pinned *met, struct ft_pinned_offered *out)
{
    const struct ft_pinned_offered *offer = &head_of(met)->offer;
    out->len_bytes = offer->len_bytes;
    out->has_handle = offer->has_handle;
    memcpy(out->handle, offer->handle, sizeof out->handle);
    /* the peer may change the offer, so check the copy */
    atomic_signal_fence(memory_order_seq_cst);
    if (out->len_bytes % ALIGN != 0 || out->len_bytes > 2 * MET_MOST)
        out->len_bytes = 0;
}

void ft_pinned_mark_opened(const struct ft_pinned *met)
{
    __atomic_store_n(&head_of(met)->offer.opened, 1, __ATOMIC_SEQ_CST);
}
bool ft_pinned_was_opened(const struct ft_pinned *own)
{
    return __atomic_load_n(&head_of(own)->offer.opened, __ATOMIC_SEQ_CST) != 0;
}

void *ft_pinned_readiness_area(const struct ft_pinned *chunk)
{
    return (char *)chunk->at - FT_PINNED_READINESS_BYTES;
}

/* ---- allocation ------------------------------------------------------------------------------ */

/* First fit: places the extent in the first gap that is long enough. */
static bool place(struct ft_pinned *chunk, size_t len, struct ft_extent *e)
{
    size_t at = 0;
    struct ft_extent **link = &chunk->extents;
    for (; *link && len > (*link)->at - at; link = &(*link)->next)
        at = (*link)->at + (*link)->len_bytes;
    if (len > chunk->len_bytes - at)
        return false;
    *e = (struct ft_extent){.next = *link, .at = at, .len_bytes = len};
    *link = e;
    return true;
}

void *ft_pinned_alloc(struct ft_pinned *chunk, size_t len_bytes)
{
    struct ft_extent *e = chunk && atomic_load(&late) == 0 ? malloc(sizeof *e) : NULL;
    if (!e)
        return NULL;
    pthread_mutex_lock(&lock);
    bool placed = place(chunk, ft_round_up(len_bytes, ALIGN), e);
    pthread_mutex_unlock(&lock);
    if (placed)
        return (char *)chunk->at + e->at;
    free(e);
    return NULL;
}

void ft_pinned_free(struct ft_pinned *chunk, void *ptr)
{
    if (!ptr)
        return;
    size_t at = (size_t)((char *)ptr - (char *)chunk->at);
    pthread_mutex_lock(&lock);
    struct ft_extent **link = &chunk->extents, *gone;
    while ((*link)->at != at)
        link = &(*link)->next;
    gone = *link;
    *link = gone->next;
    pthread_mutex_unlock(&lock);
    free(gone);
}

enum ft_pinned_kind ft_pinned_has(const void *ptr, size_t len_bytes)
{
    for (int i = 0, n = atomic_load_explicit(&nchunks, memory_order_relaxed); i < n; i++) {
        /* pairs with ft_pinned_show() */
        char *from = atomic_load_explicit(&chunks[i].at, memory_order_acquire);
        size_t all = atomic_load_explicit(&chunks[i].len_bytes, memory_order_relaxed),
               at = (size_t)((uintptr_t)ptr - (uintptr_t)from);
        if (!from || at >= all || len_bytes > all - at)
            continue;
        return atomic_load_explicit(&chunks[i].on_device, memory_order_relaxed) ? FT_PINNED_DEVICE
                                                                                : FT_PINNED_HOST;
    }
    return FT_PINNED_NONE;
}

void ft_pinned_add_late_passes(int more)
{
    atomic_fetch_add(&late, more);
}
