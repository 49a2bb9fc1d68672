/*
 * What has been collected for one unique id: which ranks came, with which endpoints, and the answer
 * for all of them. No sockets and no locks: the service calls it while it holds its own lock.
 * Invariant: once a gather is settled (FULL or FAILED), its answer never changes, so ranks that ask
 * later get the same answer.
 */
#include "membership/bootstrap.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct ft_gather *ft_gather_new(const struct ft_id *id, uint64_t now_ns, uint64_t linger_ns)
{
    struct ft_gather *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    g->explicit_address = id->explicit_address;
    g->survivors = id->survivors;
    g->owner = id->owner;
    g->nonce = id->nonce;
    g->linger_ns = linger_ns;
    g->due_ns = id->kept ? UINT64_MAX : now_ns + linger_ns;
    ft_auth_derive(g->key, id->secret, "bootstrap", id->nonce);
    return g;
}

static void drop_endpoints(struct ft_gather *g)
{
    for (uint32_t i = 0; g->endpoint && i < g->count; i++)
        free(g->endpoint[i]);
    free(g->endpoint);
    g->endpoint = NULL;
}

void ft_gather_free(struct ft_gather *g)
{
    drop_endpoints(g);
    free(g->told);
    free(g->answer);
    free(g);
}

void ft_gather_mark_told(struct ft_gather *g, uint32_t rank)
{
    if (!g->told || rank >= g->nranks)
        return;
    unsigned char bit = (unsigned char)(1 << rank % 8);
    if (!(g->told[rank / 8] & bit))
        g->ntold++;
    g->told[rank / 8] |= bit;
}

/* A second process that claims a rank waits for its answer, too. Before the first rank has come,
 * nobody knows how many ranks are to be told. */
bool ft_gather_done(const struct ft_gather *g)
{
    return ft_gather_settled(g) && g->told && g->ntold == g->nranks && !g->waiting && !g->disputed;
}

/* If there is no memory for the sentence, the failure is reported without it. */
static void settle_failed(struct ft_gather *g, uint64_t now_ns, int status, const char *text)
{
    static unsigned char bare[FT_FRAME_BYTES + FT_FAIL_WIRE_MAX];
    drop_endpoints(g);
    g->answer = malloc(sizeof bare);
    g->answer_bytes = g->answer ? ft_fail_encode(g->answer, status, text) : 0;
    g->state = FT_GATHER_FAILED;
    g->status = status;
    g->due_ns = now_ns + g->linger_ns;
    if (g->nranks > 0) /* else nobody has come */
        FT_LOG(WARN, "init", -1, "bootstrap of %u ranks failed: %s", g->nranks, text);
}

void ft_gather_fail(struct ft_gather *g, uint64_t now_ns, int status, const char *fmt, ...)
{
    char text[FT_FAIL_TEXT_MAX + 1];
    if (ft_gather_settled(g))
        return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    settle_failed(g, now_ns, status, text);
}

void ft_gather_timeout(struct ft_gather *g, uint64_t now_ns)
{
    enum { NAMED = 16 };
    char names[NAMED * 12 + 32] = "";
    size_t n = 0;
    uint32_t missing = 0;
    for (uint32_t i = 0; i < g->count; i++) {
        if (g->endpoint && g->endpoint[i])
            continue;
        if (missing < NAMED)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%u", missing ? ", " : "",
                                  g->first + i);
        missing++;
    }
    if (missing > NAMED)
        snprintf(names + n, sizeof names - n, " and %u more", missing - NAMED);
    ft_gather_fail(g, now_ns, FT_TIMEOUT, "rank%s %s of %u never came within %u ms",
                   missing == 1 ? "" : "s", names, g->nranks, g->bound_ms);
}

