/*
 * inproc: links between engines of one process. The slots lie in ordinary memory, in a pipe that
 * counts the two sides that use it. Engines find each other in a registry. Its mutex is locked to
 * open, connect, accept and close, but never to move a message. A side that goes away marks the
 * pipe and releases it. The other side first drains the pipe, and then goes down.
 */
#include "transport/local.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

/* The descriptor that wakes a transport. It is counted, so that a peer never writes to a number
 * that was closed and used again. */
struct bell {
    atomic_int users;
    int fd;
};

enum { SENDER, RECEIVER };

struct pipe {
    atomic_int users;
    /* 1, or the status with which the acceptor refuses. The acceptor stores with release; the
     * connector loads with acquire. */
    atomic_int accepted;
    /* 1: after a goodbye, 2: cut. The side that disconnects stores with release; the other loads
     * with acquire. [SENDER], [RECEIVER] */
    atomic_int gone[2];
    struct bell *bell[2];
    uint64_t from;                 /* engine id of the sender */
    struct ft_pinned_place pinned; /* the sender's pinned memory; 0 bytes: it has none */
    bool meets;                    /* the receiver has mapped it; written before `accepted` */
    struct pipe *next;             /* in the mailbox of the acceptor */
    void *memory;
    size_t len_bytes;
};

struct inproc_link {
    struct ft_local_link local;
    struct pipe *pipe;
};

struct inproc {
    struct ft_local local;
    uint64_t number; /* unique in the process, part of the address */
    struct bell *bell;
    struct inproc *next;  /* in the registry */
    struct pipe *mailbox; /* connections to accept; under the registry's lock */
    /* Whether the mailbox may have something. A push stores with release; poll loads with
     * acquire. */
    atomic_int mail;
};

struct address {
    uint64_t process; /* ft_process_id() */
    uint64_t number;
};

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct inproc *registry;
static uint64_t next_number = 1;

static struct inproc *inproc_of(struct ft_transport *t)
{
    return FT_CONTAINER(t, struct inproc, local.base);
}
static struct inproc_link *inproc_link(struct ft_local_link *l)
{
    return FT_CONTAINER(l, struct inproc_link, local);
}
static int my_side(const struct inproc_link *l)
{
    return l->local.base.sender ? SENDER : RECEIVER;
}

/* ---- bells and pipes ------------------------------------------------------------------------- */

static void bell_drop(struct bell *b)
{
    if (!b || atomic_fetch_sub(&b->users, 1) != 1)
        return;
    ft_fd_close(&b->fd);
    free(b);
}

