/*
 * The transport over a fabric: its opening, its address, and its turn.
 */
#include "transport/rma/inside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define EVENTS 32        /* of a fabric, taken at once */
#define ROUNDS 8         /* most such takes in a turn */
#define SIDE_TURNS 16    /* while links are calm, their side connections are looked at so seldom */
#define CLOSE_ROUNDS 200 /* turns in which closing looks for the end of writes */

/* ---- opening and closing --------------------------------------------------------------------- */

static int watch(struct rma *t, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN};
    if (fd < 0 || epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0)
        return FT_OK;
    return ft_fail(ft_status_of_errno(errno), "epoll does not take a descriptor: %s",
                   strerror(errno));
}

static uint64_t sooner(uint64_t a_ns, uint64_t b_ns)
{
    return !a_ns ? b_ns : !b_ns ? a_ns : ft_min(a_ns, b_ns);
}

/* While all links are calm. */
static uint64_t calm_look_ns(const struct rma *t)
{
    return sooner(t->fabric->look_ns, ft_side_look_ns(t->side));
}

static int open_sleep(struct rma *t)
{
    t->epoll_fd = ft_fd_own(epoll_create1(EPOLL_CLOEXEC));
    if (t->epoll_fd < 0)
        return ft_fail(ft_status_of_errno(errno), "cannot make an epoll descriptor: %s",
                       strerror(errno));
    int rc = watch(t, t->fabric->ops->fd(t->fabric));
    if (rc == FT_OK)
        rc = watch(t, ft_side_fd(t->side));
    t->base.look_ns = calm_look_ns(t);
    return rc;
}

/* Twice as many chunks as a collective has in flight: so it never waits for returns alone. */
static void size_slots(struct rma *t)
{
    const size_t want = 2 * (size_t)ft_param_int(FT_PARAM_CHUNKS);
    t->chunk_bytes = t->base.config.chunk_bytes;
    t->stride_bytes = sizeof(struct rma_desc) + ft_round_up(t->chunk_bytes, FT_CACHE_LINE);
    t->slots = (unsigned)ft_min(ft_max(want, 8), RMA_SLOTS_MOST);
    while ((t->slots - 1) * t->stride_bytes < t->base.config.first_bytes &&
           t->slots < RMA_SLOTS_MOST)
        t->slots++; /* the longest message fits, and one more slot is there */
    ft_rxq_set_open(&t->set, t->chunk_bytes);
    t->set.first_bytes = ft_min(ft_max(t->chunk_bytes, t->base.config.first_bytes),
                                (t->slots - 1) * t->stride_bytes - sizeof(struct rma_desc));
    t->set.first = FT_WINDOW_SMALL;
    t->set.places = FT_WINDOW_SMALL / 4;
    t->set.small_bytes = FT_RXQ_SMALL_BYTES;
}

int ft_rma_open(const struct ft_transport_ops *ops, const struct ft_fabric_ops *fabric,
                const struct ft_transport_config *config, struct ft_transport **out)
{
    const struct ft_fabric_config of_fabric = {.env = config->env, .rank = config->rank};
    struct rma *t = calloc(1, sizeof *t);
    if (!t)
        return ft_fail(FT_NOMEM, "no memory for a transport");
    t->base.ops = ops;
    t->base.config = *config;
    t->epoll_fd = -1;
    pthread_mutex_init(&t->memory_lock, NULL);
    size_slots(t);
    int rc = fabric->open(&of_fabric, &t->fabric);
    if (rc == FT_OK)
        rc = ft_side_open(config, &t->side);
    if (rc == FT_OK)
        rc = open_sleep(t);
    if (rc) {
        ft_rma_close(&t->base);
        return rc;
    }
    *out = &t->base;
    return FT_OK;
}

static bool all_flushed(struct rma *t)
{
    bool all = true;
    for (struct rma_link *l = t->links; l; l = l->next)
        if (l->phase == RMA_OPEN && l->base.sender && !l->base.cut)
            all &= rma_post_flushed(l);
    return all;
}

