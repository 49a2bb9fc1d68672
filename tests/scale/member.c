/*
 * What members of the load send, and what they must get. Every member's view is compared with those
 * of the others: one term and epoch for all, one rank for all members of a replica, the right size.
 * Samples also keep the list of their rank group, change it as views say, and compare it with who
 * has these roles.
 */
#include "scale.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define HELD_TERM 4711 /* of the view of the earlier coordinator */
#define HELD_EPOCH 9
#define STEP 1000
#define VIEW_FIXED_BYTES 81
#define MESSAGE_MOST ((size_t)FT_ENDPOINT_WIRE_MAX + 400) /* of what members send */

/* ---- endpoints ------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t engine_of(uint32_t number, uint32_t generation)
{
    return 1 + ((uint64_t)generation << 32 | number);
}

size_t member_endpoint(const struct shape *shape, uint32_t number, uint32_t generation,
                       unsigned char out[FT_ENDPOINT_WIRE_MAX])
{
    struct ft_endpoint endpoint = {.engine = engine_of(number, generation),
                                   .host = 1 + number / shape->slots,
                                   .config = 77,
                                   .config_text = "ftccl chunk_bytes=524288 window=8"};
    const size_t fixed = FT_ENDPOINT_FIXED_BYTES + strlen(endpoint.config_text);
    endpoint.address_bytes = (uint32_t)(shape->endpoint_bytes - fixed);
    uint64_t word = endpoint.engine;
    for (uint32_t i = 0; i < endpoint.address_bytes; i++) {
        word = i % 8 ? word >> 8 : mix(endpoint.engine + i);
        endpoint.address[i] = (unsigned char)word;
    }
    return ft_endpoint_encode(out, &endpoint);
}

static uint64_t digest(const unsigned char *bytes, size_t len)
{
    return ft_hash64(bytes, len, 1);
}

static uint64_t expected_digest(const struct shared *shared, uint32_t replica, uint32_t local)
{
    unsigned char endpoint[FT_ENDPOINT_WIRE_MAX];
    const uint32_t number = replica * shared->shape.local + local;
    return digest(endpoint,
                  member_endpoint(&shared->shape, number, shared->generation[replica], endpoint));
}

/* ---- out ------------------------------------------------------------------------------------- */

static uint32_t number_of(const struct load *load, const struct conn *c, uint32_t slot)
{
    return c->number * load->shared->shape.slots + slot;
}

static void send_counted(struct load *load, struct conn *c, const unsigned char *bytes, size_t len,
                         enum ft_members_message type)
{
    atomic_fetch_add(&load->shared->bytes_out[type], len);
    conn_send(load, c, bytes, len);
}

void member_join_all(struct load *load, struct conn *c)
{
    const struct shared *shared = load->shared;
    const struct shape *shape = &shared->shape;
    const uint32_t count = member_count(load, c);
    unsigned char *bytes = malloc(count * MESSAGE_MOST), *at = bytes;
    if (!bytes) {
        scale_fault(load, "out of memory");
        return;
    }
    for (uint32_t slot = 0; slot < count; slot++) {
        const uint32_t number = number_of(load, c, slot), replica = number / shape->local;
        unsigned char endpoint[FT_ENDPOINT_WIRE_MAX];
        struct ft_members_join join = {.slot = slot,
                                       .role = {"scale", "", number % shape->local, shape->local},
                                       .engine = engine_of(number, shared->generation[replica]),
                                       .step = STEP,
                                       .min_members = 1,
                                       .window_ms = 60000,
                                       .suspect_ms = 600000,
                                       .endpoint = endpoint,
                                       .endpoint_bytes = member_endpoint(
                                           shape, number, shared->generation[replica], endpoint)};
        snprintf(join.role.replica, sizeof join.role.replica, "replica-%06" PRIu32, replica);
        if (shape->held && shared->generation[replica] == 0) {
            join.held_term = HELD_TERM;
            join.held_epoch = HELD_EPOCH;
            join.held_nranks = shape_replicas(shape);
            join.held_rank = replica;
        }
        const size_t len = ft_members_join_encode(at + FT_DAEMON_HEADER_BYTES, &join);
        at += conn_header(at, len, FT_MEMBERS_JOIN) + len;
        member_of(load, c, slot)->step = STEP;
        member_of(load, c, slot)->waits = true;
    }
    send_counted(load, c, bytes, (size_t)(at - bytes), FT_MEMBERS_JOIN);
    free(bytes);
}

static size_t write_ask(struct load *load, struct conn *c, uint32_t slot, unsigned char *out)
{
    struct member *member = member_of(load, c, slot);
    const struct ft_members_ask ask = {
        .slot = slot, .step = member->step, .term = member->term, .epoch = member->epoch};
    const size_t len = ft_members_ask_encode(out + FT_DAEMON_HEADER_BYTES, &ask);
    member->waits = true;
    return conn_header(out, len, FT_MEMBERS_ASK) + len;
}

