/*
 * Names the links on which messages take much longer than on others, or the ranks that send or
 * receive them (C4, III.A). Links inside a host are compared with each other, and links between
 * hosts. Paths over the loopback device are not judged. The sender tells how long its messages were
 * on the way, until the other host had acknowledged them. That is slow in both directions if one is
 * slow: the acknowledgements of the other direction wait behind the messages of the slow one. So
 * what receivers tell decides between the two: how fast messages come. If they come fast and the
 * time is long all the same, as on a path with a delay, nobody can tell the directions apart.
 * Losses are judged first, and by themselves: what is sent again need not take longer yet.
 */
#include "slow.h"
#include "slow_job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* With shorter messages the time until an acknowledgement says more about the receiver's kernel,
 * which waits for further messages, than about the network. */
#define LEAST_BYTES 24576
#define LEAST_MESSAGES 20
#define LEAST_SPAN_NS 4000000000u /* sums of less time, of a link that is new, are chance */
#define LEAST_SHARE 0.1           /* of the time, that messages took longer than usual */
#define LEAST_RATIO 3             /* to what is usual */
#define LEAST_DEVIATIONS 2
#define STILL_NS 1500000000u /* a receiver that waits so long may wait for ever */
#define OTHER_DIRECTION 1.5  /* times slower: then this direction only waits for the other */
#define LEAST_FLIGHT 0.08    /* of the time on the way, if what the receiver measures explains it */
/* Segments that were sent again: fewer may be chance, or were late without being lost. */
#define LEAST_RETRANSMITS 20
#define LEAST_BESIDE 5 /* where others of the same path have lost as many */
#define LEAST_LOSS 0.005
#define LEAST_LOSS_RATIO 5  /* to what is usual */
#define SEGMENT_BYTES 1448  /* of Ethernet */
#define LEAST_SEGMENTS 1000 /* of which LEAST_LOSS means something */

/* The paths of a communicator that are compared: n from the beginning of the arrays. Those that
 * seem to wait for the other direction are at their end. */
struct selection {
    const struct ft_slow_comm *comm;
    bool same_host; /* those inside a host, else those between hosts */
    bool losses;    /* by what was lost, else by the time on the way */
    struct ft_delay *delays;
    const struct ft_snap_path **paths;
    size_t n, waiting, capacity;
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

static bool is_alive(const struct selection *at, const struct ft_snap_path *path, int other)
{
    const struct ft_slow_comm *comm = at->comm;
    return path->sender && leaves_machine(path) && is_running(comm, path->engine) &&
           is_running(comm, other) && !is_still(comm, path, other) &&
           path->seen_ns + FT_SLOW_RECENT_NS >= comm->s->now_ns &&
           (comm->s->engines[other].host == comm->s->engines[path->engine].host) == at->same_host;
}

/* Does what the receiver measures explain the time on the way? */
static bool is_explained(const struct ft_slow_comm *comm, int from, int to)
{
    const struct ft_snap_path *path = ft_slow_path(comm, from, comm->s->engines[to].id, true);
    double flight_ns = (double)flight_of(comm, from, to) / 1024;
    return !path || flight_ns * (double)path->bytes >= LEAST_FLIGHT * (double)path->network_ns;
}

static bool is_timed(const struct ft_snap_path *path)
{
    return path->span_ns >= LEAST_SPAN_NS && path->messages >= LEAST_MESSAGES &&
           path->bytes / path->messages >= LEAST_BYTES;
}

/* Is it only slow because the other direction is? */
static bool is_waiting(const struct ft_slow_comm *comm, const struct ft_snap_path *path, int other)
{
    double here = flight_of(comm, path->engine, other), back = flight_of(comm, other, path->engine);
    return back > 0 && back >= OTHER_DIRECTION * here && is_explained(comm, other, path->engine);
}

static uint64_t segments_of(const struct ft_snap_path *path)
{
    return ft_max(path->messages, path->bytes / SEGMENT_BYTES);
}

static double loss_of(const struct ft_snap_path *path)
{
    return (double)path->retransmits / (double)segments_of(path);
}

static bool is_lossy(const struct ft_snap_path *path)
{
    return path->retransmits >= LEAST_RETRANSMITS && loss_of(path) >= LEAST_LOSS;
}

/* What is compared: the time of a message; or how often a segment is sent again, as if each of them
 * took a second, and with one too many, since the logs of these numbers are compared. */
static struct ft_delay delay_of(const struct selection *at, const struct ft_snap_path *path,
                                int rank, int peer)
{
    if (at->losses)
        return (struct ft_delay){rank, peer, 0, segments_of(path),
                                 (ft_min(path->retransmits, 1u << 30) + 1) * 1000000000};
    return (struct ft_delay){rank, peer, path->bytes, path->messages, path->network_ns};
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
        if (peer < 0 || peer == rank || !is_alive(at, path, other) ||
            !(at->losses ? segments_of(path) >= LEAST_SEGMENTS : is_timed(path)))
            continue;
        bool waits = !at->losses && is_waiting(comm, path, other);
        size_t place = waits ? at->capacity - ++at->waiting : at->n++;
        at->delays[place] = delay_of(at, path, rank, peer);
        at->paths[place] = path;
    }
}

