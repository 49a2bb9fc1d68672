/*
 * Handles of communicators and streams. Both come from slabs that live as long as the process. The
 * handle that was freed first is reused first, so a stale handle is almost always detected. A
 * pointer that is not a handle is always detected.
 */
#include "api/api.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define PER_SLAB 64
#define SLABS 1024

/* counts in `users`: a call or job that uses the communicator now */
#define INSIDE UINT64_C(1)
#define KEPT (UINT64_C(1) << 32) /* counts in `users`: a member of an open group */
/* flag in `users`: the communicator has ended, and the last user frees the handle */
#define OVER (UINT64_C(1) << 63)

struct stream_handle {
    atomic_int live, users;
    _Atomic(struct ft_stream *) stream; /* ft_stream_peek() reads it at any time */
    struct stream_handle *next_free;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ftcclComm *comm_slabs[SLABS], *free_comms, **free_comms_end = &free_comms;
static struct stream_handle *stream_slabs[SLABS], *free_streams, **free_streams_end = &free_streams;
/* stored with release after the slab is in place, loaded with acquire by lookups */
static atomic_int ncomm_slabs, nstream_slabs;

/* Inline, so that the compiler divides by a constant. */
static inline __attribute__((always_inline)) bool in_slabs(void *const *slabs, int nslabs,
                                                           size_t size, const void *handle)
{
    for (int i = 0; i < nslabs; i++) {
        uintptr_t base = (uintptr_t)slabs[i], at = (uintptr_t)handle;
        if (at >= base && at < base + PER_SLAB * size)
            return (at - base) % size == 0;
    }
    return false;
}

/* ---- communicators --------------------------------------------------------------------------- */

static void grow_comms(void)
{
    int n = atomic_load_explicit(&ncomm_slabs, memory_order_relaxed);
    struct ftcclComm *slab = n < SLABS ? calloc(PER_SLAB, sizeof *slab) : NULL;
    if (!slab)
        return;
    for (int i = 0; i < PER_SLAB; i++) {
        pthread_mutex_init(&slab[i].lock, NULL);
        *free_comms_end = &slab[i];
        free_comms_end = &slab[i].next_free;
    }
    comm_slabs[n] = slab;
    atomic_store_explicit(&ncomm_slabs, n + 1, memory_order_release);
}

ftcclComm_t ft_comm_handle_new(void)
{
    pthread_mutex_lock(&lock);
    if (!free_comms)
        grow_comms();
    struct ftcclComm *comm = free_comms;
    if (comm) {
        free_comms = comm->next_free;
        if (!free_comms)
            free_comms_end = &free_comms;
        comm->next_free = NULL;
    }
    pthread_mutex_unlock(&lock);
    if (!comm) {
        ft_fail(FT_NOMEM, "no memory for a communicator's handle");
        return NULL;
    }
    comm->core = NULL;
    comm->owner = NULL;
    comm->error = FT_OK;
    comm->cancel = comm->busy = comm->revoked = 0;
    comm->state = FT_HANDLE_INIT;
    comm->text[0] = '\0';
    comm->device = 0;
    atomic_store(&comm->live, 1);
    return comm;
}

void ft_comm_handle_free(ftcclComm_t comm)
{
    free(comm->ops);
    comm->ops = NULL;
    comm->nops = 0;
    atomic_store(&comm->live, 0);
    pthread_mutex_lock(&lock);
    *free_comms_end = comm;
    free_comms_end = &comm->next_free;
    pthread_mutex_unlock(&lock);
}

int ft_comm_enter(ftcclComm_t comm)
{
    if (!comm)
        return ft_fail(FT_INVAL, "the communicator is NULL");
    int n = atomic_load_explicit(&ncomm_slabs, memory_order_acquire);
    if (!in_slabs((void *const *)comm_slabs, n, sizeof *comm, comm))
        return ft_fail(FT_INVAL, "%p is not a communicator", (void *)comm);
    /* pairs with ft_comm_mark_dead(): either it waits for this call, or this call sees that the
     * handle is dead */
    atomic_fetch_add(&comm->users, INSIDE);
    if (atomic_load(&comm->live))
        return FT_OK;
    ft_comm_leave(comm);
    return ft_fail(FT_INVAL, "the communicator %p has been destroyed", (void *)comm);
}

static void free_if_last(ftcclComm_t comm)
{
    uint64_t last = OVER;
    if (atomic_compare_exchange_strong(&comm->users, &last, 0))
        ft_comm_handle_free(comm);
}

void ft_comm_leave(ftcclComm_t comm)
{
    if (atomic_fetch_sub_explicit(&comm->users, INSIDE, memory_order_acq_rel) == (OVER | INSIDE))
        free_if_last(comm);
}

void ft_comm_leave_to_group(ftcclComm_t comm)
{
    atomic_fetch_add(&comm->users, KEPT - INSIDE);
}

bool ft_comm_enter_from_group(ftcclComm_t comm)
{
    atomic_fetch_sub(&comm->users, KEPT - INSIDE); /* the same order as in ft_comm_enter() */
    return atomic_load(&comm->live);
}

int ft_comm_enter_ready(ftcclComm_t comm)
{
    int rc = ft_comm_enter(comm);
    if (rc != FT_OK)
        return rc;
    if (atomic_load_explicit(&comm->busy, memory_order_acquire))
        rc = ft_fail(FT_INVAL, "the communicator is used before its previous call has completed; "
                               "see ftcclCommGetAsyncError()");
    else if (atomic_load_explicit(&comm->state, memory_order_acquire) == FT_HANDLE_FINALIZED)
        rc = ft_fail(FT_USAGE, "the communicator has been finalized");
    else if (atomic_load_explicit(&comm->state, memory_order_acquire) != FT_HANDLE_READY)
        rc = ft_fail(FT_USAGE, "the communicator could not be initialised: %s", comm->text);
    if (rc != FT_OK)
        ft_comm_leave(comm);
    return rc;
}

int ft_comm_mark_dead(ftcclComm_t comm)
{
    int one = 1;
    if (atomic_compare_exchange_strong(&comm->live, &one, 0))
        return FT_OK;
    return ft_fail(FT_INVAL, "the communicator %p has been destroyed", (void *)comm);
}

/* Every call inside is bounded, so this wait is bounded too. */
void ft_comm_wait_users(ftcclComm_t comm)
{
    while (atomic_load(&comm->users) % KEPT >= INSIDE)
        sched_yield();
}

void ft_comm_handle_end(ftcclComm_t comm)
{
    atomic_fetch_or(&comm->users, OVER);
    free_if_last(comm);
}

/* ---- streams --------------------------------------------------------------------------------- */

static void grow_streams(void)
{
    int n = atomic_load_explicit(&nstream_slabs, memory_order_relaxed);
    struct stream_handle *slab = n < SLABS ? calloc(PER_SLAB, sizeof *slab) : NULL;
    if (!slab)
        return;
    for (int i = 0; i < PER_SLAB; i++) {
        *free_streams_end = &slab[i];
        free_streams_end = &slab[i].next_free;
    }
    stream_slabs[n] = slab;
    atomic_store_explicit(&nstream_slabs, n + 1, memory_order_release);
}

struct ft_stream *ft_stream_peek(ftcclStream_t handle)
{
    const struct stream_handle *h = (const struct stream_handle *)(const void *)handle;
    int n = atomic_load_explicit(&nstream_slabs, memory_order_acquire);
    if (!in_slabs((void *const *)stream_slabs, n, sizeof *h, h) ||
        !atomic_load_explicit(&h->live, memory_order_acquire))
        return NULL;
    return atomic_load_explicit(&h->stream, memory_order_relaxed);
}

int ft_stream_enter(ftcclStream_t handle, struct ft_stream **out)
{
    struct stream_handle *h = (struct stream_handle *)(void *)handle;
    int n = atomic_load_explicit(&nstream_slabs, memory_order_acquire);
    if (!in_slabs((void *const *)stream_slabs, n, sizeof *h, h))
        return ft_fail(FT_INVAL, "%p is not a stream of ftcclStreamCreate()", (void *)handle);
    /* pairs with ftcclStreamDestroy(): either it waits for this call, or this call sees that the
     * handle is dead */
    atomic_fetch_add(&h->users, 1);
    if (atomic_load(&h->live)) {
        *out = atomic_load_explicit(&h->stream, memory_order_relaxed);
        return FT_OK;
    }
    ft_stream_leave(handle);
    return ft_fail(FT_INVAL, "the stream %p has been destroyed", (void *)handle);
}

void ft_stream_leave(ftcclStream_t handle)
{
    atomic_fetch_sub_explicit(&((struct stream_handle *)(void *)handle)->users, 1,
                              memory_order_release);
}

FT_EXPORT ftcclResult_t ftcclStreamCreate(ftcclStream_t *stream)
{
    int rc = ft_enter_library();
    if (rc == FT_OK && !stream)
        rc = ft_fail(FT_INVAL, "StreamCreate: stream is NULL");
    struct ft_stream *made = rc == FT_OK ? ft_stream_new() : NULL;
    if (rc == FT_OK && !made)
        rc = ft_fail(FT_NOMEM, "no memory for a stream");
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    pthread_mutex_lock(&lock);
    if (!free_streams)
        grow_streams();
    struct stream_handle *h = free_streams;
    if (h) {
        free_streams = h->next_free;
        if (!free_streams)
            free_streams_end = &free_streams;
        h->next_free = NULL;
        atomic_store_explicit(&h->stream, made, memory_order_relaxed);
        atomic_store(&h->live, 1);
    }
    pthread_mutex_unlock(&lock);
    if (!h) {
        ft_stream_release(made);
        return ft_return(NULL, ft_fail(FT_NOMEM, "no memory for a stream's handle"));
    }
    *stream = (ftcclStream_t)(void *)h;
    return ftcclSuccess;
}

FT_EXPORT ftcclResult_t ftcclStreamDestroy(ftcclStream_t stream)
{
    ft_thread_enters(FT_THREAD_STREAM_END, __builtin_return_address(0));
    struct ft_stream *held;
    int rc = ft_enter_library();
    if (rc == FT_OK)
        rc = stream ? ft_stream_enter(stream, &held)
                    : ft_fail(FT_INVAL, "the NULL stream cannot be destroyed");
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    struct stream_handle *h = (struct stream_handle *)(void *)stream;
    bool mine = atomic_exchange(&h->live, 0);
    ft_stream_leave(stream);
    if (!mine)
        return ft_return(NULL,
                         ft_fail(FT_INVAL, "the stream %p has been destroyed", (void *)stream));
    rc = ft_stream_wait(held);
    /* the calls inside wait for the same operations, which have ended */
    while (atomic_load_explicit(&h->users, memory_order_acquire) > 0)
        sched_yield();
    /* or have enqueued one more */
    int last = ft_stream_wait(held);
    rc = rc == FT_OK ? last : rc;
    ft_stream_release(held);
    pthread_mutex_lock(&lock);
    *free_streams_end = h;
    free_streams_end = &h->next_free;
    pthread_mutex_unlock(&lock);
    return ft_return(NULL, rc);
}

FT_EXPORT ftcclResult_t ftcclStreamQuery(ftcclStream_t stream)
{
    struct ft_stream *held;
    int rc = ft_enter_library();
    if (rc == FT_OK && !stream)
        return ft_return(NULL, ft_null_streams(false, 0));
    if (rc == FT_OK)
        rc = ft_stream_enter(stream, &held);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    rc = ft_stream_query(held);
    ft_stream_leave(stream);
    return ft_return(NULL, rc);
}

static bool is_idle(ftcclStream_t stream)
{
    const struct ft_stream *seen = stream && !ft_forked() ? ft_stream_peek(stream) : NULL;
    return seen && ft_stream_is_idle(seen);
}

static ftcclResult_t wait_for_stream(ftcclStream_t stream, uint64_t end_ns)
{
    struct ft_stream *held;
    int rc = ft_enter_library();
    if (rc == FT_OK && !stream)
        return ft_return(NULL, ft_null_streams(true, end_ns));
    if (rc == FT_OK)
        rc = ft_stream_enter(stream, &held);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    rc = ft_stream_wait_until(held, end_ns);
    ft_stream_leave(stream);
    return ft_return(NULL, rc);
}

FT_EXPORT ftcclResult_t ftcclStreamSynchronize(ftcclStream_t stream)
{
    if (is_idle(stream)) /* often: a short call has ended before it returned */
        return ftcclSuccess;
    ft_thread_enters(FT_THREAD_SYNC, __builtin_return_address(0));
    return wait_for_stream(stream, UINT64_MAX);
}

FT_EXPORT ftcclResult_t ftcclStreamWait(ftcclStream_t stream, int timeoutMs)
{
    ft_thread_enters(FT_THREAD_SYNC, __builtin_return_address(0));
    if (timeoutMs >= 0 && is_idle(stream))
        return ftcclSuccess;
    if (timeoutMs < 0)
        return ft_return(NULL, ft_fail(FT_INVAL, "StreamWait: a time limit of %d ms", timeoutMs));
    return wait_for_stream(stream, ft_now_ns(ft_env_real()) + (uint64_t)timeoutMs * 1000000);
}
