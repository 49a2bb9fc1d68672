/*
 * A load process: an epoll loop over its connections, which does what main.c tells it, and answers
 * with a byte when all that belongs to that has come.
 */
#include "scale.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define EVENTS 512
#define SCRATCH_BYTES ((size_t)1 << 18)

static bool open_load(struct load *, struct shared *, uint32_t index);
static void obey(struct load *, int command);
static bool is_of_replaced(const struct load *, const struct conn *);

int load_run(struct shared *shared, uint32_t index, int commands, int answers)
{
    struct load load;
    if (!open_load(&load, shared, index))
        return 1;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(load.epoll, EPOLL_CTL_ADD, commands, &event);
    for (char command = 0;;) {
        struct epoll_event events[EVENTS];
        const int n = epoll_wait(load.epoll, events, EVENTS, -1);
        if (n < 0 && errno != EINTR)
            return 1;
        for (int i = 0; i < n; i++)
            if (events[i].data.ptr)
                conn_turn(&load, events[i].data.ptr, events[i].events);
            else if (read(commands, &command, 1) != 1 || command == COMMAND_END)
                return 0;
            else
                obey(&load, command);
        if (!command || load.waits > 0)
            continue;
        atomic_most(&shared->last_ns, ft_now_ns(load.env));
        if (write(answers, &command, 1) != 1)
            return 1;
        command = 0;
    }
}

static bool open_load(struct load *load, struct shared *shared, uint32_t index)
{
    const struct shape *shape = &shared->shape;
    const uint32_t conns = shape_conns(shape), each = (conns + shape->loads - 1) / shape->loads;
    const uint32_t first = index * each < conns ? index * each : conns;
    const uint32_t end = first + each < conns ? first + each : conns;
    const uint32_t last_member = end * shape->slots < shape->members ? end * shape->slots
                                                                     : shape->members;
    *load = (struct load){.shared = shared,
                          .env = ft_env_real(),
                          .epoll = epoll_create1(0),
                          .index = index,
                          .first = first,
                          .nconns = end - first,
                          .first_member = first * shape->slots,
                          .nmembers = last_member - first * shape->slots,
                          .handshakes_most = shape->burst ? conns : HANDSHAKES_MOST / shape->loads};
    load->conn = calloc(load->nconns + 1, sizeof *load->conn);
    load->member = calloc(load->nmembers + 1, sizeof *load->member);
    load->scratch = malloc(SCRATCH_BYTES);
    if (load->epoll < 0 || !load->conn || !load->member || !load->scratch) {
        scale_fault(load, "out of memory or descriptors");
        return false;
    }
    const uint32_t apart = load->nconns / SAMPLES + 1;
    for (uint32_t i = 0; i < load->nconns; i++) {
        load->conn[i].number = first + i;
        load->conn[i].fd = -1;
        load->conn[i].sample = i % apart == 0;
    }
    return true;
}

static void join(struct load *load)
{
    for (uint32_t i = 0; i < load->nconns; i++)
        if (load->conn[i].state == CONN_CLOSED)
            load->waits += member_count(load, &load->conn[i]);
    load->next = 0;
    conn_start_some(load);
}

static void drop(struct load *load, struct conn *c)
{
    for (uint32_t slot = 0; slot < member_count(load, c); slot++) {
        struct member *member = member_of(load, c, slot);
        free(member->list);
        *member = (struct member){0};
    }
    conn_close(load, c);
}

/* Waits until the turn of that connection has come. */
static void spread(const struct load *load, uint32_t index)
{
    const struct shared *shared = load->shared;
    const uint64_t due_ns = atomic_load(&shared->first_ns) +
                            UINT64_C(1000000) * shared->shape.spread_ms * index / load->nconns;
    const uint64_t now_ns = ft_now_ns(load->env);
    if (shared->shape.spread_ms > 0 && now_ns < due_ns)
        nanosleep(&(struct timespec){.tv_nsec = (long)(due_ns - now_ns)}, NULL);
}

/* When the last one of a load process is answered the coordinator has taken all of them. */
static void beat(struct load *load, struct conn *c)
{
    unsigned char header[FT_DAEMON_HEADER_BYTES];
    const struct shared *shared = load->shared;
    const bool asks = c->number + 1 == load->first + load->nconns ||
                      (shared->asks > 0 && (c->number + shared->round) % shared->asks == 0);
    spread(load, c->number - load->first);
    conn_header(header, 0, asks ? FT_MEMBERS_BEAT : FT_MEMBERS_QUIET_BEAT);
    atomic_fetch_add(&load->shared->bytes_out[FT_MEMBERS_BEAT], sizeof header);
    load->waits += asks;
    conn_send(load, c, header, sizeof header);
}

static void obey(struct load *load, int command)
{
    load->waits = 0;
    if (command == COMMAND_JOIN) {
        join(load);
        return;
    }
    uint_fast64_t none = 0;
    atomic_compare_exchange_strong(&load->shared->first_ns, &none, ft_now_ns(load->env));
    for (uint32_t i = 0; i < load->nconns; i++) {
        struct conn *c = &load->conn[i];
        if (command == COMMAND_BEAT)
            beat(load, c);
        else if (command == COMMAND_DROP && is_of_replaced(load, c))
            drop(load, c);
        else if (command == COMMAND_CHECK && c->sample)
            member_check(load, c);
        else if (command == COMMAND_ASK) {
            load->waits += member_count(load, c);
            member_ask_all(load, c);
        }
    }
    atomic_most(&load->shared->sent_ns, ft_now_ns(load->env));
}

static bool is_of_replaced(const struct load *load, const struct conn *c)
{
    const struct shape *shape = &load->shared->shape;
    return c->number * shape->slots / shape->local == load->shared->replaced;
}
