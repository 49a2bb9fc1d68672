/*
 * Shared memory without a name: no file is left behind after a kill. Memory is allocated up front,
 * and a child of fork does not inherit it.
 */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* older headers lack it */
#endif

/* bytes per fallocate; signals stay blocked for the milliseconds that this takes */
#define ALLOCATED_AT_ONCE ((size_t)8 << 20)

/* Many kernels free all pages again when a signal interrupts fallocate. A profiler's timer would
 * then prevent a large file from ever being allocated. So this allocates in pieces with signals
 * blocked. */
int ft_allocate(int fd, uint64_t at, size_t len_bytes)
{
    sigset_t all, before;
    int err = 0;
    sigfillset(&all);
    for (size_t done = 0, piece; done < len_bytes && err == 0; done += piece) {
        piece = ft_min(len_bytes - done, ALLOCATED_AT_ONCE);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        do
            err = posix_fallocate(fd, (off_t)(at + done), (off_t)piece);
        while (err == EINTR);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    return err;
}

int ft_memfd(const char *name, size_t len_bytes, size_t allocated_bytes, int *fd_out)
{
    int fd = ft_fd_own(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd < 0)
        return ft_fail(ft_status_of_errno(errno), "memfd_create: %s", strerror(errno));
    int err = 0;
    if (ftruncate(fd, (off_t)len_bytes) < 0)
        err = errno;
    if (err == 0)
        err = ft_allocate(fd, 0, allocated_bytes);
    if (err == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        err = errno;
    if (err == 0) {
        *fd_out = fd;
        return FT_OK;
    }
    ft_fd_close(&fd);
    int status = err == ENOMEM ? FT_NOSPACE : ft_status_of_errno(err);
    return ft_fail(status, "cannot allocate %zu bytes of shared memory: %s", len_bytes,
                   strerror(err));
}

int ft_memfd_check(int fd, size_t len_bytes, size_t allocated_bytes)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    const int needed = F_SEAL_SHRINK | F_SEAL_GROW;
    if (seals < 0 || (seals & needed) != needed || (seals & F_SEAL_WRITE) || fstat(fd, &st) < 0 ||
        st.st_size != (off_t)len_bytes) {
        return ft_fail(FT_PROTOCOL, "a peer offers something else than sealed shared memory");
    }
    int err = ft_allocate(fd, 0, allocated_bytes);
    return err ? ft_fail(FT_NOSPACE, "shared memory of a peer: %s", strerror(err)) : FT_OK;
}

bool ft_can_populate(void)
{
    uintptr_t here = (uintptr_t)__builtin_frame_address(0), page = (uintptr_t)sysconf(_SC_PAGESIZE);
    return madvise((void *)(here & ~(page - 1)), page, MADV_POPULATE_WRITE) == 0;
}

int ft_populate(void *addr, size_t len_bytes)
{
    uintptr_t from = (uintptr_t)addr, page = (uintptr_t)sysconf(_SC_PAGESIZE),
              first = from & ~(page - 1);
    int rc;
    do
        rc = madvise((void *)first, ft_round_up(from + len_bytes - first, page),
                     MADV_POPULATE_WRITE);
    while (rc < 0 && (errno == EINTR || errno == EAGAIN));
    return rc < 0 ? ft_fail(FT_NOSPACE, "cannot allocate %zu bytes of shared memory: %s", len_bytes,
                            strerror(errno))
                  : FT_OK;
}

bool ft_depopulate(void *addr, size_t len_bytes, bool shared)
{
    uintptr_t at = (uintptr_t)addr, page = (uintptr_t)sysconf(_SC_PAGESIZE),
              from = ft_round_up(at, page), to = (at + len_bytes) & ~(page - 1);
    return from >= to ||
           madvise((void *)from, to - from, shared ? MADV_REMOVE : MADV_DONTNEED) == 0;
}

void ft_pages_trim(struct ft_pages *pages, void *buffer, size_t len_bytes, bool shared)
{
    size_t used = pages->used;
    if (used < pages->present &&
        !ft_depopulate((unsigned char *)buffer + used, len_bytes - used, shared))
        return;
    *pages = (struct ft_pages){.present = (uint32_t)used};
}

int ft_map_shared(int fd, size_t len_bytes, void **addr_out)
{
    void *addr = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (addr == MAP_FAILED)
        return ft_fail(ft_status_of_errno(errno), "mmap of shared memory: %s", strerror(errno));
    madvise(addr, len_bytes, MADV_DONTFORK);
    *addr_out = addr;
    return FT_OK;
}

void ft_unmap(void *addr, size_t len_bytes)
{
    if (addr)
        munmap(addr, len_bytes);
}