/* Builds the answer: all endpoints, one after another, the same bytes for every rank. */
static void settle_full(struct ft_gather *g, uint64_t now_ns)
{
    size_t len = FT_TABLE_FIXED_BYTES;
    for (uint32_t i = 0; i < g->count; i++)
        len += g->endpoint[i]->bytes;
    unsigned char *answer = malloc(FT_FRAME_BYTES + len);
    if (!answer) {
        ft_gather_fail(
            g, now_ns, FT_NOMEM,
            "the process that serves the unique id has no memory for a table of %zu bytes", len);
        return;
    }
    struct ft_table_head head = {.first = g->first, .count = g->count};
    ft_env_real()->random(ft_env_real(), &head.salt, sizeof head.salt);
    size_t n = ft_frame_encode(answer, FT_FRAME_TABLE, len);
    n += ft_table_head_encode(answer + n, &head);
    for (uint32_t i = 0; i < g->count; i++) {
        memcpy(answer + n, g->endpoint[i]->wire, g->endpoint[i]->bytes);
        n += g->endpoint[i]->bytes;
    }
    drop_endpoints(g);
    g->answer = answer;
    g->answer_bytes = n;
    g->state = FT_GATHER_FULL;
    g->due_ns = now_ns + g->linger_ns;
}

static int open_gather(struct ft_gather *g, const struct ft_join_msg *msg)
{
    uint32_t first, count;
    ft_block(msg->nranks, msg->nids, msg->index, &first, &count);
    g->endpoint = calloc(count, sizeof *g->endpoint);
    g->told = calloc(msg->nranks / 8 + 1, 1);
    if (!g->endpoint || !g->told) {
        drop_endpoints(g);
        free(g->told);
        g->told = NULL;
        return ft_fail(FT_NOMEM, "the process that serves the unique id has no memory for %u ranks",
                       msg->nranks);
    }
    g->nranks = msg->nranks;
    g->nids = msg->nids;
    g->index = msg->index;
    g->first = first;
    g->count = count;
    g->first_rank = msg->rank;
    g->due_ns = UINT64_MAX;
    g->state = FT_GATHER_OPEN;
    for (uint32_t r = 1; r < g->survivors; r++)
        ft_gather_mark_told(g, r);
    return FT_OK;
}

static void compare_config(struct ft_gather *g, const struct ft_join_msg *msg, uint64_t now_ns)
{
    uint32_t other = 0;
    while (other < g->count && !g->endpoint[other])
        other++;
    if (other == g->count || g->endpoint[other]->config == msg->endpoint.config)
        return;
    struct ft_endpoint theirs;
    if (ft_endpoint_decode(g->endpoint[other]->wire, g->endpoint[other]->bytes, &theirs) <= 0)
        return;
    ft_gather_fail(g, now_ns, FT_MISMATCH,
                   "rank %u has another configuration than rank %u: \"%s\" against \"%s\"",
                   msg->rank, g->first + other, msg->endpoint.config_text, theirs.config_text);
}

static int keep_endpoint(struct ft_gather *g, const struct ft_join_msg *msg)
{
    unsigned char wire[FT_ENDPOINT_WIRE_MAX];
    size_t bytes = ft_endpoint_encode(wire, &msg->endpoint);
    struct ft_gathered *endpoint = malloc(sizeof *endpoint + bytes);
    if (!endpoint)
        return ft_fail(FT_NOMEM, "the process that serves the unique id is out of memory");
    endpoint->config = msg->endpoint.config;
    endpoint->bytes = (uint32_t)bytes;
    memcpy(endpoint->wire, wire, bytes);
    g->endpoint[msg->rank - g->first] = endpoint;
    g->arrived++;
    return FT_OK;
}

void ft_gather_bound(struct ft_gather *g, uint64_t due_ns, uint32_t bound_ms)
{
    if (ft_gather_settled(g) || due_ns >= g->due_ns)
        return;
    g->due_ns = due_ns;
    g->bound_ms = bound_ms;
}

/* The engine id of a rank in the table. */
static uint64_t engine_of(const struct ft_gather *g, uint32_t rank)
{
    const unsigned char *endpoint = g->answer + FT_FRAME_BYTES + FT_TABLE_FIXED_BYTES;
    for (uint32_t r = g->first; r < rank; r++)
        endpoint += FT_ENDPOINT_FIXED_BYTES + ft_get32(endpoint + 24) + ft_get32(endpoint + 28);
    return ft_get64(endpoint);
}

/* A rank joins after the gather has settled. A rank whose connection broke may come again. Another
 * process with the same rank is not in the table, and is refused. */
