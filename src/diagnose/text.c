/*
 * The sentences of a verdict. Names and texts come from files of other processes: lengths are
 * bounded here, and what cannot be printed is replaced.
 */
#include "hang.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#define THREADS_TOLD 2 /* of each that is named */

/* Appends to a sentence, as much as fits. */
static void add(char *sentence, const char *fmt, ...) FT_PRINTF(2, 3);
static void add(char *sentence, const char *fmt, ...)
{
    size_t at = strlen(sentence);
    va_list args;
    va_start(args, fmt);
    vsnprintf(sentence + at, FT_SENTENCE - at, fmt, args);
    va_end(args);
    for (char *c = sentence + at; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
}

static char *new_line(struct ft_hang *h)
{
    if (h->draft.nchain == FT_CHAIN)
        return NULL;
    char *line = h->draft.chain[h->draft.nchain++];
    *line = 0;
    return line;
}

/* ---- parts of sentences ---------------------------------------------------------------------- */

static void add_span(char *s, const struct ft_hang *h, uint64_t since_ns)
{
    double ns = since_ns < h->now_ns ? (double)(h->now_ns - since_ns) : 0;
    if (ns < 1e9)
        add(s, "%.0f ms", ns / 1e6);
    else
        add(s, "%.1f s", ns / 1e9);
}

static void add_process(char *s, const struct ft_hang *h, const struct ft_culprit *c)
{
    add(s, "rank %d", c->rank);
    if (c->engine >= 0)
        add(s, " (pid %d on host %.40s)", c->pid, h->snap->engines[c->engine].hostname);
    else if (c->pid)
        add(s, " (pid %d)", c->pid);
}

static void add_comm(char *s, const struct ft_hang *h, int comm)
{
    const char *name = h->members[h->comms[comm].first]->name;
    if (*name)
        add(s, "communicator %.39s", name);
    else
        add(s, "communicator %016" PRIx64, h->comms[comm].ctx);
}

static void add_call(char *s, uint64_t sig)
{
    char call[128];
    ft_sig_text(sig, call, sizeof call);
    add(s, "%s", call);
}

/* What a node is: "AllReduce(count 4, int32, sum), operation 7 of communicator world". A send is
 * called by what its peer owes: a receive. */
static void add_operation(char *s, const struct ft_hang *h, int node)
{
    int comm = ft_hang_comm(h, node);
    if (!ft_hang_is_p2p(h, node)) {
        if (h->comms[comm].sig_known) {
            add_call(s, h->comms[comm].sig);
            add(s, ", ");
        }
        add(s, "operation %" PRIu64 " of ", h->comms[comm].head);
        add_comm(s, h, comm);
        return;
    }
    const struct ft_snap_member *m = h->members[node - h->ncomms];
    if (!ft_hang_runs_p2p(m))
        add(s, "a send or receive");
    else if (m->wait.sends)
        add(s, "the receive from rank %d", m->rank);
    else
        add(s, "the send to rank %d", m->rank);
    add(s, " of ");
    add_comm(s, h, comm);
}

static void add_doing(char *s, const struct ft_hang *h, int engine)
{
    if (engine >= 0 && h->snap->engines[engine].doing[0])
        add(s, "; it %.95s", h->snap->engines[engine].doing);
}

/* The latest call of a process, on any communicator. */
static void add_last_call(char *s, const struct ft_hang *h, int engine)
{
    int latest = engine >= 0 ? h->engines[engine].latest : -1;
    const struct ft_snap_member *m = latest >= 0 ? h->members[latest] : NULL;
    if (!m || m->last.called_ns == 0) {
        add(s, "; it has called nothing yet");
        return;
    }
    if (ft_kind_is_collective((enum ft_kind)(ft_sig_call(m->last.sig) & 15)))
        add(s, "; its last call was operation %" PRIu64, m->called);
    else
        add(s, "; its last call was a send or receive");
    if (h->comm_of[latest] != h->draft_comm) {
        add(s, " of ");
        add_comm(s, h, h->comm_of[latest]);
    }
    add(s, ", ");
    add_span(s, h, m->last.called_ns);
    add(s, " ago");
    if (m->last.tid)
        add(s, ", by thread %d", m->last.tid);
}

/* ---- the sentence of a verdict --------------------------------------------------------------- */

static const struct phrase {
    const char *one, *many;
} phrases[FT_VERDICTS] = {
    [FT_VERDICT_HEALTHY] = {"is well in", "are well in"},
    [FT_VERDICT_STARTING] = {"has not started yet; others wait for it in",
                             "have not started yet; others wait for them in"},
    [FT_VERDICT_RANK_DEAD] = {"is gone; others wait for it in",
                              "are gone; others wait for them in"},
    [FT_VERDICT_RANK_STOPPED] = {"is stopped; others wait for it in",
                                 "are stopped; others wait for them in"},
    [FT_VERDICT_NONCOMM_HANG] = {"has not called", "have not called"},
    [FT_VERDICT_STREAM_HANG] = {"has called, but its stream has not started,",
                                "have called, but their streams have not started,"},
    [FT_VERDICT_COMM_HANG_SENDER] = {"has not sent what others wait for in",
                                     "have not sent what others wait for in"},
    [FT_VERDICT_COMM_HANG_RECEIVER] = {"takes nothing of what is sent to it in",
                                       "take nothing of what is sent to them in"},
    [FT_VERDICT_COMM_HANG_LINK] = {"do not arrive in", "do not arrive in"},
    [FT_VERDICT_DEADLOCK] = {"waits for itself in",
                             "wait for each other, each in another operation; one is"},
    [FT_VERDICT_MISMATCH] = {"has made another call than the others as",
                             "have made different calls as"},
    [FT_VERDICT_LIBRARY_STUCK] = {"waits for no other rank and does not go on in",
                                  "wait for no other rank and do not go on in"},
    [FT_VERDICT_PARTITION] = {"is cut off from the other hosts; others wait for it in",
                              "are cut off from the other hosts; others wait for them in"},
    [FT_VERDICT_PATH] =
        {"is cut off from the other hosts, but not from each other: the path is lost in",
         "are cut off from the other hosts, but not from each other: the path "
         "between them is lost in"},
    [FT_VERDICT_CORRUPT] = {"has sent data that arrived changed in",
                            "have sent data that arrived changed in"},
    [FT_VERDICT_UNKNOWN] = {"decides, and is not known well enough to tell, in",
                            "decide, and are not known well enough to tell, in"},
};

/* Of communicators that have failed. */
static const struct phrase failures[FT_VERDICTS] = {
    [FT_VERDICT_RANK_DEAD] = {"has died, which failed", "have died, which failed"},
    [FT_VERDICT_RANK_STOPPED] = {"is stopped, which failed", "are stopped, which failed"},
    [FT_VERDICT_LIBRARY_STUCK] = {"has a stopped thread, which failed",
                                  "have stopped threads, which failed"},
    [FT_VERDICT_CORRUPT] = {"has sent data that arrived changed, which failed",
                            "have sent data that arrived changed, which failed"},
    [FT_VERDICT_MISMATCH] = {"has made another call than the others, which failed",
                             "have made different calls, which failed"},
    [FT_VERDICT_COMM_HANG_LINK] = {"was lost, which failed", "were lost, which failed"},
    [FT_VERDICT_PARTITION] = {"is cut off from the other hosts, which failed",
                              "are cut off from the other hosts, which failed"},
    [FT_VERDICT_PATH] = {"is cut off from the other hosts by a lost path, which failed",
                         "are cut off from the other hosts by a lost path, which failed"},
    [FT_VERDICT_NONCOMM_HANG] = {"has not made the call whose deadline has passed in",
                                 "have not made the call whose deadline has passed in"},
};

/* The culprit's process goes on, as far as it has told anybody. */
static bool has_left(const struct ft_hang *h, int culprit)
{
    int at = h->draft_at[culprit];
    if (at >= 0)
        return ft_hang_process(h, at)->state != FT_PROCESS_GONE;
    const struct ft_snap_seat *seat = ft_hang_seat(h, h->draft_comm,
                                                   h->draft.culprits[culprit].rank);
    return seat && seat->news == FT_NEWS_LEFT;
}

const char *ft_verdict_advice(enum ft_verdict_kind kind)
{
    static const char *const advice[FT_VERDICTS] = {
        [FT_VERDICT_STARTING] = "start the missing ranks, or look why they do not come to init",
        [FT_VERDICT_RANK_DEAD] = "look at the log of the rank and of the kernel for its end; the "
                                 "others can go on with ftcclCommShrink",
        [FT_VERDICT_RANK_STOPPED] = "look who has stopped the process (kill -CONT continues it)",
        [FT_VERDICT_NONCOMM_HANG] = "look at the program of the rank where its last call returned",
        [FT_VERDICT_STREAM_HANG] = "look at what was put on the stream before the call",
        [FT_VERDICT_COMM_HANG_SENDER] =
            "keep the telemetry and the stacks of the rank: the library "
            "is the suspect",
        [FT_VERDICT_COMM_HANG_RECEIVER] = "look for the receive that the rank does not make",
        [FT_VERDICT_COMM_HANG_LINK] = "look at the network between the two processes",
        [FT_VERDICT_DEADLOCK] = "call operations of different communicators in the same order on "
                                "all ranks",
        [FT_VERDICT_MISMATCH] = "make the same calls with the same arguments on all ranks",
        [FT_VERDICT_LIBRARY_STUCK] = "look who holds the thread; keep the telemetry and the stacks",
        [FT_VERDICT_PARTITION] = "look at the network of the host",
        [FT_VERDICT_PATH] = "look at what lies between these hosts and the others: a switch, a "
                            "spine, a router",
        [FT_VERDICT_CORRUPT] = "look at the memory and the network of the host; do not use it "
                               "meanwhile",
    };
    return (unsigned)kind < FT_VERDICTS && advice[kind] ? advice[kind] : "";
}

static void add_links(char *s, const struct ft_hang *h)
{
    const struct ft_verdict *v = &h->draft;
    bool lost = h->draft_node < 0; /* then both ends have noticed it */
    add(s, lost ? "the link " : "messages ");
    for (int i = 0; i < v->nculprits && i < FT_CULPRITS; i++) {
        struct ft_culprit to = {.rank = v->culprits[i].peer, .engine = -1};
        if (h->draft_peer[i] >= 0) {
            to.engine = h->members[h->draft_peer[i]]->engine;
            to.pid = h->snap->engines[to.engine].pid;
        }
        add(s, i ? ", and %s " : "%s ", lost ? "between" : "from");
        add_process(s, h, &v->culprits[i]);
        add(s, lost ? " and " : " to ");
        add_process(s, h, &to);
    }
}

/* "rank 3 (pid 7 on host a)", "ranks 3, 5 and 9", "ranks 0, 1, ... and 12 more". */
static void add_ranks(char *s, const struct ft_hang *h)
{
    const struct ft_verdict *v = &h->draft;
    int listed = v->nculprits < FT_CULPRITS ? v->nculprits : FT_CULPRITS;
    if (v->nculprits == 1) {
        add_process(s, h, v->culprits);
        return;
    }
    add(s, "ranks ");
    for (int i = 0; i < listed; i++) {
        bool last = i == v->nculprits - 1;
        add(s, i == 0 ? "%d" : last ? " and %d" : ", %d", v->culprits[i].rank);
    }
    if (listed < v->nculprits)
        add(s, " and %d more", v->nculprits - listed);
}

static void add_counters(char *s, const struct ft_hang *h, int sender, int receiver)
{
    uint64_t sent, received;
    if (ft_hang_pending(h, sender, receiver, &sent, &received) == FT_PENDING_UNKNOWN)
        add(s, "; the counters of both ends are not known");
    else
        add(s, "; %" PRIu64 " were sent, %" PRIu64 " received", sent, received);
}

/* Why a rank cannot be judged. */
static void add_reason(char *s, const struct ft_hang *h)
{
    int at = h->draft_at[0];
    if (at < 0)
        add(s, ": there is no telemetry of it");
    else if (h->members[at]->failed)
        add(s, ": its communicator has failed: %s", ft_status_text(h->members[at]->status));
    if (h->snap->unreadable > 0)
        add(s, "; %d files or hosts could not be read", h->snap->unreadable);
}

/* What is said about a single culprit. */
static void add_detail(char *s, const struct ft_hang *h)
{
    const struct ft_culprit *culprit = h->draft.culprits;
    int at = h->draft_at[0];
    uint64_t sig;
    switch (h->draft.kind) {
    case FT_VERDICT_RANK_DEAD:
        if (h->draft_node >= 0 && has_left(h, 0))
            add(s, "; it has left, by closing its end");
        break;
    case FT_VERDICT_NONCOMM_HANG:
    case FT_VERDICT_STREAM_HANG:
    case FT_VERDICT_COMM_HANG_RECEIVER:
        add_last_call(s, h, culprit->engine);
        add_doing(s, h, culprit->engine);
        break;
    case FT_VERDICT_LIBRARY_STUCK:
        add_doing(s, h, culprit->engine);
        break;
    case FT_VERDICT_COMM_HANG_LINK:
        if (h->draft_node >= 0)
            add_counters(s, h, at, h->draft_peer[0]);
        break;
    case FT_VERDICT_MISMATCH:
        if (at >= 0 && ft_hang_member_sig(h, at, &sig)) {
            add(s, "; it called ");
            add_call(s, sig);
        }
        break;
    case FT_VERDICT_UNKNOWN:
        add_reason(s, h);
        break;
    default:
        break;
    }
}

static const struct phrase *agree_phrase(int kind)
{
    static const struct phrase shrink = {"has not called CommShrink of",
                                         "have not called CommShrink of"},
                               grow = {"has not called CommGrow of", "have not called CommGrow of"},
                               agree = {"has not called CommAgree of",
                                        "have not called CommAgree of"};
    return kind == FT_CALLS_SHRINK ? &shrink : kind == FT_CALLS_GROW ? &grow : &agree;
}

/* A rank that does not receive has not called it, as far as anybody can see. Nobody waits for a
 * rank in a communicator that has failed. */
static const struct phrase *phrase_of(const struct ft_hang *h)
{
    static const struct phrase left = {"has left, which failed", "have left, which failed"};
    if (h->draft.kind == FT_VERDICT_RANK_DEAD && h->draft_node < 0 && has_left(h, 0))
        return &left;
    if (h->draft_agree)
        return agree_phrase(h->draft_agree);
    if (h->draft_node < 0 && failures[h->draft.kind].one)
        return &failures[h->draft.kind];
    bool receive = h->draft.kind == FT_VERDICT_COMM_HANG_RECEIVER && h->draft_node >= h->ncomms;
    return &phrases[receive ? FT_VERDICT_NONCOMM_HANG : h->draft.kind];
}

void ft_hang_say(struct ft_hang *h)
{
    char *s = h->draft.sentence;
    const struct phrase *phrase = phrase_of(h);
    *s = 0;
    if (h->draft.nculprits == 0)
        add(s, "the cause cannot be told in");
    else if (h->draft.kind == FT_VERDICT_COMM_HANG_LINK)
        add_links(s, h);
    else
        add_ranks(s, h);
    if (h->draft.nculprits > 0)
        add(s, " %s", h->draft.nculprits == 1 ? phrase->one : phrase->many);
    add(s, " ");
    if (h->draft_node >= 0)
        add_operation(s, h, h->draft_node);
    else
        add_comm(s, h, h->draft_comm);
    if (h->draft.nculprits == 1)
        add_detail(s, h);
}

/* ---- the chain ------------------------------------------------------------------------------- */

static void add_member(char *s, const struct ft_hang *h, int member)
{
    struct ft_culprit c = {.rank = h->members[member]->rank,
                           .engine = h->members[member]->engine,
                           .pid = ft_hang_process(h, member)->pid};
    add_process(s, h, &c);
}

/* Why one node waits for the next: a member of it is there. */
static void explain_edge(struct ft_hang *h, int node, int to, int via)
{
    char *s = new_line(h);
    if (!s)
        return;
    add_operation(s, h, node);
    add(s, " waits for ");
    add_member(s, h, via);
    add(s, ", which is in ");
    if (ft_hang_is_p2p(h, to))
        add(s, "a send or receive of rank %d, waiting for ", h->members[to - h->ncomms]->rank);
    add_operation(s, h, to);
}

/* From the first wait to the node of the verdict, or once around its circle. */
static void explain_way(struct ft_hang *h)
{
    int way[FT_CHAIN / 2], n = 0;
    bool seen = false;
    for (int node = h->draft_node; node >= 0 && n < FT_CHAIN / 2; node = h->nodes[node].from) {
        for (int i = 0; i < n; i++)
            seen |= way[i] == node;
        if (!seen || node == h->draft_node)
            way[n++] = node;
        if (seen)
            break;
    }
    for (int i = n - 1; i > 0; i--)
        explain_edge(h, way[i], way[i - 1], h->nodes[way[i - 1]].via);
}

/* The waits from a walk's first member to the one that is named. */
static void explain_walk(struct ft_hang *h, const struct ft_hang_find *find)
{
    for (int at = find->from; at >= 0 && h->draft.nchain < FT_CHAIN - 4;) {
        const struct ft_snap_member *m = h->members[at];
        if (!ft_hang_peer_is_valid(m) || ft_hang_stage(h, at) != FT_STAGE_RUNS)
            return;
        char *s = new_line(h);
        add_member(s, h, at);
        add(s, m->wait.sends ? " waits to send to" : " waits to receive from");
        add(s, " rank %d, at step %" PRIu64, m->wait.peer, m->wait.step);
        at = ft_hang_peer(h, at);
        if (at == find->at || at == find->from)
            return;
    }
}

/* Where threads of the process wait in the library, a few. */
static void explain_threads(struct ft_hang *h, int member)
{
    const struct ft_snapshot *snap = h->snap;
    int told = 0;
    for (int i = 0; i < snap->nthreads && told < THREADS_TOLD; i++) {
        const struct ft_snap_thread *t = &snap->threads[i];
        char *s = t->engine == h->members[member]->engine && t->waits ? new_line(h) : NULL;
        if (!s)
            continue;
        add(s, "thread %d of rank %d has waited in %s for ", t->tid, h->members[member]->rank,
            ft_thread_call_name(t->call));
        add_span(s, h, t->since_ns);
        add(s, ", called from 0x%" PRIx64, t->site);
        told++;
    }
}

/* What each of the named did last. */
static void explain_culprits(struct ft_hang *h)
{
    for (int i = 0; i < h->draft.nculprits && i < FT_CULPRITS; i++) {
        int at = h->draft_at[i];
        char *s = at >= 0 ? new_line(h) : NULL;
        if (!s)
            continue;
        add_member(s, h, at);
        add(s, " has called %" PRIu64 " operations of ", h->members[at]->called);
        add_comm(s, h, h->comm_of[at]);
        add_last_call(s, h, h->members[at]->engine);
        const struct ft_hang_engine *engine = &h->engines[h->members[at]->engine];
        if (engine->latest >= 0 && h->members[engine->latest]->last.site)
            add(s, ", from 0x%" PRIx64, h->members[engine->latest]->last.site);
        add_doing(s, h, h->members[at]->engine);
        explain_threads(h, at);
    }
}

void ft_hang_explain(struct ft_hang *h)
{
    if (h->draft_node < 0)
        return;
    explain_way(h);
    if (h->draft_walk)
        explain_walk(h, h->draft_walk);
    explain_culprits(h);
}
