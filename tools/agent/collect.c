#include "collect.h"

#include "../diagnose_stacks.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define REST_NS 30000000000u /* between two collections of the agent's own */
#define LATE_NS 60000000000u
#define CLOSE_S 2

/* Whose stacks, and for whom. */
struct wish {
    bool of_master;
    uint32_t request;
    uint64_t engine[STACKS_MOST];
    int n; /* 0: there is none */
};

/* What belongs to the thread until it has written to the descriptor. */
struct task {
    struct ft_snapshot *snapshot;
    struct ft_stacks stacks;
    double each_s;
    int status, fd;
};

struct collect {
    struct daemon *daemon;
    collect_send *send;
    void *arg;
    struct daemon_watch watch; /* of the descriptor on which the thread tells its end */
    pthread_t thread;
    struct task *task; /* NULL: no thread runs */
    struct wish wish, next;
    uint64_t begun_ns, ended_ns, signature;
    struct look *look; /* the latest one */
    struct gathered gathered;
    char trouble[200];
};

/* ---- the thread ------------------------------------------------------------------------------ */

static void *run(void *arg)
{
    struct task *t = arg;
    const uint64_t one = 1;
    t->status = stacks_collect(&t->stacks, t->snapshot, NULL, t->each_s);
    if (write(t->fd, &one, sizeof one) != sizeof one)
        t->status = FT_SYSTEM; /* cannot be: the counter of the descriptor was zero */
    return NULL;
}

static void free_task(struct task *t)
{
    ft_snapshot_free(t->snapshot);
    ft_stacks_free(&t->stacks);
    free(t);
}

/* The processes that are wished for, without what only the analysis needs. NULL: no memory. */
static struct ft_snapshot *copy_processes(const struct ft_snapshot *s, const struct wish *wish)
{
    struct ft_snapshot few = *s, *copy = calloc(1, sizeof *copy);
    few.nlinks = few.npaths = few.nsteps = few.nops = 0;
    few.nlatencies = few.nclocks = few.nevents = 0;
    if (!copy)
        return NULL;
    copy->now_ns = s->now_ns;
    if (ft_snapshot_merge(copy, &few) == FT_OK &&
        keep_engines(copy, wish->engine, wish->n) == FT_OK)
        return copy;
    ft_snapshot_free(copy);
    return NULL;
}

/* Returns 0, or an error number. */
static int start_thread(struct collect *c)
{
    struct task *t = calloc(1, sizeof *t);
    if (!t)
        return ENOMEM;
    t->fd = c->watch.fd;
    t->each_s = daemon_options_of(c->daemon)->stacks_s;
    t->snapshot = copy_processes(c->look->snapshot, &c->wish);
    int error = t->snapshot ? pthread_create(&c->thread, NULL, run, t) : ENOMEM;
    if (error)
        free_task(t);
    else
        c->task = t;
    return error;
}

/* ---- wishes ---------------------------------------------------------------------------------- */

static int rank_of(const struct ft_stacks *s, const struct ft_snapshot *of, uint64_t engine)
{
    for (int i = 0; i < s->nranks; i++)
        if (of->engines[s->ranks[i].engine].id == engine)
            return i;
    return -1;
}

/* What came of one rank, for the master and for this page. */
static void hand_over(struct collect *c, const struct task *t, uint64_t engine)
{
    size_t len;
    int rank = t ? rank_of(&t->stacks, t->snapshot, engine) : -1;
    unsigned char *bytes = stacks_encode(c->wish.request, engine, t ? &t->stacks : NULL, rank,
                                         &len);
    const struct daemon_message m = {DAEMON_DIAGNOSIS, ROWS_STACKS, bytes, len};
    if (bytes)
        gathered_add(&c->gathered, &m);
    if (c->wish.of_master)
        c->send(c->arg, bytes, len);
    else
        free(bytes);
}

/* t NULL: nothing was collected. */
static void finish(struct collect *c, const struct task *t)
{
    gathered_clear(&c->gathered);
    for (int i = 0; i < c->wish.n; i++)
        hand_over(c, t, c->wish.engine[i]);
    c->wish.n = 0;
    c->ended_ns = daemon_now_ns();
}

static void start_next(struct collect *c)
{
    c->wish = c->next;
    c->next.n = 0;
    if (c->wish.n == 0)
        return;
    bool wanted = daemon_options_of(c->daemon)->stacks_s > 0 && c->look && c->look->snapshot;
    int error = wanted ? start_thread(c) : 0;
    c->begun_ns = daemon_now_ns();
    c->trouble[0] = '\0';
    if (error)
        snprintf(c->trouble, sizeof c->trouble, "stacks could not be collected: %s",
                 strerror(error));
    if (!c->task)
        finish(c, NULL);
}

static void on_ready(void *arg, uint32_t events)
{
    struct collect *c = arg;
    uint64_t times;
    bool own = !c->wish.of_master;
    (void)events;
    if (read(c->watch.fd, &times, sizeof times) != sizeof times || !c->task)
        return;
    pthread_join(c->thread, NULL);
    finish(c, c->task->status == FT_OK ? c->task : NULL);
    free_task(c->task);
    c->task = NULL;
    start_next(c);
    if (own)
        daemon_hurry(c->daemon);
}

