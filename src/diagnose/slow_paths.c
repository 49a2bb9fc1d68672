/*
 * Names the links on which messages take much longer than on others, or the ranks that send or
 * receive them (C4, III.A). Links inside a host are compared with each other, and links between
 * hosts. A link on which little time is lost is not named, however slow it is.
 */
#include "slow.h"
#include "slow_job.h"

#include <stdlib.h>

#define LEAST_SHARE 0.1 /* of the time, in which messages are on their way */

/* The paths of a communicator: all inside hosts, or all between them. */
struct selection {
    const struct ft_slow_comm *comm;
    struct ft_delay *delays;
    const struct ft_snap_path **paths;
    size_t n;
};

static const struct ft_snap_engine *engine_of(const struct ft_slow_comm *comm, int rank)
{
    return &comm->s->engines[comm->s->members[comm->member[rank]].engine];
}

static bool is_recent(const struct ft_slow_comm *comm, const struct ft_snap_path *path)
{
    return path->messages > 0 && path->span_ns > 0 &&
           path->seen_ns + FT_SLOW_RECENT_NS >= comm->s->now_ns;
}

/* Adds the paths of one rank to others of the communicator. */
static void select_paths(struct selection *at, int rank, bool same_host)
{
    const struct ft_slow_comm *comm = at->comm;
    int engine = comm->s->members[comm->member[rank]].engine;
    for (int i = comm->first_path[engine]; i < comm->first_path[engine + 1]; i++) {
        const struct ft_snap_path *path = &comm->s->paths[comm->path[i]];
        int to = comm->judged[comm->path[i]] ? -1 : ft_slow_engine(comm, path->peer);
        int peer = to >= 0 ? comm->rank_of[to] : -1;
        if (peer < 0 || peer == rank || !is_recent(comm, path) ||
            (comm->s->engines[to].host == comm->s->engines[engine].host) != same_host)
            continue;
        comm->judged[comm->path[i]] = true;
        at->delays[at->n] = (struct ft_delay){rank, peer, path->bytes, path->messages,
                                              path->network_ns};
        at->paths[at->n++] = path;
    }
}

/* The path that lost the most time among those of the verdict. NULL: none lost enough. */
static const struct ft_snap_path *find_worst(const struct selection *at,
                                             const struct ft_slow_link *slow)
{
    const struct ft_snap_path *worst = NULL;
    for (size_t i = 0; i < at->n; i++) {
        const struct ft_delay *delay = &at->delays[i];
        const struct ft_snap_path *path = at->paths[i];
        bool is_in = (slow->source < 0 || delay->source == slow->source) &&
                     (slow->destination < 0 || delay->destination == slow->destination);
        if (is_in && (double)path->network_ns >= LEAST_SHARE * (double)path->span_ns &&
            (!worst || path->network_ns > worst->network_ns))
            worst = path;
    }
    return worst;
}

static void write_sentence(const struct ft_slow_comm *comm, const struct ft_slow_link *slow,
                           struct ft_verdict *v)
{
    char who[128];
    const struct ft_culprit *culprit = &v->culprits[0];
    const char *host = engine_of(comm, culprit->rank)->hostname;
    if (slow->shape == FT_DELAY_POINT)
        snprintf(who, sizeof who, "the link from rank %d (pid %d on %.24s) to rank %d (on %.24s)",
                 slow->source, culprit->pid, host, slow->destination,
                 engine_of(comm, slow->destination)->hostname);
    else if (slow->shape == FT_DELAY_ROW)
        snprintf(who, sizeof who, "what rank %d (pid %d on %.24s) sends to %d of %d ranks",
                 slow->source, culprit->pid, host, slow->votes, slow->links);
    else
        snprintf(who, sizeof who, "what %d of %d ranks send to rank %d (pid %d on %.24s)",
                 slow->votes, slow->links, slow->destination, culprit->pid, host);
    snprintf(v->sentence, sizeof v->sentence,
             "%s is slow: messages take %.3g times as long as usual in communicator %.32s", who,
             slow->ratio, comm->name);
}

