/*
 * Completion queues: what has ended and what has arrived.
 */
#include "transport/verbs/verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SLOT_SHIFT = 40, KIND_SHIFT = 36, USE_SHIFT = 48, POLLS_BETWEEN = 64 };

uint64_t verbs_request(const struct verbs_way *w, enum verbs_kind kind, uint32_t seq)
{
    return (uint64_t)w->cq->slot[w->slot].use << USE_SHIFT | (uint64_t)w->slot << SLOT_SHIFT |
           (uint64_t)kind << KIND_SHIFT | seq;
}

/* ---- slots ----------------------------------------------------------------------------------- */

static int slot_to_use(const struct verbs_cq *q)
{
    for (int i = 0; i < VERBS_CQ_WAYS; i++)
        if (!q->slot[i].way && !q->slot[i].dirty)
            return i;
    return -1;
}

static int fail_cq(struct verbs_fabric *f, const struct verbs_device *d, unsigned entries)
{
    if (errno == ENOMEM)
        return verbs_fail_pinning(f, d->name, (size_t)entries * FT_CACHE_LINE, errno);
    return ft_fail(FT_NOTSUP, "cannot make a completion queue on %s: %s", d->name, strerror(errno));
}

static int make_cq(struct verbs_fabric *f, struct verbs_device *d, struct verbs_cq **out)
{
    const unsigned entries = VERBS_CQ_WAYS * (d->max_send + 1 + d->max_recv);
    if (entries > d->max_cqe)
        return ft_fail(FT_NOTSUP, "%s allows %u entries in a completion queue, and %u are needed",
                       d->name, d->max_cqe, entries);
    if (f->ncqs == VERBS_CQS_MAX)
        return ft_fail(FT_NOTSUP, "%u completion queues are in use, which is the limit", f->ncqs);
    struct verbs_cq *q = calloc(1, sizeof *q);
    if (!q)
        return ft_fail(FT_NOMEM, "no memory for a completion queue");
    q->cq = f->lib->create_cq(d->context, (int)entries, q, d->channel, 0);
    if (!q->cq) {
        int rc = fail_cq(f, d, entries);
        free(q);
        return rc;
    }
    q->fabric = f;
    q->device = d;
    q->next = f->cqs;
    f->cqs = q;
    f->ncqs++;
    *out = q;
    return FT_OK;
}

int verbs_cq_join(struct verbs_fabric *f, struct verbs_device *d, struct verbs_way *w)
{
    struct verbs_cq *q = f->cqs;
    while (q && (q->device != d || q->broken || slot_to_use(q) < 0))
        q = q->next;
    if (!q) {
        int rc = make_cq(f, d, &q);
        if (rc)
            return rc;
    }
    w->cq = q;
    w->slot = (unsigned)slot_to_use(q);
    q->slot[w->slot].way = w;
    q->slot[w->slot].use++;
    return FT_OK;
}

/* The slot is used again when the queue has been seen empty: then there is room for all that a new
 * queue pair may complete. */
void verbs_cq_leave(struct verbs_way *w)
{
    w->cq->slot[w->slot].way = NULL;
    w->cq->slot[w->slot].dirty = true;
}

static void close_cq(struct verbs_fabric *f, struct verbs_cq *q)
{
    if (q->unacknowledged)
        f->lib->ack_cq_events(q->cq, q->unacknowledged);
    f->lib->destroy_cq(q->cq);
    free(q);
}

void verbs_cqs_close(struct verbs_fabric *f)
{
    while (f->cqs) {
        struct verbs_cq *q = f->cqs;
        f->cqs = q->next;
        close_cq(f, q);
    }
    f->ncqs = 0;
}

/* ---- completions ----------------------------------------------------------------------------- */

static struct verbs_way *way_of(const struct verbs_cq *q, uint64_t request)
{
    const unsigned slot = (request >> SLOT_SHIFT) & 0xff;
    if (slot >= VERBS_CQ_WAYS || q->slot[slot].use != request >> USE_SHIFT)
        return NULL;
    return q->slot[slot].way;
}

static void report_error(struct verbs_way *w, const struct ibv_wc *wc)
{
    char code[48];
    snprintf(code, sizeof code, "status %u, vendor 0x%x", (unsigned)wc->status, wc->vendor_err);
    verbs_way_fail(w, verbs_completion_error((unsigned)wc->status), code);
}

