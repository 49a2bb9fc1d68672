/*
 * What a paused rank measures: its processor and memory, then its links. In each slot a rank has at
 * most one transfer (algo/passes.c). The receiver asks for a round of messages; the time from its
 * first to its last message counts, and the fastest round. So a rank that comes late to a slot, or
 * was not running for a while, does not make its link slow. Every slot has an end by the clock.
 */
#include "core/group/validation.h"

#include <stdlib.h>
#include <string.h>

#define LEAST_CHECKS 8      /* of the processor */
#define CHECKS_NS 50000000u /* other programs on the processor have their turns in this time */
/* A rank that others disturb goes on for so much longer. If they are ranks, they have ended. */
#define DISTURBED_TIMES 5
#define CHECKS_PART 4       /* of the time for measuring: at most for the processor */
#define MESSAGES 32u        /* of a round: more than a link takes unread */
#define MESSAGE_BYTES 65536 /* at most */
#define LEAST_ROUNDS 6
#define MOST_ROUNDS 16
#define ENOUGH_NS 100000000u /* rounds after which no other one begins */
#define LANE 0

void ft_measure_plan(struct ft_comm *comm)
{
    struct ft_pause *pause = comm->group->pause;
    pause->ntransfers = ft_passes_plan(&comm->view, pause->passes, pause->transfers,
                                       &pause->nslots);
    pause->all.nlinks = (uint16_t)pause->ntransfers;
    for (int i = 0; i < pause->ntransfers; i++)
        pause->all.links[i] = (struct ft_measured){.peer = pause->transfers[i].peer,
                                                   .sends = pause->transfers[i].sends};
}

int ft_measure_start(struct ft_comm *comm)
{
    struct ft_pause *pause = comm->group->pause;
    pause->memory = aligned_alloc(FT_CACHE_LINE, FT_CHECK_BYTES);
    if (!pause->memory)
        return FT_NOMEM;
    memset(pause->memory, 0, FT_CHECK_BYTES);
    pause->all.start_ns = ft_now_ns(comm->engine->env);
    pause->checks_ns = pause->ask.pause_ms * 1000000u / 2 / CHECKS_PART;
    pause->slot_ns = (CHECKS_PART - 1) * pause->checks_ns / (uint64_t)ft_max(pause->nslots, 1);
    return FT_OK;
}

/* ---- the device ------------------------------------------------------------------------------ */

static void keep_fastest(uint64_t *best, uint64_t ns)
{
    if (*best == 0 || ns < *best)
        *best = ns;
}

static bool is_checked(const struct ft_pause *pause, uint64_t now)
{
    const struct ft_validation *all = &pause->all;
    uint64_t spent = now - all->start_ns, fastest = all->copy_ns + all->product_ns;
    bool disturbed = 2 * all->check_ns > 3 * fastest * all->checks;
    unsigned times = disturbed ? DISTURBED_TIMES : 1;
    if (all->checks == 0)
        return false;
    return spent > pause->checks_ns || (all->checks >= LEAST_CHECKS && spent > times * CHECKS_NS);
}

/* The fastest of each check tells how fast the processor is, the sum of all how much of it this
 * rank has. True: one more was done. */
static bool check_device(struct ft_comm *comm, uint64_t now)
{
    struct ft_validation *all = &comm->group->pause->all;
    void *memory = comm->group->pause->memory;
    if (is_checked(comm->group->pause, now))
        return false;
    uint64_t copy_ns = ft_check_copy(comm->engine->env, memory),
             product_ns = ft_check_product(comm->engine->env, memory);
    keep_fastest(&all->copy_ns, copy_ns);
    keep_fastest(&all->product_ns, product_ns);
    all->check_ns += copy_ns + product_ns;
    all->checks++;
    return true;
}

static void note_transport(struct ft_measured *link, const struct ft_link *from)
{
    if (from && !link->transport[0])
        memcpy(link->transport, from->ops->name,
               ft_min(strlen(from->ops->name), sizeof link->transport - 1));
}

