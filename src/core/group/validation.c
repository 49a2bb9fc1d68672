/*
 * Validation in place: all ranks of a communicator pause before the same collective, measure their
 * links and devices (measure.c), and go on. A program of the same user asks one rank by its
 * telemetry file; that rank leads. Messages run along a binary tree of the ranks, in three rounds:
 * all hold and tell how many collectives they have started; all go on to the greatest number and
 * hold the next call; all measure. Nothing depends on it: a rank that hears no more goes on by its
 * own clock, so an error in agreeing costs a measurement and never a result. No rank holds a call
 * for longer than the request allows.
 */
#include "core/group/validation.h"

#include <stdlib.h>
#include <string.h>

#define MOST_PAUSE_MS 60000
#define QUIET_NS 60000000000u /* no common collective for so long ends it */
#define MOST_ROUNDS 16        /* of stopping: ranks may group their calls differently */
/* A pause makes an operation late. It takes no more than this part of the time that the operation
 * has. */
#define LIMIT_PART 4

static uint64_t pause_ns(const struct ft_pause *pause)
{
    return pause->ask.pause_ms * 1000000u;
}

static void tell(struct ft_comm *comm, enum ft_validation_state state)
{
    comm->group->pause->all.state = (uint16_t)state;
    ft_telemetry_validation(comm->engine->telemetry, &comm->group->pause->all);
}

/* ---- messages -------------------------------------------------------------------------------- */

void ft_pause_send(struct ft_comm *comm, int rank, const struct ft_pause_message *message)
{
    struct ft_ctl_head head = {.what = FT_CTL_VALIDATE, .ctx = comm->ctx};
    ft_control_send(comm->engine, comm->peers[rank], &head, message, sizeof *message);
}

static void send_down(struct ft_comm *comm, uint32_t what, uint64_t value)
{
    const struct ft_pause *pause = comm->group->pause;
    struct ft_pause_message message = {.what = what,
                                       .round = pause->round,
                                       .number = pause->ask.number,
                                       .value = value,
                                       .pause_ms = (uint32_t)pause->ask.pause_ms,
                                       .passes = pause->passes,
                                       .leader = pause->leader};
    for (int i = 0; i < pause->nchildren; i++)
        ft_pause_send(comm, pause->child[i], &message);
}

static void send_up(struct ft_comm *comm, uint32_t what, uint64_t value)
{
    const struct ft_pause *pause = comm->group->pause;
    if (pause->parent >= 0)
        ft_pause_send(
            comm, pause->parent,
            &(struct ft_pause_message){
                .what = what, .round = pause->round, .number = pause->ask.number, .value = value});
}

/* ---- begin and end --------------------------------------------------------------------------- */

static int parent_of(int rank, int leader, int nranks)
{
    int at = (rank - leader + nranks) % nranks;
    return at > 0 ? ((at - 1) / 2 + leader) % nranks : -1;
}

static void place_in_tree(struct ft_pause *pause, int rank, int nranks)
{
    int at = (rank - pause->leader + nranks) % nranks;
    pause->parent = parent_of(rank, pause->leader, nranks);
    for (int below = 2 * at + 1; below <= 2 * at + 2 && below < nranks; below++)
        pause->child[pause->nchildren++] = (below + pause->leader) % nranks;
}

/* The ring, which passes every rank, and the trees if they have been used lately. */
static uint32_t choose_passes(const struct ft_comm *comm)
{
    uint32_t passes = FT_PASSES_RING;
    for (int i = 0; i < FT_PLAN_CACHE; i++) {
        const struct ft_plan_slot *slot = &comm->plans.slots[i];
        if (slot->valid && !strcmp(slot->plan.algo->name, "tree"))
            passes |= FT_PASSES_TREE;
    }
    return passes;
}

static uint64_t most_pause_ms(const struct ft_comm *comm)
{
    uint64_t limit_ms = (uint64_t)comm->limits.op_timeout_ms;
    return limit_ms > 0 ? ft_min(limit_ms / LIMIT_PART, MOST_PAUSE_MS) : MOST_PAUSE_MS;
}