/* Says goodbye on links that are still there, and gives their last writes some turns. */
static void leave_links(struct rma *t)
{
    bool busy = false;
    for (struct rma_link *l = t->links; l; l = l->next) {
        l->say_goodbye |= !l->left && l->phase == RMA_OPEN && l->base.state == FT_LINK_UP;
        l->left = true;
        (void)rma_side_say(l);
    }
    for (int i = 0; i < CLOSE_ROUNDS && !all_flushed(t); i++)
        rma_fabric_turn(t, &busy);
}

void ft_rma_close(struct ft_transport *base)
{
    struct rma *t = rma_of(base);
    leave_links(t);
    while (t->links)
        rma_link_free(t->links);
    if (t->side)
        ft_side_close(t->side);
    if (t->fabric)
        t->fabric->ops->close(t->fabric);
    ft_fd_close(&t->epoll_fd);
    ft_rxq_set_close(&t->set);
    pthread_mutex_destroy(&t->memory_lock);
    free(t);
}

/* ---- addresses ------------------------------------------------------------------------------- */

/* Length of the hint, hint, address of the side connection. */
int ft_rma_address(struct ft_transport *base, void *buf, size_t capacity_bytes)
{
    struct rma *t = rma_of(base);
    unsigned char *at = buf;
    if (capacity_bytes < 1 + FT_FABRIC_HINT_BYTES)
        return ft_fail(FT_INVAL, "no room for an address in %zu bytes", capacity_bytes);
    const size_t hint = t->fabric->ops->hint(t->fabric, at + 1);
    *at = (unsigned char)hint;
    const int side = ft_side_address(t->side, at + 1 + hint, capacity_bytes - 1 - hint);
    return side < 0 ? side : (int)(1 + hint) + side;
}

bool ft_rma_reaches(struct ft_transport *base, const void *address, size_t len_bytes)
{
    struct rma *t = rma_of(base);
    const unsigned char *at = address;
    if (len_bytes < 1 || *at > FT_FABRIC_HINT_BYTES || len_bytes < 1u + *at)
        return false;
    return t->fabric->ops->reaches(t->fabric, at + 1, *at) &&
           ft_side_reaches(t->side, at + 1 + *at, len_bytes - 1 - *at);
}

int ft_rma_connect(struct ft_transport *base, uint64_t peer, const void *address, size_t len_bytes,
                   struct ft_link **out)
{
    struct rma *t = rma_of(base);
    const unsigned char *at = address;
    struct rma_link *l;
    if (!ft_rma_reaches(base, address, len_bytes))
        return ft_fail(FT_NOTSUP, "the peer has no address of %s that this machine can reach",
                       base->ops->name);
    int rc = rma_link_connect(t, peer, at + 1 + *at, len_bytes - 1 - *at, &l);
    if (rc == FT_OK)
        *out = &l->base;
    return rc;
}

int ft_rma_bind(struct ft_transport *base, uint64_t ctx)
{
    return ft_rxq_set_bind(&rma_of(base)->set, ctx);
}

void ft_rma_unbind(struct ft_transport *base, uint64_t ctx)
{
    ft_rxq_set_unbind(&rma_of(base)->set, ctx);
}

bool ft_rma_measure(struct ft_link *link, struct ft_link_path *out)
{
    struct rma_link *l = rma_link_of(link);
    return l->side && ft_side_measure(l->side, out);
}

/* ---- turns ----------------------------------------------------------------------------------- */

static void arrived(struct rma_link *l, uint32_t immediate)
{
    const bool broken = l->phase >= RMA_CLOSING && l->base.reason == FT_PROTOCOL;
    if (immediate == RMA_NOTHING || l->left || l->phase == RMA_CLOSED || broken)
        return;
    int rc = l->base.sender                   ? rma_take_line(l, immediate)
             : immediate >> 16 == RMA_HANDLED ? rma_take_handled(l, immediate)
                                              : rma_take_message(l, immediate);
    if (rc)
        rma_link_close(l, rc, false);
}

/* A port is there again: ways that wait for it need not wait any longer. */
static void port_up(struct rma *t)
{
    const uint64_t now_ns = ft_now_ns(t->base.config.env);
    for (struct rma_link *l = t->links; l; l = l->next)
        for (unsigned k = 0; k < l->nways; k++)
            if (l->way[k].state == RMA_WAY_NONE && l->way[k].deadline_ns)
                l->way[k].deadline_ns = now_ns;
}