/* ---- a transfer ------------------------------------------------------------------------------ */

static struct ft_header header_of(const struct ft_pause *pause, uint32_t round, size_t len_bytes)
{
    return (struct ft_header){.ctx = pause->ctx,
                              .sig = pause->ask.number,
                              .seq = round,
                              .len = (uint32_t)len_bytes,
                              .lane = LANE,
                              .step = (uint16_t)pause->transfers[pause->at].slot};
}

static bool send_round(struct ft_comm *comm, struct ft_transfer_state *state)
{
    struct ft_pause *pause = comm->group->pause;
    int rank = pause->transfers[pause->at].peer;
    size_t len = ft_min(comm->engine->tuning.chunk_bytes, MESSAGE_BYTES);
    struct ft_link *link;
    bool moved = false;
    if (state->round < state->asked) {
        state->round = state->asked;
        state->done = 0;
    }
    note_transport(&pause->all.links[pause->at], comm->peers[rank]->tx);
    while (state->round > 0 && state->done < MESSAGES) {
        struct ft_header header = header_of(pause, state->round, len);
        void *slot;
        if (ft_engine_link(comm->engine, comm->peers[rank], &link) != FT_OK ||
            link->ops->reserve(link, &header, &slot) != FT_OK)
            return moved;
        memcpy(slot, pause->memory, len);
        link->ops->commit(link, &header, slot);
        state->done++;
        moved = true;
    }
    return moved;
}

static void ask_for_round(struct ft_comm *comm, struct ft_transfer_state *state)
{
    struct ft_pause *pause = comm->group->pause;
    const struct ft_transfer *transfer = &pause->transfers[pause->at];
    state->round++;
    state->done = 0;
    state->bytes = 0;
    ft_pause_send(comm, transfer->peer,
                  &(struct ft_pause_message){.what = FT_PAUSE_SEND,
                                             .round = state->round,
                                             .number = pause->ask.number,
                                             .value = (uint64_t)transfer->slot});
}

/* Keeps the round if it is the fastest. */
static void keep_round(struct ft_measured *link, const struct ft_transfer_state *state,
                       uint64_t now)
{
    uint64_t bytes = state->bytes - state->first_bytes, ns = now - state->first_ns + 1;
    if (bytes > 0 &&
        (link->ns == 0 || (double)ns * (double)link->bytes < (double)link->ns * (double)bytes)) {
        link->ns = ns;
        link->bytes = bytes;
    }
}

static void end_receiving(struct ft_comm *comm, struct ft_transfer_state *state, uint64_t now,
                          enum ft_measured_state how)
{
    struct ft_pause *pause = comm->group->pause;
    const struct ft_transfer *transfer = &pause->transfers[pause->at];
    struct ft_measured *link = &pause->all.links[pause->at];
    bool partly = how == FT_MEASURED_CUT && link->ns == 0 && state->done > 1;
    if (partly)
        keep_round(link, state, now);
    state->over = true;
    link->state = (uint8_t)(link->ns ? how : FT_MEASURED_SILENT);
    ft_pause_send(comm, transfer->peer,
                  &(struct ft_pause_message){.what = FT_PAUSE_MEASURED,
                                             .round = link->rounds,
                                             .number = pause->ask.number,
                                             .value = (uint64_t)transfer->slot,
                                             .bytes = link->bytes,
                                             .ns = link->ns,
                                             .state = link->state});
}

static void end_round(struct ft_comm *comm, struct ft_transfer_state *state)
{
    struct ft_pause *pause = comm->group->pause;
    struct ft_measured *link = &pause->all.links[pause->at];
    uint64_t now = ft_now_ns(comm->engine->env);
    keep_round(link, state, now);
    link->rounds++;
    bool enough = link->rounds >= LEAST_ROUNDS && now - state->begun_ns > ENOUGH_NS;
    if (enough || link->rounds == MOST_ROUNDS)
        end_receiving(comm, state, now, FT_MEASURED_ALL);
    else
        ask_for_round(comm, state);
}