/* Writes up to `number` have ended. */
static bool written(struct verbs_way *w, uint32_t number, struct ft_fabric_event *event)
{
    const uint32_t count = number - w->ended;
    if (count == 0 || count > w->posted - w->ended)
        return false;
    w->ended = number;
    *event = (struct ft_fabric_event){.what = FT_FABRIC_WRITTEN, .way = &w->base, .count = count};
    return true;
}

static bool received(struct verbs_way *w, const struct ibv_wc *wc, struct ft_fabric_event *event)
{
    w->receives--;
    if (wc->status != IBV_WC_SUCCESS)
        return false;
    if (w->state <= VERBS_READY && ++w->missing >= VERBS_REPOST)
        verbs_way_repost(w);
    if (!(wc->wc_flags & IBV_WC_WITH_IMM))
        return false;
    *event = (struct ft_fabric_event){
        .what = FT_FABRIC_ARRIVED, .way = &w->base, .immediate = ntohl(wc->imm_data)};
    return true;
}

/* Whether it makes an event. */
static bool handle(struct verbs_cq *q, const struct ibv_wc *wc, struct ft_fabric_event *event)
{
    struct verbs_way *w = way_of(q, wc->wr_id);
    if (!w) {
        q->fabric->base.strays++;
        return false;
    }
    const enum verbs_kind kind = (enum verbs_kind)((wc->wr_id >> KIND_SHIFT) & 0xf);
    bool made = false;
    if (wc->status != IBV_WC_SUCCESS && w->state < VERBS_STOPPING)
        report_error(w, wc);
    if (kind == VERBS_RECEIVE)
        made = received(w, wc, event);
    else if (kind == VERBS_LAST)
        w->flushed = true;
    else if (wc->status == IBV_WC_SUCCESS)
        made = written(w, (uint32_t)wc->wr_id, event);
    if (w->state == VERBS_STOPPING)
        verbs_way_check_stopped(w);
    return made;
}

/* Nothing of closed or destroyed queue pairs is in the queue any more. */
static void seen_empty(struct verbs_cq *q)
{
    for (int i = 0; i < VERBS_CQ_WAYS; i++) {
        q->slot[i].dirty = false;
        if (q->slot[i].way && q->slot[i].way->state == VERBS_ENDING)
            verbs_way_check_stopped(q->slot[i].way);
    }
}

void verbs_cq_break(struct verbs_cq *q, const char *why)
{
    q->broken = true;
    for (int i = 0; i < VERBS_CQ_WAYS; i++) {
        struct verbs_way *w = q->slot[i].way;
        if (!w)
            continue;
        w->stop_ns = 0;
        verbs_way_fail(w, verbs_event_error(IBV_EVENT_CQ_ERR), why);
    }
}

/* What arm has taken. */
static int poll_taken(struct verbs_fabric *f, struct ft_fabric_event *events, int max)
{
    int n = 0;
    while (f->taken.next < f->taken.count && n < max)
        n += handle(f->taken.cq, &f->taken.wc[f->taken.next++], &events[n]);
    return n;
}

static int poll_cq(struct verbs_cq *q, struct ft_fabric_event *events, int max, bool *busy)
{
    struct ibv_wc wc[VERBS_BATCH];
    int n = 0;
    if (q->broken)
        seen_empty(q);
    while (n < max && !q->broken) {
        const int want = max - n < VERBS_BATCH ? max - n : VERBS_BATCH;
        const int got = ibv_poll_cq(q->cq, want, wc);
        if (got < 0) {
            verbs_cq_break(q, strerror(EIO));
            return n;
        }
        for (int i = 0; i < got; i++)
            n += handle(q, &wc[i], &events[n]);
        *busy |= got > 0;
        if (got < want) {
            seen_empty(q);
            break;
        }
    }
    return n;
}

/* ---- what ways and ports report -------------------------------------------------------------- */

/* Ends queue pairs whose last flush has not come in VERBS_STOP_NS. */
static void check_stops(struct verbs_fabric *f)
{
    const uint64_t now = ft_now_ns(f->config.env);
    for (struct verbs_cq *q = f->cqs; q; q = q->next)
        for (int i = 0; i < VERBS_CQ_WAYS; i++)
            if (q->slot[i].way)
                verbs_way_check_dying(q->slot[i].way, now);
}

