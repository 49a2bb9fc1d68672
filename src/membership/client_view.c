/*
 * How a member's view is made of the last one and a message of the coordinator. The message is
 * input from outside: ft_members_view_decode() has checked its lengths, and this file checks what
 * it says. A message that is wrong changes nothing.
 */
#include "base/wire.h"
#include "membership/client.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(struct ft_endpoints) % _Alignof(struct ft_endpoint) == 0, "no gap");

static struct ft_endpoints *make_list(size_t n)
{
    struct ft_endpoints *list = calloc(1, sizeof *list + n * sizeof list->at[0]);
    if (list) {
        atomic_init(&list->refs, 1);
        list->n = (int)n;
    }
    return list;
}

static struct ft_endpoints *keep(struct ft_endpoints *list)
{
    atomic_fetch_add_explicit(&list->refs, 1, memory_order_relaxed);
    return list;
}

/* The last one sees what the others have read or written before they released it. */
static void release(struct ft_endpoints *list)
{
    if (list && atomic_fetch_sub_explicit(&list->refs, 1, memory_order_acq_rel) == 1)
        free(list);
}

static struct ft_endpoints *list_of(struct ft_endpoint *at)
{
    return at ? (struct ft_endpoints *)(void *)((char *)at - offsetof(struct ft_endpoints, at))
              : NULL;
}

void ft_client_held_clear(struct ft_client_held *held)
{
    release(held->peers);
    release(held->local);
    *held = (struct ft_client_held){0};
}

void ft_managed_view_free(struct ft_managed_view *view)
{
    if (!view)
        return;
    release(list_of(view->peer));
    release(list_of(view->local));
    free(view->sources);
    free(view);
}

/* Reads a length and an endpoint. */
static bool take_endpoint(const unsigned char **at, const unsigned char *end,
                          struct ft_endpoint *out)
{
    size_t len = get32(at);
    if (len > (size_t)(end - *at) || ft_endpoint_decode(*at, len, out) != (int)len)
        return false;
    *at += len;
    return true;
}

/* What is left of the lists while the new list is filled. */
struct merge {
    const struct ft_endpoints *base; /* NULL: there is none */
    int from;                        /* the next one of it */
    const unsigned char *gone, *added, *end;
    uint32_t ngone, nadded;
};

/* Those that have gone come in ascending order. */
static void skip_gone(struct merge *m)
{
    for (const unsigned char *at; at = m->gone, m->ngone > 0 && get32(&at) == (uint32_t)m->from;) {
        m->gone = at;
        m->ngone--;
        m->from++;
    }
}

static bool fill_one(struct merge *m, int rank, struct ft_endpoint *out)
{
    const unsigned char *at = m->added;
    if (m->nadded > 0 && get32(&at) == (uint32_t)rank) {
        m->added = at;
        m->nadded--;
        return take_endpoint(&m->added, m->end, out);
    }
    skip_gone(m);
    if (!m->base || m->from >= m->base->n)
        return false;
    *out = m->base->at[m->from++];
    return true;
}

/* At their ranks those that were added, in between those of the base, in order. All of both lists
 * must be used. */
static bool fill_peers(const struct ft_members_view *view, const struct ft_endpoints *base,
                       struct ft_endpoints *out)
{
    struct merge m = {.base = base,
                      .gone = view->gone,
                      .added = view->added,
                      .end = view->added + view->added_bytes,
                      .ngone = view->ngone,
                      .nadded = view->nadded};
    for (int rank = 0; rank < out->n; rank++)
        if (!fill_one(&m, rank, &out->at[rank]))
            return false;
    skip_gone(&m);
    return m.nadded == 0 && m.ngone == 0 && (!base || m.from == base->n);
}

static struct ft_endpoints *make_peers(const struct ft_client_held *held,
                                       const struct ft_members_view *m, int *status)
{
    struct ft_endpoints *base = m->base_epoch ? held->peers : NULL;
    if (base && m->ngone == 0 && m->nadded == 0 && m->nranks == (uint32_t)base->n)
        return keep(base);
    struct ft_endpoints *peers = make_list(m->nranks);
    *status = FT_NOMEM;
    if (peers && !fill_peers(m, base, peers)) {
        *status = FT_PROTOCOL;
        release(peers);
        peers = NULL;
    }
    return peers;
}

