/*
 * Asks one rank of each other host what the files of its host tell. After half of the time another
 * rank of each host that has not answered is asked, because the first one may be stopped, or one
 * that should have passed the question on.
 */
#include "ras/internal.h"

#include <stdlib.h>
#include <string.h>

#define BUDGET_MAX_NS 5000000000u

static void ask(struct ft_ras_round *round, uint64_t now_ns)
{
    uint64_t *engines = calloc((size_t)round->n + 1, sizeof *engines);
    uint64_t left_ms = (round->until_ns - ft_min(now_ns, round->until_ns)) / 1000000;
    size_t n = 0;
    for (int i = 0; engines && i < round->n; i++) {
        const struct ft_ras_host *host = &round->hosts[i];
        if (!round->answers[i].done)
            engines[n++] = round->peers[host->first + round->asked % host->count].engine;
    }
    for (size_t at = 0; engines && at < n; at += FT_RAS_ASKED_MAX)
        ft_ras_messages_ask(round->via, round->query, (uint32_t)left_ms, engines + at,
                            ft_min(n - at, FT_RAS_ASKED_MAX));
    round->asked++;
    free(engines);
}

/* Hosts are only names in a test or a container; the files of some may have been read already. */
static bool is_known(const struct ft_snapshot *here, uint64_t host)
{
    for (int i = 0; i < here->nengines; i++)
        if (here->engines[i].host == host)
            return true;
    return false;
}

static int by_host_and_rank(const void *a, const void *b)
{
    const struct ft_ras_peer *x = a, *y = b;
    if (x->host != y->host)
        return x->host < y->host ? -1 : 1;
    return x->rank - y->rank;
}

static int by_engine(const void *a, const void *b)
{
    const struct ft_ras_peer *x = a, *y = b;
    return (x->engine > y->engine) - (x->engine < y->engine);
}

/* Without memory nobody is asked. */
static void sort_peers(struct ft_ras_round *round, const struct ft_snapshot *here)
{
    size_t n = (size_t)round->npeers;
    round->by_engine = calloc(n + 1, sizeof *round->by_engine);
    round->hosts = calloc(n + 1, sizeof *round->hosts);
    round->answers = calloc(n + 1, sizeof *round->answers);
    if (!round->by_engine || !round->hosts || !round->answers)
        round->npeers = 0;
    if (round->npeers == 0)
        return;
    qsort(round->peers, n, sizeof *round->peers, by_host_and_rank);
    memcpy(round->by_engine, round->peers, n * sizeof *round->peers);
    qsort(round->by_engine, n, sizeof *round->by_engine, by_engine);
    for (int i = 0, count; i < round->npeers; i += count) {
        uint64_t host = round->peers[i].host;
        for (count = 1; i + count < round->npeers && round->peers[i + count].host == host;
             count++) {}
        if (!is_known(here, host))
            round->hosts[round->n++] = (struct ft_ras_host){host, i, count};
    }
}

void ft_ras_round_begin(struct ft_ras_round *round, const struct ft_snapshot *here, uint64_t now_ns)
{
    if (!round->via)
        return;
    int n = round->via->net->peers(round->via->engine, &round->peers);
    round->npeers = n > 0 ? n : 0;
    sort_peers(round, here);
    ft_env_real()->random(ft_env_real(), &round->query, sizeof round->query);
    round->left = round->n;
    round->until_ns = now_ns + ft_min(round->budget_ns, BUDGET_MAX_NS);
    round->again_ns = now_ns + (round->until_ns - now_ns) / 2;
    if (round->n > 0)
        ask(round, now_ns);
}

bool ft_ras_round_is_over(struct ft_ras_round *round, uint64_t now_ns)
{
    if (round->left == 0 || !round->via || now_ns >= round->until_ns)
        return true;
    if (now_ns >= round->again_ns) {
        round->again_ns = UINT64_MAX;
        ask(round, now_ns);
    }
    return false;
}

static int by_host(const void *a, const void *b)
{
    const struct ft_ras_host *x = a, *y = b;
    return (x->host > y->host) - (x->host < y->host);
}

static int position_of(const struct ft_ras_round *round, uint64_t host)
{
    const struct ft_ras_host key = {.host = host};
    const struct ft_ras_host *found =
        round->n > 0 ? bsearch(&key, round->hosts, (size_t)round->n, sizeof key, by_host) : NULL;
    return found ? (int)(found - round->hosts) : -1;
}

/* Parts of one answer come in their order, or the answer is lost. */
static void take_part(struct ft_ras_round *round, int at, const struct ft_ras_part *part,
                      const unsigned char *bytes, size_t len_bytes)
{
    struct ft_ras_answer *answer = &round->answers[at];
    if (answer->done)
        return;
    if (part->at == 0) {
        free(answer->bytes);
        *answer = (struct ft_ras_answer){.bytes = malloc(part->total_bytes),
                                         .total_bytes = part->total_bytes,
                                         .teller = part->teller};
    }
    if (!answer->bytes || answer->teller != part->teller || part->at != answer->len_bytes ||
        part->total_bytes != answer->total_bytes ||
        len_bytes > answer->total_bytes - answer->len_bytes)
        return;
    memcpy(answer->bytes + answer->len_bytes, bytes, len_bytes);
    answer->len_bytes += len_bytes;
    answer->done = answer->len_bytes == answer->total_bytes;
    round->left -= answer->done;
}

void ft_ras_round_take(struct ft_ras_round *round, const struct ft_ras_message *message)
{
    struct ft_ras_part part;
    if (message->len_bytes <= sizeof part)
        return;
    memcpy(&part, message->data, sizeof part);
    int at = position_of(round, part.host);
    if (at >= 0 && part.total_bytes > 0 && part.total_bytes <= FT_RAS_PACKED_MAX)
        take_part(round, at, &part, message->data + sizeof part, message->len_bytes - sizeof part);
}

/* The moments at which the hosts began to look are taken for the same. */
static int merge_answer(struct ft_snapshot *into, const struct ft_ras_answer *answer)
{
    struct ft_snapshot *one;
    int rc = ft_snapshot_unpack(answer->bytes, answer->len_bytes, into->now_ns, &one);
    if (rc != FT_OK)
        return rc;
    rc = ft_snapshot_merge(into, one);
    ft_snapshot_free(one);
    return rc;
}

bool ft_ras_round_merge(struct ft_ras_round *round, struct ft_snapshot *into)
{
    if (round->merged >= round->n)
        return false;
    struct ft_ras_answer *answer = &round->answers[round->merged++];
    answer->taken = answer->done && merge_answer(into, answer) == FT_OK;
    round->silent += !answer->taken;
    free(answer->bytes);
    answer->bytes = NULL;
    return true;
}

bool ft_ras_round_asked(const struct ft_ras_round *round, uint64_t engine, bool *answered)
{
    const struct ft_ras_peer key = {.engine = engine}, *peer = NULL;
    if (round->npeers > 0)
        peer = bsearch(&key, round->by_engine, (size_t)round->npeers, sizeof key, by_engine);
    int at = peer ? position_of(round, peer->host) : -1;
    *answered = at >= 0 && round->answers[at].taken;
    return at >= 0;
}

void ft_ras_round_end(struct ft_ras_round *round)
{
    for (int i = 0; round->answers && i < round->n; i++)
        free(round->answers[i].bytes);
    free(round->answers);
    free(round->hosts);
    free(round->peers);
    free(round->by_engine);
    *round = (struct ft_ras_round){0};
}
