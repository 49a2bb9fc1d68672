/*
 * Links: how they are made and how they end. The sender's side starts a side connection, and over
 * it the two exchange sizes and infos of ways. A link that ends, for whatever reason, first stops
 * its ways: when a receiver's link is DOWN, nothing of the other side arrives any more. The
 * sender's is DOWN as soon as it ends. A link that the user has disconnected goes on in the
 * background until its last messages have arrived, for RMA_LEAVE_NS at most, and until all its ways
 * are stopped. Only then is its memory freed.
 */
#include "transport/rma/inside.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- memory ---------------------------------------------------------------------------------- */

static int map(size_t len_bytes, unsigned char **out)
{
    void *at = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return ft_fail(FT_NOMEM, "no memory for a link (%zu bytes)", len_bytes);
    (void)madvise(at, len_bytes, MADV_DONTFORK);
    *out = at;
    return FT_OK;
}

int rma_link_allocate(struct rma_link *l)
{
    struct rma *t = l->rma;
    const struct ft_fabric_ops *ops = t->fabric->ops;
    const size_t places = ft_round_up(rma_places_bytes(t), 4096);
    l->inside_bytes = l->base.sender ? RMA_LINES_BYTES : places;
    l->outside_bytes = l->base.sender ? places : RMA_LINES_BYTES;
    rma_post_open(l);
    int rc = map(l->inside_bytes, &l->inside);
    if (rc == FT_OK)
        rc = map(l->outside_bytes, &l->outside);
    if (rc == FT_OK)
        rc = ops->reg(t->fabric, l->outside, l->outside_bytes, FT_FABRIC_LOCAL, &l->outside_region);
    if (rc == FT_OK)
        rc = ops->reg(t->fabric, l->inside, l->inside_bytes, FT_FABRIC_REMOTE, &l->inside_region);
    if (rc == FT_OK)
        rc = l->base.sender ? ft_txq_open(&l->txq, &t->set)
                            : ft_rxq_open(&l->rxq, &t->set, rma_consumed);
    return rc;
}

static void free_part(const struct rma *t, struct ft_fabric_region *region, unsigned char *at,
                      size_t len_bytes)
{
    if (region)
        t->fabric->ops->unreg(region, true);
    else if (at)
        ft_unmap(at, len_bytes);
}

static void free_memory(struct rma_link *l)
{
    free_part(l->rma, l->inside_region, l->inside, l->inside_bytes);
    free_part(l->rma, l->outside_region, l->outside, l->outside_bytes);
}

static void unlist(struct rma_link *l)
{
    struct rma *t = l->rma;
    for (struct rma_link **at = &t->links; *at; at = &(*at)->next) {
        if (*at != l)
            continue;
        *at = l->next;
        break;
    }
}

void rma_link_free(struct rma_link *l)
{
    if (l->side)
        ft_side_disconnect(l->side, l->base.orderly || l->left);
    for (unsigned k = 0; k < l->nways; k++)
        if (l->way[k].fabric)
            l->rma->fabric->ops->way_close(l->way[k].fabric);
    rma_lent_end_all(l, FT_LINK);
    ft_rxq_close(&l->rxq);
    ft_txq_close(&l->txq);
    free_memory(l);
    ft_news_drop(&l->rma->news, &l->news);
    unlist(l);
    free(l);
}

/* ---- making ---------------------------------------------------------------------------------- */

void rma_link_add(struct rma *t, struct rma_link *l, uint64_t peer, bool sender)
{
    l->base.ops = t->base.ops;
    l->base.transport = &t->base;
    l->base.peer = peer;
    l->base.sender = sender;
    l->base.state = FT_LINK_CONNECTING;
    l->rma = t;
    l->phase = RMA_MAKING;
    l->known = sender;
    l->deadline_ns = ft_now_ns(t->base.config.env) + RMA_CONNECT_NS;
    memset(l->smalls_free, 0xff, sizeof l->smalls_free);
    l->slots_free = UINT32_MAX >> (32 - t->slots);
    l->next = t->links;
    t->links = l;
}

