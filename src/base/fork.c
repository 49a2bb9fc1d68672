/*
 * What a child of fork may keep: nothing. A data loader's child that held a socket open would hide its parent's death for as
 * long as it lives, so every descriptor of the library is remembered here and closed in the child. Mappings are marked
 * MADV_DONTFORK where they are made. The lock is held across fork, so that the child sees a consistent table.
 */
#include "base/base.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char *owned; /* a bit per descriptor */
static int capacity, count;
static atomic_int forked;

bool ft_forked(void) { return atomic_load_explicit(&forked, memory_order_relaxed) != 0; }

static void before(void) { pthread_mutex_lock(&lock); }
static void after_in_parent(void) { pthread_mutex_unlock(&lock); }

static void after_in_child(void)
{
    for (int fd = 0; fd < capacity; fd++)
        if (owned[fd / 8] & (1 << fd % 8)) close(fd);
    for (int i = 0; i < capacity / 8; i++) owned[i] = 0;
    count = 0;
    atomic_store_explicit(&forked, 1, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
}

static void install(void) { pthread_atfork(before, after_in_parent, after_in_child); }

void ft_fork_guard(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
}

int ft_fd_own(int fd)
{
    if (fd < 0) return fd;
    ft_fork_guard();
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    pthread_mutex_lock(&lock);
    if (fd >= capacity) {
        int want = (int)ft_round_up((size_t)fd + 1, 1024);
        unsigned char *grown = realloc(owned, (size_t)want / 8);
        if (grown) {
            for (int i = capacity / 8; i < want / 8; i++) grown[i] = 0;
            owned = grown;
            capacity = want;
        }
    }
    if (fd < capacity && !(owned[fd / 8] & (1 << fd % 8))) {
        owned[fd / 8] |= (unsigned char)(1 << fd % 8);
        count++;
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

void ft_fd_close(int *fd)
{
    int old = *fd;
    if (old < 0) return;
    *fd = -1;
    pthread_mutex_lock(&lock);
    bool mine = old < capacity && (owned[old / 8] & (1 << old % 8));
    if (mine) {
        owned[old / 8] &= (unsigned char)~(1 << old % 8);
        count--;
        close(old); /* under the lock: a fork in between would close a stranger's descriptor of the same number */
    }
    pthread_mutex_unlock(&lock);
}

int ft_fd_count(void)
{
    pthread_mutex_lock(&lock);
    int n = count;
    pthread_mutex_unlock(&lock);
    return n;
}
