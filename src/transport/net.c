/*
 * Network interfaces, and the few socket calls that the bootstrap and the tcp transport share.
 * There is no state; any thread may call these functions. Every socket is non-blocking,
 * close-on-exec, and owned (closed in a child of fork). It raises no SIGPIPE if it is written with
 * MSG_NOSIGNAL.
 */
#include "transport/transport.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef IPV6_AUTOFLOWLABEL
#define IPV6_AUTOFLOWLABEL 70
#endif

#define BACKLOG 4096

union any_address {
    struct sockaddr sa;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

static int list_interfaces(struct ft_net_address **out);
static int allowed_rank(const struct ft_net_address *a, const char *order);
static int rank_of(const struct ft_net_address *a, const char *order, int only);
static bool link_local(const struct ft_net_address *a);
static int fail_without(const struct ft_net_address *have, int count, const char *order,
                        const char *family);
static int open_socket(int family, int *fd_out);
static int bind_source(int fd, int family);
static int bind_port(int fd, const struct ft_net_address *from);
static uint32_t own_scope(uint32_t given);

int ft_net_addresses(struct ft_net_address *out, int capacity)
{
    struct ft_net_address *have = NULL;
    int n = list_interfaces(&have);
    if (n >= 0)
        n = ft_net_choose(have, n, ft_param_str(FT_PARAM_SOCKET_IFNAME),
                          ft_param_str(FT_PARAM_SOCKET_FAMILY), out, capacity);
    free(have);
    return n;
}

int ft_net_choose(const struct ft_net_address *have, int count, const char *order,
                  const char *family, struct ft_net_address *out, int capacity)
{
    int only = 0, found = 0, worst = 0;

    if (strcmp(family, "AF_INET") == 0)
        only = AF_INET;
    else if (strcmp(family, "AF_INET6") == 0)
        only = AF_INET6;
    else if (family[0] != '\0')
        return ft_fail(FT_INVAL, "FTCCL_SOCKET_FAMILY is '%s'; it can be AF_INET or AF_INET6",
                       family);

    /* Ranks are small numbers. One pass for each keeps the machine's order among equal ones. */
    for (int i = 0; i < count; i++) {
        const int rank = rank_of(&have[i], order, only);
        if (rank > worst)
            worst = rank;
    }
    for (int rank = 0; rank <= worst && found < capacity; rank++)
        for (int i = 0; i < count && found < capacity; i++)
            if (rank_of(&have[i], order, only) == rank)
                out[found++] = have[i];
    return found > 0 ? found : fail_without(have, count, order, family);
}

/* shared: other sockets of this user may listen at the same address, if they allow it, too. */
static int listen_at(struct ft_net_address *where, bool shared, int *fd_out)
{
    union any_address sa;
    int fd = -1, on = 1;

    int status = open_socket(where->family, &fd);
    if (status != FT_OK)
        return status;
    socklen_t len = ft_net_to_sockaddr(where, &sa.sa);
    if (where->family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
    if (where->port != 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (shared)
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
    if (bind(fd, &sa.sa, len) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, &sa.sa, &len) != 0) {
        char text[FT_NET_TEXT_BYTES];
        status = ft_fail(ft_status_of_errno(errno), "cannot listen on %s: %s",
                         ft_net_text(where, text), strerror(errno));
        ft_fd_close(&fd);
        return status;
    }
    /* Its connections inherit this: who listens here next need not wait until they are over. It
     * comes after the choice of a free port, which is to be nobody else's. */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    ft_net_from_sockaddr(&sa.sa, where);
    *fd_out = fd;
    return FT_OK;
}

int ft_net_listen(struct ft_net_address *addresses, int count, int family, uint16_t port,
                  int *fd_out)
{
    struct ft_net_address where = {.family = family};
    int matching = 0;

    for (int i = 0; i < count; i++)
        if (addresses[i].family == family && matching++ == 0)
            where = addresses[i];
    if (matching == 0)
        return ft_fail(FT_NOTSUP, "no network interface has an address of that family");
    /* If there are several addresses, it listens on all. */
    if (matching > 1)
        where = (struct ft_net_address){.family = family};
    where.port = port;

    int status = listen_at(&where, false, fd_out);
    for (int i = 0; i < count && status == FT_OK; i++)
        if (addresses[i].family == family)
            addresses[i].port = where.port;
    return status;
}

int ft_net_listen_alone(const struct ft_net_address *at, int *fd_out)
{
    struct ft_net_address where = *at;
    const int on = 1;
    int status = listen_at(&where, false, fd_out);
    if (status == FT_OK)
        (void)setsockopt(*fd_out, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
    return status;
}

int ft_net_listen_too(const struct ft_net_address *at, int *fd_out)
{
    struct ft_net_address where = *at;
    return listen_at(&where, true, fd_out);
}

int ft_net_accept(int listener, int *fd_out)
{
    const int on = 1;
    for (int tries = 0; tries < 64; tries++) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
            *fd_out = ft_fd_own(fd);
            return FT_OK;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return FT_AGAIN;
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            return ft_fail(FT_NOFILE, "cannot take a connection: %s", strerror(errno));
        if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK)
            return ft_fail(FT_SYSTEM, "cannot take a connection: %s", strerror(errno));
    }
    return FT_AGAIN;
}

/* With a port in `from`, errno says whether it is that which is taken. */
static int connect_to(int fd, const struct ft_net_address *to, const struct ft_net_address *from)
{
    union any_address sa;
    char text[FT_NET_TEXT_BYTES];
    const socklen_t len = ft_net_to_sockaddr(to, &sa.sa);
    int rc;
    do
        rc = connect(fd, &sa.sa, len);
    while (rc != 0 && errno == EINTR);
    if (rc == 0 || errno == EINPROGRESS)
        return FT_OK;
    if (from != NULL && (errno == EADDRNOTAVAIL || errno == EADDRINUSE))
        return FT_AGAIN;
    return ft_fail(ft_status_of_errno(errno), "cannot connect to %s: %s", ft_net_text(to, text),
                   strerror(errno));
}

/* from NULL: from where the user or the kernel chooses. */
static int dial(const struct ft_net_address *to, const struct ft_net_address *from,
                const char *congestion, int *fd_out)
{
    struct ft_net_address target = *to;
    const int on = 1;
    int fd = -1;

    if (link_local(&target))
        target.scope = own_scope(target.scope);
    int status = open_socket(target.family, &fd);
    if (status != FT_OK)
        return status;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (congestion != NULL)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion,
                         (socklen_t)strlen(congestion));
    status = from != NULL ? bind_port(fd, from) : bind_source(fd, target.family);
    if (status == FT_OK)
        status = connect_to(fd, &target, from);
    if (status != FT_OK) {
        const int err = errno;
        ft_fd_close(&fd);
        errno = err;
        return status;
    }
    *fd_out = fd;
    return FT_OK;
}