int rma_link_connect(struct rma *t, uint64_t peer, const void *address, size_t len_bytes,
                     struct rma_link **out)
{
    struct rma_link *l = calloc(1, sizeof *l);
    if (!l)
        return ft_fail(FT_NOMEM, "no memory for a link");
    rma_link_add(t, l, peer, true);
    int rc = ft_side_connect(t->side, peer, address, len_bytes, l, &l->side);
    if (rc) {
        l->side = NULL;
        rma_link_free(l);
        return rc;
    }
    *out = l;
    return FT_OK;
}

void rma_link_begin(struct rma_link *l)
{
    const uint64_t now_ns = ft_now_ns(l->rma->base.config.env);
    l->nways = l->rma->fabric->ways;
    l->say_hello = true;
    int rc = rma_link_allocate(l);
    for (unsigned k = 0; k < l->nways && rc == FT_OK; k++)
        (void)rma_way_open(l, k, now_ns);
    if (rc)
        rma_link_close(l, rc, false);
}

void rma_link_up(struct rma_link *l)
{
    if (l->base.state != FT_LINK_CONNECTING || l->phase > RMA_OPEN)
        return;
    l->phase = RMA_OPEN;
    l->base.state = FT_LINK_UP;
    l->known = l->news.made = true;
    l->deadline_ns = 0;
    ft_news_add(&l->rma->news, &l->news, &l->base);
}

/* ---- ending ---------------------------------------------------------------------------------- */

/* What the other side still writes into the sender's memory are returns, which nobody handles any
 * more. So the sender's user hears at once that the link is DOWN, and its ways are stopped in the
 * background. Not while memory of the user is lent, and not while a goodbye may still come. */
static void tell_sender(struct rma_link *l)
{
    if (!l->base.sender || l->base.state != FT_LINK_UP || l->left || l->lent || l->lost_ns)
        return;
    l->base.state = FT_LINK_DOWN;
    ft_news_add(&l->rma->news, &l->news, &l->base);
}

#define ENDS "%s link %s engine %016" PRIx64 " ends: %s"

void rma_link_close(struct rma_link *l, int reason, bool orderly)
{
    if (l->phase >= RMA_CLOSING)
        return;
    if (reason == FT_PROTOCOL)
        FT_LOG(WARN, "net", l->rma->base.config.rank, ENDS, l->base.ops->name,
               l->base.sender ? "to" : "from", l->base.peer, ft_fail_text());
    else if (!l->left)
        FT_LOG(INFO, "net", l->rma->base.config.rank, ENDS, l->base.ops->name,
               l->base.sender ? "to" : "from", l->base.peer,
               orderly ? "the other side closed it" : ft_fail_text());
    l->phase = RMA_CLOSING;
    l->calm = false;
    l->base.reason = reason;
    l->base.orderly = orderly;
    l->deadline_ns = ft_now_ns(l->rma->base.config.env) + RMA_STOP_NS;
    for (unsigned k = 0; k < l->nways; k++) {
        l->way[k].say = 0;
        rma_way_stop(l, k);
    }
    tell_sender(l);
}

/* A peer that leaves closes its ways. If their loss was noticed first, its goodbye is about to
 * come, and makes a departure of what looks like a broken link. */
static bool awaits_goodbye(const struct rma_link *l, uint64_t now_ns)
{
    return l->phase == RMA_CLOSING && l->lost_ns && l->side && !l->goodbye && !l->left &&
           now_ns < l->lost_ns + RMA_GOODBYE_NS;
}

/* A link that is being closed and has no ways any more. */
static void turn_closing(struct rma_link *l, uint64_t now_ns)
{
    if (awaits_goodbye(l, now_ns))
        return;
    const bool said = rma_side_say(l) || now_ns >= l->deadline_ns;
    if (l->phase == RMA_CLOSING) {
        rma_lent_end_all(l, FT_LINK);
        l->phase = RMA_CLOSED;
        l->base.state = FT_LINK_DOWN;
        if (l->known && !l->left)
            ft_news_add(&l->rma->news, &l->news, &l->base);
    }
    if (!said)
        return;
    if (l->side)
        ft_side_disconnect(l->side, l->base.orderly || l->left);
    l->side = NULL;
    l->calm = true;
    if (l->left || !l->known)
        rma_link_free(l);
}

