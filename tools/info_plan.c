/*
 * Shows what a collective would do, without running it: the same selection as a communicator's, for
 * a made-up view.
 */
#include "info.h"

#include "algo/algo.h"
#include "transport/transport.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool info_size_parse(const char *text, size_t *bytes)
{
    static const char suffixes[] = "KMGT";
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || errno)
        return false;
    const char *suffix = *end ? strchr(suffixes, toupper((unsigned char)*end)) : NULL;
    if (suffix) {
        unsigned shift = 10 * (unsigned)(suffix - suffixes + 1);
        if (value > UINT64_MAX >> shift)
            return false;
        value <<= shift;
        end++;
    }
    if (*end == 'B' || *end == 'b')
        end++;
    if (*end || value > (1ull << 50))
        return false;
    *bytes = (size_t)value;
    return true;
}

/* Compares names so that "all-reduce", "AllReduce" and "allreduce" are equal. */
static bool same_word(const char *a, const char *b)
{
    for (;; a++, b++) {
        while (*a == '-' || *a == '_')
            a++;
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b))
            return false;
        if (!*a)
            return true;
    }
}

static int find_kind(const char *name, enum ft_kind *kind)
{
    for (int k = 0; k < FT_KINDS; k++)
        if (same_word(name, ft_kind_name((enum ft_kind)k)))
            return *kind = (enum ft_kind)k, FT_OK;
    return ft_fail(FT_USAGE, "no collective is called '%s'", name);
}

static int find_type(const char *name, enum ft_type *type)
{
    *type = FT_FLOAT32;
    if (!name)
        return FT_OK;
    for (int t = 0; t < FT_TYPES; t++)
        if (same_word(name, ft_type_name((enum ft_type)t)))
            return *type = (enum ft_type)t, FT_OK;
    return ft_fail(FT_USAGE, "no type is called '%s'", name);
}

static bool counts_blocks(enum ft_kind kind)
{
    return kind == FT_ALLGATHER || kind == FT_REDUCESCATTER || kind == FT_ALLTOALL ||
           kind == FT_GATHER || kind == FT_SCATTER;
}

static int check(const struct plan_request *request)
{
    if (request->rank >= request->nranks)
        return ft_fail(FT_USAGE, "--rank %d is not among %d ranks", request->rank, request->nranks);
    if (request->nhosts > request->nranks)
        return ft_fail(FT_USAGE, "%d hosts for %d ranks", request->nhosts, request->nranks);
    return FT_OK;
}

/* What a communicator counts with whose ranks may use the transports of FTCCL_TRANSPORTS. */
static int count_links(struct ft_tuning *tuning, int nhosts)
{
    const struct ft_transport_ops *list[FT_TRANSPORTS_MAX + 1], *network = NULL;
    bool local = false, pulls = ft_transport_pulls();
    int status = ft_transport_list(ft_param_str(FT_PARAM_TRANSPORTS), list, FT_ARRAY_LEN(list));
    if (status)
        return status;
    for (int i = 0; list[i]; i++) {
        bool outside = list[i]->caps.scope == FT_SCOPE_NETWORK;
        if (outside && !network)
            network = list[i];
        local |= !outside;
        pulls &= outside || list[i]->caps.pulls;
    }
    if (network)
        ft_tuning_network(tuning, network->name, network->caps.rdma, network->caps.costs);
    ft_tuning_links(tuning, local        ? FT_LINKS_LOCAL
                            : nhosts > 1 ? FT_LINKS_SOME
                                         : FT_LINKS_LOOPBACK);
    if (tuning->local_links && nhosts == 1 && pulls)
        tuning->pulls = ft_transport_pulls_slowly() ? FT_PULLS_SLOW : FT_PULLS;
    return FT_OK;
}

int info_plan(FILE *out, const struct plan_request *request)
{
    struct ft_coll coll = {.red = FT_SUM};
    struct ft_rules rules;
    struct ft_tuning tuning;
    int status = check(request);
    if (!status)
        status = find_kind(request->kind, &coll.kind);
    if (!status)
        status = find_type(request->type, &coll.type);
    if (!status)
        status = ft_tuning_read(&tuning, &rules, ft_transport_is_network);
    if (!status)
        status = count_links(&tuning, request->nhosts);
    if (status)
        return status;
    if (coll.kind == FT_SEND || coll.kind == FT_RECV)
        return ft_fail(FT_USAGE, "a send or receive needs no plan");
    int n = request->nranks;
    int *host = calloc((size_t)n, sizeof *host);
    uint64_t *peer = calloc((size_t)n, sizeof *peer);
    if (host && peer) {
        for (int r = 0; r < n; r++) {
            host[r] = (int)((int64_t)r * request->nhosts / n);
            peer[r] = (uint64_t)r + 1;
        }
        coll.count = request->size_bytes / ft_type_size(coll.type) /
                     (counts_blocks(coll.kind) ? (size_t)n : 1);
        const struct ft_view view = {.epoch = 1,
                                     .nranks = n,
                                     .rank = request->rank,
                                     .nhosts = request->nhosts,
                                     .host = host,
                                     .peer = peer};
        status = ft_algo_explain(out, &view, &coll, &tuning);
    } else {
        status = ft_fail(FT_NOMEM, "out of memory");
    }
    free(host);
    free(peer);
    return status;
}