int ft_net_connect(const struct ft_net_address *to, const char *congestion, int *fd_out)
{
    return dial(to, NULL, congestion, fd_out);
}

int ft_net_connect_from(const struct ft_net_address *to, const struct ft_net_address *from,
                        uint16_t source_port, const char *congestion, int *fd_out)
{
    struct ft_net_address source = *from;
    if (source.family != to->family || source_port == 0)
        return ft_fail(FT_INVAL, "a connection cannot start from an address of another family, or "
                                 "from port 0");
    source.port = source_port;
    return dial(to, &source, congestion, fd_out);
}

int ft_net_connected(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    union any_address sa;
    socklen_t len = sizeof(int), sa_len = sizeof(sa);
    int err = 0;

    if (poll(&p, 1, 0) == 0)
        return FT_AGAIN;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0)
        err = errno;
    if (err == 0 && getpeername(fd, &sa.sa, &sa_len) == 0)
        return FT_OK;
    errno = err != 0 ? err : ENOTCONN;
    return ft_fail(FT_LINK, "cannot connect: %s", strerror(errno));
}

static int end_of(int fd, bool peer, struct ft_net_address *out)
{
    union any_address sa;
    socklen_t len = sizeof(sa);
    int rc = peer ? getpeername(fd, &sa.sa, &len) : getsockname(fd, &sa.sa, &len);
    if (rc == 0 && ft_net_from_sockaddr(&sa.sa, out))
        return FT_OK;
    *out = (struct ft_net_address){0};
    return FT_NOTSUP;
}

