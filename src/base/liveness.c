/*
 * liveness.c: proof of death for processes of this host. A process that uses the library has one
 * page of shared memory. The page contains a robust futex, which a small thread of the library
 * holds. However the process ends, the kernel marks the futex of the dying thread before anything
 * else. Sockets and pidfds tell it only after the kernel has torn down the process's memory, which
 * takes a second for ten gigabytes. Peers map the page: they get its descriptor on a socket, or
 * find it through /proc, and read the mark. The rest of the page has the process's last words: what
 * ended its communicators, written before any other rank can see that. Readers take them as what a
 * peer said; they prove nothing.
 *
 * The library has its own list of robust futexes (set_robust_list(2)), in private memory. So the
 * page has one word of a fixed layout, whatever the C library is, and a peer that writes into the
 * page cannot mislead the kernel. The lock is held across fork; the child starts without a page.
 */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAGIC 0x4c4c494645303346u /* tells a liveness page from other shared memory */
#define STACK_BYTES 65536u
#define NAME "ftccl-life"

struct ft_liveness {
    uint64_t magic, token;
    /* the holder's thread id while in use, 0 before and after; the kernel sets FUTEX_OWNER_DIED */
    atomic_uint word;
    uint32_t zero;
    struct words {
        /* odd while it is written, 0 before */
        atomic_uint version;
        uint32_t zero;
        struct ft_cause cause;
    } words[FT_LIVENESS_CAUSES];
};
_Static_assert(offsetof(struct ft_liveness, words) == 24 && sizeof(struct ft_liveness) == 3864,
               "struct ft_liveness is shared between processes");
_Static_assert(sizeof(atomic_uint) == 4, "a futex has 32 bits");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int users, page_fd = -1;
static unsigned written; /* causes on the page so far */
static struct ft_liveness *page;
static pthread_t thread;
static sem_t held, stop;

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* ---- this process's page --------------------------------------------------------------------- */

static void wait_for(sem_t *sem)
{
    while (sem_wait(sem) != 0 && errno == EINTR) {}
}

/* The holder thread. It owns the futex until the last user closes the page. */
static void *holder(void *arg)
{
    struct ft_liveness *own = arg;
    struct robust_list entry;
    struct robust_list_head list = {.list = {.next = &entry}};
    entry.next = &list.list;
    list.futex_offset = (long)((intptr_t)&own->word - (intptr_t)&entry);
    bool robust = syscall(SYS_set_robust_list, &list, sizeof list) == 0;
    /* ft_liveness_ended() reads it */
    if (robust)
        atomic_store_explicit(&own->word, (unsigned)syscall(SYS_gettid), memory_order_release);
    sem_post(&held);
    wait_for(&stop);
    atomic_store_explicit(&own->word, 0, memory_order_release);
    if (robust)
        syscall(SYS_set_robust_list, NULL, sizeof list); /* the list is on this stack */
    return NULL;
}

static int start_holder(void)
{
    pthread_attr_t attr;
    sigset_t all, old;
    sem_init(&held, 0, 0);
    sem_init(&stop, 0, 0);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, ft_max(STACK_BYTES, (size_t)PTHREAD_STACK_MIN));
    sigfillset(&all);
    /* the user's signal handlers must not run on this thread */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int err = pthread_create(&thread, &attr, holder, page);
    /* the program has much thread-local memory, so this stack is too small */
    if (err == EINVAL)
        err = pthread_create(&thread, NULL, holder, page);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    if (err)
        return ft_fail(ft_status_of_errno(err == EAGAIN ? ENOMEM : err),
                       "cannot start a thread: %s", strerror(err));
    pthread_setname_np(thread, "ftccl-life");
    wait_for(&held);
    return FT_OK;
}

static void drop_page(void)
{
    ft_unmap(page, page_bytes());
    page = NULL;
    ft_fd_close(&page_fd);
}

static int make_page(void)
{
    void *at = NULL;
    int rc = ft_memfd(NAME, page_bytes(), page_bytes(), &page_fd);
    if (rc == FT_OK)
        rc = ft_map_shared(page_fd, page_bytes(), &at);
    page = at;
    written = 0;
    if (rc == FT_OK) {
        page->magic = MAGIC;
        ft_env_real()->random(ft_env_real(), &page->token, sizeof page->token);
        rc = start_holder();
    }
    if (rc != FT_OK)
        drop_page();
    return rc;
}

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}
static void after_in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

/* The child has not mapped the page, and fork.c closes its descriptor. */
static void after_in_child(void)
{
    users = 0;
    page = NULL;
    page_fd = -1;
    pthread_mutex_unlock(&lock);
}

/* This is registered after the handler of fork.c. So before a fork the lock of fork.c is taken
 * after this one, in the same order as elsewhere. */
static void guard(void)
{
    pthread_atfork(before_fork, after_in_parent, after_in_child);
}