/* The other side has said goodbye: the link ends when its last message is here. */
static void turn_goodbye(struct rma_link *l, uint64_t now_ns)
{
    if (l->base.sender || l->left || l->in.expected == l->last)
        rma_link_close(l, FT_LINK, true);
    else if (now_ns >= l->deadline_ns)
        rma_link_close(
            l, ft_fail(FT_LINK, "the last %u messages did not arrive", l->last - l->in.expected),
            false);
}

/* The user has disconnected the link: it ends when the other side has all, and knows. */
static void turn_left(struct rma_link *l, uint64_t now_ns)
{
    const bool cut = l->base.cut || l->base.state != FT_LINK_UP;
    if (cut || now_ns >= l->deadline_ns || (!l->side && rma_post_flushed(l)))
        rma_link_close(l, FT_LINK, false);
}

static bool is_calm(const struct rma_link *l)
{
    bool calm = l->phase == RMA_OPEN && l->known && !l->left && !l->goodbye;
    for (unsigned k = 0; k < l->nways; k++) {
        const struct rma_way *w = &l->way[k];
        const bool closed = w->state == RMA_WAY_NONE && !w->deadline_ns;
        calm &= (w->state == RMA_WAY_READY || closed) && !w->say;
    }
    return calm;
}

/* A peer that has not even answered over the side connection would not answer elsewhere. */
static int not_made(const struct rma_link *l)
{
    const bool spoke = !l->base.sender || l->inside;
    return ft_fail(spoke ? FT_LINK : FT_TIMEOUT, "the other side does not answer");
}

void rma_link_turn(struct rma_link *l, uint64_t now_ns)
{
    rma_ways_turn(l, now_ns);
    if (l->phase <= RMA_OPEN && l->goodbye)
        turn_goodbye(l, now_ns);
    if (l->phase <= RMA_OPEN && l->left)
        turn_left(l, now_ns);
    if (l->phase <= RMA_OPEN && !l->known && now_ns >= l->deadline_ns)
        rma_link_close(l, ft_fail(FT_LINK, "the other side did not finish a link"), false);
    if (l->phase == RMA_MAKING && now_ns >= l->deadline_ns)
        rma_link_close(l, not_made(l), false);
    if (l->phase <= RMA_OPEN) {
        (void)rma_side_say(l);
        l->calm = is_calm(l);
    } else if (rma_ways_stopped(l)) {
        turn_closing(l, now_ns);
    }
}

/* Memory of the user that is still being written from is the user's again after disconnect: the
 * link ends at once, and its ways are waited for. That takes the time of a few packets. */
static void end_lent(struct rma_link *l)
{
    struct ft_env *env = l->rma->base.config.env;
    const uint64_t end_ns = ft_now_ns(env) + RMA_LENT_NS;
    bool busy = false;
    rma_link_close(l, ft_fail(FT_LINK, "it was disconnected while it sent"), false);
    while (!rma_ways_stopped(l) && ft_now_ns(env) < end_ns)
        rma_fabric_turn(l->rma, &busy);
    for (unsigned k = 0; k < l->nways; k++)
        if (l->way[k].state == RMA_WAY_STOPPING)
            rma_way_stopped(l, k); /* closing it stops it, too */
    rma_lent_end_all(l, FT_LINK);
}

void ft_rma_disconnect(struct ft_link *link)
{
    struct rma_link *l = rma_link_of(link);
    if (l->lent)
        end_lent(l);
    ft_news_drop(&l->rma->news, &l->news);
    l->left = true;
    l->calm = false;
    l->say_goodbye = link->state == FT_LINK_UP && l->phase == RMA_OPEN && !link->cut;
    if (link->cut && l->side) {
        ft_side_disconnect(l->side, false);
        l->side = NULL;
    }
    const uint64_t now_ns = ft_now_ns(l->rma->base.config.env);
    l->deadline_ns = now_ns + (l->say_goodbye ? RMA_LEAVE_NS : RMA_STOP_NS);
    ft_rxq_close(&l->rxq);
    ft_txq_close(&l->txq);
    l->held = l->claimed = 0; /* their messages are gone */
    rma_link_turn(l, now_ns);
}
