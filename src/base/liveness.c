/*
 * liveness.c: proof of death for the other processes of this host. A process that uses the library
 * has one page of shared memory with a robust futex in it, held by a small thread of ours. However
 * the process ends, the kernel marks the futex of the dying thread first of all; sockets and pidfds
 * tell only after the process's memory has been torn down, which takes a second for ten gigabytes.
 * Peers map the page, handed over on a socket or found through /proc, and look at the mark; nothing
 * else in it is believed.
 *
 * The list of robust futexes is our own (set_robust_list(2)) and lies in private memory, so that
 * the page has one word of a fixed layout, whatever the C library, and a peer that writes into it
 * cannot mislead the kernel. The lock is held across fork; the child starts without a page.
 */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAGIC 0x4c4c494645303246u /* tells a liveness page from other shared memory */
#define STACK_BYTES 65536u
#define NAME "ftccl-life"

struct ft_liveness {
    uint64_t magic, token;
    /* thread id while in use, 0 before and after, FUTEX_OWNER_DIED set by the kernel */
    atomic_uint word;
};
_Static_assert(sizeof(struct ft_liveness) == 24, "struct ft_life is shared between processes");
_Static_assert(sizeof(atomic_uint) == 4, "a futex has 32 bits");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int users, page_fd = -1;
static struct ft_liveness *page;
static pthread_t thread;
static sem_t held, leave;

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* ---- the own page ---------------------------------------------------------------------------- */

static void wait_for(sem_t *sem)
{
    while (sem_wait(sem) != 0 && errno == EINTR) {}
}

/* Holds the futex from the first post to the last. */
static void *holder(void *arg)
{
    struct ft_liveness *own = arg;
    struct robust_list entry;
    struct robust_list_head list = {.list = {.next = &entry}};
    entry.next = &list.list;
    list.futex_offset = (long)((intptr_t)&own->word - (intptr_t)&entry);
    bool robust = syscall(SYS_set_robust_list, &list, sizeof list) == 0;
    /* for ft_liveness_ended() */
    if (robust)
        atomic_store_explicit(&own->word, (unsigned)syscall(SYS_gettid), memory_order_release);
    sem_post(&held);
    wait_for(&leave);
    atomic_store_explicit(&own->word, 0, memory_order_release);
    if (robust)
        syscall(SYS_set_robust_list, NULL, sizeof list); /* it lies on this stack */
    return NULL;
}

static int start_holder(void)
{
    pthread_attr_t attr;
    sigset_t all, old;
    sem_init(&held, 0, 0);
    sem_init(&leave, 0, 0);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, ft_max(STACK_BYTES, (size_t)PTHREAD_STACK_MIN));
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* the user's signals are the user's */
    int err = pthread_create(&thread, &attr, holder, page);
    /* much thread-local memory: such a stack is too small */
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

/* The page is not mapped here and its descriptor is closed, see fork.c. */
static void after_in_child(void)
{
    users = 0;
    page = NULL;
    page_fd = -1;
    pthread_mutex_unlock(&lock);
}

/* Later than that of fork.c: then its lock is taken after ours before a fork too. */
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
        sem_post(&leave);
        pthread_join(thread, NULL);
        sem_destroy(&held);
        sem_destroy(&leave);
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

/* ---- pages of others ------------------------------------------------------------------------- */

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
        return ft_fail(FT_PROTOCOL, "a peer's life page is something else");
    }
    *out = life;
    return FT_OK;
}

/* What the kernel lets a process of the same user see of another one's descriptors. Only what has
 * the right name is opened, and should it change in between, the open does not wait. */
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
    return ft_fail(FT_NOTSUP, "the life page of process %u cannot be seen from here", place->pid);
}

bool ft_liveness_ended(const struct ft_liveness *life)
{
    /* pairs with the kernel's store in a dying thread */
    return (atomic_load_explicit(&((struct ft_liveness *)(uintptr_t)life)->word,
                                 memory_order_acquire) &
            FUTEX_OWNER_DIED) != 0;
}

bool ft_liveness_held(const struct ft_liveness *life)
{
    unsigned word = atomic_load_explicit(&((struct ft_liveness *)(uintptr_t)life)->word,
                                         memory_order_acquire);
    return word != 0 && !(word & FUTEX_OWNER_DIED);
}

void ft_liveness_unmap(struct ft_liveness *life)
{
    ft_unmap(life, page_bytes());
}