int ft_liveness_open(int *fd)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    ft_fork_guard();
    pthread_once(&once, guard);
    pthread_mutex_lock(&lock);
    int rc = users > 0 ? FT_OK : make_page();
    if (rc == FT_OK) {
        users++;
        *fd = page_fd;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

void ft_liveness_close(void)
{
    pthread_mutex_lock(&lock);
    if (users > 0 && --users == 0) {
        sem_post(&stop);
        pthread_join(thread, NULL);
        sem_destroy(&held);
        sem_destroy(&stop);
        drop_page();
    }
    pthread_mutex_unlock(&lock);
}

void ft_liveness_locate(struct ft_liveness_place *out)
{
    pthread_mutex_lock(&lock);
    *out = (struct ft_liveness_place){
        .pid = (uint32_t)getpid(), .fd = (uint32_t)page_fd, .token = page ? page->token : 0};
    pthread_mutex_unlock(&lock);
}

static bool is_written(uint64_t ctx)
{
    for (unsigned i = 0; i < ft_min(written, FT_LIVENESS_CAUSES); i++)
        if (page->words[i].cause.ctx == ctx)
            return true;
    return false;
}

void ft_liveness_write(const struct ft_cause *cause)
{
    pthread_mutex_lock(&lock);
    if (page && !is_written(cause->ctx)) {
        struct words *at = &page->words[written++ % FT_LIVENESS_CAUSES];
        unsigned version = atomic_load_explicit(&at->version, memory_order_relaxed);
        /* these two pair with those of ft_liveness_read() */
        atomic_store_explicit(&at->version, version + 1, memory_order_relaxed);
        atomic_thread_fence(memory_order_release);
        at->cause = *cause;
        atomic_store_explicit(&at->version, version + 2, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- pages of other processes ---------------------------------------------------------------- */

int ft_liveness_map(int fd, struct ft_liveness **out)
{
    int rc = ft_memfd_check(fd, page_bytes(), page_bytes());
    if (rc != FT_OK)
        return rc;
    struct ft_liveness *life = mmap(NULL, page_bytes(), PROT_READ, MAP_SHARED, fd, 0);
    if (life == MAP_FAILED)
        return ft_fail(ft_status_of_errno(errno), "mmap of a liveness page: %s", strerror(errno));
    madvise(life, page_bytes(), MADV_DONTFORK);
    if (life->magic != MAGIC) {
        ft_liveness_unmap(life);
        return ft_fail(FT_PROTOCOL, "a peer's liveness page is not valid");
    }
    *out = life;
    return FT_OK;
}

/* The kernel lets a process open the descriptors of another process of the same user. Only a file
 * with the right name is opened. If the file is replaced in between, the open does not block. */
int ft_liveness_find(const struct ft_liveness_place *place, struct ft_liveness **out)
{
    static const char name[] = "/memfd:" NAME;
    char path[64], target[sizeof name];
    struct ft_liveness *life = NULL;
    snprintf(path, sizeof path, "/proc/%u/fd/%u", place->pid, place->fd);
    bool own = place->pid == (uint32_t)getpid();
    bool named = !own && readlink(path, target, sizeof target) == (ssize_t)sizeof target &&
                 memcmp(target, name, sizeof name - 1) == 0;
    int fd = ft_fd_own(named ? open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1);
    int rc = fd >= 0 ? ft_liveness_map(fd, &life) : FT_NOTSUP;
    ft_fd_close(&fd);
    if (rc == FT_OK && life->token == place->token) {
        *out = life;
        return FT_OK;
    }
    if (rc == FT_OK)
        ft_liveness_unmap(life);
    return ft_fail(FT_NOTSUP, "the liveness page of process %u cannot be seen from here",
                   place->pid);
}

bool ft_liveness_ended(const struct ft_liveness *life)
{
    /* pairs with the kernel's store in a dying thread */
    return (atomic_load_explicit(&((struct ft_liveness *)(uintptr_t)life)->word,
                                 memory_order_acquire) &
            FUTEX_OWNER_DIED) != 0;
}

bool ft_liveness_alive(const struct ft_liveness *life)
{
    unsigned word = atomic_load_explicit(&((struct ft_liveness *)(uintptr_t)life)->word,
                                         memory_order_acquire);
    return word != 0 && !(word & FUTEX_OWNER_DIED);
}

void ft_liveness_unmap(struct ft_liveness *life)
{
    ft_unmap(life, page_bytes());
}

/* A process that ends while it writes leaves an odd version. */
bool ft_liveness_read(const struct ft_liveness *life, uint64_t ctx, struct ft_cause *out)
{
    for (unsigned i = 0; i < FT_LIVENESS_CAUSES; i++) {
        struct words *at = &((struct ft_liveness *)(uintptr_t)life)->words[i];
        unsigned version = atomic_load_explicit(&at->version, memory_order_acquire);
        if (version == 0 || version % 2 != 0)
            continue;
        *out = at->cause;
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&at->version, memory_order_relaxed) != version || out->ctx != ctx)
            continue;
        ft_text_clean(out->text, sizeof out->text);
        return true;
    }
    return false;
}
