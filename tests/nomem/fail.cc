/* See fail.h. */
#include "tests/nomem/fail.h"

#include <dirent.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace nomem
{

const char *const class_names[CLASSES] = {"memory",     "map",   "space",
                                          "descriptor", "watch", "thread"};

namespace
{

enum { FRAMES = 10 };
std::atomic<bool> armed{false};
std::atomic<long> count[CLASSES];
Class failing;
long failing_n;
const char *failed_name;
void *stack[FRAMES];
int frames;

/* Is this call the one that fails? */
bool fails(Class which, const char *name)
{
    if (!armed.load(std::memory_order_acquire))
        return false;
    long n = ++count[which];
    if (which != failing || n != failing_n)
        return false;
    failed_name = name;
    frames = backtrace(stack, FRAMES);
    return true;
}

} // namespace

void arm(Class which, long n)
{
    void *load[1];
    backtrace(load, 1); /* its first call takes memory */
    failing = which;
    failing_n = n;
    for (auto &c : count)
        c = 0;
    armed.store(true, std::memory_order_release);
}

void disarm()
{
    armed = false;
}

long counted(Class which)
{
    return count[which];
}

std::string failed_call()
{
    if (failed_name == nullptr)
        return "";
    std::string text = failed_name;
    char **names = backtrace_symbols(stack, frames);
    for (int i = 2; names != nullptr && i < frames; i++) {
        std::string name = names[i];
        size_t from = name.find("(+"), to = name.find(')');
        text += from != std::string::npos ? " " + name.substr(from + 2, to - from - 2) : "";
    }
    free(names);
    return text;
}

} // namespace nomem

using namespace nomem;

/* WRAP(malloc, (size_t n), (n), MEMORY, ENOMEM, nullptr): the library's malloc() */
#define WRAP(type, name, params, args, which, err, failure) \
    type __real_##name params;                              \
    type __wrap_##name params;                              \
    type __wrap_##name params                               \
    {                                                       \
        if (fails(which, #name)) {                          \
            errno = err;                                    \
            return failure;                                 \
        }                                                   \
        return __real_##name args;                          \
    }

extern "C" {
WRAP(void *, malloc, (size_t n), (n), MEMORY, ENOMEM, nullptr)
WRAP(void *, calloc, (size_t n, size_t size), (n, size), MEMORY, ENOMEM, nullptr)
WRAP(void *, realloc, (void *p, size_t n), (p, n), MEMORY, ENOMEM, nullptr)
WRAP(void *, aligned_alloc, (size_t align, size_t n), (align, n), MEMORY, ENOMEM, nullptr)
WRAP(char *, strdup, (const char *text), (text), MEMORY, ENOMEM, nullptr)
WRAP(int, getaddrinfo,
     (const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **out),
     (host, port, hints, out), MEMORY, ENOMEM, EAI_MEMORY)
WRAP(void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t from),
     (at, n, prot, flags, fd, from), MAP, ENOMEM, MAP_FAILED)
WRAP(int, fallocate, (int fd, int mode, off_t from, off_t n), (fd, mode, from, n), SPACE, ENOSPC,
     -1)
WRAP(int, posix_fallocate, (int fd, off_t from, off_t n), (fd, from, n), SPACE, ENOSPC, ENOSPC)
WRAP(int, ftruncate, (int fd, off_t n), (fd, n), SPACE, ENOSPC, -1)
WRAP(int, socket, (int family, int type, int protocol), (family, type, protocol), DESCRIPTOR,
     EMFILE, -1)
WRAP(int, accept4, (int fd, struct sockaddr *from, socklen_t *n, int flags), (fd, from, n, flags),
     DESCRIPTOR, EMFILE, -1)
WRAP(int, eventfd, (unsigned first, int flags), (first, flags), DESCRIPTOR, EMFILE, -1)
WRAP(int, timerfd_create, (int clock, int flags), (clock, flags), DESCRIPTOR, EMFILE, -1)
WRAP(int, epoll_create1, (int flags), (flags), DESCRIPTOR, EMFILE, -1)
WRAP(int, memfd_create, (const char *name, unsigned flags), (name, flags), DESCRIPTOR, EMFILE, -1)
WRAP(FILE *, fopen, (const char *path, const char *mode), (path, mode), DESCRIPTOR, EMFILE, nullptr)
WRAP(DIR *, opendir, (const char *path), (path), DESCRIPTOR, EMFILE, nullptr)
WRAP(int, getifaddrs, (struct ifaddrs * *out), (out), DESCRIPTOR, EMFILE, -1)
WRAP(int, pthread_create,
     (pthread_t * thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg),
     (thread, attr, run, arg), THREAD, EAGAIN, EAGAIN)

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    int mode = (flags & O_CREAT) ? va_arg(more, int) : 0;
    va_end(more);
    if (!fails(DESCRIPTOR, "open"))
        return __real_open(path, flags, mode);
    errno = EMFILE;
    return -1;
}

int __real_openat(int dir, const char *path, int flags, ...);
int __wrap_openat(int dir, const char *path, int flags, ...);
int __wrap_openat(int dir, const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    int mode = (flags & O_CREAT) ? va_arg(more, int) : 0;
    va_end(more);
    if (!fails(DESCRIPTOR, "openat"))
        return __real_openat(dir, path, flags, mode);
    errno = EMFILE;
    return -1;
}

/* Where descriptors have run out the message comes without those that it carries. */
ssize_t __real_recvmsg(int fd, struct msghdr *msg, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *msg, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *msg, int flags)
{
    ssize_t n = __real_recvmsg(fd, msg, flags);
    struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(msg) : nullptr;
    if (c == nullptr || c->cmsg_type != SCM_RIGHTS || !fails(DESCRIPTOR, "recvmsg"))
        return n;
    for (size_t at = CMSG_LEN(0); at < c->cmsg_len; at += sizeof(int))
        close(*reinterpret_cast<int *>(reinterpret_cast<char *>(c) + at));
    msg->msg_controllen = 0;
    msg->msg_flags |= MSG_CTRUNC;
    return n;
}

int __real_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
    if (op != EPOLL_CTL_ADD || !fails(WATCH, "epoll_ctl"))
        return __real_epoll_ctl(epoll, op, fd, event);
    errno = ENOMEM;
    return -1;
}
}