static void wish_for(struct collect *c, const struct wish *wish)
{
    c->next = *wish;
    if (!c->task)
        start_next(c);
}

void collect_ask(struct collect *c, uint32_t request, const uint64_t *engines, int n)
{
    struct wish wish = {.of_master = true, .request = request, .n = n};
    memcpy(wish.engine, engines, (size_t)n * sizeof *engines);
    wish_for(c, &wish);
}

/* ---- what tools do to processes -------------------------------------------------------------- */

/* As it was before; NULL: no tool looks at it. */
static const struct ft_snap_engine *find_before(const struct collect *c, uint64_t engine)
{
    const struct ft_snapshot *s = c->task ? c->task->snapshot : NULL;
    for (int i = 0; s && i < s->nengines; i++)
        if (s->engines[i].id == engine)
            return &s->engines[i];
    return NULL;
}

static bool may_be_by_tool(int state)
{
    return state == FT_PROCESS_STOPPED || state == FT_PROCESS_FROZEN;
}

void collect_correct(const struct collect *c, struct ft_snapshot *s)
{
    for (int i = 0; i < s->nengines; i++) {
        struct ft_snap_engine *engine = &s->engines[i];
        const struct ft_snap_engine *before = find_before(c, engine->id);
        if (!before || !may_be_by_tool(engine->state))
            continue;
        engine->state = before->state;
        memcpy(engine->doing, before->doing, sizeof engine->doing);
    }
}

void collect_correct_copy(const struct collect *c, uint64_t engine, struct ft_telemetry_copy *copy)
{
    const struct ft_snap_engine *before = find_before(c, engine);
    if (!before || !may_be_by_tool(copy->state))
        return;
    copy->state = before->state;
    snprintf(copy->doing, sizeof copy->doing, "%.*s", (int)sizeof copy->doing - 1, before->doing);
}

/* ---- the agent's own ------------------------------------------------------------------------- */

static void add(struct wish *wish, const struct ft_snapshot *s, int engine)
{
    if (engine < 0 || engine >= s->nengines || wish->n == STACKS_MOST)
        return;
    for (int i = 0; i < wish->n; i++)
        if (wish->engine[i] == s->engines[engine].id)
            return;
    wish->engine[wish->n++] = s->engines[engine].id;
}

/* Those who were named first, then all who wait with them. */
static void choose(const struct look *look, struct wish *wish)
{
    const struct ft_snapshot *s = look->snapshot;
    for (int i = 0; i < look->report.found; i++)
        for (int k = 0; k < look->verdicts[i].nculprits && k < FT_CULPRITS; k++)
            add(wish, s, look->verdicts[i].culprits[k].engine);
    for (int i = 0; i < look->report.found; i++)
        for (int k = 0; k < s->nmembers; k++)
            if (s->members[k].ctx == look->verdicts[i].ctx)
                add(wish, s, s->members[k].engine);
}

static void collect_own(struct collect *c)
{
    struct wish wish = {0};
    uint64_t signature = look_signature(c->look);
    if (c->task || signature == c->signature ||
        (c->ended_ns && daemon_now_ns() - c->ended_ns < REST_NS))
        return;
    c->signature = signature;
    choose(c->look, &wish);
    wish_for(c, &wish);
}

void collect_look(struct collect *c, struct look *look, bool has_master)
{
    bool hangs = look->snapshot && look_hangs(look);
    c->look = look;
    if (hangs && !has_master)
        collect_own(c);
    if (!hangs && !has_master) {
        gathered_clear(&c->gathered);
        c->signature = 0;
    }
    if (c->task && daemon_now_ns() - c->begun_ns > LATE_NS)
        snprintf(c->trouble, sizeof c->trouble,
                 "stacks are not collected: the kernel has not told for a minute where a process "
                 "is");
    gathered_show(&c->gathered, look);
}

const char *collect_trouble(const struct collect *c)
{
    return c->trouble;
}

/* ---- opening --------------------------------------------------------------------------------- */

struct collect *collect_open(struct daemon *d, collect_send *send, void *arg)
{
    struct collect *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->daemon = d;
    c->send = send;
    c->arg = arg;
    c->watch = (struct daemon_watch){
        .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .ready = on_ready, .arg = c};
    if (c->watch.fd >= 0 && daemon_watch_for(d, &c->watch, EPOLLIN) == FT_OK)
        return c;
    ft_fail(FT_SYSTEM, "no descriptor to collect stacks: %s", strerror(errno));
    collect_close(c);
    return NULL;
}

/* The signal that ends this program stays pending, so the thread ends its tools (diagnose_run.c).
 * A thread that hangs in the kernel is left behind with what it uses: the process ends. */
void collect_close(struct collect *c)
{
    struct timespec until;
    if (!c)
        return;
    if (c->task) {
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += CLOSE_S;
        if (pthread_timedjoin_np(c->thread, NULL, &until) != 0) {
            pthread_detach(c->thread);
            return;
        }
        free_task(c->task);
    }
    if (c->watch.fd >= 0)
        close(c->watch.fd);
    gathered_clear(&c->gathered);
    free(c);
}
