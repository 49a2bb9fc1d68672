/*
 * The ways of a link. A way is opened by the sender's side. It is ready when a first write over it
 * has ended, so a link is not UP before its network has shown that it works. It is lost when either
 * side says so. Then both stop their ends, each says what had arrived when its own was stopped, and
 * each writes again what the other one misses. Only then is the way gone, and opened again after a
 * while. Nothing is written twice into memory that may have been used meanwhile, because the lost
 * way's writes cannot arrive any more.
 */
#include "transport/rma/inside.h"

#include <inttypes.h>

#define ATTEMPTS_MOST 6 /* a way is opened again after 64 times RAIL_RETRY_MS at the latest */

/* Twice as late after each attempt that failed: the other side may have no such port. */
static uint64_t again_ns(const struct rma_link *l, const struct rma_way *w)
{
    const uint64_t ms = (uint64_t)ft_param_int(FT_PARAM_RAIL_RETRY_MS);
    const uint64_t after_ns = ms * 1000000 << w->attempts;
    return after_ns ? ft_now_ns(l->rma->base.config.env) + after_ns : 0;
}

unsigned rma_ways_ready(const struct rma_link *l)
{
    unsigned n = 0;
    for (unsigned k = 0; k < l->nways; k++)
        n += l->way[k].state == RMA_WAY_READY;
    return n;
}

static bool any_opening(const struct rma_link *l)
{
    for (unsigned k = 0; k < l->nways; k++)
        if (l->way[k].state != RMA_WAY_NONE && l->way[k].state != RMA_WAY_READY)
            return true;
    return false;
}

/* The sender's side opens it again after a while. */
static void way_gone(struct rma_link *l, unsigned k)
{
    struct rma_way *w = &l->way[k];
    w->state = RMA_WAY_NONE;
    w->deadline_ns = l->base.sender && l->phase <= RMA_OPEN ? again_ns(l, w) : 0;
    if (w->attempts < ATTEMPTS_MOST)
        w->attempts++;
}

int rma_way_open(struct rma_link *l, unsigned k, uint64_t now_ns)
{
    struct rma_way *w = &l->way[k];
    int rc = l->rma->fabric->ops->way_open(l->rma->fabric, k, l->inside_region, l, &w->fabric);
    l->calm = false;
    w->answered = w->heard = w->connected = w->probed = false;
    w->given = w->unwritten = w->silent = 0;
    if (rc) {
        w->fabric = NULL;
        snprintf(w->why, sizeof w->why, "%s", ft_fail_text());
        way_gone(l, k);
        return rc;
    }
    w->fabric->index = k;
    w->fabric->user = l;
    w->state = RMA_WAY_OPENING;
    w->generation++;
    w->deadline_ns = now_ns + RMA_CONNECT_NS;
    w->say = RMA_SAY_OPEN;
    return FT_OK;
}

void rma_way_ready(struct rma_link *l, unsigned k)
{
    struct rma_way *w = &l->way[k];
    char text[FT_FABRIC_TEXT_BYTES];
    w->state = RMA_WAY_READY;
    w->attempts = 0;
    w->deadline_ns = 0;
    l->rma->fabric->ops->way_describe(w->fabric, text);
    FT_LOG(INFO, "net", l->rma->base.config.rank, "%s link %s engine %016" PRIx64 ", way %u: %s",
           l->base.ops->name, l->base.sender ? "to" : "from", l->base.peer, k, text);
    rma_link_up(l);
}

void rma_way_stop(struct rma_link *l, unsigned k)
{
    struct rma_way *w = &l->way[k];
    if (w->state != RMA_WAY_OPENING && w->state != RMA_WAY_READY)
        return;
    l->rma->fabric->ops->way_stop(w->fabric);
    w->state = RMA_WAY_STOPPING;
    l->calm = false;
    w->deadline_ns = ft_now_ns(l->rma->base.config.env) + RMA_STOP_NS;
}

/* That a way was ready and is lost is worth a warning; that it does not come about again, none. */
static void log_lost(const struct rma_link *l, unsigned k, const char *why)
{
    const char *direction = l->base.sender ? "to" : "from";
    const int rank = l->rma->base.config.rank;
    if (l->way[k].state == RMA_WAY_READY)
        FT_LOG(WARN, "net", rank, "%s link %s engine %016" PRIx64 " has lost way %u of %u: %s",
               l->base.ops->name, direction, l->base.peer, k, l->nways, why);
    else
        FT_LOG(INFO, "net", rank, "%s link %s engine %016" PRIx64 " has no way %u of %u: %s",
               l->base.ops->name, direction, l->base.peer, k, l->nways, why);
}