static bool is_in(const struct ft_slow_link *slow, int source, int destination)
{
    return (slow->source < 0 || source == slow->source) &&
           (slow->destination < 0 || destination == slow->destination);
}

static bool is_enough(const struct selection *at, const struct ft_slow_link *slow,
                      const struct ft_snap_path *path)
{
    double more_ns = (double)path->network_ns * (1 - 1 / slow->ratio);
    return at->losses ? is_lossy(path) : more_ns >= LEAST_SHARE * (double)path->span_ns;
}

/* The path of the verdict that lost the most time, or segments. NULL: none lost enough. `lost` is
 * how many did. */
static const struct ft_snap_path *find_worst(const struct selection *at,
                                             const struct ft_slow_link *slow, int *lost)
{
    const struct ft_snap_path *worst = NULL;
    *lost = 0;
    for (size_t i = 0; i < at->n; i++) {
        const struct ft_delay *delay = &at->delays[i];
        const struct ft_snap_path *path = at->paths[i];
        if (!is_in(slow, delay->source, delay->destination) || !is_enough(at, slow, path))
            continue;
        ++*lost;
        if (!worst || (at->losses ? path->retransmits > worst->retransmits
                                  : path->network_ns > worst->network_ns))
            worst = path;
    }
    return worst;
}

/* If only one path of a rank has lost time, the others look slow because they wait for it. */
static void blame_one_path(const struct selection *at, const struct ft_snap_path *worst,
                           struct ft_slow_link *slow)
{
    for (size_t i = 0; i < at->n; i++)
        if (at->paths[i] == worst) {
            slow->shape = FT_DELAY_POINT;
            slow->source = at->delays[i].source;
            slow->destination = at->delays[i].destination;
        }
}

/* ---- verdicts -------------------------------------------------------------------------------- */

static void write_who(const struct ft_slow_comm *comm, const struct ft_slow_link *slow,
                      const struct ft_verdict *v, char *who, size_t size)
{
    const struct ft_culprit *culprit = &v->culprits[0];
    const char *host = engine_of(comm, culprit->rank)->hostname;
    if (slow->shape == FT_DELAY_POINT)
        snprintf(who, size, "the link from rank %d (pid %d on %.24s) to rank %d (on %.24s)",
                 slow->source, culprit->pid, host, slow->destination,
                 engine_of(comm, slow->destination)->hostname);
    else if (slow->shape == FT_DELAY_ROW)
        snprintf(who, size, "what rank %d (pid %d on %.24s) sends to %d of %d ranks", slow->source,
                 culprit->pid, host, slow->votes, slow->links);
    else
        snprintf(who, size, "what %d of %d ranks send to rank %d (pid %d on %.24s)", slow->votes,
                 slow->links, slow->destination, culprit->pid, host);
}

