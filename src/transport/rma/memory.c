/*
 * Memory of the user that the fabric knows. A long message from it is written from where it lies,
 * behind its descriptor; its send is pending until the device does not read the memory any more.
 * Registrations of the same range share one region: programs register the same buffers again.
 * Threads of the user come and go with memory while turns go on, so the list has a lock of its own.
 */
#include "transport/rma/inside.h"

#include <stdlib.h>

/* ---- registration ---------------------------------------------------------------------------- */

/* The caller holds the lock. */
static struct rma_memory *find_same(struct rma *t, const void *at, size_t len_bytes)
{
    struct rma_memory *m = t->memories;
    while (m && (m->region->at != at || m->region->len_bytes != len_bytes))
        m = m->next;
    return m;
}

static struct rma_memory *share(struct rma *t, const void *at, size_t len_bytes)
{
    pthread_mutex_lock(&t->memory_lock);
    struct rma_memory *m = find_same(t, at, len_bytes);
    if (m)
        m->users++;
    pthread_mutex_unlock(&t->memory_lock);
    return m;
}

int ft_rma_reg(struct ft_transport *base, void *addr, size_t len_bytes, void **out)
{
    struct rma *t = rma_of(base);
    struct rma_memory *m = share(t, addr, len_bytes);
    if (m) {
        *out = m;
        return FT_OK;
    }
    m = calloc(1, sizeof *m);
    if (!m)
        return ft_fail(FT_NOMEM, "no memory for a registration");
    int rc = t->fabric->ops->reg(t->fabric, addr, len_bytes, FT_FABRIC_LOCAL, &m->region);
    if (rc) {
        free(m);
        return rc;
    }
    m->users = 1;
    pthread_mutex_lock(&t->memory_lock);
    m->next = t->memories;
    t->memories = m;
    t->nmemories++;
    pthread_mutex_unlock(&t->memory_lock);
    *out = m;
    return FT_OK;
}

void ft_rma_unreg(struct ft_transport *base, void *registered)
{
    struct rma *t = rma_of(base);
    struct rma_memory *m = registered;
    pthread_mutex_lock(&t->memory_lock);
    const bool last = --m->users == 0;
    struct rma_memory **at = &t->memories;
    while (last && *at != m)
        at = &(*at)->next;
    if (last) {
        *at = m->next;
        t->nmemories--;
    }
    pthread_mutex_unlock(&t->memory_lock);
    if (!last)
        return;
    t->fabric->ops->unreg(m->region, false);
    free(m);
}

static const struct ft_fabric_region *find(struct rma *t, const unsigned char *data,
                                           size_t len_bytes)
{
    const struct ft_fabric_region *found = NULL;
    if (!t->nmemories)
        return NULL;
    pthread_mutex_lock(&t->memory_lock);
    for (const struct rma_memory *m = t->memories; m && !found; m = m->next)
        if (data >= m->region->at && len_bytes <= m->region->len_bytes &&
            (size_t)(data - m->region->at) <= m->region->len_bytes - len_bytes)
            found = m->region;
    pthread_mutex_unlock(&t->memory_lock);
    return found;
}

/* ---- lending --------------------------------------------------------------------------------- */

static uint32_t bit_of(unsigned place)
{
    return 1u << (place - RMA_SMALLS);
}

bool rma_lend(struct rma_link *l, unsigned place, const void *data, struct ft_send *req)
{
    struct rma_post *p = &l->post[place];
    if (p->len < RMA_LEND_BYTES)
        return false;
    p->from = find(l->rma, data, p->len);
    if (!p->from)
        return false;
    p->from_offset = (size_t)((const unsigned char *)data - p->from->at);
    p->req = req;
    p->bare = true;
    req->status = FT_AGAIN;
    l->lent |= bit_of(place);
    return true;
}

void rma_lent_end(struct rma_link *l, unsigned place, int status)
{
    struct rma_post *p = &l->post[place];
    if (place < RMA_SMALLS || !(l->lent & bit_of(place)))
        return;
    l->lent &= ~bit_of(place);
    p->req->status = status;
    p->req = NULL;
    p->from = NULL;
    if (p->state == RMA_RETURNED)
        rma_put_place(l, place);
}

void rma_lent_written(struct rma_link *l, unsigned k)
{
    const struct rma_way *w = &l->way[k];
    for (uint32_t left = l->lent; left; left &= left - 1) {
        const unsigned place = RMA_SMALLS + (unsigned)__builtin_ctz(left);
        const struct rma_post *p = &l->post[place];
        if (p->way == k && (int32_t)(w->given - w->unwritten - p->number) >= 0)
            rma_lent_end(l, place, FT_OK);
    }
}

void rma_lent_end_all(struct rma_link *l, int status)
{
    while (l->lent)
        rma_lent_end(l, RMA_SMALLS + (unsigned)__builtin_ctz(l->lent), status);
}
