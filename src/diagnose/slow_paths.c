/*
 * Names the links on which messages take much longer than on others, or the ranks that send or
 * receive them (C4, III.A). Links inside a host are compared with each other, and links between
 * hosts. Paths over the loopback device are not judged. The sender tells how long its messages were
 * on the way, until the other host had acknowledged them. That is slow in both directions if one is
 * slow: the acknowledgements of the other direction wait behind the messages of the slow one. So
 * what receivers tell decides between the two: how fast messages come.
 */
#include "slow.h"
#include "slow_job.h"

#include <stdlib.h>
#include <string.h>

/* With shorter messages the time until an acknowledgement says more about the receiver's kernel,
 * which waits for further messages, than about the network. */
#define LEAST_BYTES 24576
#define LEAST_MESSAGES 20
#define LEAST_SHARE 0.1 /* of the time, in which messages are on their way */
#define LEAST_RATIO 3   /* to what is usual */
#define LEAST_DEVIATIONS 2
#define STILL_NS 1500000000u /* a receiver that waits so long may wait for ever */
#define OTHER_DIRECTION 1.5  /* times slower: then this direction only waits for the other */

/* The paths of a communicator that are compared. */
struct selection {
    const struct ft_slow_comm *comm;
    bool same_host; /* those inside a host, else those between hosts */
    struct ft_delay *delays;
    const struct ft_snap_path **paths;
    size_t n;
};

static const struct ft_snap_engine *engine_of(const struct ft_slow_comm *comm, int rank)
{
    return &comm->s->engines[comm->s->members[comm->member[rank]].engine];
}

/* ---- selection ------------------------------------------------------------------------------- */

/* How long the network takes for 1 KiB from one engine to another, as the receiver tells; 0: it
 * does not tell. */
static uint32_t flight_of(const struct ft_slow_comm *comm, int from, int to)
{
    const struct ft_snap_path *path = ft_slow_path(comm, to, comm->s->engines[from].id, false);
    return path ? path->flight_ns : 0;
}

/* On a path that does not leave the machine nothing is slow but processes. */
static bool leaves_machine(const struct ft_snap_path *path)
{
    const char *here = strrchr(path->source, ':'), *there = strrchr(path->destination, ':');
    return here && there &&
           (here - path->source != there - path->destination ||
            strncmp(path->source, path->destination, (size_t)(here - path->source)) != 0);
}

/* What went over the paths of a process that is stopped or gone was interrupted. */
static bool is_running(const struct ft_slow_comm *comm, int engine)
{
    enum ft_process_state state = comm->s->engines[engine].state;
    return state == FT_PROCESS_RUNS || state == FT_PROCESS_UNKNOWN;
}

/* Nothing comes at all: the job hangs there, or soon will. What was under way when a link died
 * makes it look slow. */
static bool is_still(const struct ft_slow_comm *comm, const struct ft_snap_path *path, int other)
{
    int at = comm->member[comm->rank_of[other]];
    if (at < 0)
        return false;
    const struct ft_snap_member *m = &comm->s->members[at];
    uint64_t moved_ns = ft_max(m->progress_ns, m->running_since_ns);
    return m->running_sig && !m->wait.sends && m->wait.peer == comm->rank_of[path->engine] &&
           moved_ns + STILL_NS < comm->s->now_ns;
}

static bool is_selected(const struct selection *at, const struct ft_snap_path *path, int other)
{
    const struct ft_slow_comm *comm = at->comm;
    if (!path->sender || path->messages < LEAST_MESSAGES || !leaves_machine(path) ||
        path->bytes / path->messages < LEAST_BYTES || !is_running(comm, path->engine) ||
        !is_running(comm, other) || is_still(comm, path, other) ||
        path->seen_ns + FT_SLOW_RECENT_NS < comm->s->now_ns ||
        (comm->s->engines[other].host == comm->s->engines[path->engine].host) != at->same_host)
        return false;
    double here = flight_of(comm, path->engine, other), back = flight_of(comm, other, path->engine);
    return back == 0 || back < OTHER_DIRECTION * here;
}