static int add_late_rank(const struct ft_gather *g, const struct ft_join_msg *msg)
{
    if (g->explicit_address)
        return ft_fail(FT_AGAIN, "the previous job is still ending");
    if (g->state != FT_GATHER_FULL)
        return FT_OK;
    if (msg->nranks != g->nranks || msg->nids != g->nids || msg->index != g->index)
        return ft_fail(
            FT_USAGE,
            "rank %u says %u ranks and unique id %u of %u, but %u ranks have come by id %u of %u",
            msg->rank, msg->nranks, msg->index, msg->nids, g->nranks, g->index, g->nids);
    /* a rank of another id, which only fetches this block */
    if (msg->rank < g->first || msg->rank - g->first >= g->count)
        return FT_OK;
    if (engine_of(g, msg->rank) == msg->endpoint.engine)
        return FT_OK;
    return ft_fail(FT_USAGE,
                   "another process has come as rank %u already, and all %u ranks are complete",
                   msg->rank, msg->nranks);
}

static int add_rank(struct ft_gather *g, const struct ft_join_msg *msg, uint64_t now_ns)
{
    if (ft_gather_settled(g))
        return add_late_rank(g, msg);
    if (g->state == FT_GATHER_EMPTY) {
        int status = open_gather(g, msg);
        if (status) {
            ft_gather_fail(g, now_ns, status, "%s", ft_fail_text());
            return FT_OK;
        }
    }
    if (msg->nranks != g->nranks || msg->nids != g->nids || msg->index != g->index) {
        g->disputed = true;
        ft_gather_fail(g, now_ns, FT_USAGE,
                       "rank %u says %u ranks and unique id %u of %u, rank %u says %u ranks and "
                       "unique id %u of %u",
                       msg->rank, msg->nranks, msg->index, msg->nids, g->first_rank, g->nranks,
                       g->index, g->nids);
        return FT_OK;
    }
    ft_gather_bound(g, now_ns + msg->left_ms * UINT64_C(1000000), msg->bound_ms);
    if (msg->rank < g->first || msg->rank - g->first >= g->count)
        return FT_OK;
    if (g->endpoint[msg->rank - g->first]) {
        ft_gather_fail(g, now_ns, FT_USAGE, "two processes claim rank %u", msg->rank);
        return FT_OK;
    }
    compare_config(g, msg, now_ns);
    if (ft_gather_settled(g))
        return FT_OK;
    int status = keep_endpoint(g, msg);
    if (status) /* a rank that is turned away does not come again: nobody need wait for it */
        ft_gather_fail(g, now_ns, status, "%s", ft_fail_text());
    else if (g->arrived == g->count)
        settle_full(g, now_ns);
    return FT_OK;
}

int ft_gather_add(struct ft_gather *g, const struct ft_join_msg *msg, uint64_t now_ns)
{
    if (msg->rank < g->survivors)
        return ft_fail(FT_USAGE, "rank %u belongs to a survivor", msg->rank);
    if (g->survivors && msg->nids != 1)
        return ft_fail(FT_USAGE, "a communicator grows by one unique id, not by %u", msg->nids);
    return add_rank(g, msg, now_ns);
}

void ft_gather_supply(struct ft_gather *g, uint32_t nranks, const struct ft_endpoint *endpoint,
                      uint64_t now_ns)
{
    uint32_t linger_ms = (uint32_t)ft_min(g->linger_ns / 1000000, UINT32_MAX);
    struct ft_join_msg msg = {.nonce = g->nonce,
                              .nranks = nranks,
                              .nids = 1,
                              .left_ms = linger_ms,
                              .bound_ms = linger_ms};
    int status = FT_OK;
    g->supplied = true;
    for (uint32_t r = 0; !status && r < g->survivors && !ft_gather_settled(g); r++) {
        msg.rank = r;
        msg.endpoint = endpoint[r];
        status = add_rank(g, &msg, now_ns);
    }
    if (status) {
        char why[FT_FAIL_TEXT_MAX];
        snprintf(why, sizeof why, "%s", ft_fail_text());
        ft_gather_fail(g, now_ns, status, "%s", why);
    }
}

int ft_gather_verdict(const struct ft_gather *g)
{
    char text[FT_FAIL_TEXT_MAX + 1];
    int status;
    if (g->state == FT_GATHER_FULL)
        return FT_OK;
    size_t len = g->answer_bytes - ft_min(g->answer_bytes, FT_FRAME_BYTES);
    if (!g->answer || ft_fail_decode(g->answer + FT_FRAME_BYTES, len, &status, text) != FT_OK)
        return ft_fail(g->status, "%s", ft_status_text(g->status));
    return ft_fail(status, "%s", text);
}