static void write_sentence(const struct selection *at, const struct ft_slow_link *slow,
                           const struct ft_snap_path *worst, struct ft_verdict *v)
{
    char who[128];
    write_who(at->comm, slow, v, who, sizeof who);
    if (at->losses)
        snprintf(
            v->sentence, sizeof v->sentence,
            "%s is slow: packets are lost, %llu segments (%.2g%%) were sent again in %.0f s in "
            "communicator %.32s",
            who, (unsigned long long)worst->retransmits, 100 * loss_of(worst),
            (double)worst->span_ns / 1e9, at->comm->name);
    else
        snprintf(v->sentence, sizeof v->sentence,
                 "%s is slow: messages take %.3g times as long as usual in communicator %.32s", who,
                 slow->ratio, at->comm->name);
}

/* The part of one end; count 0: it does not tell. */
static struct ft_latency latency_of(const struct ft_slow_comm *comm, int engine, uint64_t peer,
                                    enum ft_latency_part part)
{
    bool sender = part != FT_LATENCY_CONSUMER;
    for (int i = 0; i < comm->s->nlatencies; i++) {
        const struct ft_snap_latency *l = &comm->s->latencies[i];
        if (l->engine == engine && l->peer == peer && l->sender == sender)
            return l->part[part];
    }
    return (struct ft_latency){0};
}

/* Where the large messages of the path have waited, from both ends. */
static void write_latency(const struct ft_slow_comm *comm, const struct ft_snap_path *worst,
                          struct ft_verdict *v)
{
    static const char *const where[FT_LATENCY_PARTS] = {
        "for room at the receiver", "in the network", "until the receiver took them"};
    int other = ft_slow_engine(comm, worst->peer), at = 0;
    char *line = v->chain[v->nchain];
    for (int p = 0; p < FT_LATENCY_PARTS; p++) {
        bool there = p == FT_LATENCY_CONSUMER;
        struct ft_latency l = latency_of(comm, there ? other : worst->engine,
                                         there ? comm->s->engines[worst->engine].id : worst->peer,
                                         (enum ft_latency_part)p);
        if (l.count == 0)
            continue;
        at += snprintf(line + at, (size_t)(FT_SENTENCE - at), "%s %.3g ms %s (%.3g at most)",
                       at ? ","
                          : "large messages have waited, on average, since the link was made:",
                       (double)l.sum_ns / (double)l.count / 1e6, where[p], (double)l.max_ns / 1e6);
    }
    v->nchain += at > 0;
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
    write_latency(comm, worst, v);
}

static bool write_verdict(const struct selection *at, const struct ft_slow_link *slow,
                          const struct ft_snap_path *worst, struct ft_verdict *v)
{
    static const enum ft_verdict_kind kind[] = {
        [FT_DELAY_POINT] = FT_VERDICT_COMM_SLOW_LINK,
        [FT_DELAY_ROW] = FT_VERDICT_COMM_SLOW_SOURCE,
        [FT_DELAY_COLUMN] = FT_VERDICT_COMM_SLOW_DESTINATION,
    };
    if (!worst)
        return false;
    *v = (struct ft_verdict){
        .kind = kind[slow->shape], .ctx = at->comm->ctx, .since_ns = worst->span_ns};
    v->culprits[v->nculprits++] = ft_slow_culprit(
        at->comm, slow->source >= 0 ? slow->source : slow->destination,
        slow->shape == FT_DELAY_POINT ? slow->destination : -1);
    write_sentence(at, slow, worst, v);
    write_chain(at->comm, worst, v);
    return true;
}

/* ---- links that share a path ----------------------------------------------------------------- */

/* Two links in either direction between the same ranks or hosts. */
static bool shares_path(const struct ft_slow_comm *comm, const struct ft_slow_link *slow,
                        const struct ft_delay *delay)
{
    uint64_t from = engine_of(comm, slow->source)->host,
             to = engine_of(comm, slow->destination)->host,
             source = engine_of(comm, delay->source)->host,
             destination = engine_of(comm, delay->destination)->host;
    return (delay->source == slow->destination && delay->destination == slow->source) ||
           (from != to &&
            ((source == from && destination == to) || (source == to && destination == from)));
}

