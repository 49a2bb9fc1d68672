/*
 * The net transport: its turn and its operations. A plugin has no descriptor: while an engine
 * sleeps, it looks every look_ns, and who sends after a while of silence rings over the side
 * connection.
 */
#include "transport/net_plugin/net.h"

#include <stdlib.h>
#include <string.h>

static void turn_side(struct net *t, bool *moved)
{
    struct ft_side_event events[FT_SIDE_EVENTS];
    const int n = ft_side_poll(t->side, events, FT_SIDE_EVENTS, moved);

    for (int i = 0; i < n; i++) {
        const struct ft_side_event *e = &events[i];
        if (e->what == FT_SIDE_ACCEPTED)
            net_accepted(t, e->conn);
        else if (e->conn->user == NULL)
            continue;
        else if (e->what == FT_SIDE_MESSAGE)
            net_side_message(e->conn->user, e);
        else if (e->what == FT_SIDE_DOWN)
            net_side_down(e->conn->user, e);
    }
}

static void end(struct net_link *l, bool orderly)
{
    l->base.orderly = orderly;
    ft_fail(FT_LINK, "%s", l->text);
    net_down(l, l->broken == FT_PROTOCOL ? FT_PROTOCOL : FT_LINK);
}

/* A link whose end is known, and from which frames may still come. */
static void turn_ending(struct net_link *l, bool moved)
{
    const uint64_t now_ns = l->net->now_ns;

    if (l->broken == FT_PROTOCOL)
        return end(l, false);
    if (l->last_frame != UINT64_MAX && (l->base.sender || l->in.frames >= l->last_frame))
        return end(l, true);
    if (l->broken != FT_OK && (l->side == NULL || now_ns >= l->deadline_ns))
        return end(l, false);
    if (l->side == NULL && l->last_frame == UINT64_MAX && moved)
        l->deadline_ns = now_ns + NET_REST_NS;
    else if (now_ns >= l->deadline_ns)
        end(l, false);
}

static void turn_link(struct net_link *l, bool *moved)
{
    bool mine = false;

    if (l->base.state == FT_LINK_DOWN)
        return;
    if (l->stage <= NET_WAITING)
        return net_setup_turn(l);
    net_out_turn(l, &mine);
    net_in_turn(l, &mine);
    if (l->stage == NET_ENDING)
        turn_ending(l, mine);
    *moved |= mine;
}

static void turn_credits(struct net *t, bool all)
{
    for (struct net_link *l = t->links; l != NULL; l = l->next)
        if (l->stage == NET_UP && l->ncredits > 0 && (all || l->due))
            net_return_credits(l);
}

static int take_events(struct net *t, struct ft_event *events, int max)
{
    int n = 0;
    for (struct net_link *l = t->links; l != NULL && n < max; l = l->next) {
        if (l->announce) {
            l->announce = false;
            events[n++] = (struct ft_event){l->base.sender ? FT_EVENT_UP : FT_EVENT_ACCEPTED,
                                            &l->base};
        }
        /* Nobody knows an accepted link that failed before it was up. */
        if (l->base.state == FT_LINK_DOWN && !l->announced_down && n < max) {
            l->announced_down = true;
            events[n++] = (struct ft_event){FT_EVENT_DOWN, &l->base};
        }
    }
    return n;
}

/* Accepted links that never came up. */
static void drop_failed(struct net *t)
{
    for (struct net_link *l = t->links, *next; l != NULL; l = next) {
        next = l->next;
        if (l->base.state == FT_LINK_DOWN && !l->base.sender && l->active_ns == 0)
            net_disconnect(&l->base);
    }
}

static int net_poll(struct ft_transport *transport, struct ft_event *events, int max, bool *busy)
{
    struct net *t = FT_CONTAINER(transport, struct net, base);
    bool moved = false;

    t->now_ns = ft_now_ns(t->base.config.env);
    turn_side(t, &moved);
    for (struct net_link *l = t->links; l != NULL; l = l->next)
        turn_link(l, &moved);
    const bool all = ++t->kept >= NET_KEEP_TURNS;
    if (all)
        t->kept = 0;
    turn_credits(t, all);
    net_bury(t, false);
    drop_failed(t);
    t->base.look_ns = t->now_ns - t->active_ns < NET_IDLE_NS ? NET_LOOK_NS : NET_LOOK_IDLE_NS;
    const int n = take_events(t, events, max);
    if (moved || n > 0)
        *busy = true;
    return n;
}

