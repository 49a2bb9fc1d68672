/*
 * Finds the processes of a job on this machine, ranks and their children, and collects where they
 * are.
 */
#include "diagnose_stacks.h"

#include "diagnose_ranks.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_RANKS 4096
#define MOST_CHILDREN 64 /* of a rank, with theirs */
#define SAMPLES 5        /* a thread that waits wakes now and then: what is most frequent counts */
#define LINES_BYTES 320

struct collecting {
    struct ft_stacks *out;
    const struct ft_snapshot *snap;
    const struct ft_snap_member **latest, **running; /* of each engine; NULL: none */
    int room;                                        /* for processes */
};

/* ---- calls of the library -------------------------------------------------------------------- */

static void find_calls(struct collecting *c)
{
    for (int i = 0; i < c->snap->nmembers; i++) {
        const struct ft_snap_member *m = &c->snap->members[i];
        if (m->engine < 0 || m->engine >= c->snap->nengines)
            continue;
        const struct ft_snap_member **latest = &c->latest[m->engine];
        if (m->last.called_ns && (!*latest || m->last.called_ns > (*latest)->last.called_ns))
            *latest = m;
        if (m->open && (m->called > m->done || m->p2p_called > m->p2p_done))
            c->running[m->engine] = m;
    }
}

static void name_comm(const struct ft_snap_member *m, char *text, size_t size)
{
    if (m->name[0])
        snprintf(text, size, "%.39s", m->name);
    else
        snprintf(text, size, "%016" PRIx64, m->ctx);
}

static void tell_last_call(const struct collecting *c, struct ft_stack_rank *r)
{
    const struct ft_snap_member *m = c->latest[r->engine];
    char call[80], comm[40];
    if (!m) {
        snprintf(r->call, sizeof r->call, "none yet");
        return;
    }
    uint64_t now = c->snap->now_ns, at = m->last.called_ns;
    ft_sig_text(m->last.sig, call, sizeof call);
    name_comm(m, comm, sizeof comm);
    snprintf(r->call, sizeof r->call, "%s of %s, %.1f s ago, by thread %d, from 0x%" PRIx64, call,
             comm, now > at ? (double)(now - at) / 1e9 : 0.0, m->last.tid, m->last.site);
}

/* ---- processes ------------------------------------------------------------------------------- */

static int find_process(const struct ft_stacks *s, int pid)
{
    for (int i = 0; i < s->nprocesses; i++)
        if (s->processes[i].pid == pid)
            return i;
    return -1;
}

/* Returns its index, -1: no memory. */
static int add_process(struct collecting *c, int pid, int parent, int rank)
{
    struct ft_stacks *s = c->out;
    if (s->nprocesses == c->room) {
        int room = c->room ? 2 * c->room : 64;
        struct ft_stack_process *grown = realloc(s->processes, (size_t)room * sizeof *grown);
        if (!grown)
            return -1;
        s->processes = grown;
        c->room = room;
    }
    s->processes[s->nprocesses] = (struct ft_stack_process){
        .pid = pid, .parent = parent, .rank = rank, .state = '?'};
    return s->nprocesses++;
}

static int add_rank(struct collecting *c, const struct rank_row *row)
{
    struct ft_stacks *s = c->out;
    const struct ft_snap_engine *engine = &c->snap->engines[row->engine];
    int process = find_process(s, engine->pid);
    bool first = process < 0;
    if (first)
        process = add_process(c, engine->pid, 0, s->nranks);
    if (process < 0)
        return FT_NOMEM;
    s->ranks[s->nranks] = (struct ft_stack_rank){.engine = row->engine,
                                                 .rank = row->rank,
                                                 .tid = engine->pid,
                                                 .process = process,
                                                 .group = -1};
    tell_last_call(c, &s->ranks[s->nranks++]);
    struct ft_stack_process *p = &s->processes[process];
    if (!first)
        return FT_OK;
    if (engine->state == FT_PROCESS_UNKNOWN)
        snprintf(p->trouble, sizeof p->trouble, "it is in another pid namespace");
    else if (engine->state == FT_PROCESS_GONE || !proc_look(p))
        snprintf(p->trouble, sizeof p->trouble, "it has ended");
    return FT_OK;
}

static int add_ranks(struct collecting *c, const struct ranks *ranks)
{
    int status = FT_OK;
    c->out->ranks = calloc((size_t)ranks->n + 1, sizeof *c->out->ranks);
    if (!c->out->ranks)
        return FT_NOMEM;
    for (int i = 0; i < ranks->n && !status; i++) {
        if (ranks->row[i].engine < 0)
            continue;
        if (c->out->nranks == MOST_RANKS)
            c->out->left_out++;
        else
            status = add_rank(c, &ranks->row[i]);
    }
    return status;
}

/* If a process has several ranks, each is the thread that makes its calls. */
static void find_threads(struct collecting *c)
{
    struct ft_stacks *s = c->out;
    for (int i = 1; i < s->nranks; i++)
        for (int k = 0; k < 2; k++) {
            struct ft_stack_rank *r = k ? &s->ranks[i]
                                        : &s->ranks[s->processes[s->ranks[i].process].rank];
            const struct ft_snap_member *m = c->latest[r->engine];
            if (s->processes[r->process].rank != i && m && m->last.tid > 0)
                r->tid = m->last.tid;
        }
}