/* Ranks tell of one validation at a time, and two would disturb each other. */
static bool is_pausing(const struct ft_engine *engine)
{
    const struct ft_comm *comm = engine->run->comms;
    while (comm && !comm->group->pause)
        comm = comm->next;
    return comm != NULL;
}

static enum ft_validation_why obstacle(const struct ft_comm *comm, const struct ft_ask *ask)
{
    if (is_pausing(comm->engine))
        return FT_WHY_BUSY;
    if (comm->view.nranks < 2 || comm->limits.concurrent || comm->failure.status != FT_OK ||
        ask->number == 0)
        return FT_WHY_UNFIT;
    return ask->pause_ms > 0 && ask->pause_ms <= most_pause_ms(comm) ? FT_WHY_NONE : FT_WHY_LIMIT;
}

struct request {
    struct ft_ask ask;
    uint32_t passes;
    int leader;
};

static int new_pause(struct ft_comm *comm, const struct request *request)
{
    const struct ft_ask *ask = &request->ask;
    uint64_t salt[2] = {ask->number, FT_CTL_VALIDATE};
    struct ft_pause *pause = calloc(1, sizeof *pause);
    if (!pause)
        return FT_NOMEM;
    pause->ask = *ask;
    pause->passes = request->passes;
    pause->leader = request->leader;
    pause->asked_ns = ft_now_ns(comm->engine->env);
    pause->ctx = ft_hash64(salt, sizeof salt, comm->ctx);
    if (ft_engine_bind_held(comm->engine, pause->ctx) != FT_OK) {
        free(pause);
        return FT_NOMEM;
    }
    place_in_tree(pause, comm->view.rank, comm->view.nranks);
    pause->all = (struct ft_validation){.number = ask->number,
                                        .ctx = comm->ctx,
                                        .rank = comm->view.rank,
                                        .gpu = comm->engine->gpu != NULL};
    comm->group->pause = pause;
    ft_measure_plan(comm);
    return FT_OK;
}

/* Why this rank cannot take part; NONE: it does. */
static enum ft_validation_why begin(struct ft_comm *comm, const struct request *request)
{
    enum ft_validation_why why = obstacle(comm, &request->ask);
    if (why != FT_WHY_NONE)
        return why;
    if (new_pause(comm, request) != FT_OK)
        return FT_WHY_NOMEM;
    ft_run_hold(comm, comm->calls.seq);
    comm->group->pause->most = comm->calls.seq;
    tell(comm, FT_VALIDATION_WAITING);
    send_down(comm, FT_PAUSE_HOLD, 0);
    return FT_WHY_NONE;
}

void ft_pause_end(struct ft_comm *comm, enum ft_validation_state state, enum ft_validation_why why)
{
    struct ft_pause *pause = comm->group->pause;
    pause->all.end_ns = ft_now_ns(comm->engine->env);
    pause->all.why = (uint16_t)why;
    tell(comm, state);
    comm->group->pause = NULL;
    ft_run_go_on(comm);
    ft_engine_unbind_held(comm->engine, pause->ctx);
    free(pause->memory);
    free(pause);
}

/* Also tells the others, so that they need not wait for their clocks. */
static void give_up(struct ft_comm *comm, enum ft_validation_why why)
{
    send_down(comm, FT_PAUSE_CANCEL, why);
    send_up(comm, FT_PAUSE_CANCEL, why);
    ft_pause_end(comm, FT_VALIDATION_GIVEN_UP, why);
}

void ft_validation_drop(struct ft_comm *comm)
{
    if (comm->group->pause)
        ft_pause_end(comm, FT_VALIDATION_GIVEN_UP, FT_WHY_FAILED);
}

/* ---- the rounds ------------------------------------------------------------------------------ */

static void go(struct ft_comm *comm, uint32_t round, uint64_t stop)
{
    struct ft_pause *pause = comm->group->pause;
    pause->phase = FT_PAUSE_STOPPING;
    pause->round = round;
    pause->stop = pause->most = stop;
    pause->answers = 0;
    pause->answered = false;
    ft_run_hold(comm, stop);
    comm->engine->stuck = false;
    send_down(comm, FT_PAUSE_GO, stop);
}