static int bell_make(struct bell **out)
{
    struct bell *b = calloc(1, sizeof *b);
    if (!b)
        return ft_fail(FT_NOMEM, "no memory for a transport");
    atomic_init(&b->users, 1);
    b->fd = ft_fd_own(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (b->fd < 0) {
        int err = errno;
        free(b);
        return ft_fail(ft_status_of_errno(err), "eventfd: %s", strerror(err));
    }
    *out = b;
    return FT_OK;
}

static struct bell *bell_keep(struct bell *b)
{
    atomic_fetch_add(&b->users, 1);
    return b;
}

static void bell_ring(struct bell *b)
{
    uint64_t one = 1;
    if (b && write(b->fd, &one, sizeof one) < 0)
        return; /* the counter is full, so the descriptor is readable already */
}

static void pipe_drop(struct pipe *p)
{
    if (atomic_fetch_sub(&p->users, 1) != 1)
        return;
    bell_drop(p->bell[SENDER]);
    bell_drop(p->bell[RECEIVER]);
    munmap(p->memory, p->len_bytes);
    free(p);
}

static int pipe_make(struct inproc *t, struct pipe **out)
{
    struct pipe *p = calloc(1, sizeof *p);
    if (!p)
        return ft_fail(FT_NOMEM, "no memory for a link");
    p->len_bytes = ft_slots_bytes(t->local.set.chunk_bytes);
    p->memory = mmap(NULL, p->len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                     0);
    if (p->memory == MAP_FAILED) {
        free(p);
        return ft_fail(FT_NOMEM, "no memory for a link");
    }
    (void)madvise(p->memory, p->len_bytes, MADV_DONTFORK);
    atomic_init(&p->users, 1);
    p->bell[SENDER] = bell_keep(t->bell);
    p->from = t->local.base.config.self;
    if (t->local.base.config.pinned)
        ft_pinned_locate(t->local.base.config.pinned, &p->pinned);
    *out = p;
    return FT_OK;
}

static void ring(struct ft_local_link *l)
{
    struct inproc_link *i = inproc_link(l);
    bell_ring(i->pipe->bell[!my_side(i)]);
}

/* ---- open, close, addresses ------------------------------------------------------------------ */

static int inproc_open(const struct ft_transport_config *config, struct ft_transport **out)
{
    struct inproc *t = calloc(1, sizeof *t);
    if (!t)
        return ft_fail(FT_NOMEM, "no memory for a transport");
    int rc = bell_make(&t->bell);
    if (rc) {
        free(t);
        return rc;
    }
    ft_local_open(&t->local, &ft_transport_inproc, config);
    pthread_mutex_lock(&registry_lock);
    t->number = next_number++;
    t->next = registry;
    registry = t;
    pthread_mutex_unlock(&registry_lock);
    *out = &t->local.base;
    return FT_OK;
}

static void refuse(struct pipe *p, int status)
{
    /* pairs with poll_connecting */
    atomic_store_explicit(&p->accepted, status, memory_order_release);
    bell_ring(p->bell[SENDER]);
    pipe_drop(p);
}

static void inproc_disconnect(struct ft_link *link);

static void inproc_close(struct ft_transport *base)
{
    struct inproc *t = inproc_of(base);
    while (t->local.links)
        inproc_disconnect(&t->local.links->base);
    pthread_mutex_lock(&registry_lock);
    for (struct inproc **at = &registry; *at; at = &(*at)->next) {
        if (*at != t)
            continue;
        *at = t->next;
        break;
    }
    struct pipe *mail = t->mailbox;
    pthread_mutex_unlock(&registry_lock);
    while (mail) {
        struct pipe *p = mail;
        mail = p->next;
        refuse(p, FT_LINK);
    }
    ft_local_close(&t->local);
    bell_drop(t->bell);
    free(t);
}

static int inproc_address(struct ft_transport *base, void *buf, size_t capacity_bytes)
{
    struct address a = {.process = ft_process_id(), .number = inproc_of(base)->number};
    if (capacity_bytes < sizeof a)
        return ft_fail(FT_INVAL, "an address needs %zu bytes", sizeof a);
    memcpy(buf, &a, sizeof a);
    return (int)sizeof a;
}

static bool inproc_reaches(struct ft_transport *base, const void *address, size_t len_bytes)
{
    (void)base;
    struct address a;
    if (len_bytes != sizeof a)
        return false;
    memcpy(&a, address, sizeof a);
    return a.process == ft_process_id();
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* Puts the pipe into the mailbox of the engine `peer`. */
static int post(struct inproc *t, struct pipe *p, uint64_t peer, const struct address *a)
{
    struct inproc *to = NULL;
    int rc = FT_OK;
    pthread_mutex_lock(&registry_lock);
    for (to = registry; to && to->number != a->number; to = to->next)
        continue;
    if (!to || a->process != ft_process_id() || to->local.base.config.self != peer)
        rc = FT_LINK;
    else if (memcmp(to->local.base.config.key, t->local.base.config.key, FT_KEY_BYTES) != 0)
        rc = FT_AUTH;
    else if (to->local.set.chunk_bytes != t->local.set.chunk_bytes)
        rc = FT_PROTOCOL;
    if (rc == FT_OK) {
        p->bell[RECEIVER] = bell_keep(to->bell);
        atomic_fetch_add(&p->users, 1);
        p->next = to->mailbox;
        to->mailbox = p;
        atomic_store_explicit(&to->mail, 1, memory_order_release); /* pairs with accept_mail */
        bell_ring(to->bell);
    }
    pthread_mutex_unlock(&registry_lock);
    return rc;
}

static int inproc_connect(struct ft_transport *base, uint64_t peer, const void *address,
                          size_t len_bytes, struct ft_link **out)
{
    struct inproc *t = inproc_of(base);
    struct address a;
    if (len_bytes != sizeof a)
        return ft_fail(FT_INVAL, "this is not an address within a process");
    memcpy(&a, address, sizeof a);
    struct inproc_link *l = calloc(1, sizeof *l);
    if (!l)
        return ft_fail(FT_NOMEM, "no memory for a link");
    int rc = pipe_make(t, &l->pipe);
    if (rc) {
        free(l);
        return rc;
    }
    l->local.ring = ring;
    ft_slots_format(&l->local.slots, l->pipe->memory, t->local.set.chunk_bytes);
    if (ft_can_populate())
        ft_slots_sparse(&l->local.slots, false);
    ft_local_link_add(&t->local, &l->local, peer, true);
    rc = ft_local_link_open(&l->local);
    if (rc) {
        inproc_disconnect(&l->local.base);
        return rc;
    }
    rc = post(t, l->pipe, peer, &a);
    ft_local_link_lend(&l->local, true, ft_pull_usable());
    if (rc)
        ft_local_link_down(
            &l->local, ft_fail(rc, "no engine of this process has that address and secret"), false);
    *out = &l->local.base;
    return FT_OK;
}

static int pull(struct ft_local_link *l, uint64_t at, void *to, size_t len_bytes)
{
    (void)l;
    /* the kernel copies, because the sender may free its memory meanwhile */
    return ft_pull(getpid(), at, to, len_bytes);
}

static void accept_one(struct inproc *t, struct pipe *p)
{
    struct inproc_link *l = calloc(1, sizeof *l);
    if (!l) {
        refuse(p, FT_LINK);
        return;
    }
    l->pipe = p;
    l->local.ring = ring;
    ft_local_link_add(&t->local, &l->local, p->from, false);
    int rc = ft_slots_attach(&l->local.slots, p->memory, t->local.set.chunk_bytes);
    if (rc == FT_OK)
        rc = ft_local_link_open(&l->local);
    if (rc) {
        ft_local_link_remove(&l->local);
        free(l);
        refuse(p, FT_LINK);
        return;
    }
    ft_arena_file(&l->local.arena_bytes);
    l->local.arena = ft_arena_base();
    l->local.pull = pull;
    p->meets = ft_local_link_meet(&l->local, -1, &p->pinned);
    ft_local_link_up(&l->local);
    atomic_store_explicit(&p->accepted, 1, memory_order_release); /* pairs with poll_connecting */
    bell_ring(p->bell[SENDER]);
}

static bool accept_mail(struct inproc *t)
{
    if (!atomic_load_explicit(&t->mail, memory_order_acquire))
        return false; /* pairs with post */
    pthread_mutex_lock(&registry_lock);
    struct pipe *mail = t->mailbox;
    t->mailbox = NULL;
    atomic_store_explicit(&t->mail, 0, memory_order_relaxed);
    pthread_mutex_unlock(&registry_lock);
    while (mail) {
        struct pipe *p = mail;
        mail = p->next;
        accept_one(t, p);
    }
    return true;
}

static void inproc_disconnect(struct ft_link *link)
{
    struct inproc_link *l = FT_CONTAINER(link, struct inproc_link, local.base);
    /* pairs with poll_link */
    atomic_store_explicit(&l->pipe->gone[my_side(l)], link->cut ? 2 : 1, memory_order_release);
    bell_ring(l->pipe->bell[!my_side(l)]);
    ft_local_link_remove(&l->local); /* this marks loans in the pipe's memory */
    pipe_drop(l->pipe);
    free(l);
}

/* ---- turning --------------------------------------------------------------------------------- */

static bool poll_connecting(struct inproc_link *l)
{
    /* pairs with accept_one and refuse */
    int answer = atomic_load_explicit(&l->pipe->accepted, memory_order_acquire);
    if (!answer)
        return false;
    if (answer > 0 && l->pipe->meets)
        l->local.slots.pinned = l->local.base.transport->config.pinned;
    if (answer > 0)
        ft_local_link_up(&l->local);
    else
        ft_local_link_down(&l->local, answer, false);
    return true;
}

static bool poll_link(struct inproc_link *l)
{
    if (l->local.base.state == FT_LINK_DOWN)
        return false;
    bool any = l->local.base.state == FT_LINK_CONNECTING && poll_connecting(l);
    /* pairs with disconnect */
    int gone = atomic_load_explicit(&l->pipe->gone[!my_side(l)], memory_order_acquire);
    any |= ft_local_link_poll(&l->local);
    /* The mark came after all messages that the other side had sent. */
    if (gone)
        ft_local_link_down(&l->local, FT_LINK, gone == 1);
    return any || gone;
}

static int inproc_poll(struct ft_transport *base, struct ft_event *events, int max, bool *busy)
{
    struct inproc *t = inproc_of(base);
    bool any = accept_mail(t);
    for (struct ft_local_link *l = t->local.links; l; l = l->next)
        any |= poll_link(inproc_link(l));
    if (any)
        *busy = true;
    return t->local.announcements ? ft_local_announce(&t->local, events, max) : 0;
}

static int inproc_fd(struct ft_transport *base)
{
    return inproc_of(base)->bell->fd;
}

static bool inproc_arm(struct ft_transport *base, bool on)
{
    struct inproc *t = inproc_of(base);
    if (!on) {
        uint64_t rung;
        if (read(t->bell->fd, &rung, sizeof rung) < 0)
            rung = 0; /* nobody has rung */
    }
    /* pairs with post */
    if (on && atomic_load_explicit(&t->mail, memory_order_acquire))
        return false;
    return ft_local_arm_links(&t->local, on);
}

const struct ft_transport_ops ft_transport_inproc = {
    .name = "inproc",
    .caps = {.scope = FT_SCOPE_PROCESS, .pulls = true},
    .open = inproc_open,
    .close = inproc_close,
    .address = inproc_address,
    .reaches = inproc_reaches,
    .connect = inproc_connect,
    .disconnect = inproc_disconnect,
    .bind = ft_local_bind,
    .unbind = ft_local_unbind,
    .send = ft_local_send,
    .reserve = ft_local_reserve,
    .reserve_devmem = ft_local_reserve_devmem,
    .commit = ft_local_commit,
    .cancel = ft_local_cancel,
    .recv = ft_local_recv,
    .fetch = ft_local_fetch,
    .peek = ft_local_peek,
    .release = ft_local_release,
    .post = ft_local_post,
    .look = ft_local_look,
    .took = ft_local_took,
    .drained = ft_local_drained,
    .poll = inproc_poll,
    .fd = inproc_fd,
    .arm = inproc_arm,
    .trim = ft_local_trim,
    .wake = ft_local_wake,
};
