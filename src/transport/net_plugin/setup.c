/*
 * How links begin and end. Both sides listen, exchange their handles over the side connection,
 * connect, accept, register their slots, post their receives and say that they are ready. A goodbye
 * says how many frames were sent before it, because frames and side connection have no order among
 * them.
 */
#include "transport/net_plugin/net.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

unsigned char *net_map(size_t len_bytes)
{
    void *at = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    (void)madvise(at, len_bytes, MADV_DONTFORK);
    return at;
}

/* ---- making a link --------------------------------------------------------------------------- */

static int open_queues(struct net *t, struct net_link *l)
{
    if (!l->base.sender)
        return ft_rxq_open(&l->rxq, &t->set, net_consumed);
    int rc = ft_txq_open(&l->txq, &t->set);
    if (rc != FT_OK || t->set.first_bytes <= t->frame_bytes)
        return rc;
    l->longs = net_map(NET_LONGS * t->set.first_bytes);
    l->longs_free = (1u << NET_LONGS) - 1;
    return l->longs != NULL ? FT_OK
                            : ft_fail(FT_NOMEM, "no address space for the buffers of a link");
}

static void close_queues(struct net_link *l)
{
    if (l->base.sender)
        ft_txq_close(&l->txq);
    else
        ft_rxq_close(&l->rxq);
    ft_unmap(l->longs, l->longs != NULL ? NET_LONGS * l->net->set.first_bytes : 0);
    l->longs = NULL;
}

static struct net_link *link_open(struct net *t, uint64_t peer, bool sender)
{
    struct net_link *l = calloc(1, sizeof(*l));

    if (l == NULL) {
        ft_fail(FT_NOMEM, "no memory for a link");
        return NULL;
    }
    l->base = (struct ft_link){.ops = t->base.ops,
                               .transport = &t->base,
                               .peer = peer,
                               .sender = sender,
                               .state = FT_LINK_CONNECTING};
    l->net = t;
    l->last_frame = UINT64_MAX;
    if (open_queues(t, l) != FT_OK) {
        close_queues(l);
        free(l);
        return NULL;
    }
    l->next = t->links;
    t->links = l;
    return l;
}

static void unlink_from(struct net_link **list, struct net_link *l)
{
    while (*list != l)
        list = &(*list)->next;
    *list = l->next;
}

static int say_hello(struct net_link *l)
{
    struct net *t = l->net;
    struct net_hello hello = {.chunk_bytes = t->set.chunk_bytes,
                              .first_bytes = t->set.first_bytes,
                              .frame_bytes = t->frame_bytes};

    int rc = net_plugin_listen(t->plugin, t->context, hello.handle, &l->in.listener);
    return rc == FT_OK ? ft_side_send(l->side, NET_HELLO, &hello, sizeof(hello)) : rc;
}

static void end_side(struct net_link *l, bool goodbye)
{
    if (l->side != NULL)
        ft_side_disconnect(l->side, goodbye);
    l->side = NULL;
}

static void free_link(struct net_link *l)
{
    end_side(l, false);
    net_out_close(l);
    net_in_close(l);
    free(l);
}

int net_connect(struct ft_transport *transport, uint64_t peer, const void *address,
                size_t len_bytes, struct ft_link **out)
{
    struct net *t = FT_CONTAINER(transport, struct net, base);
    struct net_link *l = NULL;

    if (len_bytes <= sizeof(t->token))
        return ft_fail(FT_INVAL, "this is not an address of a network plugin");
    l = link_open(t, peer, true);
    if (l == NULL)
        return FT_NOMEM;
    int rc = ft_side_connect(t->side, peer, (const char *)address + sizeof(t->token),
                             len_bytes - sizeof(t->token), l, &l->side);
    if (rc == FT_OK)
        rc = say_hello(l);
    if (rc != FT_OK) {
        unlink_from(&t->links, l);
        close_queues(l);
        free_link(l);
        return rc;
    }
    *out = &l->base;
    return FT_OK;
}

void net_accepted(struct net *t, struct ft_side_conn *conn)
{
    struct net_link *l = link_open(t, conn->peer, false);

    if (l == NULL) {
        FT_LOG(WARN, "net", t->base.config.rank, "refused a link: %s", ft_fail_text());
        return ft_side_disconnect(conn, false);
    }
    conn->user = l;
    l->side = conn;
    l->deadline_ns = t->now_ns + NET_SETUP_NS;
}

