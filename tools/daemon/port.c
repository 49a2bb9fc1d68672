/*
 * The one port of a daemon. The first byte of a connection says what it is: FTCCL's handshake
 * begins with F, no method of HTTP does. Who says nothing is dropped after a while, or when others
 * need the place. If all places are taken and nobody has had his for long, others wait in the
 * kernel.
 */
#include "daemon.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define SILENT_NS 5000000000u
#define SILENT_MOST 256

struct guest {
    struct daemon_port *port;
    struct daemon_watch watch;
    uint64_t begun_ns;
};

struct daemon_port {
    struct daemon *daemon;
    struct daemon_http *http;
    struct daemon_watch listener;
    struct guest guest[SILENT_MOST];
    bool paused; /* no descriptor or place was free */
};

static void forget(struct guest *guest)
{
    daemon_unwatch(guest->port->daemon, &guest->watch);
    guest->watch.fd = -1;
}

static void drop(struct guest *guest)
{
    int fd = guest->watch.fd;
    forget(guest);
    ft_fd_close(&fd);
}

static void hand_over(struct guest *guest, bool to_peers)
{
    struct daemon_port *port = guest->port;
    int fd = guest->watch.fd;
    forget(guest);
    if (to_peers)
        daemon_peer_accept(port->daemon, fd);
    else
        daemon_http_take(port->http, fd);
}

static void on_guest(void *arg, uint32_t events)
{
    struct guest *guest = arg;
    char first;
    (void)events;
    ssize_t n = recv(guest->watch.fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n == 1)
        hand_over(guest, first == 'F');
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        drop(guest);
}

/* A free place, or that of the guest that has been silent for longest. NULL: nobody has been for
 * long. */
static struct guest *choose_place(struct daemon_port *port)
{
    struct guest *oldest = &port->guest[0];
    for (int i = 0; i < SILENT_MOST; i++) {
        if (port->guest[i].watch.fd < 0)
            return &port->guest[i];
        if (port->guest[i].begun_ns < oldest->begun_ns)
            oldest = &port->guest[i];
    }
    if (daemon_now_ns() - oldest->begun_ns < DAEMON_YOUNG_NS)
        return NULL;
    drop(oldest);
    return oldest;
}

static void on_listener(void *arg, uint32_t events)
{
    struct daemon_port *port = arg;
    struct guest *guest = daemon_peers_make_room(daemon_peers_of(port->daemon)) ? choose_place(port)
                                                                                : NULL;
    int fd, status = guest ? ft_net_accept(port->listener.fd, &fd) : FT_NOFILE;
    (void)events;
    if (status == FT_NOFILE) { /* it is tried again with the next tick */
        daemon_watch_for(port->daemon, &port->listener, 0);
        port->paused = true;
    }
    if (status != FT_OK)
        return;
    *guest = (struct guest){.port = port,
                            .watch = {.fd = fd, .ready = on_guest, .arg = guest},
                            .begun_ns = daemon_now_ns()};
    if (daemon_watch_for(port->daemon, &guest->watch, EPOLLIN) != FT_OK)
        drop(guest);
}

void daemon_port_tick(struct daemon_port *port)
{
    uint64_t now_ns = daemon_now_ns();
    for (int i = 0; i < SILENT_MOST; i++)
        if (port->guest[i].watch.fd >= 0 && now_ns - port->guest[i].begun_ns > SILENT_NS)
            drop(&port->guest[i]);
    if (port->paused && daemon_watch_for(port->daemon, &port->listener, EPOLLIN) == FT_OK)
        port->paused = false;
}

/* Port 0, which is no address of anybody, is any free one. */
static int resolve(const char *text, struct ft_net_address *out)
{
    struct ft_net_address at[FT_NET_ADDRESSES];
    size_t len = strlen(text);
    bool any = len > 2 && strcmp(text + len - 2, ":0") == 0;
    char other[300];
    snprintf(other, sizeof other, "%.256s", text);
    if (any && len <= 256)
        other[len - 1] = '1';
    int n = ft_net_resolve(other, at, FT_NET_ADDRESSES);
    if (n <= 0)
        return n < 0 ? n : ft_fail(FT_INVAL, "%s is no address", text);
    *out = at[0];
    if (any)
        out->port = 0;
    return FT_OK;
}

static int listen_at(struct daemon_port *port, const char *text)
{
    struct ft_net_address at[1];
    const int on = 1;
    char where[FT_NET_TEXT_BYTES];
    int status = resolve(text, at);
    if (status != FT_OK)
        return status;
    status = ft_net_listen(at, 1, at[0].family, at[0].port, &port->listener.fd);
    if (status != FT_OK)
        return status;
    /* A successor may listen while connections of this program are not over yet. */
    setsockopt(port->listener.fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    printf("%s: listens on %s\n", daemon_options_of(port->daemon)->program,
           ft_net_text(&at[0], where));
    fflush(stdout);
    return daemon_watch_for(port->daemon, &port->listener, EPOLLIN);
}

struct daemon_port *daemon_port_open(struct daemon *d, struct daemon_http *http)
{
    struct daemon_port *port = calloc(1, sizeof *port);
    if (!port) {
        ft_fail(FT_NOMEM, "no memory for the port");
        return NULL;
    }
    port->daemon = d;
    port->http = http;
    port->listener = (struct daemon_watch){.fd = -1, .ready = on_listener, .arg = port};
    for (int i = 0; i < SILENT_MOST; i++)
        port->guest[i] = (struct guest){.port = port, .watch.fd = -1};
    if (listen_at(port, daemon_options_of(d)->listen) == FT_OK)
        return port;
    daemon_port_close(port);
    return NULL;
}

void daemon_port_close(struct daemon_port *port)
{
    if (!port)
        return;
    for (int i = 0; i < SILENT_MOST; i++)
        if (port->guest[i].watch.fd >= 0)
            drop(&port->guest[i]);
    daemon_unwatch(port->daemon, &port->listener);
    ft_fd_close(&port->listener.fd);
    free(port);
}