int ft_net_peer(int fd, struct ft_net_address *out)
{
    return end_of(fd, true, out);
}

int ft_net_source(int fd, struct ft_net_address *out)
{
    return end_of(fd, false, out);
}

int ft_net_resolve(const char *text, struct ft_net_address *out, int capacity)
{
    char host[256];
    const char *colon = strrchr(text, ':');
    size_t len = colon != NULL ? (size_t)(colon - text) : 0;
    struct addrinfo *list = NULL, hints = {.ai_socktype = SOCK_STREAM};
    char *end = NULL;
    long port = colon != NULL ? strtol(colon + 1, &end, 10) : 0;
    int n = 0;

    if (colon == NULL || len == 0 || len >= sizeof(host) || end == colon + 1 || *end != '\0' ||
        port < 1 || port > 65535)
        return ft_fail(FT_INVAL, "'%s' is not an address: it should be host:port", text);
    const bool bracketed = text[0] == '[' && text[len - 1] == ']';
    memcpy(host, text + (bracketed ? 1 : 0), len - (bracketed ? 2 : 0));
    host[len - (bracketed ? 2 : 0)] = '\0';
    int rc = getaddrinfo(host, colon + 1, &hints, &list);
    if (rc != 0)
        return ft_fail(FT_INVAL, "cannot find '%s': %s", host, gai_strerror(rc));
    for (struct addrinfo *i = list; i != NULL && n < capacity; i = i->ai_next)
        if (ft_net_from_sockaddr(i->ai_addr, &out[n]))
            n++;
    freeaddrinfo(list);
    return n > 0 ? n : ft_fail(FT_INVAL, "'%s' has neither an IPv4 nor an IPv6 address", host);
}

/* Family (4 or 6), loopback, port and scope in little-endian order, then the address. */
void ft_net_pack(const struct ft_net_address *a, unsigned char wire[FT_NET_WIRE_BYTES])
{
    memset(wire, 0, FT_NET_WIRE_BYTES);
    wire[0] = a->family == AF_INET6 ? 6 : 4;
    wire[1] = a->loopback;
    wire[2] = (unsigned char)a->port;
    wire[3] = (unsigned char)(a->port >> 8);
    for (int i = 0; i < 4; i++)
        wire[4 + i] = (unsigned char)(a->scope >> (8 * i));
    memcpy(wire + 8, a->ip, a->family == AF_INET6 ? 16 : 4);
}

int ft_net_unpack(const unsigned char wire[FT_NET_WIRE_BYTES], struct ft_net_address *out)
{
    struct ft_net_address a = {
        .family = wire[0] == 6 ? AF_INET6 : AF_INET, .loopback = wire[1] != 0, .up = true};
    a.port = (uint16_t)(wire[2] | wire[3] << 8);
    if ((wire[0] != 4 && wire[0] != 6) || a.port == 0)
        return ft_fail(FT_PROTOCOL, "a peer's network address makes no sense");
    for (int i = 0; i < 4; i++)
        a.scope |= (uint32_t)wire[4 + i] << (8 * i);
    memcpy(a.ip, wire + 8, wire[0] == 6 ? 16 : 4);
    *out = a;
    return FT_OK;
}

const char *ft_net_text(const struct ft_net_address *a, char buf[FT_NET_TEXT_BYTES])
{
    char ip[INET6_ADDRSTRLEN] = "?";
    inet_ntop(a->family, a->ip, ip, sizeof(ip));
    if (a->family == AF_INET6 && a->scope != 0)
        snprintf(buf, FT_NET_TEXT_BYTES, "[%s%%%u]:%u", ip, a->scope, a->port);
    else if (a->family == AF_INET6)
        snprintf(buf, FT_NET_TEXT_BYTES, "[%s]:%u", ip, a->port);
    else
        snprintf(buf, FT_NET_TEXT_BYTES, "%s:%u", ip, a->port);
    return buf;
}