static void handle(struct rma *t, const struct ft_fabric_event *e)
{
    if (e->what == FT_FABRIC_PORT) {
        if (e->up)
            port_up(t);
        return;
    }
    struct rma_link *l = e->way->user;
    switch (e->what) {
    case FT_FABRIC_ARRIVED:
        arrived(l, e->immediate);
        break;
    case FT_FABRIC_WRITTEN:
        rma_written(l, e->way->index, e->count);
        rma_way_probed(l, e->way->index);
        break;
    case FT_FABRIC_FAILED:
        rma_way_fail(l, e->way->index, e->text);
        break;
    default:
        rma_way_stopped(l, e->way->index);
        break;
    }
}

void rma_fabric_turn(struct rma *t, bool *busy)
{
    struct ft_fabric_event events[EVENTS];
    int n = EVENTS;
    for (int round = 0; round < ROUNDS && n == EVENTS; round++) {
        n = t->fabric->ops->poll(t->fabric, events, EVENTS, busy);
        for (int i = 0; i < n; i++)
            handle(t, &events[i]);
    }
}

/* While all links are calm, the side connections only tell of ends. */
static void side_turn(struct rma *t, bool *busy)
{
    struct ft_side_event events[FT_SIDE_EVENTS];
    if (t->calm && ++t->skipped < SIDE_TURNS)
        return;
    t->skipped = 0;
    const int n = ft_side_poll(t->side, events, FT_SIDE_EVENTS, busy);
    for (int i = 0; i < n; i++)
        rma_side_event(t, &events[i]);
}

/* Messages and returns of all links, and whatever those need that are not calm. */
static void links_turn(struct rma *t, bool *busy)
{
    bool calm = true;
    for (struct rma_link *l = t->links, *next; l; l = next) {
        next = l->next;
        if (l->out.count > 0 && l->phase == RMA_OPEN)
            *busy |= rma_post_queued(l);
        if (l->base.sender && l->phase == RMA_OPEN)
            rma_tell_handled(l);
        if (!l->base.sender && l->phase == RMA_OPEN) {
            if (l->held)
                *busy |= rma_spill(l, false);
            *busy |= rma_return(l, false);
        }
        if (l->calm)
            continue;
        calm = false;
        rma_link_turn(l, ft_now_ns(t->base.config.env));
    }
    t->calm = calm;
    t->base.look_ns = calm ? calm_look_ns(t) : sooner(calm_look_ns(t), RMA_LOOK_NS);
}

int ft_rma_poll(struct ft_transport *base, struct ft_event *events, int max, bool *busy)
{
    struct rma *t = rma_of(base);
    bool moved = false;
    rma_fabric_turn(t, &moved);
    side_turn(t, &moved);
    links_turn(t, &moved);
    const int n = t->news.first ? ft_news_take(&t->news, events, max) : 0;
    if (moved || n > 0)
        *busy = true;
    return n;
}

/* ---- sleeping -------------------------------------------------------------------------------- */

int ft_rma_fd(struct ft_transport *base)
{
    return rma_of(base)->epoll_fd;
}

bool ft_rma_arm(struct ft_transport *base, bool on)
{
    struct rma *t = rma_of(base);
    if (!on) {
        t->skipped = SIDE_TURNS;
        (void)ft_side_arm(t->side, false);
        return t->fabric->ops->arm(t->fabric, false);
    }
    for (struct rma_link *l = t->links; l; l = l->next) {
        if (l->base.sender || l->phase != RMA_OPEN)
            continue;
        (void)rma_spill(l, true);
        (void)rma_return(l, true);
    }
    return !t->news.first && ft_side_arm(t->side, true) && t->fabric->ops->arm(t->fabric, true);
}

/* The memory of links is registered, and stays. */
void ft_rma_trim(struct ft_transport *base)
{
    struct rma *t = rma_of(base);
    for (struct rma_link *l = t->links; l; l = l->next)
        if (!l->base.sender && l->phase == RMA_OPEN)
            ft_rxq_trim(&l->rxq);
}