static bool is_named(const struct ft_verdict *v, int source, int destination)
{
    for (int i = 0; i < v->nculprits && i < FT_CULPRITS; i++)
        if (v->culprits[i].rank == source && v->culprits[i].peer == destination)
            return true;
    return false;
}

static void add_link(const struct ft_slow_comm *comm, int source, int destination,
                     struct ft_verdict *v)
{
    if (is_named(v, source, destination))
        return;
    if (v->nculprits < FT_CULPRITS)
        v->culprits[v->nculprits] = ft_slow_culprit(comm, source, destination);
    v->nculprits++;
}

static bool is_same_way(const struct selection *at, const struct ft_slow_link *slow, int source)
{
    return source == slow->source ||
           (!at->same_host &&
            engine_of(at->comm, source)->host == engine_of(at->comm, slow->source)->host);
}

static bool loses_as_well(const struct selection *at, const struct ft_slow_link *slow, size_t i)
{
    const struct ft_snap_path *path = at->paths[i];
    return is_lossy(path) || (is_same_way(at, slow, at->delays[i].source) &&
                              path->retransmits >= LEAST_BESIDE && loss_of(path) >= LEAST_LOSS);
}

/* Of about the same size, and half as slow, as a log, or lost as well. */
static bool is_as_slow(const struct selection *at, const struct ft_slow_link *slow,
                       const struct ft_delay *first, size_t i)
{
    const struct ft_delay *delay = &at->delays[i];
    if (at->losses)
        return loses_as_well(at, slow, i);
    double bytes = (double)delay->bytes / (double)delay->messages,
           usual = (double)first->bytes / (double)first->messages;
    return bytes < 1.5 * usual && usual < 1.5 * bytes &&
           (double)delay->network_ns / (double)delay->messages >=
               (double)first->network_ns / (double)first->messages / sqrt(slow->ratio);
}

/* From the `begin`th to before the `end`th. */
static void add_as_slow(const struct selection *at, const struct ft_slow_link *slow, size_t begin,
                        size_t end, struct ft_verdict *v)
{
    const struct ft_delay *first = NULL;
    for (size_t i = 0; i < at->n && !first; i++)
        if (at->delays[i].source == slow->source && at->delays[i].destination == slow->destination)
            first = &at->delays[i];
    for (size_t i = begin; i < end && first; i++)
        if (shares_path(at->comm, slow, &at->delays[i]) && is_as_slow(at, slow, first, i))
            add_link(at->comm, at->delays[i].source, at->delays[i].destination, v);
}

/* Do the links of the path not agree in which direction it is slow? */
static bool is_both_ways(const struct selection *at, const struct ft_slow_link *slow,
                         const struct ft_verdict *v)
{
    for (int i = 0; i < v->nculprits && i < FT_CULPRITS; i++)
        if (!is_same_way(at, slow, v->culprits[i].rank))
            return true;
    for (size_t i = at->capacity - at->waiting; i < at->capacity; i++)
        if (shares_path(at->comm, slow, &at->delays[i]) &&
            is_same_way(at, slow, at->delays[i].source))
            return true;
    return false;
}

/* The other links of the path that is slow: they become slow together, but are not all found at the
 * same time. */
static void add_others(const struct selection *at, const struct ft_slow_link *slow,
                       struct ft_verdict *v)
{
    add_as_slow(at, slow, 0, at->n, v);
    if (is_both_ways(at, slow, v))
        add_as_slow(at, slow, at->capacity - at->waiting, at->capacity, v);
    if (v->nculprits > 1)
        snprintf(v->chain[v->nchain++], FT_SENTENCE, "as slow: %d other links between these hosts",
                 v->nculprits - 1);
}