/* Adds the paths from one rank to others of the communicator. */
static void select_paths(struct selection *at, int rank)
{
    const struct ft_slow_comm *comm = at->comm;
    int engine = comm->s->members[comm->member[rank]].engine;
    for (int i = comm->first_path[engine]; i < comm->first_path[engine + 1]; i++) {
        const struct ft_snap_path *path = &comm->s->paths[comm->path[i]];
        int other = comm->judged[comm->path[i]] ? -1 : ft_slow_engine(comm, path->peer);
        int peer = other >= 0 ? comm->rank_of[other] : -1;
        if (peer < 0 || peer == rank || !is_selected(at, path, other))
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

/* ---- verdicts -------------------------------------------------------------------------------- */

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

static void write_chain(const struct ft_slow_comm *comm, const struct ft_snap_path *worst,
                        struct ft_verdict *v)
{
    uint32_t flight_ns = flight_of(comm, worst->engine, ft_slow_engine(comm, worst->peer));
    snprintf(v->chain[v->nchain++], FT_SENTENCE,
             "in %.0f s %llu messages with %.1f MB went from %.55s to %.55s",
             (double)worst->span_ns / 1e9, (unsigned long long)worst->messages,
             (double)worst->bytes / 1e6, worst->source, worst->destination);
    snprintf(v->chain[v->nchain++], FT_SENTENCE,
             "for %.1f s of that bytes were on the way: %.3f ms a message",
             (double)worst->network_ns / 1e9,
             (double)worst->network_ns / 1e6 / (double)worst->messages);
    snprintf(v->chain[v->nchain++], FT_SENTENCE,
             "the round trip takes %.3f ms (at least %.3f ms); %llu segments were sent again",
             (double)worst->rtt_ns / 1e6, (double)worst->least_rtt_ns / 1e6,
             (unsigned long long)worst->retransmits);
    if (flight_ns > 0)
        snprintf(v->chain[v->nchain++], FT_SENTENCE,
                 "messages for which the receiver waits come with %.1f MB/s",
                 1.024e6 / (double)flight_ns);
}

static bool write_verdict(const struct selection *at, const struct ft_slow_link *slow,
                          struct ft_verdict *v)
{
    static const enum ft_verdict_kind kind[] = {
        [FT_DELAY_POINT] = FT_VERDICT_COMM_SLOW_LINK,
        [FT_DELAY_ROW] = FT_VERDICT_COMM_SLOW_SOURCE,
        [FT_DELAY_COLUMN] = FT_VERDICT_COMM_SLOW_DESTINATION,
    };
    const struct ft_snap_path *worst = find_worst(at, slow);
    if (!worst)
        return false;
    *v = (struct ft_verdict){
        .kind = kind[slow->shape], .ctx = at->comm->ctx, .since_ns = worst->span_ns};
    v->culprits[v->nculprits++] = ft_slow_culprit(
        at->comm, slow->source >= 0 ? slow->source : slow->destination,
        slow->shape == FT_DELAY_POINT ? slow->destination : -1);
    write_sentence(at->comm, slow, v);
    write_chain(at->comm, worst, v);
    return true;
}

/* If nobody could tell the directions of a link apart, both are culprits of one verdict. */
static bool join_reverse(const struct ft_slow_comm *comm, const struct ft_slow_link *slow,
                         struct ft_verdict *verdicts, int n)
{
    for (int i = 0; i < n && slow->shape == FT_DELAY_POINT; i++) {
        struct ft_verdict *v = &verdicts[i];
        if (v->kind != FT_VERDICT_COMM_SLOW_LINK || v->nculprits != 1 ||
            v->culprits[0].rank != slow->destination || v->culprits[0].peer != slow->source)
            continue;
        v->culprits[v->nculprits++] = ft_slow_culprit(comm, slow->source, slow->destination);
        return true;
    }
    return false;
}

static int judge(struct selection *at, struct ft_verdict *verdicts, int capacity)
{
    struct ft_slow_link slow[FT_CULPRITS];
    at->n = 0;
    for (int i = 0; i < at->comm->npresent; i++) {
        int rank = at->comm->s->members[at->comm->present[i]].rank;
        if (at->comm->member[rank] == at->comm->present[i])
            select_paths(at, rank);
    }
    struct ft_delay_matrix matrix = {at->delays, at->n, at->comm->nranks, LEAST_RATIO,
                                     LEAST_DEVIATIONS};
    int found = ft_slow_links(&matrix, slow, FT_CULPRITS), named = 0;
    for (int i = 0; i < found && i < FT_CULPRITS && named < capacity; i++)
        if (!join_reverse(at->comm, &slow[i], verdicts, named))
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
                           .same_host = true,
                           .delays = calloc(most, sizeof *at.delays),
                           .paths = calloc(most, sizeof *at.paths)};
    int found = at.delays && at.paths ? judge(&at, verdicts, capacity) : FT_NOMEM;
    if (found >= 0) {
        at.same_host = false;
        int more = judge(&at, verdicts + found, capacity - found);
        found = more < 0 ? more : found + more;
    }
    free(at.delays);
    free(at.paths);
    return found;
}
