/*
 * Records of grows, and the questions and answers between joiners and the ranks of the parent.
 * Received bytes come from outside and are checked. Invariant: a joiner hears only what the ranks
 * of the parent agreed on. A rank that failed by itself says that it will never know.
 */
#include "core/group/growth.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define GROWTHS_KEPT 16 /* outcomes remembered for joiners that ask late */

/* int32_t order[nranks] follows. nranks 0: this rank does not know; with another status than
 * FT_AGAIN it never will. */
struct answer {
    int32_t status, nranks;
};

/* ---- records --------------------------------------------------------------------------------- */

static void free_growth(struct ft_growth *growth)
{
    free(growth->askers);
    free(growth->joiners);
    free(growth->order);
    free(growth->told);
    free(growth);
}

static struct ft_growth *find_growth(const struct ft_engine *engine, uint64_t ctx)
{
    struct ft_growth *growth = engine->group->growths;
    while (growth && growth->ctx != ctx)
        growth = growth->next;
    return growth;
}

int ft_growth_open(struct ft_engine *engine, const struct ft_grow_facts *facts, int nranks,
                   bool joining, struct ft_growth **out)
{
    struct ft_growth *growth = calloc(1, sizeof *growth);
    if (!growth)
        return ft_fail(FT_NOMEM, "no memory to grow");
    *growth = (struct ft_growth){.ctx = facts->ctx,
                                 .nold = (int)facts->nold,
                                 .nranks = nranks,
                                 .joining = joining,
                                 .askers = calloc(2 * (size_t)nranks, sizeof *growth->askers),
                                 .joiners = calloc((size_t)nranks, sizeof *growth->joiners),
                                 .order = calloc((size_t)nranks, sizeof *growth->order),
                                 .told = calloc(facts->nold, 1)};
    atomic_store(&growth->status, FT_AGAIN);
    if (!growth->askers || !growth->joiners || !growth->order || !growth->told) {
        free_growth(growth);
        return ft_fail(FT_NOMEM, "no memory to grow");
    }
    ft_engine_lock(engine);
    growth->next = engine->group->growths;
    engine->group->growths = growth;
    ft_engine_unlock(engine);
    *out = growth;
    return FT_OK;
}

void ft_grow_close(struct ft_engine *engine)
{
    for (struct ft_growth *growth = engine->group->growths, *next; growth; growth = next) {
        next = growth->next;
        free_growth(growth);
    }
    engine->group->growths = NULL;
}

/* ---- questions and answers ------------------------------------------------------------------- */

bool ft_growth_has(const uint64_t *ids, int n, uint64_t id)
{
    int i = 0;
    while (i < n && ids[i] != id)
        i++;
    return i < n;
}

void ft_growth_tell(struct ft_engine *engine, struct ft_peer *peer, const struct ft_growth *growth)
{
    struct ft_ctl_head head = {FT_CTL_TELL, 0, growth->ctx};
    size_t len = sizeof(struct answer) +
                 (growth->agreed ? (size_t)growth->nranks * sizeof(int32_t) : 0);
    unsigned char *bytes = malloc(len);
    if (!bytes)
        return; /* no memory: the joiner asks again */
    struct answer answer = {growth->status, growth->agreed ? growth->nranks : 0};
    /* the peer came with another id than the agreed joiners */
    if (growth->status == FT_OK &&
        !ft_growth_has(growth->joiners, growth->nranks - growth->nold, peer->id))
        answer.status = FT_USAGE;
    memcpy(bytes, &answer, sizeof answer);
    memcpy(bytes + sizeof answer, growth->order, len - sizeof answer);
    ft_control_send(engine, peer, &head, bytes, len);
    free(bytes);
}

/* The question carries the joiner's endpoint, because this rank may never get those of the root. */
static void learn_asker(struct ft_engine *engine, struct ft_peer *peer, const void *data,
                        size_t len_bytes)
{
    struct ft_endpoint endpoint;
    if (peer->address || ft_endpoint_decode(data, len_bytes, &endpoint) <= 0 ||
        endpoint.engine != peer->id)
        return;
    ft_engine_learn(engine, endpoint.engine, endpoint.host, endpoint.address,
                    endpoint.address_bytes, peer->rank);
    peer->told = false;
}

static void take_question(struct ft_engine *engine, struct ft_peer *peer, struct ft_growth *growth)
{
    int n = atomic_load_explicit(&growth->asked, memory_order_relaxed);
    if (!ft_growth_has(growth->askers, n, peer->id) && n < 2 * (growth->nranks - growth->nold)) {
        growth->askers[n] = peer->id;
        peer->askers++;
        atomic_store_explicit(&growth->asked, n + 1, memory_order_release);
    }
    if (growth->status != FT_AGAIN && peer->address)
        ft_growth_tell(engine, peer, growth);
}

