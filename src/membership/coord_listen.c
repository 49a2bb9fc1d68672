/* Where a coordinator listens, and under which address members find it. */
#include "membership/coord_server.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

struct place {
    char host[256]; /* "": every interface */
    int family;     /* of every interface; 0: both */
    uint16_t port;
};

static bool parse_port(const char *text, uint16_t *out)
{
    char *end = NULL;
    long port = *text >= '0' && *text <= '9' ? strtol(text, &end, 10) : -1;
    *out = (uint16_t)port;
    return port >= 0 && port <= 65535 && !*end;
}

static int parse_place(const char *text, struct place *out)
{
    const char *colon = text ? strrchr(text, ':') : NULL;
    size_t len = colon ? (size_t)(colon - text) : 0;
    *out = (struct place){0};
    if (!colon || len >= sizeof out->host || !parse_port(colon + 1, &out->port))
        return ft_fail(FT_INVAL,
                       "'%s' is not where a coordinator can listen: it should be HOST:PORT",
                       text ? text : "");
    memcpy(out->host, text, len);
    if (!strcmp(out->host, "0.0.0.0"))
        out->family = AF_INET;
    else if (!strcmp(out->host, "[::]") || !strcmp(out->host, "::"))
        out->family = AF_INET6;
    if (out->family || !strcmp(out->host, "*"))
        out->host[0] = '\0';
    return FT_OK;
}

static int listen_at(struct ft_coordinator *s, struct ft_net_address *at, uint16_t port)
{
    int i = s->listener[0] >= 0, status = ft_net_listen(at, 1, at->family, port, &s->listener[i]);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &s->listener[i]};
    const int on = 1;
    /* so that another coordinator can have the port when this one has ended */
    if (status == FT_OK)
        (void)setsockopt(s->listener[i], SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (status == FT_OK && epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->listener[i], &event) != 0) {
        status = ft_fail(ft_status_of_errno(errno), "cannot watch the port of the coordinator: %s",
                         strerror(errno));
        ft_fd_close(&s->listener[i]);
    }
    return status;
}

/* Members are told an address that others can reach. */
static int listen_everywhere(struct ft_coordinator *s, const struct place *place,
                             struct ft_net_address *shown)
{
    struct ft_net_address own[FT_NET_ADDRESSES];
    int n = ft_net_addresses(own, FT_NET_ADDRESSES), status = n < 0 ? n : FT_INVAL;
    uint16_t port = place->port;
    bool found = false;
    for (int i = 0; i < n; i++) {
        bool fits = !place->family || own[i].family == place->family;
        if (!fits || (found && own[i].family == shown->family) || s->listener[1] >= 0)
            continue;
        struct ft_net_address any = {.family = own[i].family};
        int rc = listen_at(s, &any, port);
        if (rc != FT_OK && found)
            FT_LOG(INFO, "members", -1, "the coordinator has one family only: %s", ft_fail_text());
        if (rc == FT_OK && !found) {
            *shown = own[i];
            shown->port = port = any.port;
            found = true;
        }
        status = found ? FT_OK : rc;
    }
    if (status == FT_INVAL && n >= 0)
        ft_fail(FT_INVAL, "this machine has no address of that family for a coordinator");
    return status;
}

static int listen_on_host(struct ft_coordinator *s, const struct place *place,
                          struct ft_net_address *shown)
{
    struct ft_net_address found[FT_NET_ADDRESSES];
    char text[sizeof place->host + 8];
    snprintf(text, sizeof text, "%s:1", place->host); /* the resolver wants a port */
    int n = ft_net_resolve(text, found, FT_NET_ADDRESSES), status = n;
    for (int i = 0; i < n && status != FT_OK; i++) {
        status = listen_at(s, &found[i], place->port);
        if (status == FT_OK)
            *shown = found[i];
    }
    return status;
}

int ft_coord_listen(struct ft_coordinator *s, const char *where, struct ft_net_address *shown)
{
    struct place place;
    int status = parse_place(where, &place);
    if (status != FT_OK)
        return status;
    return place.host[0] ? listen_on_host(s, &place, shown) : listen_everywhere(s, &place, shown);
}