static int meet(struct net_link *l)
{
    const struct net *t = l->net;
    int rc = FT_OK;

    if (l->out.comm == NULL)
        rc = net_plugin_connect(t->plugin, t->context, l->handle, &l->out.comm);
    if ((rc == FT_OK || rc == FT_AGAIN) && l->in.comm == NULL) {
        int accepted = net_plugin_accept(t->plugin, l->in.listener, &l->in.comm);
        rc = accepted != FT_OK ? accepted : rc;
    }
    if (rc != FT_OK)
        return rc;
    net_plugin_close_listen(t->plugin, l->in.listener);
    l->in.listener = NULL;
    return FT_OK;
}

/* Both comms are there. */
static int furnish(struct net_link *l)
{
    const size_t large = NET_FRONT + l->net->frame_bytes,
                 credits = NET_FRONT + NET_CREDITS_FRAME * sizeof(struct net_credit);
    int rc = l->base.sender ? net_out_open(l, NET_LARGE, large, NET_SMALL)
                            : net_out_open(l, NET_CREDIT_SLOTS, credits, 0);
    if (rc == FT_OK)
        rc = l->base.sender ? net_in_open(l, NET_CREDIT_SLOTS, credits)
                            : net_in_open(l, NET_LARGE, large);
    return rc == FT_OK ? ft_side_send(l->side, NET_READY, NULL, 0) : rc;
}

static void is_up(struct net_link *l)
{
    const struct net_plugin *p = l->net->plugin;

    l->stage = NET_UP;
    l->base.state = FT_LINK_UP;
    l->announce = true;
    l->active_ns = l->net->active_ns = l->net->now_ns;
    FT_LOG(INFO, "net", l->net->base.config.rank,
           "net link %s engine %016" PRIx64 " is up: plugin %s (v%d), device %d, %s",
           l->base.sender ? "to" : "from", l->base.peer, p->name, p->version, p->device,
           p->best.name);
}

void net_setup_turn(struct net_link *l)
{
    int rc = FT_OK;

    if (l->stage == NET_MEETING) {
        rc = meet(l);
        if (rc == FT_OK)
            rc = furnish(l);
        if (rc == FT_OK)
            l->stage = NET_WAITING;
    }
    if (l->stage == NET_WAITING && l->peer_ready)
        return is_up(l);
    if (rc != FT_OK && rc != FT_AGAIN) {
        l->broken = rc;
        return net_down(l, rc);
    }
    if (l->deadline_ns != 0 && l->net->now_ns >= l->deadline_ns)
        net_down(l, ft_fail(FT_TIMEOUT,
                            "network plugin %s did not connect with engine %016" PRIx64 " in %u s",
                            l->net->plugin->name, l->base.peer,
                            (unsigned)(NET_SETUP_NS / 1000000000u)));
}

/* ---- what the side connection brings --------------------------------------------------------- */

static int bad(const struct net_link *l, const char *what)
{
    return ft_fail(FT_PROTOCOL, "engine %016" PRIx64 " sent %s", l->base.peer, what);
}

static int take_hello(struct net_link *l, const struct ft_side_event *e)
{
    const struct net *t = l->net;
    struct net_hello hello;

    if (l->stage != NET_SIDE || e->len_bytes != sizeof(hello))
        return bad(l, "a wrong hello for a link over a network plugin");
    memcpy(&hello, e->data, sizeof(hello));
    if (hello.chunk_bytes != t->set.chunk_bytes || hello.first_bytes != t->set.first_bytes ||
        hello.frame_bytes != t->frame_bytes) {
        (void)ft_side_send(l->side, NET_REFUSED, NULL, 0);
        return ft_fail(FT_PROTOCOL,
                       "engine %016" PRIx64 " has chunks of %" PRIu64 " bytes, this one of %zu",
                       l->base.peer, hello.chunk_bytes, t->set.chunk_bytes);
    }
    memcpy(l->handle, hello.handle, sizeof(l->handle));
    l->stage = NET_MEETING;
    l->deadline_ns = t->now_ns + NET_SETUP_NS;
    return l->base.sender ? FT_OK : say_hello(l);
}

static int take_goodbye(struct net_link *l, const struct ft_side_event *e)
{
    if (e->len_bytes != sizeof(l->last_frame))
        return bad(l, "a wrong goodbye");
    if (l->base.state == FT_LINK_CONNECTING)
        return ft_fail(FT_LINK, "the other side is closing");
    memcpy(&l->last_frame, e->data, sizeof(l->last_frame));
    if (l->base.sender)
        l->last_frame = 0; /* nothing more is taken */
    l->stage = NET_ENDING;
    l->deadline_ns = l->net->now_ns + NET_LAST_NS;
    return FT_OK;
}