static struct ft_endpoints *make_local(const struct ft_client_held *held,
                                       const struct ft_members_view *m, int *status)
{
    const unsigned char *at = m->local, *end = m->local + m->local_bytes;
    *status = FT_PROTOCOL;
    if (m->nlocal == 0)
        return m->base_epoch ? keep(held->local) : NULL;
    struct ft_endpoints *local = make_list(m->nlocal);
    if (!local)
        *status = FT_NOMEM;
    for (uint32_t i = 0; local && i < m->nlocal; i++)
        if (!take_endpoint(&at, end, &local->at[i])) {
            release(local);
            local = NULL;
        }
    return local;
}

/* The numbers, before anything is made of them. */
static bool is_possible(const struct ft_client_held *held, const struct ft_members_view *m,
                        const struct ft_role *role)
{
    uint64_t nbase = 0;
    if (m->base_epoch != 0) {
        if (!held->peers || m->base_term != held->term || m->base_epoch != held->epoch)
            return false;
        nbase = (uint64_t)held->peers->n;
    }
    return m->ngone <= nbase && nbase - m->ngone + m->nadded == m->nranks &&
           (m->nlocal == 0 || m->nlocal == role->local_size);
}

static bool same_engines(const struct ft_endpoints *a, const struct ft_endpoints *b)
{
    bool same = a->n == b->n;
    for (int i = 0; a != b && same && i < a->n; i++)
        same = a->at[i].engine == b->at[i].engine;
    return same;
}

/* What was made has this member where it should be, and a number names one view only. */
static bool is_right(const struct ft_client_held *held, const struct ft_client_held *next,
                     const struct ft_role *role, uint64_t engine)
{
    bool again = held->peers && held->term == next->term && held->epoch == next->epoch;
    return next->peers->at[next->rank].engine == engine &&
           (uint32_t)next->local->n == role->local_size &&
           next->local->at[role->local_rank].engine == engine &&
           (!again || (held->rank == next->rank && same_engines(held->peers, next->peers) &&
                       same_engines(held->local, next->local)));
}

int ft_client_held_apply(struct ft_client_held *held, const struct ft_members_view *m,
                         const struct ft_role *role, uint64_t engine)
{
    bool again = held->peers && held->term == m->term && held->epoch == m->epoch;
    struct ft_client_held next = {.term = m->term,
                                  .epoch = m->epoch,
                                  .rank = (int)m->rank,
                                  .times = again ? held->times + 1 : 1};
    int status = is_possible(held, m, role) ? FT_OK : FT_PROTOCOL;
    if (status == FT_OK)
        next.peers = make_peers(held, m, &status);
    if (next.peers)
        next.local = make_local(held, m, &status);
    if (next.local)
        status = is_right(held, &next, role, engine) ? FT_OK : FT_PROTOCOL;
    if (status != FT_OK) {
        ft_client_held_clear(&next);
        return ft_fail(status,
                       status == FT_NOMEM
                           ? "no memory for a view of %u ranks"
                           : "the coordinator sent a view of %u ranks that makes no sense",
                       m->nranks);
    }
    ft_client_held_clear(held);
    *held = next;
    return FT_OK;
}

struct ft_managed_view *ft_client_held_view(const struct ft_client_held *held,
                                            const struct ft_members_view *m,
                                            const struct ft_role *role, bool same)
{
    struct ft_managed_view *view = calloc(1, sizeof *view);
    int *sources = calloc(m->nsources + 1u, sizeof *sources);
    const unsigned char *source = m->sources;
    if (!view || !sources) {
        free(view);
        free(sources);
        return NULL;
    }
    for (uint32_t i = 0; i < m->nsources; i++)
        sources[i] = (int)get32(&source);
    *view = (struct ft_managed_view){.term = held->term,
                                     .epoch = held->epoch,
                                     .step = m->step,
                                     .same = same,
                                     .behind = m->behind,
                                     .nranks = held->peers->n,
                                     .rank = held->rank,
                                     .nhealthy = (int)m->nhealthy,
                                     .nsources = (int)m->nsources,
                                     .sources = sources,
                                     .peer = keep(held->peers)->at,
                                     .local_rank = (int)role->local_rank,
                                     .local_size = (int)role->local_size,
                                     .local = keep(held->local)->at};
    return view;
}
