/*
 * What devices report on their own: ports that lose their link or get it back, addresses that
 * change, queue pairs and devices that fail.
 */
#include "transport/verbs/verbs.h"

#include <string.h>
#include <sys/epoll.h>

/* Calls for each way of a port, or of a device. */
static void fail_ways(struct verbs_fabric *f, const struct verbs_device *d,
                      const struct verbs_port *port, const struct verbs_error *error)
{
    for (struct verbs_cq *q = f->cqs; q; q = q->next)
        for (int i = 0; i < VERBS_CQ_WAYS; i++) {
            struct verbs_way *w = q->slot[i].way;
            if (w && w->port->device == d && (!port || w->port == port))
                verbs_way_fail(w, error, "event");
        }
}

static void set_port(struct verbs_fabric *f, struct verbs_port *port, bool was_up)
{
    if (port->up == was_up)
        return;
    f->port_news |= 1u << (port - f->port);
    FT_LOG(INFO, "net", f->config.rank, "verbs: port %s %s", port->name,
           port->up ? "is active" : "has lost its link or its address");
}

static bool has_address(const struct verbs_fabric *f, const struct verbs_way *w)
{
    struct ibv_gid_entry entry;
    return f->lib->query_gid_ex(w->port->device->context, w->port->number, (uint32_t)w->gid_index,
                                &entry, 0, sizeof entry) == 0 &&
           memcmp(&entry.gid, &w->gid, sizeof w->gid) == 0;
}

/* Addresses of the port have changed: queue pairs keep theirs, and cannot go on if it is gone. */
static void fail_moved(struct verbs_fabric *f, struct verbs_port *port,
                       const struct verbs_error *error)
{
    for (struct verbs_cq *q = f->cqs; q; q = q->next)
        for (int i = 0; i < VERBS_CQ_WAYS; i++) {
            struct verbs_way *w = q->slot[i].way;
            if (w && w->port == port && (!port->up || !has_address(f, w)))
                verbs_way_fail(w, error, "event");
        }
}

static void port_event(struct verbs_fabric *f, struct verbs_port *port,
                       const struct verbs_error *error)
{
    const bool was_up = port->up;
    if (error->lost != VERBS_LOST_NOTHING) {
        port->up = false;
        fail_ways(f, port->device, port, error);
    } else {
        if (verbs_port_query(f, port) != FT_OK && was_up)
            FT_LOG(INFO, "net", f->config.rank, "verbs: %s", ft_fail_text());
        fail_moved(f, port, error);
    }
    set_port(f, port, was_up);
}

/* The descriptors of a device that was removed are readable for ever. */
static void unwatch(struct verbs_fabric *f, struct verbs_device *d)
{
    if (d->gone)
        return;
    d->gone = true;
    (void)epoll_ctl(f->epoll_fd, EPOLL_CTL_DEL, d->channel->fd, NULL);
    (void)epoll_ctl(f->epoll_fd, EPOLL_CTL_DEL, d->context->async_fd, NULL);
}

static void device_event(struct verbs_fabric *f, struct verbs_device *d,
                         const struct verbs_error *error)
{
    if (error->lost == VERBS_LOST_NOTHING)
        return;
    unwatch(f, d);
    FT_LOG(WARN, "net", f->config.rank, "verbs: %s: %s (%s)", d->name, error->reason, error->name);
    fail_ways(f, d, NULL, error);
    for (unsigned i = 0; i < f->nports; i++) {
        const bool was_up = f->port[i].up;
        if (f->port[i].device != d)
            continue;
        f->port[i].up = false;
        set_port(f, &f->port[i], was_up);
    }
}

static void queue_event(const struct ibv_async_event *event, const struct verbs_error *error)
{
    if (event->event_type != IBV_EVENT_CQ_ERR)
        return;
    struct verbs_cq *q = event->element.cq->cq_context;
    if (q)
        verbs_cq_break(q, error->reason);
}

void verbs_event_handle(struct verbs_fabric *f, struct verbs_device *d,
                        const struct ibv_async_event *event)
{
    const struct verbs_error *error = verbs_event_error((unsigned)event->event_type);
    switch (error->scope) {
    case VERBS_OF_WAY:
        if (error->lost != VERBS_LOST_NOTHING && event->element.qp->qp_context)
            verbs_way_fail(event->element.qp->qp_context, error, "event");
        return;
    case VERBS_OF_QUEUE:
        queue_event(event, error);
        return;
    case VERBS_OF_PORT:
        for (unsigned i = 0; i < f->nports; i++)
            if (f->port[i].device == d && f->port[i].number == event->element.port_num)
                port_event(f, &f->port[i], error);
        return;
    case VERBS_OF_DEVICE:
        device_event(f, d, error);
        return;
    }
}

bool verbs_events_take(struct verbs_fabric *f)
{
    bool any = false;
    for (unsigned i = 0; i < f->ndevices; i++) {
        struct ibv_async_event event;
        while (!f->device[i].gone && f->lib->get_async_event(f->device[i].context, &event) == 0) {
            verbs_event_handle(f, &f->device[i], &event);
            f->lib->ack_async_event(&event);
            any = true;
        }
    }
    return any;
}