/* All interfaces. The caller frees *out. */
static int list_interfaces(struct ft_net_address **out)
{
    struct ifaddrs *list;
    size_t most = 1;
    int n = 0;

    if (getifaddrs(&list) != 0)
        return ft_fail(ft_status_of_errno(errno), "cannot list the network interfaces: %s",
                       strerror(errno));
    for (struct ifaddrs *i = list; i != NULL; i = i->ifa_next)
        most++;
    struct ft_net_address *have = calloc(most, sizeof(*have));
    for (struct ifaddrs *i = list; i != NULL && have != NULL; i = i->ifa_next) {
        if (i->ifa_addr == NULL || !ft_net_from_sockaddr(i->ifa_addr, &have[n]))
            continue;
        have[n].up = (i->ifa_flags & IFF_UP) != 0;
        have[n].loopback = (i->ifa_flags & IFF_LOOPBACK) != 0;
        snprintf(have[n].name, sizeof(have[n].name), "%s", i->ifa_name);
        n++;
    }
    freeifaddrs(list);
    if (have == NULL)
        return ft_fail(FT_NOMEM, "no memory to list the network interfaces");
    *out = have;
    return n;
}

/* Returns -1 if the address is not allowed; otherwise a lower number is better. The text is a list
 * of prefixes; names after '=' must match exactly; either is excluded after '^'. A list that
 * includes gives its own order. Addresses that work only on one link or machine come last. */
static int allowed_rank(const struct ft_net_address *a, const char *order)
{
    enum { GUEST = 64, LINK_LOCAL = 128, LOOPBACK = 256 };
    const bool exclude = order[0] == '^';
    const char *list = order + (exclude ? 1 : 0);
    const bool exact = list[0] == '=';
    int rank = 0, position = 0;
    bool listed = false;

    for (list += exact ? 1 : 0; *list != '\0'; position++) {
        const size_t len = strcspn(list, ",");
        if (len > 0 && !listed && strncmp(a->name, list, len) == 0 &&
            (!exact || a->name[len] == '\0')) {
            listed = true;
            if (!exclude)
                rank = position < GUEST ? position : GUEST - 1;
        }
        list += len + (list[len] == ',');
    }
    if (position > 0 && listed == exclude)
        return -1;
    if ((position == 0 || exclude) && strncmp(a->name, "ib", 2) != 0)
        rank = strncmp(a->name, "docker", 6) == 0 || strncmp(a->name, "virbr", 5) == 0 ? GUEST : 1;
    return rank + (link_local(a) ? LINK_LOCAL : 0) + (a->loopback ? LOOPBACK : 0);
}

/* Like allowed_rank(), for one family; `only` 0: for both. */
static int rank_of(const struct ft_net_address *a, const char *order, int only)
{
    return a->up && (only == 0 || a->family == only) ? allowed_rank(a, order) : -1;
}

static bool link_local(const struct ft_net_address *a)
{
    return a->family == AF_INET6 && a->ip[0] == 0xfe && (a->ip[1] & 0xc0) == 0x80;
}

static int fail_without(const struct ft_net_address *have, int count, const char *order,
                        const char *family)
{
    char names[512] = "";
    size_t used = 0;

    for (int i = 0; i < count && used < sizeof(names) - 40; i++) {
        const char *kind = have[i].family == AF_INET6 ? "IPv6" : "IPv4";
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s (%s%s)",
                                 used > 0 ? ", " : "", have[i].name, kind,
                                 have[i].up ? "" : ", down");
    }
    if (used == 0)
        return ft_fail(FT_INVAL, "this machine has no network interface with an address");
    if (order[0] == '\0')
        return ft_fail(FT_INVAL, "no network interface is up%s%s; there are: %s",
                       family[0] != '\0' ? " with an address of family " : "", family, names);
    return ft_fail(
        FT_INVAL,
        "FTCCL_SOCKET_IFNAME '%s' leaves no network interface that is up%s%s; there are: %s", order,
        family[0] != '\0' ? " with an address of family " : "", family, names);
}

