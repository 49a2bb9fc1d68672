/*
 * Blocking input and output for the thread that joins. Every wait ends at a deadline, and reads the
 * caller's cancel flag at least every 50 ms. Sockets are non-blocking and registered with
 * ft_fd_own().
 */
#include "membership/bootstrap.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#define SLICE_NS UINT64_C(50000000)
/* A dial without an answer is begun again, from another source port: that may take another way
 * through the network. Each time it waits longer by as much. */
#define UNANSWERED_NS 200000000u

/* Nanoseconds until the next read of the flag; 0: the wait is over, with the reason in *status. */
static uint64_t slice(const struct ft_wait *w, int *status)
{
    uint64_t now_ns = ft_now_ns(w->env);
    /* pairs with the store of the thread that aborts */
    if (w->cancel && atomic_load_explicit(w->cancel, memory_order_acquire))
        *status = FT_ABORTED;
    else if (now_ns >= w->deadline_ns)
        *status = FT_TIMEOUT;
    else
        return ft_min(w->deadline_ns - now_ns, SLICE_NS);
    return 0;
}

int ft_wait_fd(const struct ft_wait *w, int fd, short events)
{
    struct pollfd p = {.fd = fd, .events = events};
    int status = FT_OK;
    for (uint64_t ns; (ns = slice(w, &status)) > 0;)
        if (poll(&p, fd >= 0, (int)((ns + 999999) / 1000000)) > 0)
            return FT_OK;
    return status;
}

int ft_wait_sleep(const struct ft_wait *w, uint64_t ns)
{
    struct ft_wait until = *w;
    until.deadline_ns = ft_now_ns(w->env) + ns;
    if (until.deadline_ns > w->deadline_ns)
        until.deadline_ns = w->deadline_ns;
    int status = ft_wait_fd(&until, -1, 0);
    return status == FT_TIMEOUT && until.deadline_ns < w->deadline_ns ? FT_OK : status;
}

int ft_wait_some(const struct ft_wait *w, int fd, void *buf, size_t capacity_bytes, size_t *got)
{
    for (;;) {
        ssize_t n = recv(fd, buf, capacity_bytes, 0);
        if (n > 0) {
            *got = (size_t)n;
            return FT_OK;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
            return FT_LINK;
        int status = ft_wait_fd(w, fd, POLLIN);
        if (status)
            return status;
    }
}

int ft_wait_read(const struct ft_wait *w, int fd, void *buf, size_t len_bytes)
{
    for (size_t done = 0, got; done < len_bytes; done += got) {
        int status = ft_wait_some(w, fd, (char *)buf + done, len_bytes - done, &got);
        if (status)
            return status;
    }
    return FT_OK;
}

int ft_wait_write(const struct ft_wait *w, int fd, const void *buf, size_t len_bytes)
{
    for (size_t done = 0; done < len_bytes;) {
        ssize_t n = send(fd, (const char *)buf + done, len_bytes - done, MSG_NOSIGNAL);
        if (n >= 0) {
            done += (size_t)n;
            continue;
        }
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            return FT_LINK;
        int status = ft_wait_fd(w, fd, POLLOUT);
        if (status)
            return status;
    }
    return FT_OK;
}

static int try_connect(const struct ft_wait *w, const struct ft_net_address *to, int *fd_out)
{
    int fd = -1;
    int status = ft_net_connect(to, NULL, &fd);
    if (!status) {
        status = ft_wait_fd(w, fd, POLLOUT);
        if (!status)
            status = ft_net_connected(fd);
        if (status)
            ft_fd_close(&fd);
    }
    *fd_out = fd;
    return status;
}

int ft_wait_connect(const struct ft_wait *w, const struct ft_net_address *to, int *fd_out)
{
    struct ft_wait one = *w;
    int status, fd = -1;
    uint64_t unanswered_ns = UNANSWERED_NS;
    do {
        one.deadline_ns = ft_min(ft_now_ns(w->env) + unanswered_ns, w->deadline_ns);
        unanswered_ns += UNANSWERED_NS;
        status = try_connect(&one, to, &fd);
    } while (status == FT_TIMEOUT && ft_now_ns(w->env) < w->deadline_ns);
    if (status == FT_OK)
        *fd_out = fd;
    if (status == FT_LINK || status == FT_NOTSUP || status == FT_SYSTEM)
        return FT_PEER;
    return status;
}
