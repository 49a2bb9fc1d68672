/*
 * The formats of managed membership: see docs/wire-protocol.md. Little endian. Every length and
 * count is checked before it is used, so what a decoder accepts can be read without further checks.
 * This file does no input or output; the fuzzer calls its decoders directly.
 */
#include "membership/bootstrap.h"
#include "membership/managed.h"

#include "base/wire.h"

#include <string.h>

#define JOIN_FIXED_BYTES 60 /* without the slot, the role and the endpoint */
#define ASK_FIXED_BYTES 33
#define VIEW_FIXED_BYTES 81

/* What is left to read. Once it was too short, `bad` stays set and numbers are 0. */
struct reader {
    const unsigned char *at;
    size_t left;
    bool bad;
};

static bool has(struct reader *r, size_t bytes)
{
    if (r->left < bytes)
        r->bad = true;
    return !r->bad;
}

static const unsigned char *take(struct reader *r, size_t bytes)
{
    if (!has(r, bytes))
        return NULL;
    const unsigned char *at = r->at;
    r->at += bytes;
    r->left -= bytes;
    return at;
}

static uint64_t number(struct reader *r, size_t bytes)
{
    const unsigned char *at = take(r, bytes);
    return at ? get_bytes(&at, (int)bytes) : 0;
}

static uint32_t number32(struct reader *r)
{
    return (uint32_t)number(r, 4);
}

static bool truth(struct reader *r)
{
    uint64_t value = number(r, 1);
    if (value > 1)
        r->bad = true;
    return value == 1;
}

/* Writes, or only counts if `out` is NULL. */
struct writer {
    unsigned char *out;
    size_t bytes;
};

static void write_number(struct writer *w, uint64_t value, int bytes)
{
    if (w->out) {
        unsigned char *at = w->out + w->bytes;
        put_bytes(&at, value, bytes);
    }
    w->bytes += (size_t)bytes;
}

static void write_bytes(struct writer *w, const void *from, size_t bytes)
{
    if (w->out && bytes > 0)
        memcpy(w->out + w->bytes, from, bytes);
    w->bytes += bytes;
}

/* ---- roles ----------------------------------------------------------------------------------- */

static void write_name(struct writer *w, const char *name)
{
    size_t len = strnlen(name, FT_NAME_BYTES - 1);
    write_number(w, len, 1);
    write_bytes(w, name, len);
}

static void write_role(struct writer *w, const struct ft_role *role)
{
    write_name(w, role->group);
    write_name(w, role->replica);
    write_number(w, role->local_rank, 4);
    write_number(w, role->local_size, 4);
}

/* Control characters are left in, for who wants to complain; zeros are not. */
static void read_name(struct reader *r, char name[FT_NAME_BYTES])
{
    size_t len = (size_t)number(r, 1);
    const unsigned char *at = len < FT_NAME_BYTES ? take(r, len) : NULL;
    memset(name, 0, FT_NAME_BYTES);
    if (!at || memchr(at, 0, len))
        r->bad = true;
    else
        memcpy(name, at, len);
}

static void read_role(struct reader *r, struct ft_role *role)
{
    read_name(r, role->group);
    read_name(r, role->replica);
    role->local_rank = number32(r);
    role->local_size = number32(r);
}

size_t ft_members_role_encode(unsigned char *out, const struct ft_role *role)
{
    struct writer w = {out, 0};
    write_role(&w, role);
    return w.bytes;
}

int ft_members_role_decode(const unsigned char *in, size_t len, struct ft_role *role, size_t *used)
{
    struct reader r = {in, len, false};
    read_role(&r, role);
    *used = len - r.left;
    return r.bad ? FT_PROTOCOL : FT_OK;
}

/* ---- what members say ------------------------------------------------------------------------ */

size_t ft_members_join_encode(unsigned char *out, const struct ft_members_join *join)
{
    struct writer w = {out, 0};
    write_number(&w, join->slot, 4);
    write_role(&w, &join->role);
    write_number(&w, join->engine, 8);
    write_number(&w, join->step, 8);
    write_number(&w, join->held_term, 8);
    write_number(&w, join->held_epoch, 8);
    write_number(&w, join->held_nranks, 4);
    write_number(&w, join->held_rank, 4);
    write_number(&w, join->held_times, 4);
    write_number(&w, join->min_members, 4);
    write_number(&w, join->window_ms, 4);
    write_number(&w, join->suspect_ms, 4);
    write_number(&w, join->endpoint_bytes, 4);
    write_bytes(&w, join->endpoint, join->endpoint_bytes);
    return w.bytes;
}