static int take_message(struct net_link *l, const struct ft_side_event *e)
{
    switch (e->kind) {
    case NET_HELLO:
        return take_hello(l, e);
    case NET_READY:
        l->peer_ready = true;
        if (l->stage == NET_WAITING) /* its goodbye may be the next message */
            is_up(l);
        return FT_OK;
    case NET_REFUSED:
        return ft_fail(FT_PROTOCOL, "engine %016" PRIx64 " refused a link: it has other chunks",
                       l->base.peer);
    case NET_GOODBYE:
        return take_goodbye(l, e);
    case NET_RING:
        l->net->active_ns = l->net->now_ns;
        return FT_OK;
    default:
        return bad(l, "an unknown message");
    }
}

void net_side_message(struct net_link *l, const struct ft_side_event *e)
{
    if (l->base.state == FT_LINK_DOWN)
        return;
    int rc = take_message(l, e);
    if (rc != FT_OK)
        net_down(l, rc);
}

void net_side_down(struct net_link *l, const struct ft_side_event *e)
{
    int reason = e->reason;

    ft_fail(reason, "%s", e->text);
    end_side(l, false);
    if (l->base.state == FT_LINK_DOWN || l->last_frame != UINT64_MAX)
        return;
    l->base.silent = e->silent;
    if (l->base.state == FT_LINK_CONNECTING || l->base.sender || reason != FT_LINK)
        return net_down(l, reason);
    /* What the plugin has already brought here is read. */
    snprintf(l->text, sizeof(l->text), "%s", e->text);
    l->stage = NET_ENDING;
    l->deadline_ns = l->net->now_ns + NET_REST_NS;
}

/* ---- ending a link --------------------------------------------------------------------------- */

void net_broken(struct net_link *l, int status)
{
    if (l->broken != FT_OK)
        return;
    l->broken = status;
    snprintf(l->text, sizeof(l->text), "%s", ft_fail_text());
    if (l->stage != NET_UP)
        return;
    l->stage = NET_ENDING;
    l->deadline_ns = l->net->now_ns + NET_WORD_NS;
}

void net_down(struct net_link *l, int status)
{
    if (l->base.state == FT_LINK_DOWN)
        return;
    FT_LOG(INFO, "net", l->net->base.config.rank, "net link %s engine %016" PRIx64 " is down: %s",
           l->base.sender ? "to" : "from", l->base.peer,
           l->base.orderly ? "the other side closed it" : ft_fail_text());
    l->base.state = FT_LINK_DOWN;
    l->base.reason = status;
    if (l->stage != NET_MEETING)
        l->stage = NET_OVER;
    if (l->base.sender)
        net_drop_queue(l);
    end_side(l, false);
}

/* The goodbye says how many frames were put into the ring. False: messages are left that were not,
 * or the side connection takes nothing more. */
static bool say_goodbye(struct net_link *l)
{
    const uint64_t frames = l->out.frames;
    bool moved;

    if (l->base.cut || l->stage != NET_UP || l->broken != FT_OK)
        return false;
    if (l->base.sender)
        net_out_turn(l, &moved);
    return l->queue_count == 0 &&
           ft_side_send(l->side, NET_GOODBYE, l->base.sender ? &l->out.frames : &frames,
                        sizeof(frames)) == FT_OK;
}

void net_disconnect(struct ft_link *link)
{
    struct net_link *l = FT_CONTAINER(link, struct net_link, base);
    struct net *t = l->net;
    const bool goodbye = say_goodbye(l);

    end_side(l, goodbye);
    unlink_from(&t->links, l);
    if (l->base.sender)
        net_drop_queue(l);
    close_queues(l);
    const bool meeting = l->stage == NET_MEETING && l->out.comm == NULL && l->broken == FT_OK;
    if (!meeting && (!goodbye || l->out.count == 0))
        return free_link(l);
    l->base.state = FT_LINK_DOWN;
    l->stage = meeting ? NET_MEETING : NET_OVER;
    l->deadline_ns = ft_now_ns(t->base.config.env) + (meeting ? NET_SETUP_NS : NET_LAST_NS);
    l->next = t->dying;
    t->dying = l;
}

/* Whether a link has to stay: its last frames are not sent, or its connect is under way. Plugins
 * have no call that ends a connect, so it is called until it has a comm to close. */
static bool is_alive(struct net_link *l)
{
    const struct net *t = l->net;
    bool moved;

    if (l->stage == NET_MEETING)
        return net_plugin_connect(t->plugin, t->context, l->handle, &l->out.comm) == FT_AGAIN;
    net_out_turn(l, &moved);
    return l->out.count > 0 && l->broken == FT_OK;
}

void net_bury(struct net *t, bool all)
{
    for (struct net_link **at = &t->dying; *at != NULL;) {
        struct net_link *l = *at;
        if (is_alive(l) && !all && t->now_ns < l->deadline_ns) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        free_link(l);
    }
}