static int add_children(struct collecting *c)
{
    struct ft_stacks *s = c->out;
    int children[MOST_CHILDREN + 1];
    int *count = calloc((size_t)s->nranks + 1, sizeof *count);
    int status = count ? FT_OK : FT_NOMEM;
    for (int i = 0; i < s->nprocesses && !status; i++) {
        int rank = s->processes[i].rank, parent = s->processes[i].pid;
        int n = s->processes[i].nthreads ? proc_children(parent, children, MOST_CHILDREN + 1) : 0;
        for (int k = 0; k < n && !status; k++) {
            if (find_process(s, children[k]) >= 0)
                continue;
            if (count[rank]++ >= MOST_CHILDREN) {
                s->left_out++;
                continue;
            }
            int at = add_process(c, children[k], parent, rank);
            if (at < 0)
                status = FT_NOMEM;
            else if (!proc_look(&s->processes[at]))
                s->nprocesses--;
        }
    }
    free(count);
    return status;
}

/* ---- what the kernel and the telemetry tell -------------------------------------------------- */

/* Where the library waits; it changes from moment to moment. */
static bool may_be_library(const struct ft_stack_thread *t)
{
    static const char *const calls[] = {"",      "epoll_wait", "epoll_pwait",
                                        "ppoll", "futex",      "sched_yield"};
    for (size_t i = 0; i < FT_ARRAY_LEN(calls); i++)
        if (strcmp(t->call, calls[i]) == 0)
            return true;
    return false;
}

static void write_lines(const struct collecting *c, struct ft_stack_rank *r, char *lines)
{
    struct ft_stack_thread t;
    const struct ft_snap_member *m = c->running[r->engine];
    char call[80] = "no operation", comm[40] = "";
    *lines = '\0';
    if (!proc_look_at_thread(c->out->processes[r->process].pid, r->tid, &t))
        return;
    r->stopped = t.state == 'T' || t.state == 't';
    if (m) {
        ft_sig_text(m->running_sig ? m->running_sig : m->last.sig, call, sizeof call);
        name_comm(m, comm, sizeof comm);
    }
    if (r->stopped)
        snprintf(lines, LINES_BYTES, "stopped");
    else if (m && may_be_library(&t))
        snprintf(lines, LINES_BYTES, "waits or runs\n%s %s", call, comm);
    else if (t.state == 'R')
        snprintf(lines, LINES_BYTES, "runs\n%s %s", call, comm);
    else
        snprintf(lines, LINES_BYTES, "%s\n%.*s\n%s %s", t.where, (int)strcspn(t.call, " "), t.call,
                 call, comm);
}

/* The most frequent of the samples; the latest of equally frequent ones. */
static const char *most_frequent(char (*sample)[LINES_BYTES])
{
    int best = 0, most = 0;
    for (int i = 0; i < SAMPLES; i++) {
        int n = 0;
        for (int k = 0; k < SAMPLES; k++)
            n += strcmp(sample[i], sample[k]) == 0;
        if (n >= most) {
            most = n;
            best = i;
        }
    }
    return sample[best];
}

static int look_at_ranks(struct collecting *c)
{
    struct timespec pause = {.tv_nsec = 7000000};
    struct ft_stacks *s = c->out;
    int status = FT_OK;
    char(*samples)[SAMPLES][LINES_BYTES] = calloc((size_t)s->nranks + 1, sizeof *samples);
    if (!samples)
        return FT_NOMEM;
    for (int k = 0; k < SAMPLES; k++) {
        for (int i = 0; i < s->nranks; i++)
            if (s->processes[s->ranks[i].process].nthreads)
                write_lines(c, &s->ranks[i], samples[i][k]);
        nanosleep(&pause, NULL);
    }
    for (int i = 0; i < s->nranks && !status; i++) {
        const char *lines = most_frequent(samples[i]);
        if (*lines)
            status = ft_stack_of_lines(&s->ranks[i].kernel, FT_STACK_KERNEL, lines);
    }
    free(samples);
    return status;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int collect(struct collecting *c, const struct ranks *ranks, double each_s)
{
    size_t room = (size_t)c->snap->nengines + 1;
    c->latest = calloc(room, sizeof(void *));
    c->running = calloc(room, sizeof(void *));
    if (!c->latest || !c->running)
        return FT_NOMEM;
    find_calls(c);
    int status = add_ranks(c, ranks);
    if (status == FT_OK)
        status = add_children(c);
    if (status == FT_OK) {
        find_threads(c);
        status = look_at_ranks(c);
    }
    if (status != FT_OK)
        return status;
    tools_ask(c->out, each_s);
    return ft_stacks_group(c->out, c->snap);
}

int stacks_collect(struct ft_stacks *out, const struct ft_snapshot *snap,
                   const struct report *report, double each_s)
{
    struct collecting c = {.out = out, .snap = snap};
    static const struct report all;
    struct ranks ranks;
    *out = (struct ft_stacks){.leave_out = -1};
    int status = ranks_open(&ranks, snap, report ? report : &all, report != NULL);
    if (status != FT_OK)
        return status;
    status = collect(&c, &ranks, each_s);
    ranks_close(&ranks);
    free(c.latest);
    free(c.running);
    return status;
}