void rma_way_fail(struct rma_link *l, unsigned k, const char *why)
{
    struct rma_way *w = &l->way[k];
    if (w->state != RMA_WAY_OPENING && w->state != RMA_WAY_READY)
        return;
    log_lost(l, k, why);
    snprintf(w->why, sizeof w->why, "%s", why);
    rma_way_stop(l, k);
    w->unsaid = l->base.sender && (w->say & RMA_SAY_OPEN);
    if (w->unsaid)
        w->say = 0;
    else if (!w->heard)
        w->say |= RMA_SAY_DEAD;
    if (l->phase == RMA_OPEN && !rma_ways_ready(l) && (l->known || !any_opening(l))) {
        l->lost_ns = ft_now_ns(l->rma->base.config.env);
        rma_link_close(
            l, ft_fail(FT_LINK, "all %u ways are lost; the last one: %s", l->nways, w->why), false);
    }
}

void rma_way_stopped(struct rma_link *l, unsigned k)
{
    struct rma_way *w = &l->way[k];
    l->rma->fabric->ops->way_close(w->fabric);
    w->fabric = NULL;
    w->state = RMA_WAY_STOPPED;
    w->deadline_ns = 0;
    if (w->unsaid) { /* the other side never knew of it */
        w->unsaid = false;
        w->generation--;
        way_gone(l, k);
        return;
    }
    if (l->phase <= RMA_OPEN)
        w->say |= RMA_SAY_STOPPED;
    rma_way_finish(l, k);
}

void rma_way_finish(struct rma_link *l, unsigned k)
{
    struct rma_way *w = &l->way[k];
    if (w->state != RMA_WAY_STOPPED || !w->answered || l->phase > RMA_OPEN)
        return;
    w->answered = false;
    rma_post_again(l, k);
    if (l->phase <= RMA_OPEN)
        (void)rma_post_queued(l);
    way_gone(l, k);
}

bool rma_ways_stopped(const struct rma_link *l)
{
    for (unsigned k = 0; k < l->nways; k++)
        if (l->way[k].fabric)
            return false;
    return true;
}

/* The sender's side writes nothing over a new way, to know that it is through. */
static void probe(struct rma_link *l, struct rma_way *w)
{
    const struct ft_fabric_write nothing = {.immediate = RMA_NOTHING, .asked = true};
    if (w->state != RMA_WAY_OPENING || !w->connected || w->probed)
        return;
    w->probed = l->rma->fabric->ops->write(w->fabric, &nothing) == FT_OK;
    w->given += w->probed;
    w->unwritten += w->probed;
}

void rma_way_probed(struct rma_link *l, unsigned k)
{
    struct rma_way *w = &l->way[k];
    if (w->state != RMA_WAY_OPENING || !w->probed)
        return;
    w->say |= RMA_SAY_READY;
    rma_way_ready(l, k);
}

static void way_late(struct rma_link *l, unsigned k, uint64_t now_ns)
{
    struct rma_way *w = &l->way[k];
    if (w->state == RMA_WAY_OPENING)
        rma_way_fail(l, k, "the other side does not answer");
    else if (w->state == RMA_WAY_STOPPING)
        rma_way_stopped(l, k); /* closing it stops it, too */
    else if (w->state == RMA_WAY_NONE && l->phase == RMA_OPEN && !w->say)
        (void)rma_way_open(l, k, now_ns);
}

/* If none of them has come about, neither does the link. */
static void check_making(struct rma_link *l)
{
    if (l->phase == RMA_MAKING && l->base.sender && l->inside_region && !any_opening(l) &&
        !rma_ways_ready(l))
        rma_link_close(l, ft_fail(FT_LINK, "no way to the peer: %s", l->way[0].why), false);
}

void rma_ways_turn(struct rma_link *l, uint64_t now_ns)
{
    check_making(l);
    for (unsigned k = 0; k < l->nways; k++) {
        probe(l, &l->way[k]);
        if (l->way[k].deadline_ns && now_ns >= l->way[k].deadline_ns)
            way_late(l, k, now_ns);
    }
}