static bool way_event(struct verbs_way *w, struct ft_fabric_event *event)
{
    *event = (struct ft_fabric_event){.way = &w->base, .status = w->status};
    if (w->say_failed) {
        w->say_failed = false;
        event->what = FT_FABRIC_FAILED;
        event->text = w->text;
        return true;
    }
    if (!w->say_stopped)
        return false;
    w->say_stopped = false;
    event->what = FT_FABRIC_STOPPED;
    return true;
}

static int take_news(struct verbs_fabric *f, struct ft_fabric_event *events, int max)
{
    int n = 0;
    while (f->news && n < max) {
        struct verbs_way *w = f->news;
        if (way_event(w, &events[n])) {
            n++;
            continue;
        }
        f->news = w->next_news;
        if (!f->news)
            f->news_end = &f->news;
        w->listed = false;
    }
    for (unsigned i = 0; f->port_news && i < f->nports && n < max; i++) {
        if (!(f->port_news & 1u << i))
            continue;
        f->port_news &= ~(1u << i);
        events[n++] = (struct ft_fabric_event){
            .what = FT_FABRIC_PORT, .port = i, .up = f->port[i].up, .text = f->port[i].name};
    }
    return n;
}

static bool look_at_events(struct verbs_fabric *f)
{
    if (!f->look_async && ++f->polls % POLLS_BETWEEN != 0)
        return false;
    const uint64_t now = ft_now_ns(f->config.env);
    if (!f->look_async && now - f->async_ns < VERBS_ASYNC_NS)
        return false;
    f->look_async = false;
    f->async_ns = now;
    return verbs_events_take(f);
}

/* Arrivals before failures, and those before STOPPED: a way's events are in its completion queue
 * before it is put into the list. */
int verbs_poll(struct ft_fabric *fabric, struct ft_fabric_event *events, int max, bool *busy)
{
    struct verbs_fabric *f = verbs_fabric_of(fabric);
    int n = take_news(f, events, max);
    n += poll_taken(f, events + n, max - n);
    if (!f->turn)
        f->turn = f->cqs;
    for (unsigned i = 0; i < f->ncqs && n < max; i++) {
        struct verbs_cq *q = f->turn;
        n += poll_cq(q, events + n, max - n, busy);
        if (n < max)
            f->turn = q->next ? q->next : f->cqs;
    }
    /* Destroying a queue pair drops what is still in its completion queue: first all is taken. */
    if (f->nstopping && n < max)
        check_stops(f);
    *busy |= look_at_events(f);
    n += take_news(f, events + n, max - n);
    *busy |= n > 0;
    return n;
}

/* ---- sleeping -------------------------------------------------------------------------------- */

int verbs_fd(struct ft_fabric *fabric)
{
    return verbs_fabric_of(fabric)->epoll_fd;
}

static void drain_channel(struct verbs_fabric *f, struct verbs_device *d)
{
    struct ibv_cq *cq;
    void *context;
    while (f->lib->get_cq_event(d->channel, &cq, &context) == 0) {
        struct verbs_cq *q = context;
        if (++q->unacknowledged == 1024) {
            f->lib->ack_cq_events(q->cq, q->unacknowledged);
            q->unacknowledged = 0;
        }
    }
}

/* A notification comes for what completes after it was asked for. So each queue is looked at once
 * more, and what is there is kept for poll. */
static bool arm_all(struct verbs_fabric *f)
{
    for (struct verbs_cq *q = f->cqs; q; q = q->next) {
        if (q->broken || q->device->gone)
            continue;
        if (ibv_req_notify_cq(q->cq, 0) != 0) {
            verbs_cq_break(q, "it cannot be waited for");
            return false;
        }
        int got = ibv_poll_cq(q->cq, VERBS_BATCH, f->taken.wc);
        if (got == 0)
            continue;
        f->taken.cq = q;
        f->taken.count = got > 0 ? got : 0;
        f->taken.next = 0;
        return false;
    }
    return true;
}

bool verbs_arm(struct ft_fabric *fabric, bool on)
{
    struct verbs_fabric *f = verbs_fabric_of(fabric);
    if (on)
        return !f->news && !f->port_news && f->taken.next == f->taken.count && arm_all(f);
    for (unsigned i = 0; i < f->ndevices; i++)
        drain_channel(f, &f->device[i]);
    f->look_async = true;
    return true;
}