static bool is_permutation(const int32_t *order, int n)
{
    bool *seen = calloc((size_t)n, sizeof *seen);
    int i = 0;
    for (; seen && i < n && order[i] >= 0 && order[i] < n && !seen[order[i]]; i++)
        seen[order[i]] = true;
    free(seen);
    return i == n;
}

static void take_answer(struct ft_growth *growth, int from, const unsigned char *data,
                        size_t len_bytes)
{
    struct answer answer;
    size_t order_bytes = (size_t)growth->nranks * sizeof *growth->order;
    const int32_t *order = (const int32_t *)(const void *)(data + sizeof answer);
    if (growth->status != FT_AGAIN || from < 0 || from >= growth->nold || len_bytes < sizeof answer)
        return;
    memcpy(&answer, data, sizeof answer);
    bool whole = answer.nranks == growth->nranks && len_bytes == sizeof answer + order_bytes;
    if (answer.status == FT_AGAIN)
        return; /* the root only asks whether this rank is there */
    if (answer.nranks == 0)
        growth->told[from] = FT_SAID_NEVER;
    else if (!whole)
        return;
    else if (answer.status != FT_OK) {
        growth->agreed = true;
        atomic_store_explicit(&growth->status, answer.status, memory_order_release);
    } else if (is_permutation(order, growth->nranks)) {
        /* written once, because the user's thread may already read it */
        if (!growth->ordered)
            memcpy(growth->order, order, order_bytes);
        growth->ordered = true;
        growth->told[from] = FT_SAID_YES;
    }
    atomic_fetch_add_explicit(&growth->heard, 1, memory_order_release);
}

void ft_grow_receive(struct ft_engine *engine, struct ft_peer *peer, const struct ft_ctl_in *in)
{
    struct ft_growth *growth = find_growth(engine, in->head.ctx);
    if (!growth)
        return; /* this rank has not begun the grow yet: the joiner asks again */
    if (in->head.what == FT_CTL_TELL && growth->joining)
        take_answer(growth, peer->rank, in->data, in->len_bytes);
    if (in->head.what != FT_CTL_ASK || growth->joining)
        return;
    learn_asker(engine, peer, in->data, in->len_bytes);
    take_question(engine, peer, growth);
}

/* The peers that asked may be freed from now on. */
static void let_askers_go(struct ft_engine *engine, const struct ft_growth *growth)
{
    for (int i = 0; i < growth->asked; i++) {
        struct ft_peer *peer = ft_engine_peer(engine, growth->askers[i]);
        if (!peer)
            continue;
        assert(peer->askers > 0);
        peer->askers--;
    }
    engine->hung_up = true;
}

/* Keeps the record until many later ones have come. */
void ft_growth_conclude(struct ft_engine *engine, struct ft_growth *growth, int status, bool agreed)
{
    char why[FT_FAIL_BYTES]; /* the caller's sentence; the turn may write another one */
    snprintf(why, sizeof why, "%s", ft_fail_text());
    ft_engine_lock(engine);
    growth->agreed = agreed;
    atomic_store_explicit(&growth->status, status, memory_order_release);
    for (int i = 0; i < growth->asked; i++) {
        struct ft_peer *peer = ft_engine_peer(engine, growth->askers[i]);
        if (peer && peer->address)
            ft_growth_tell(engine, peer, growth);
    }
    int kept = 0;
    for (struct ft_growth **at = &engine->group->growths; *at;) {
        struct ft_growth *old = *at;
        if (++kept <= GROWTHS_KEPT || old->status == FT_AGAIN) {
            at = &old->next;
            continue;
        }
        *at = old->next;
        let_askers_go(engine, old);
        free_growth(old);
    }
    ft_engine_unlock(engine);
    ft_engine_kick(engine);
    ft_fail(status, "%s", why);
}

/* ---- the child ------------------------------------------------------------------------------- */

int ft_growth_child(struct ft_engine *engine, const struct ft_growth *growth,
                    const struct ft_place *places, const struct ft_grow *how, uint64_t epoch,
                    struct ft_comm **out)
{
    int n = growth->nranks;
    struct ft_view view = {.epoch = epoch, .nranks = n};
    int *host = malloc((size_t)n * sizeof *host);
    uint64_t *peer = malloc((size_t)n * sizeof *peer);
    int rc = host && peer ? FT_OK : ft_fail(FT_NOMEM, "no memory for %d ranks", n);
    for (int i = 0; i < n && rc == FT_OK; i++) {
        int same = 0;
        while (same < i && places[growth->order[same]].host != places[growth->order[i]].host)
            same++;
        host[i] = same < i ? host[same] : view.nhosts++;
        peer[i] = places[growth->order[i]].engine;
        if (peer[i] == engine->id)
            view.rank = i;
    }
    view.host = host;
    view.peer = peer;
    if (rc == FT_OK)
        rc = ft_comm_open(engine, &view, growth->ctx, how->name, &how->limits, out);
    free(host);
    free(peer);
    return rc;
}