void member_ask_all(struct load *load, struct conn *c)
{
    const uint32_t count = member_count(load, c);
    unsigned char *bytes = malloc(count * MESSAGE_MOST), *at = bytes;
    if (!bytes) {
        scale_fault(load, "out of memory");
        return;
    }
    for (uint32_t slot = 0; slot < count; slot++)
        at += write_ask(load, c, slot, at);
    send_counted(load, c, bytes, (size_t)(at - bytes), FT_MEMBERS_ASK);
    free(bytes);
}

/* ---- in -------------------------------------------------------------------------------------- */

static void answered(struct load *load, struct conn *c, uint32_t slot)
{
    struct member *member = member_of(load, c, slot);
    if (!member->waits)
        scale_fault(load, "member %u got an answer twice", number_of(load, c, slot));
    else
        load->waits--;
    member->waits = false;
}

/* The same value from all: the first one is kept. */
static void agree(struct load *load, atomic_uint_fast64_t *on, uint64_t value, const char *what)
{
    uint_fast64_t first = 0;
    if (!atomic_compare_exchange_strong(on, &first, value) && first != value)
        scale_fault(load, "two %ss: %" PRIu64 " and %" PRIu64, what, (uint64_t)first, value);
}

/* What is before the lists of a view; the lists may be missing. */
static bool read_fixed(struct ft_members_view *view, const unsigned char *at, size_t kept)
{
    if (kept < VIEW_FIXED_BYTES)
        return false;
    view->slot = get32(&at);
    view->term = get64(&at);
    view->epoch = get64(&at);
    view->base_term = get64(&at);
    view->base_epoch = get64(&at);
    view->step = get64(&at);
    view->nranks = get32(&at);
    view->rank = get32(&at);
    view->nhealthy = get32(&at);
    view->behind = *at++;
    view->nsources = get32(&at);
    view->ngone = get32(&at);
    view->nadded = get32(&at);
    return true;
}

static void check_view(struct load *load, const struct ft_members_view *view, uint32_t number,
                       const struct member *member)
{
    struct shared *shared = load->shared;
    const uint32_t replica = number / shared->shape.local;
    agree(load, &shared->term, view->term, "term");
    agree(load, &shared->epoch, view->epoch, "epoch");
    if (view->nranks != shape_replicas(&shared->shape) || view->nhealthy != view->nranks ||
        view->behind || view->step != member->step)
        scale_fault(load, "member %u: %u ranks, %u healthy, step %" PRIu64, number, view->nranks,
                    view->nhealthy, view->step);
    if (view->base_epoch != 0 &&
        (view->base_term != member->term || view->base_epoch != member->epoch) &&
        !(shared->shape.held && shared->old_epoch == 0))
        scale_fault(load, "member %u gets a change of a view that it does not have", number);
    if (!shared->changes && view->epoch != shared->old_epoch)
        scale_fault(load, "member %u: epoch %" PRIu64 " although nothing has changed", number,
                    view->epoch);
    if (shared->changes && view->epoch <= shared->old_epoch)
        scale_fault(load, "member %u: the old epoch again, %" PRIu64, number, view->epoch);
    unsigned first = 0;
    if (!atomic_compare_exchange_strong(&shared->rank[replica], &first, view->rank + 1) &&
        first != view->rank + 1)
        scale_fault(load, "replica %u has ranks %u and %u", replica, first - 1, view->rank);
}

/* The list after a view. */
static void update_list(struct load *load, struct member *member, const struct ft_members_view *v)
{
    uint64_t *list = calloc(v->nranks, sizeof *list);
    bool *added = calloc(v->nranks, sizeof *added);
    const unsigned char *at = v->added, *gone = v->gone;
    uint32_t from = 0, left = v->ngone, next_gone = left ? get32(&gone) : UINT32_MAX, missing = 0;
    const uint32_t nold = v->base_epoch ? member->nlist : 0;
    if (!list || !added)
        abort();
    for (uint32_t i = 0; i < v->nadded; i++) {
        const uint32_t rank = get32(&at), len = get32(&at);
        list[rank] = digest(at, len);
        added[rank] = true;
        at += len;
    }
    for (uint32_t rank = 0; rank < v->nranks; rank++) {
        if (added[rank])
            continue;
        for (; from == next_gone; from++)
            next_gone = --left ? get32(&gone) : UINT32_MAX;
        if (from < nold)
            list[rank] = member->list[from++];
        else
            missing++;
    }
    if (missing)
        scale_fault(load, "a view leaves %u ranks open", missing);
    free(added);
    free(member->list);
    member->list = list;
    member->nlist = v->nranks;
}

static void check_local(struct load *load, const struct ft_members_view *view, uint32_t number)
{
    const struct shared *shared = load->shared;
    const unsigned char *at = view->local;
    if (view->nlocal != 0 && view->nlocal != shared->shape.local)
        scale_fault(load, "member %u: %u ranks in its replica", number, view->nlocal);
    for (uint32_t i = 0; i < view->nlocal; i++) {
        const uint32_t len = get32(&at);
        if (digest(at, len) != expected_digest(shared, number / shared->shape.local, i))
            scale_fault(load, "member %u: rank %u of its replica is somebody else", number, i);
        at += len;
    }
}