/* What is held is a rank of a view, or nothing but a view's number, or nothing at all. */
static bool held_makes_sense(const struct ft_members_join *join)
{
    if (join->held_epoch == 0)
        return join->held_term == 0 && join->held_nranks == 0 && join->held_rank == 0;
    return join->held_epoch <= FT_EPOCH_MOST && join->held_nranks <= FT_RANKS_MAX &&
           (join->held_rank < join->held_nranks || (join->held_rank | join->held_nranks) == 0);
}

static bool is_endpoint_of(const unsigned char *in, size_t len, uint64_t engine)
{
    struct ft_endpoint endpoint;
    int took = ft_endpoint_decode(in, len, &endpoint);
    return took > 0 && (size_t)took == len && endpoint.engine == engine;
}

int ft_members_join_decode(const unsigned char *in, size_t len, struct ft_members_join *join)
{
    struct reader r = {in, len, false};
    join->slot = number32(&r);
    read_role(&r, &join->role);
    if (!has(&r, JOIN_FIXED_BYTES))
        return FT_PROTOCOL;
    join->engine = number(&r, 8);
    join->step = number(&r, 8);
    join->held_term = number(&r, 8);
    join->held_epoch = number(&r, 8);
    join->held_nranks = number32(&r);
    join->held_rank = number32(&r);
    join->held_times = number32(&r);
    join->min_members = number32(&r);
    join->window_ms = number32(&r);
    join->suspect_ms = number32(&r);
    join->endpoint_bytes = number32(&r);
    join->endpoint = take(&r, join->endpoint_bytes);
    if (r.bad || r.left > 0 || join->slot >= FT_SLOTS_MOST || join->engine == 0)
        return FT_PROTOCOL;
    if (!held_makes_sense(join))
        return FT_PROTOCOL;
    return is_endpoint_of(join->endpoint, join->endpoint_bytes, join->engine) ? FT_OK : FT_PROTOCOL;
}

size_t ft_members_ask_encode(unsigned char *out, const struct ft_members_ask *ask)
{
    struct writer w = {out, 0};
    write_number(&w, ask->slot, 4);
    write_number(&w, ask->step, 8);
    write_number(&w, ask->term, 8);
    write_number(&w, ask->epoch, 8);
    write_number(&w, ask->failed, 1);
    write_number(&w, ask->ndead, 4);
    write_bytes(&w, ask->dead, (size_t)ask->ndead * 8);
    return w.bytes;
}

int ft_members_ask_decode(const unsigned char *in, size_t len, struct ft_members_ask *ask)
{
    struct reader r = {in, len, false};
    if (!has(&r, ASK_FIXED_BYTES))
        return FT_PROTOCOL;
    ask->slot = number32(&r);
    ask->step = number(&r, 8);
    ask->term = number(&r, 8);
    ask->epoch = number(&r, 8);
    ask->failed = truth(&r);
    ask->ndead = number32(&r);
    if (r.bad || ask->slot >= FT_SLOTS_MOST || ask->ndead > FT_DEAD_MOST)
        return FT_PROTOCOL;
    ask->dead = take(&r, (size_t)ask->ndead * 8);
    return r.bad || r.left > 0 ? FT_PROTOCOL : FT_OK;
}

/* ---- views ----------------------------------------------------------------------------------- */

static void write_view_head(struct writer *w, const struct ft_members_view *view)
{
    write_number(w, view->slot, 4);
    write_number(w, view->term, 8);
    write_number(w, view->epoch, 8);
    write_number(w, view->base_term, 8);
    write_number(w, view->base_epoch, 8);
    write_number(w, view->step, 8);
    write_number(w, view->nranks, 4);
    write_number(w, view->rank, 4);
    write_number(w, view->nhealthy, 4);
    write_number(w, view->behind, 1);
    write_number(w, view->nsources, 4);
    write_number(w, view->ngone, 4);
    write_number(w, view->nadded, 4);
    write_number(w, view->added_bytes, 4);
    write_number(w, view->nlocal, 4);
    write_number(w, view->local_bytes, 4);
    write_bytes(w, view->sources, (size_t)view->nsources * 4);
}

