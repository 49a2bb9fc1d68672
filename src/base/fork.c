/*
 * A child of fork keeps nothing of the library. A data loader's child that held a socket open would
 * hide its parent's death as long as the child lives. So every descriptor of the library is
 * registered here and closed in the child. Mappings are marked MADV_DONTFORK where they are made.
 * The lock is held across fork, so that the child sees a consistent table.
 */
#include "base/base.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

/* Descriptors up to Linux's usual limit are registered. A larger one stays open in a child that
 * does not exec. The table is static: if it had to be allocated, a descriptor that could not be
 * registered could not be closed in a child either. */
#define REMEMBERED (1 << 20)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char owned[REMEMBERED / 8]; /* one bit per descriptor */
static int top, count;                      /* all registered descriptors are below top */
enum use { UNUSED, USED, FORKED };
/* relaxed: a child sees everything that its parent had done before the fork */
static atomic_int use;
static uint64_t process_id; /* 0: not chosen yet */
static pid_t process_pid;   /* the process for which process_id was chosen */

bool ft_forked(void)
{
    return atomic_load_explicit(&use, memory_order_relaxed) == FORKED;
}

static bool is_owned(int fd)
{
    return owned[fd / 8] & (1 << fd % 8);
}

static void before(void)
{
    pthread_mutex_lock(&lock);
}
static void after_in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void after_in_child(void)
{
    for (int fd = 0; fd < top; fd++)
        if (is_owned(fd))
            close(fd);
    for (int i = 0; i < top; i += 8)
        owned[i / 8] = 0;
    top = count = 0;
    process_id = 0; /* a child in its own pid namespace may have its parent's pid */
    if (atomic_load_explicit(&use, memory_order_relaxed) == USED)
        atomic_store_explicit(&use, FORKED, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
}

/* Runs when the library is loaded. To do it in the first call would be too late for a fork that
 * another thread has begun. */
__attribute__((constructor)) static void install(void)
{
    pthread_atfork(before, after_in_parent, after_in_child);
}

void ft_fork_guard(void)
{
    int unused = UNUSED;
    if (atomic_load_explicit(&use, memory_order_relaxed) == UNUSED)
        atomic_compare_exchange_strong(&use, &unused, USED);
}

uint64_t ft_process_id(void)
{
    pthread_mutex_lock(&lock);
    /* in a child whose atfork handlers did not run, as after _Fork(3) */
    if (process_pid != getpid())
        process_id = 0;
    process_pid = getpid();
    while (process_id == 0)
        ft_env_real()->random(ft_env_real(), &process_id, sizeof process_id);
    uint64_t id = process_id;
    pthread_mutex_unlock(&lock);
    return id;
}

int ft_fd_own(int fd)
{
    if (fd < 0)
        return fd;
    ft_fork_guard();
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    pthread_mutex_lock(&lock);
    if (fd < REMEMBERED && !is_owned(fd)) {
        owned[fd / 8] |= (unsigned char)(1 << fd % 8);
        if (fd >= top)
            top = fd + 1;
        count++;
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

void ft_fd_close(int *fd)
{
    int old = *fd;
    if (old < 0)
        return;
    *fd = -1;
    pthread_mutex_lock(&lock);
    bool remembered = old < REMEMBERED && is_owned(old);
    if (remembered) {
        owned[old / 8] &= (unsigned char)~(1 << old % 8);
        count--;
    }
    /* under the lock: otherwise a child of a concurrent fork would close an unrelated descriptor of
     * the same number */
    if (remembered || (old >= REMEMBERED && !ft_forked()))
        close(old);
    pthread_mutex_unlock(&lock);
}

int ft_fd_count(void)
{
    pthread_mutex_lock(&lock);
    int n = count;
    pthread_mutex_unlock(&lock);
    return n;
}