static void start(struct ft_comm *comm)
{
    struct ft_pause *pause = comm->group->pause;
    pause->phase = FT_PAUSE_MEASURING;
    pause->all.seq = comm->calls.seq;
    send_down(comm, FT_PAUSE_START, 0);
    if (ft_measure_start(comm) != FT_OK)
        ft_pause_end(comm, FT_VALIDATION_GIVEN_UP, FT_WHY_NOMEM);
    else
        tell(comm, FT_VALIDATION_MEASURING);
}

/* The leader has all answers of a round. */
static void next_round(struct ft_comm *comm)
{
    struct ft_pause *pause = comm->group->pause;
    if (pause->phase == FT_PAUSE_STOPPING && pause->most == pause->stop)
        start(comm);
    else if (pause->round < MOST_ROUNDS)
        go(comm, pause->round + 1, pause->most);
    else
        give_up(comm, FT_WHY_LATE);
}

/* This rank is where it is to stop, or beyond. */
static bool has_stopped(const struct ft_comm *comm)
{
    const struct ft_pause *pause = comm->group->pause;
    return pause->phase == FT_PAUSE_COUNTING || comm->calls.seq > pause->stop ||
           ft_run_is_held(comm);
}

static bool answer(struct ft_comm *comm)
{
    struct ft_pause *pause = comm->group->pause;
    if (pause->answered || pause->answers < pause->nchildren || !has_stopped(comm))
        return false;
    pause->answered = true;
    pause->most = ft_max(pause->most, comm->calls.seq);
    send_up(comm, FT_PAUSE_UP, pause->most);
    if (pause->parent < 0)
        next_round(comm);
    return true;
}

/* Half of the time is for waiting, the other half for measuring. True: it has ended. */
static bool is_late(struct ft_comm *comm)
{
    struct ft_pause *pause = comm->group->pause;
    uint64_t now = ft_now_ns(comm->engine->env);
    if (pause->all.held_ns == 0 && ft_run_is_held(comm)) {
        pause->all.held_ns = now;
        pause->all.seq = comm->calls.seq;
    }
    bool late = pause->all.held_ns && now - pause->all.held_ns > pause_ns(pause) / 2;
    if (late || now - pause->asked_ns > QUIET_NS)
        give_up(comm, late ? FT_WHY_LATE : FT_WHY_QUIET);
    return !comm->group->pause;
}

bool ft_validation_turn(struct ft_comm *comm)
{
    struct ft_pause *pause = comm->group->pause;
    bool over = false;
    if (pause->phase != FT_PAUSE_MEASURING)
        return is_late(comm) || answer(comm);
    bool moved = ft_measure_turn(comm, &over);
    if (over)
        ft_pause_end(comm, FT_VALIDATION_DONE, FT_WHY_NONE);
    return moved || over;
}

/* ---- what comes ------------------------------------------------------------------------------ */

static struct ft_comm *find_comm(struct ft_engine *engine, uint64_t ctx)
{
    struct ft_comm *comm = engine->run->comms;
    while (comm && comm->ctx != ctx)
        comm = comm->next;
    return comm;
}

/* What is under way keeps its place in the file. */
static void refuse(struct ft_engine *engine, const struct ft_ask *ask, enum ft_validation_why why)
{
    if (is_pausing(engine))
        return;
    struct ft_validation all = {.number = ask->number,
                                .ctx = ask->ctx,
                                .state = FT_VALIDATION_GIVEN_UP,
                                .why = (uint16_t)why};
    ft_telemetry_validation(engine->telemetry, &all);
}

void ft_validation_begin(struct ft_engine *engine, const struct ft_ask *ask)
{
    struct ft_comm *comm = find_comm(engine, ask->ctx);
    enum ft_validation_why why = FT_WHY_UNFIT;
    if (comm) {
        struct request request = {*ask, choose_passes(comm), comm->view.rank};
        request.ask.pause_ms = ft_min(ask->pause_ms, most_pause_ms(comm));
        why = begin(comm, &request);
    }
    if (why != FT_WHY_NONE)
        refuse(engine, ask, why);
}