static void net_close(struct ft_transport *transport)
{
    struct net *t = FT_CONTAINER(transport, struct net, base);

    while (t->links != NULL)
        net_disconnect(&t->links->base);
    net_bury(t, true);
    ft_side_close(t->side);
    net_plugin_close(t->plugin, t->context);
    ft_rxq_set_close(&t->set);
    free(t);
}

static uint64_t token_of(const struct net_plugin *p)
{
    return ft_hash64(p->name, strlen(p->name), (uint64_t)p->version);
}

static int net_open(const struct ft_transport_config *config, struct ft_transport **out)
{
    const struct net_plugin *plugin;
    int rc = net_plugin_get(&plugin);

    if (rc != FT_OK)
        return rc;
    struct net *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return ft_fail(FT_NOMEM, "no memory for the net transport");
    t->base.ops = &ft_transport_net;
    t->base.config = *config;
    t->plugin = plugin;
    t->token = token_of(plugin);
    ft_rxq_set_open(&t->set, config->chunk_bytes);
    t->set.pinned = config->pinned;
    t->set.first_bytes = ft_max(config->first_bytes, config->chunk_bytes);
    t->set.first = NET_PLACES_FIRST;
    t->set.places = NET_PLACES;
    t->set.small_bytes = NET_SMALL_BYTES;
    t->frame_bytes = ft_min(t->set.first_bytes, NET_FRAME_BYTES);
    t->frame_bytes = ft_min(ft_max(t->frame_bytes, NET_SMALL_BYTES),
                            plugin->best.max_bytes - sizeof(struct ft_header));
    t->base.look_ns = NET_LOOK_IDLE_NS;
    rc = net_plugin_open(plugin, config->self, &t->context);
    if (rc != FT_OK) {
        free(t);
        return rc;
    }
    rc = ft_side_open(config, &t->side);
    if (rc != FT_OK) {
        net_plugin_close(plugin, t->context);
        free(t);
        return rc;
    }
    *out = &t->base;
    return FT_OK;
}

static int net_address(struct ft_transport *transport, void *buf, size_t capacity_bytes)
{
    struct net *t = FT_CONTAINER(transport, struct net, base);

    if (capacity_bytes < sizeof(t->token))
        return ft_fail(FT_INVAL, "no room for an address in %zu bytes", capacity_bytes);
    memcpy(buf, &t->token, sizeof(t->token));
    int n = ft_side_address(t->side, (char *)buf + sizeof(t->token),
                            capacity_bytes - sizeof(t->token));
    return n > 0 ? n + (int)sizeof(t->token) : n;
}

static bool net_reaches(struct ft_transport *transport, const void *address, size_t len_bytes)
{
    struct net *t = FT_CONTAINER(transport, struct net, base);

    return len_bytes > sizeof(t->token) && memcmp(address, &t->token, sizeof(t->token)) == 0 &&
           ft_side_reaches(t->side, (const char *)address + sizeof(t->token),
                           len_bytes - sizeof(t->token));
}

static int net_bind(struct ft_transport *transport, uint64_t ctx)
{
    return ft_rxq_set_bind(&FT_CONTAINER(transport, struct net, base)->set, ctx);
}

static void net_unbind(struct ft_transport *transport, uint64_t ctx)
{
    ft_rxq_set_unbind(&FT_CONTAINER(transport, struct net, base)->set, ctx);
}

/* A sending link has no queues of received messages. */
static int none_here(const struct net_link *l)
{
    return l->base.state == FT_LINK_DOWN ? FT_LINK : FT_AGAIN;
}

static int net_recv(struct ft_link *link, uint64_t ctx, unsigned lane, struct ft_msg *msg)
{
    struct net_link *l = FT_CONTAINER(link, struct net_link, base);
    int rc = l->base.sender ? FT_AGAIN : ft_rxq_recv(&l->rxq, ctx, lane, msg);
    return rc == FT_AGAIN ? none_here(l) : rc;
}

