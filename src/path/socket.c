/* One probe: a TCP connection that is started with a small TTL and never used. */
#include "path/probe.h"

#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#ifndef IPV6_AUTOFLOWLABEL
#define IPV6_AUTOFLOWLABEL 70
#endif

static enum ft_path_answer read_queue(int fd, const struct ft_net_address *to,
                                      unsigned char by[16]);
static void set_options(int fd, int family, int ttl);
static int bind_to(int fd, const struct ft_net_address *from, int family, uint16_t port);
static bool has_route(const struct ft_net_address *to);
static int connect_to(int fd, const struct ft_net_address *to);

int ft_path_probe_start(const struct ft_net_address *from, const struct ft_net_address *to,
                        uint16_t port, int ttl, int *fd_out)
{
    int fd = socket(to->family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return ft_fail(ft_status_of_errno(errno), "cannot open a socket for a probe: %s",
                       strerror(errno));
    ft_fd_own(fd);
    set_options(fd, to->family, ttl);
    int status = bind_to(fd, from, to->family, port);
    if (status == FT_OK)
        status = connect_to(fd, to);
    if (status != FT_OK)
        ft_fd_close(&fd);
    else
        *fd_out = fd;
    return status;
}

enum ft_path_answer ft_path_poll(int fd, const struct ft_net_address *to, unsigned char by[16])
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int err = 0;
    socklen_t len = sizeof(err);

    enum ft_path_answer answer = read_queue(fd, to, by);
    if (answer != FT_PATH_NOTHING || poll(&p, 1, 0) <= 0)
        return answer;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0)
        return FT_PATH_UNCLEAR;
    if (err == ECONNREFUSED || err == ECONNRESET || (err == 0 && (p.revents & POLLERR) == 0))
        return FT_PATH_HOST;
    /* it may have come since the queue was read */
    answer = read_queue(fd, to, by);
    return answer != FT_PATH_NOTHING ? answer : FT_PATH_UNCLEAR;
}

static enum ft_path_answer read_queue(int fd, const struct ft_net_address *to, unsigned char by[16])
{
    /* One probe is answered once. More come if packets are duplicated. */
    for (int n = 0; n < 4; n++) {
        _Alignas(struct cmsghdr) unsigned char control[FT_PATH_CONTROL_BYTES];
        unsigned char packet[256];
        struct sockaddr_in6 name;
        struct iovec part = {packet, sizeof(packet)};
        struct msghdr msg = {.msg_name = &name,
                             .msg_namelen = sizeof(name),
                             .msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};
        if (recvmsg(fd, &msg, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
            break;
        const enum ft_path_answer answer = ft_path_read_answer(&msg, to, by);
        if (answer != FT_PATH_NOTHING)
            return answer;
    }
    return FT_PATH_NOTHING;
}

/* What fails here shows in the answers: nothing depends on a single option but the TTL, which every
 * kernel has. */
static void set_options(int fd, int family, int ttl)
{
    const int on = 1, off = 0;
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};

    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (family == AF_INET6) {
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, &off, sizeof(off));
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_RECVERR, &on, sizeof(on));
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, &ttl, sizeof(ttl));
    } else {
        (void)setsockopt(fd, IPPROTO_IP, IP_RECVERR, &on, sizeof(on));
        (void)setsockopt(fd, IPPROTO_IP, IP_TTL, &ttl, sizeof(ttl));
    }
}

static int bind_to(int fd, const struct ft_net_address *from, int family, uint16_t port)
{
    struct ft_net_address at = {0};
    struct sockaddr_in6 sa;
    char text[FT_NET_TEXT_BYTES];

    if (from->family != 0)
        at = *from;
    at.family = family;
    at.port = port;
    if (bind(fd, (struct sockaddr *)&sa, ft_net_to_sockaddr(&at, (struct sockaddr *)&sa)) == 0)
        return FT_OK;
    if (errno == EADDRINUSE || errno == EACCES)
        return FT_AGAIN;
    return ft_fail(errno == EADDRNOTAVAIL ? FT_INVAL : FT_SYSTEM, "cannot probe from %s: %s",
                   ft_net_text(&at, text), strerror(errno));
}

/* Sends nothing: only the route is looked up. Keeps errno. */
static bool has_route(const struct ft_net_address *to)
{
    struct sockaddr_in6 sa;
    const socklen_t len = ft_net_to_sockaddr(to, (struct sockaddr *)&sa);
    const int err = errno;
    int fd = ft_fd_own(socket(to->family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const bool has = fd < 0 || connect(fd, (struct sockaddr *)&sa, len) == 0;

    ft_fd_close(&fd);
    errno = err;
    return has;
}

static int connect_to(int fd, const struct ft_net_address *to)
{
    struct sockaddr_in6 sa;
    char text[FT_NET_TEXT_BYTES];
    const socklen_t len = ft_net_to_sockaddr(to, (struct sockaddr *)&sa);
    int rc;

    do
        rc = connect(fd, (struct sockaddr *)&sa, len);
    while (rc != 0 && errno == EINTR);
    /* Refused already: ft_path_poll() finds the host's answer. */
    if (rc == 0 || errno == EINPROGRESS || errno == ECONNREFUSED)
        return FT_OK;
    /* A connection has the same addresses and ports, or IPv6 has no address to send from. */
    if ((errno == EADDRNOTAVAIL || errno == EADDRINUSE) && has_route(to))
        return FT_AGAIN;
    if (errno == EADDRNOTAVAIL || errno == ENETUNREACH || errno == EHOSTUNREACH ||
        errno == EACCES || errno == EPERM || errno == EINVAL)
        return ft_fail(FT_LINK, "this machine has no route to %s: %s", ft_net_text(to, text),
                       strerror(errno));
    return ft_fail(ft_status_of_errno(errno), "cannot probe %s: %s", ft_net_text(to, text),
                   strerror(errno));
}