void ft_validation_look(struct ft_engine *engine)
{
    struct ft_ask ask;
    if (ft_telemetry_asked(engine->telemetry, &ask))
        ft_validation_begin(engine, &ask);
}

static void take_hold(struct ft_engine *engine, struct ft_peer *peer, uint64_t ctx,
                      const struct ft_pause_message *m)
{
    struct ft_comm *comm = find_comm(engine, ctx);
    struct request request = {{m->number, ctx, 0, m->pause_ms}, m->passes, m->leader};
    bool valid = comm && m->leader >= 0 && m->leader < comm->view.nranks &&
                 m->leader != comm->view.rank &&
                 comm->peers[parent_of(comm->view.rank, m->leader, comm->view.nranks)] == peer;
    if (valid && comm->group->pause && comm->group->pause->ask.number == m->number)
        return;
    enum ft_validation_why why = valid ? begin(comm, &request) : FT_WHY_UNFIT;
    if (why == FT_WHY_NONE)
        return;
    struct ft_pause_message no = {.what = FT_PAUSE_CANCEL, .number = m->number, .value = why};
    struct ft_ctl_head head = {.what = FT_CTL_VALIDATE, .ctx = ctx};
    ft_control_send(engine, peer, &head, &no, sizeof no);
}

static void take_up(struct ft_pause *pause, const struct ft_pause_message *m)
{
    if (m->round != pause->round || pause->phase == FT_PAUSE_MEASURING)
        return;
    pause->most = ft_max(pause->most, m->value);
    pause->answers++;
}

static void take_from_child(struct ft_comm *comm, const struct ft_pause_message *m)
{
    if (m->what == FT_PAUSE_UP)
        take_up(comm->group->pause, m);
    else if (m->what == FT_PAUSE_CANCEL && comm->group->pause->phase != FT_PAUSE_MEASURING)
        give_up(comm, (enum ft_validation_why)ft_min(m->value, FT_VALIDATION_WHY_COUNT - 1));
}

static void take_from_parent(struct ft_comm *comm, const struct ft_pause_message *m)
{
    const struct ft_pause *pause = comm->group->pause;
    if (pause->phase == FT_PAUSE_MEASURING)
        return;
    if (m->what == FT_PAUSE_GO && m->round > pause->round)
        go(comm, m->round, m->value);
    else if (m->what == FT_PAUSE_START && pause->phase == FT_PAUSE_STOPPING)
        start(comm);
    else if (m->what == FT_PAUSE_CANCEL)
        give_up(comm, (enum ft_validation_why)ft_min(m->value, FT_VALIDATION_WHY_COUNT - 1));
}

static bool is_child(const struct ft_pause *pause, int rank)
{
    return (pause->nchildren > 0 && pause->child[0] == rank) ||
           (pause->nchildren > 1 && pause->child[1] == rank);
}

void ft_validation_receive(struct ft_engine *engine, struct ft_peer *peer,
                           const struct ft_ctl_in *in)
{
    struct ft_pause_message m;
    if (in->len_bytes != sizeof m)
        return;
    memcpy(&m, in->data, sizeof m);
    if (m.what == FT_PAUSE_HOLD) {
        take_hold(engine, peer, in->head.ctx, &m);
        return;
    }
    struct ft_comm *comm = find_comm(engine, in->head.ctx);
    struct ft_pause *pause = comm ? comm->group->pause : NULL;
    if (!pause || pause->ask.number != m.number)
        return;
    int from = 0;
    while (from < comm->view.nranks && comm->peers[from] != peer)
        from++;
    if (from == comm->view.nranks)
        return;
    if (m.what == FT_PAUSE_SEND || m.what == FT_PAUSE_MEASURED)
        ft_measure_receive(comm, from, &m);
    else if (from == pause->parent)
        take_from_parent(comm, &m);
    else if (is_child(pause, from))
        take_from_child(comm, &m);
}