static int net_peek(struct ft_link *link, uint64_t ctx, unsigned lane, struct ft_header *h)
{
    struct net_link *l = FT_CONTAINER(link, struct net_link, base);
    int rc = l->base.sender ? FT_AGAIN : ft_rxq_peek(&l->rxq, ctx, lane, h);
    return rc == FT_AGAIN ? none_here(l) : rc;
}

static void net_expect(struct ft_link *link, const struct ft_header *h, void *to)
{
    ft_rxq_expect(&FT_CONTAINER(link, struct net_link, base)->rxq, h, to);
}

static void net_release(struct ft_link *link, struct ft_msg *msg)
{
    ft_rxq_release(&FT_CONTAINER(link, struct net_link, base)->rxq, msg);
}

static bool net_drained(struct ft_link *link)
{
    return FT_CONTAINER(link, struct net_link, base)->txq.outstanding == 0;
}

/* A plugin that has completed a send needs this process no more, as far as its interface says. */
static bool net_flushed(struct ft_link *link)
{
    struct net_link *l = FT_CONTAINER(link, struct net_link, base);
    bool moved;

    if (l->stage != NET_UP)
        return true;
    net_out_turn(l, &moved);
    return l->queue_count == 0 && l->out.count == 0 && ft_side_flushed(l->side);
}

static int net_fd(struct ft_transport *transport)
{
    return ft_side_fd(FT_CONTAINER(transport, struct net, base)->side);
}

/* While links are made or end, nothing would wake the engine in time. */
static bool is_restless(const struct net *t)
{
    for (const struct net_link *l = t->links; l != NULL; l = l->next)
        if (l->announce || l->out.count > 0 ||
            (l->base.state != FT_LINK_DOWN &&
             (l->stage == NET_MEETING || l->stage == NET_ENDING)) ||
            (l->base.state == FT_LINK_DOWN && !l->announced_down))
            return true;
    return t->dying != NULL;
}

static bool net_arm(struct ft_transport *transport, bool on)
{
    struct net *t = FT_CONTAINER(transport, struct net, base);

    if (on)
        turn_credits(t, true);
    if (on && is_restless(t))
        return false;
    return ft_side_arm(t->side, on);
}

static void net_trim(struct ft_transport *transport)
{
    for (struct net_link *l = FT_CONTAINER(transport, struct net, base)->links; l != NULL;
         l = l->next)
        if (!l->base.sender)
            ft_rxq_trim(&l->rxq);
}

static bool net_measure(struct ft_link *link, struct ft_link_path *out)
{
    struct net_link *l = FT_CONTAINER(link, struct net_link, base);
    return l->base.state == FT_LINK_UP && l->side != NULL && ft_side_measure(l->side, out);
}

const char *ft_transport_net_name(void)
{
    const struct net_plugin *plugin;
    return net_plugin_is_asked_for() && net_plugin_get(&plugin) == FT_OK ? plugin->name : NULL;
}

bool ft_transport_net_is_asked_for(void)
{
    return net_plugin_is_asked_for();
}

/* Loads the plugin: its code runs in this process from now on. */
static void net_describe(FILE *out)
{
    const struct net_plugin *p;
    char text[NET_PLUGIN_TEXT_BYTES];
    const bool found = net_plugin_get(&p) == FT_OK;
    if (found)
        net_plugin_describe(p, text);
    fprintf(out, "  %s\n", found ? text : ft_fail_text());
}

const struct ft_transport_ops ft_transport_net = {
    .name = "net",
    .caps = {.scope = FT_SCOPE_NETWORK},
    .open = net_open,
    .close = net_close,
    .address = net_address,
    .reaches = net_reaches,
    .connect = net_connect,
    .disconnect = net_disconnect,
    .bind = net_bind,
    .unbind = net_unbind,
    .send = net_send,
    .reserve = net_reserve,
    .commit = net_commit,
    .cancel = net_cancel,
    .recv = net_recv,
    .expect = net_expect,
    .peek = net_peek,
    .release = net_release,
    .drained = net_drained,
    .flushed = net_flushed,
    .measure = net_measure,
    .poll = net_poll,
    .fd = net_fd,
    .arm = net_arm,
    .trim = net_trim,
    .describe = net_describe,
};