size_t ft_members_view_encode_head(unsigned char *out, const struct ft_members_view *view)
{
    struct writer w = {out, 0};
    write_view_head(&w, view);
    return w.bytes;
}

size_t ft_members_view_encode(unsigned char *out, const struct ft_members_view *view)
{
    struct writer w = {out, 0};
    write_view_head(&w, view);
    write_bytes(&w, view->gone, (size_t)view->ngone * 4);
    write_bytes(&w, view->added, view->added_bytes);
    write_bytes(&w, view->local, view->local_bytes);
    return w.bytes;
}

static void read_view_head(struct reader *r, struct ft_members_view *view)
{
    view->slot = number32(r);
    view->term = number(r, 8);
    view->epoch = number(r, 8);
    view->base_term = number(r, 8);
    view->base_epoch = number(r, 8);
    view->step = number(r, 8);
    view->nranks = number32(r);
    view->rank = number32(r);
    view->nhealthy = number32(r);
    view->behind = truth(r);
    view->nsources = number32(r);
    view->ngone = number32(r);
    view->nadded = number32(r);
    view->added_bytes = number32(r);
    view->nlocal = number32(r);
    view->local_bytes = number32(r);
}

static bool counts_make_sense(const struct ft_members_view *view)
{
    if (view->slot >= FT_SLOTS_MOST || view->epoch == 0)
        return false;
    if (view->nranks > FT_RANKS_MAX || view->rank >= view->nranks || view->nhealthy > view->nranks)
        return false;
    if (view->nsources > view->nranks || view->ngone > FT_RANKS_MAX || view->nadded > view->nranks)
        return false;
    if (view->nlocal > FT_LOCAL_MOST)
        return false;
    return view->base_epoch != 0 ||
           (view->ngone == 0 && view->nadded == view->nranks && view->nlocal > 0);
}

/* Ranks below `below`; if `ascends`, each greater than the one before. */
static bool are_ranks(const unsigned char *list, uint32_t count, uint32_t below, bool ascends)
{
    uint64_t least = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t rank = get32(&list);
        if (rank >= below || rank < least)
            return false;
        if (ascends)
            least = (uint64_t)rank + 1;
    }
    return true;
}

/* `count` encoded endpoints, each after its length and, if `below` is not 0, after a rank below it;
 * ranks ascend. They fill the bytes. */
static bool are_endpoints(const unsigned char *list, size_t bytes, uint32_t count, uint32_t below)
{
    struct reader r = {list, bytes, false};
    uint64_t least = 0;
    for (uint32_t i = 0; i < count && !r.bad; i++) {
        uint32_t rank = below > 0 ? number32(&r) : 0;
        uint32_t len = number32(&r);
        const unsigned char *at = take(&r, len), *lengths = at ? at + 24 : NULL;
        if (!at || len < FT_ENDPOINT_FIXED_BYTES || (below > 0 && (rank >= below || rank < least)))
            return false;
        uint32_t text = get32(&lengths), address = get32(&lengths);
        if (text > FT_ENDPOINT_TEXT_MAX || address > FT_ENDPOINT_BYTES ||
            len != FT_ENDPOINT_FIXED_BYTES + text + address)
            return false;
        least = (uint64_t)rank + 1;
    }
    return !r.bad && r.left == 0;
}

int ft_members_view_decode(const unsigned char *in, size_t len, struct ft_members_view *view)
{
    struct reader r = {in, len, false};
    if (len > FT_MEMBERS_MESSAGE_MOST || !has(&r, VIEW_FIXED_BYTES))
        return FT_PROTOCOL;
    read_view_head(&r, view);
    if (r.bad || !counts_make_sense(view))
        return FT_PROTOCOL;
    view->sources = take(&r, (size_t)view->nsources * 4);
    view->gone = take(&r, (size_t)view->ngone * 4);
    view->added = take(&r, view->added_bytes);
    view->local = take(&r, view->local_bytes);
    if (r.bad || r.left > 0)
        return FT_PROTOCOL;
    if (!are_ranks(view->sources, view->nsources, view->nranks, false) ||
        !are_ranks(view->gone, view->ngone, FT_RANKS_MAX, true))
        return FT_PROTOCOL;
    if (!are_endpoints(view->added, view->added_bytes, view->nadded, view->nranks) ||
        !are_endpoints(view->local, view->local_bytes, view->nlocal, 0))
        return FT_PROTOCOL;
    return FT_OK;
}