static void write_chain(const struct ft_snap_path *worst, struct ft_verdict *v)
{
    double span_s = (double)worst->span_ns / 1e9, network_s = (double)worst->network_ns / 1e9;
    snprintf(v->chain[v->nchain++], FT_SENTENCE,
             "in %.0f s %llu messages with %.1f MB went from %.55s to %.55s", span_s,
             (unsigned long long)worst->messages, (double)worst->bytes / 1e6, worst->source,
             worst->destination);
    snprintf(v->chain[v->nchain++], FT_SENTENCE,
             "for %.1f s of that bytes were on the way: %.3f ms a message, %.1f MB/s", network_s,
             network_s * 1e3 / (double)worst->messages,
             network_s > 0 ? (double)worst->bytes / 1e6 / network_s : 0);
    snprintf(v->chain[v->nchain++], FT_SENTENCE,
             "the round trip takes %.3f ms (at least %.3f ms); %llu segments were sent again",
             (double)worst->rtt_ns / 1e6, (double)worst->least_rtt_ns / 1e6,
             (unsigned long long)worst->retransmits);
}

static bool write_verdict(const struct selection *at, const struct ft_slow_link *slow,
                          struct ft_verdict *v)
{
    static const enum ft_verdict_kind kind[] = {
        [FT_DELAY_POINT] = FT_VERDICT_COMM_SLOW_LINK,
        [FT_DELAY_ROW] = FT_VERDICT_COMM_SLOW_SOURCE,
        [FT_DELAY_COLUMN] = FT_VERDICT_COMM_SLOW_DESTINATION};
    const struct ft_snap_path *worst = find_worst(at, slow);
    if (!worst)
        return false;
    *v = (struct ft_verdict){.kind = kind[slow->shape], .since_ns = worst->span_ns};
    ft_slow_accuse(at->comm, slow->source >= 0 ? slow->source : slow->destination,
                   slow->shape == FT_DELAY_POINT ? slow->destination : -1, v);
    write_sentence(at->comm, slow, v);
    write_chain(worst, v);
    return true;
}

static int judge(struct selection *at, bool same_host, struct ft_verdict *verdicts, int capacity)
{
    struct ft_slow_link slow[FT_CULPRITS];
    at->n = 0;
    for (int i = 0; i < at->comm->npresent; i++) {
        int rank = at->comm->s->members[at->comm->present[i]].rank;
        if (at->comm->member[rank] == at->comm->present[i])
            select_paths(at, rank, same_host);
    }
    struct ft_delay_matrix matrix = {at->delays, at->n, at->comm->nranks, 0};
    int found = ft_slow_links(&matrix, slow, FT_CULPRITS), named = 0;
    for (int i = 0; i < found && i < FT_CULPRITS && named < capacity; i++)
        named += write_verdict(at, &slow[i], &verdicts[named]);
    return found < 0 ? found : named;
}

int ft_slow_find_paths(const struct ft_slow_comm *comm, struct ft_verdict *verdicts, int capacity)
{
    size_t most = 1;
    for (int i = 0; i < comm->npresent; i++) {
        int engine = comm->s->members[comm->present[i]].engine;
        most += (size_t)(comm->first_path[engine + 1] - comm->first_path[engine]);
    }
    struct selection at = {.comm = comm,
                           .delays = calloc(most, sizeof *at.delays),
                           .paths = calloc(most, sizeof *at.paths)};
    int found = at.delays && at.paths ? judge(&at, true, verdicts, capacity) : FT_NOMEM;
    if (found >= 0) {
        int more = judge(&at, false, verdicts + found, capacity - found);
        found = more < 0 ? more : found + more;
    }
    free(at.delays);
    free(at.paths);
    return found;
}