static void take_message(struct ft_comm *comm, struct ft_transfer_state *state,
                         const struct ft_msg *msg)
{
    const struct ft_pause *pause = comm->group->pause;
    const struct ft_header want = header_of(pause, state->round, 0);
    if (msg->header.sig != want.sig || msg->header.seq != want.seq ||
        msg->header.step != want.step || !msg->data || msg->devmem)
        return;
    memcpy(pause->memory + FT_CHECK_COPY_BYTES, msg->data,
           ft_min(msg->header.len, FT_CHECK_COPY_BYTES));
    state->bytes += msg->header.len;
    if (state->done++ == 0) {
        state->first_ns = ft_now_ns(comm->engine->env);
        state->first_bytes = msg->header.len;
    }
}

static bool receive_round(struct ft_comm *comm, struct ft_transfer_state *state, uint64_t now)
{
    struct ft_pause *pause = comm->group->pause;
    struct ft_link *rx = comm->peers[pause->transfers[pause->at].peer]->rx;
    struct ft_msg msg;
    bool moved = false;
    note_transport(&pause->all.links[pause->at], rx);
    if (state->round == 0) {
        state->begun_ns = now;
        ask_for_round(comm, state);
        moved = true;
    }
    for (unsigned n = 0; n < MESSAGES && !state->over && rx; n++) {
        if (rx->ops->recv(rx, pause->ctx, LANE, &msg) != FT_OK)
            break;
        take_message(comm, state, &msg);
        rx->ops->release(rx, &msg);
        moved = true;
        if (state->done == MESSAGES)
            end_round(comm, state);
    }
    return moved;
}

/* ---- the turn -------------------------------------------------------------------------------- */

/* One turn of the transfer under way. True: it moved or is over. */
static bool turn_transfer(struct ft_comm *comm, uint64_t now)
{
    struct ft_pause *pause = comm->group->pause;
    const struct ft_transfer *transfer = &pause->transfers[pause->at];
    struct ft_transfer_state *state = &pause->states[pause->at];
    uint64_t end = pause->all.start_ns + pause->checks_ns +
                   (uint64_t)(transfer->slot + 1) * pause->slot_ns;
    bool moved = false;
    if (!state->over)
        moved = transfer->sends ? send_round(comm, state) : receive_round(comm, state, now);
    if (!state->over && now > end && !transfer->sends)
        end_receiving(comm, state, now, FT_MEASURED_CUT);
    if (!state->over && now <= end)
        return moved;
    pause->at++;
    return true;
}

bool ft_measure_turn(struct ft_comm *comm, bool *over)
{
    struct ft_pause *pause = comm->group->pause;
    uint64_t now = ft_now_ns(comm->engine->env);
    if (check_device(comm, now))
        return true;
    bool moved = pause->at < pause->ntransfers && turn_transfer(comm, now);
    *over = pause->at == pause->ntransfers;
    return moved;
}

/* What the other end of a transfer says may come before this rank is there. */
void ft_measure_receive(struct ft_comm *comm, int from, const struct ft_pause_message *message)
{
    struct ft_pause *pause = comm->group->pause;
    for (int i = 0; i < pause->ntransfers; i++) {
        const struct ft_transfer *transfer = &pause->transfers[i];
        struct ft_transfer_state *state = &pause->states[i];
        if (transfer->peer != from || (uint64_t)transfer->slot != message->value ||
            !transfer->sends)
            continue;
        if (message->what == FT_PAUSE_SEND) {
            state->asked = (uint32_t)ft_max(state->asked, ft_min(message->round, MOST_ROUNDS));
            continue;
        }
        state->over = true;
        struct ft_measured *link = &pause->all.links[i];
        link->rounds = (uint16_t)message->round;
        link->state = (uint8_t)message->state;
        link->bytes = message->bytes;
        link->ns = message->ns;
    }
}