unsigned ft_net_to_sockaddr(const struct ft_net_address *a, struct sockaddr *out)
{
    union any_address any = {0};
    unsigned len = sizeof(any.in);

    if (a->family == AF_INET6) {
        len = sizeof(any.in6);
        any.in6.sin6_family = AF_INET6;
        any.in6.sin6_port = htons(a->port);
        any.in6.sin6_scope_id = a->scope;
        memcpy(&any.in6.sin6_addr, a->ip, 16);
    } else {
        any.in.sin_family = AF_INET;
        any.in.sin_port = htons(a->port);
        memcpy(&any.in.sin_addr, a->ip, 4);
    }
    memcpy(out, &any, len);
    return len;
}

bool ft_net_from_sockaddr(const struct sockaddr *sa, struct ft_net_address *out)
{
    union any_address any;
    memset(out, 0, sizeof(*out));
    out->up = true;
    out->family = sa->sa_family;
    if (sa->sa_family == AF_INET6) {
        memcpy(&any.in6, sa, sizeof(any.in6));
        out->port = ntohs(any.in6.sin6_port);
        memcpy(out->ip, &any.in6.sin6_addr, 16);
        if (link_local(out))
            out->scope = any.in6.sin6_scope_id;
        return true;
    }
    if (sa->sa_family != AF_INET)
        return false;
    memcpy(&any.in, sa, sizeof(any.in));
    out->port = ntohs(any.in.sin_port);
    memcpy(out->ip, &any.in.sin_addr, 4);
    return true;
}

static int open_socket(int family, int *fd_out)
{
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 && errno == EAFNOSUPPORT)
        return ft_fail(FT_NOTSUP, "this machine does not speak %s",
                       family == AF_INET6 ? "IPv6" : "IPv4");
    if (fd < 0)
        return ft_fail(ft_status_of_errno(errno), "cannot open a socket: %s", strerror(errno));
    *fd_out = ft_fd_own(fd);
    return FT_OK;
}

static int bind_source(int fd, int family)
{
    const char *text = ft_param_str(FT_PARAM_SOCKET_SOURCE);
    struct ft_net_address source = {0};
    union any_address sa;
    const int on = 1;

    if (text[0] == '\0')
        return FT_OK;
    if (inet_pton(AF_INET, text, source.ip) == 1)
        source.family = AF_INET;
    else if (inet_pton(AF_INET6, text, source.ip) == 1)
        source.family = AF_INET6;
    else
        return ft_fail(FT_INVAL, "FTCCL_SOCKET_SOURCE is '%s', which is no IP address", text);
    if (source.family != family)
        return FT_OK;
    socklen_t len = ft_net_to_sockaddr(&source, &sa.sa);
    (void)setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
    if (bind(fd, &sa.sa, len) != 0)
        return ft_fail(FT_INVAL, "FTCCL_SOCKET_SOURCE is '%s', which this machine cannot bind: %s",
                       text, strerror(errno));
    return FT_OK;
}

/* Networks may hash the flow label of IPv6, which is otherwise random for each socket. */
static int bind_port(int fd, const struct ft_net_address *from)
{
    union any_address sa;
    char text[FT_NET_TEXT_BYTES];
    const int on = 1, off = 0;
    const socklen_t len = ft_net_to_sockaddr(from, &sa.sa);

    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (from->family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, &off, sizeof(off));
    if (bind(fd, &sa.sa, len) == 0)
        return FT_OK;
    if (errno == EADDRINUSE || errno == EACCES)
        return FT_AGAIN;
    return ft_fail(errno == EADDRNOTAVAIL ? FT_INVAL : FT_SYSTEM, "cannot connect from %s: %s",
                   ft_net_text(from, text), strerror(errno));
}

/* The scope of a link-local address is the number of an interface on the machine that has the
 * address. If this machine has a link-local address on the interface of that number, as it does if
 * it is the same machine, that interface is used. Otherwise the best one with a link-local
 * address. */
static uint32_t own_scope(uint32_t given)
{
    struct ft_net_address own[FT_NET_ADDRESSES];
    const int n = ft_net_addresses(own, FT_NET_ADDRESSES);
    uint32_t first = 0;

    for (int i = 0; i < n; i++) {
        if (own[i].scope != 0 && own[i].scope == given)
            return given;
        if (first == 0)
            first = own[i].scope;
    }
    return first != 0 ? first : given;
}
