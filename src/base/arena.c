/*
 * The arena: one shared file without a name. ftcclMemAlloc() takes all memory of FT_ARENA_LEAST
 * bytes or more from it, so other processes of this host can read that memory in place. The file is
 * as long as the machine's memory, but it has pages only where memory is allocated. Its length is
 * sealed. Other processes get a descriptor that cannot write. Freed memory loses its pages at once,
 * also in other processes' mappings. A reader of a place without pages finds zeros, and the kernel
 * creates a page for it. So a hostile member of the job that lends memory it never allocated costs
 * the machine memory, and the reader gets SIGBUS if none is left. Other members lend only allocated
 * memory.
 *
 * Without an arena (FTCCL_LEND=0, an old kernel, no /proc, limits on address space or file sizes)
 * messages are copied instead. A program that locks all its memory would allocate all pages of
 * every arena that it maps, its own and those of others: it needs FTCCL_LEND=0. Thread-safe.
 */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define ARENA_MOST ((size_t)1 << 40)

struct extent {
    struct extent *next;
    size_t at, len_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct extent *extents; /* allocated extents, ordered by address */
static char *base;             /* written once, inside pthread_once; NULL: there is no arena */
static size_t arena_bytes;
static int file = -1, reader = -1;

static bool unlimited(int what)
{
    struct rlimit limit;
    return getrlimit(what, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY;
}

static bool make_file(size_t len)
{
    char path[64];
    file = ft_fd_own(memfd_create("ftccl-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (file < 0 || ftruncate(file, (off_t)len) < 0)
        return false;
    if (fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return false;
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    reader = ft_fd_own(open(path, O_RDONLY | O_CLOEXEC));
    return reader >= 0;
}

static void make(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (!ft_param_int(FT_PARAM_LEND) || pages <= 0 || page <= 0 || !unlimited(RLIMIT_AS) ||
        !unlimited(RLIMIT_FSIZE))
        return;
    size_t len = ft_round_up(ft_min((size_t)pages * (size_t)page, ARENA_MOST), HUGE_PAGE);
    void *at = MAP_FAILED;
    if (make_file(len))
        at = mmap(NULL, len + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                  0);
    if (at != MAP_FAILED) { /* align to a huge page */
        char *aligned = (char *)ft_round_up((uintptr_t)at, HUGE_PAGE);
        size_t before = (size_t)(aligned - (char *)at);
        if (before)
            munmap(at, before);
        munmap(aligned + len, HUGE_PAGE - before);
        at = mmap(aligned, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
                  file, 0);
        if (at == MAP_FAILED)
            munmap(aligned, len);
    }
    if (at == MAP_FAILED || madvise(at, len, MADV_DONTFORK) < 0) {
        ft_fd_close(&file);
        ft_fd_close(&reader);
        return;
    }
    madvise(at, len, MADV_HUGEPAGE);
    /* core dumps contain only allocated extents: see ft_arena_alloc() */
    madvise(at, len, MADV_DONTDUMP);
    arena_bytes = len;
    base = at;
}

/* A child of fork has no arena: it inherits nothing of the library. */
static bool ready(void)
{
    pthread_once(&once, make);
    return base && !ft_forked();
}

int ft_arena_file(size_t *len_bytes)
{
    *len_bytes = ready() ? arena_bytes : 0;
    return *len_bytes ? reader : -1;
}

const void *ft_arena_base(void)
{
    return ready() ? base : NULL;
}

bool ft_arena_has(const void *ptr, size_t len_bytes, uint64_t *offset)
{
    if (!base)
        return false;
    size_t at = (size_t)((uintptr_t)ptr - (uintptr_t)base);
    if (at >= arena_bytes || len_bytes > arena_bytes - at)
        return false;
    *offset = at;
    return true;
}

/* First fit: the first gap that is long enough. Extents of HUGE_PAGE or more are aligned to
 * HUGE_PAGE. */
static int place(size_t len, struct extent *e)
{
    size_t align = len >= HUGE_PAGE ? HUGE_PAGE : (size_t)sysconf(_SC_PAGESIZE), at = 0;
    struct extent **link = &extents;
    for (; *link && (at > (*link)->at || len > (*link)->at - at); link = &(*link)->next)
        at = ft_round_up((*link)->at + (*link)->len_bytes, align);
    if (at > arena_bytes || len > arena_bytes - at)
        return FT_NOMEM;
    e->at = at;
    e->len_bytes = len;
    e->next = *link;
    *link = e;
    return FT_OK;
}

static void take_out(const struct extent *e)
{
    struct extent **link = &extents;
    while (*link != e)
        link = &(*link)->next;
    *link = e->next;
}

/* The pages are allocated before anybody reads or writes them, so a lack of memory raises no
 * signal, and no page fault follows later. */
int ft_arena_alloc(size_t len_bytes, void **out)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (len_bytes < FT_ARENA_LEAST || len_bytes > ARENA_MOST || !ready())
        return FT_NOTSUP;
    size_t len = ft_round_up(len_bytes, len_bytes >= HUGE_PAGE ? HUGE_PAGE : page);
    struct extent *e = malloc(sizeof *e);
    if (!e)
        return FT_NOMEM;
    pthread_mutex_lock(&lock);
    int rc = place(len, e);
    pthread_mutex_unlock(&lock);
    int err = rc == FT_OK ? ft_allocate(file, e->at, len) : 0;
    if (rc == FT_OK && err == 0) {
        madvise(base + e->at, len, MADV_DODUMP);
        *out = base + e->at;
        return FT_OK;
    }
    if (rc == FT_OK) { /* the failed call may have allocated some pages */
        madvise(base + e->at, len, MADV_REMOVE);
        pthread_mutex_lock(&lock);
        take_out(e);
        pthread_mutex_unlock(&lock);
    }
    free(e);
    return FT_NOMEM;
}

bool ft_arena_free(void *ptr)
{
    uint64_t at;
    if (!ft_arena_has(ptr, 0, &at))
        return false;
    pthread_mutex_lock(&lock);
    struct extent *e = extents;
    while (e && e->at != at)
        e = e->next;
    if (e) {
        /* locked pages would stay, with their content */
        munlock(base + at, e->len_bytes);
        /* before the extent can be allocated again */
        madvise(base + at, e->len_bytes, MADV_REMOVE);
        madvise(base + at, e->len_bytes, MADV_DONTDUMP);
        take_out(e);
    }
    pthread_mutex_unlock(&lock);
    free(e);
    return true;
}

int ft_arena_map(int fd, size_t len_bytes, const void **out)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    const int needed = F_SEAL_SHRINK | F_SEAL_GROW;
    if (seals < 0 || (seals & needed) != needed || fstat(fd, &st) < 0 || len_bytes == 0 ||
        len_bytes > ARENA_MOST || len_bytes % (size_t)sysconf(_SC_PAGESIZE) ||
        st.st_size != (off_t)len_bytes)
        return ft_fail(FT_PROTOCOL,
                       "a peer offers something else than sealed shared memory to read");
    void *at = mmap(NULL, len_bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (at == MAP_FAILED)
        return ft_fail(ft_status_of_errno(errno), "mmap of a peer's memory: %s", strerror(errno));
    if (madvise(at, len_bytes, MADV_DONTFORK) < 0) {
        munmap(at, len_bytes);
        return ft_fail(FT_SYSTEM, "madvise of a peer's memory: %s", strerror(errno));
    }
    madvise(at, len_bytes, MADV_DONTDUMP);
    *out = at;
    return FT_OK;
}