/* Is it a link of a path of which a verdict tells? */
static bool join_path(const struct selection *at, const struct ft_slow_link *slow,
                      struct ft_verdict *verdicts, int n)
{
    struct ft_delay link = {.source = slow->source, .destination = slow->destination};
    for (int i = 0; i < n && slow->shape == FT_DELAY_POINT; i++) {
        const struct ft_culprit *first = &verdicts[i].culprits[0];
        struct ft_slow_link named = {.source = first->rank, .destination = first->peer};
        if (verdicts[i].kind != FT_VERDICT_COMM_SLOW_LINK || !shares_path(at->comm, &named, &link))
            continue;
        add_link(at->comm, slow->source, slow->destination, &verdicts[i]);
        return true;
    }
    return false;
}

/* Losses explain why links are slow, in both directions: acknowledgements are lost, too. */
static void explain(const struct selection *at, const struct ft_slow_link *slow)
{
    for (size_t i = 0; i < at->n; i++) {
        const struct ft_delay *delay = &at->delays[i];
        if (is_in(slow, delay->source, delay->destination) ||
            is_in(slow, delay->destination, delay->source) ||
            (slow->shape == FT_DELAY_POINT && shares_path(at->comm, slow, delay)))
            at->comm->judged[at->paths[i] - at->comm->s->paths] = true;
    }
}

static void select_all(struct selection *at)
{
    at->n = at->waiting = 0;
    for (int i = 0; i < at->comm->npresent; i++) {
        int rank = at->comm->s->members[at->comm->present[i]].rank;
        if (at->comm->member[rank] == at->comm->present[i])
            select_paths(at, rank);
    }
}

static int judge(struct selection *at, struct ft_verdict *verdicts, int capacity)
{
    struct ft_slow_link slow[FT_CULPRITS];
    select_all(at);
    struct ft_delay_matrix matrix = {at->delays, at->n, at->comm->nranks,
                                     at->losses ? LEAST_LOSS_RATIO : LEAST_RATIO, LEAST_DEVIATIONS};
    int found = ft_slow_links(&matrix, slow, FT_CULPRITS), named = 0;
    for (int i = 0; i < found && i < FT_CULPRITS && named < capacity; i++) {
        int lost;
        const struct ft_snap_path *worst = find_worst(at, &slow[i], &lost);
        if (at->losses && !worst)
            continue;
        if (!at->losses && lost == 1)
            blame_one_path(at, worst, &slow[i]);
        if (!join_path(at, &slow[i], verdicts, named) &&
            write_verdict(at, &slow[i], worst, &verdicts[named])) {
            if (slow[i].shape == FT_DELAY_POINT)
                add_others(at, &slow[i], &verdicts[named]);
            named++;
        }
        if (at->losses)
            explain(at, &slow[i]);
    }
    return found < 0 ? found : named;
}

/* A smaller communicator does not judge the same paths again. */
static void end_paths(const struct ft_slow_comm *comm)
{
    for (int i = 0; i < comm->npresent; i++) {
        int engine = comm->s->members[comm->present[i]].engine;
        for (int k = comm->first_path[engine]; k < comm->first_path[engine + 1]; k++) {
            int other = ft_slow_engine(comm, comm->s->paths[comm->path[k]].peer);
            comm->judged[comm->path[k]] |= other >= 0 && comm->rank_of[other] >= 0;
        }
    }
}

int ft_slow_find_paths(const struct ft_slow_comm *comm, struct ft_verdict *verdicts, int capacity)
{
    size_t most = 1;
    for (int i = 0; i < comm->npresent; i++) {
        int engine = comm->s->members[comm->present[i]].engine;
        most += (size_t)(comm->first_path[engine + 1] - comm->first_path[engine]);
    }
    struct selection at = {.comm = comm,
                           .capacity = most,
                           .delays = calloc(most, sizeof *at.delays),
                           .paths = calloc(most, sizeof *at.paths)};
    int found = at.delays && at.paths ? 0 : FT_NOMEM;
    for (int pass = 0; pass < 4 && found >= 0; pass++) {
        at.losses = pass < 2;
        at.same_host = pass % 2 == 0;
        int more = judge(&at, verdicts + found, capacity - found);
        found = more < 0 ? more : found + more;
    }
    end_paths(comm);
    free(at.delays);
    free(at.paths);
    return found;
}