static void take_view(struct load *load, struct conn *c, const unsigned char *bytes, size_t kept)
{
    struct ft_members_view view;
    const bool whole = kept == c->len;
    if (whole ? ft_members_view_decode(bytes, kept, &view) != FT_OK
              : !read_fixed(&view, bytes, kept)) {
        scale_fault(load, "connection %u: a view of %zu bytes makes no sense", c->number, c->len);
        return;
    }
    if (view.slot >= member_count(load, c)) {
        scale_fault(load, "connection %u: a view for slot %u", c->number, view.slot);
        return;
    }
    struct member *member = member_of(load, c, view.slot);
    const uint32_t number = number_of(load, c, view.slot);
    check_view(load, &view, number, member);
    if (c->sample && whole) {
        update_list(load, member, &view);
        check_local(load, &view, number);
    }
    member->term = view.term;
    member->epoch = view.epoch;
    member->rank = view.rank;
    answered(load, c, view.slot);
}

/* A sample that holds a view of an earlier coordinator has its list. */
static void hold_list(struct load *load, struct member *member, uint32_t local)
{
    const uint32_t replicas = shape_replicas(&load->shared->shape);
    member->list = calloc(replicas, sizeof *member->list);
    if (!member->list)
        abort();
    member->nlist = replicas;
    for (uint32_t r = 0; r < replicas; r++)
        member->list[r] = expected_digest(load->shared, r, local);
}

static void take_joined(struct load *load, struct conn *c, const unsigned char *at, size_t len)
{
    const uint32_t slot = len >= 20 ? get32(&at) : UINT32_MAX;
    struct ft_role role;
    size_t used;
    if (slot >= member_count(load, c) ||
        ft_members_role_decode(at + 16, len - 20, &role, &used) != FT_OK) {
        scale_fault(load, "connection %u: a registration makes no sense", c->number);
        return;
    }
    const uint32_t number = number_of(load, c, slot), local = load->shared->shape.local;
    struct member *member = member_of(load, c, slot);
    member->term = get64(&at);
    member->epoch = get64(&at);
    if (role.local_rank != number % local || role.local_size != local)
        scale_fault(load, "member %u was registered as rank %u", number, role.local_rank);
    if (c->sample && load->shared->shape.held && !member->list)
        hold_list(load, member, number % local);
    answered(load, c, slot);
}

/* The last view is another one than the member knew: it asks again. */
static void take_epoch(struct load *load, struct conn *c, const unsigned char *at, size_t len)
{
    const uint32_t slot = len == 20 ? get32(&at) : UINT32_MAX;
    if (slot >= member_count(load, c)) {
        scale_fault(load, "connection %u: an epoch makes no sense", c->number);
        return;
    }
    member_of(load, c, slot)->term = get64(&at);
    member_of(load, c, slot)->epoch = get64(&at);
    unsigned char ask[MESSAGE_MOST];
    send_counted(load, c, ask, write_ask(load, c, slot, ask), FT_MEMBERS_ASK);
}

static void take_refusal(struct load *load, struct conn *c, const unsigned char *at, size_t len)
{
    const size_t fixed = c->type == FT_MEMBERS_REFUSED ? 8 : 20;
    if (len < fixed)
        scale_fault(load, "connection %u: type %u of %zu bytes", c->number, c->type, len);
    else
        scale_fault(load, "connection %u: type %u: %.*s", c->number, c->type, (int)(len - fixed),
                    (const char *)at + fixed);
}

void member_take(struct load *load, struct conn *c, const unsigned char *bytes, size_t kept)
{
    switch (c->type) {
    case FT_MEMBERS_JOINED:
        take_joined(load, c, bytes, kept);
        break;
    case FT_MEMBERS_VIEW:
        take_view(load, c, bytes, kept);
        break;
    case FT_MEMBERS_EPOCH:
        take_epoch(load, c, bytes, kept);
        break;
    case FT_MEMBERS_ALIVE:
        load->waits--;
        break;
    case FT_MEMBERS_WAITS:
        break;
    default:
        take_refusal(load, c, bytes, kept);
    }
}

void member_check(struct load *load, struct conn *c)
{
    const struct shared *shared = load->shared;
    const uint32_t replicas = shape_replicas(&shared->shape);
    for (uint32_t slot = 0; slot < member_count(load, c); slot++) {
        const struct member *member = member_of(load, c, slot);
        const uint32_t number = number_of(load, c, slot);
        if (member->nlist != replicas) {
            scale_fault(load, "member %u has a list of %u", number, member->nlist);
            continue;
        }
        for (uint32_t r = 0; r < replicas; r++) {
            const uint32_t rank = atomic_load(&shared->rank[r]) - 1;
            if (rank >= replicas ||
                member->list[rank] != expected_digest(shared, r, number % shared->shape.local))
                scale_fault(load, "member %u: rank %u is not replica %u", number, rank, r);
        }
    }
}
