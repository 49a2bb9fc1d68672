/*
 * The responder of a process: who serves it, the order of its work, and the time that it takes.
 */
#include "ras/internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How often the thread looks at the sockets if nothing wakes it: it may be too busy to sleep. */
#define LOOK_NS 20000000u
/* The next look at the host begins when this many times the processor's time that the last one took
 * has passed: clients that never stop asking get at most a fifth of a core. */
#define REST 4
#define WITHOUT_LIMIT_S 10    /* for a client that waits for ever */
#define ANSWERS_NS 2000000u   /* time between looks for answers of other hosts */
#define IDLE_NS 1000000000u   /* a client that may be replaced has been silent for this long */
#define RETRY_NS 1000000u     /* an engine comes or goes, and has the lock */
#define REFUSED_NS 100000000u /* until the next look for clients after one could not be taken */

static struct responder {
    pthread_mutex_t lock;
    struct ft_ras *engines; /* under the lock; the first one serves */
    bool on;                /* the port is known */
    struct ft_ras_port port;
    struct ft_ras_client clients[FT_RAS_CLIENTS];
    struct ft_ras_look look;
    bool answers;              /* the look is over, and clients get their answers */
    struct ft_ras_comms comms; /* of the look that is done */
    uint64_t spent_ns;         /* on this look, of the processor's time */
    uint64_t rest_ns;          /* no new look before */
    uint64_t accept_ns;        /* no new clients before */
    struct ft_ras_monitor monitor;
    struct ft_ras_questions questions;
} responder = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The engine that serves; NULL: none. Relaxed: who reads an old value finds the right one soon. */
static _Atomic(const struct ft_ras *) server;
/* When the serving thread has work even if no descriptor is ready, and when it should look at the
 * descriptors. Only that thread uses them, or who holds the lock. */
static ft_atomic_u64 work_ns, look_ns;
static atomic_int hurried; /* relaxed: it may be seen a little later */

static void set_server(void)
{
    const struct ft_ras *first = responder.on ? responder.engines : NULL;
    atomic_store_explicit(&server, first, memory_order_relaxed);
    atomic_store_explicit(&work_ns, 0, memory_order_relaxed);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void add_packed(struct ft_text *out, const struct ft_snapshot *s)
{
    unsigned char *bytes;
    size_t len_bytes;
    if (!s || ft_snapshot_pack(s, &bytes, &len_bytes) != FT_OK) {
        ft_text_add(out, "ERROR: no memory\n");
        return;
    }
    ft_text_add(out, FT_RAS_SNAPSHOT "%zu\n", len_bytes);
    ft_text_add_bytes(out, bytes, len_bytes);
    free(bytes);
}

static void answer(struct responder *r, struct ft_ras_client *client)
{
    client->wants_status = false;
    client->ends = true;
    if (!r->comms.comms) {
        ft_text_add(&client->out, "ERROR: no memory\n");
        return;
    }
    size_t before = client->out.len;
    if (client->packed)
        add_packed(&client->out, r->look.snapshot);
    else if (client->json)
        ft_ras_json(&client->out, &r->look, &r->comms);
    else
        ft_ras_text(&client->out, &r->look, &r->comms, client->verbose);
    if (!client->out.broken)
        return;
    client->out.broken = false;
    client->out.len = before;
    ft_text_add(&client->out, "ERROR: the answer is too long\n");
}

static struct ft_ras_client *next_asker(struct responder *r)
{
    for (int i = 0; i < FT_RAS_CLIENTS; i++)
        if (r->clients[i].fd >= 0 && r->clients[i].wants_status)
            return &r->clients[i];
    return NULL;
}

/* The next one that gets the look that is over. Who asked later gets another look. */
static struct ft_ras_client *next_in_look(struct responder *r)
{
    for (int i = 0; i < FT_RAS_CLIENTS; i++)
        if (r->clients[i].fd >= 0 && r->clients[i].wants_status && r->clients[i].in_look)
            return &r->clients[i];
    return NULL;
}

static void end_look(struct responder *r, uint64_t now_ns)
{
    r->answers = false;
    r->rest_ns = now_ns + REST * r->spent_ns;
    r->spent_ns = 0;
    ft_ras_comms_free(&r->comms);
    ft_ras_look_end(&r->look);
}

static void tell_look(struct responder *r)
{
    char text[96];
    snprintf(text, sizeof text, "%d processes, %.3f s", r->look.snapshot->nengines,
             (double)(r->look.ended_ns - r->look.begun_ns) / 1e9);
    const struct ft_ras_event event = {FT_RAS_TRACE, "COLLECTION", NULL, text};
    ft_ras_tell(r->clients, &event);
}

static void finish_look(struct responder *r)
{
    for (int i = 0; i < FT_RAS_CLIENTS; i++)
        r->clients[i].in_look = r->clients[i].wants_status;
    r->answers = true;
    if (!r->look.snapshot || !r->look.verdicts)
        return;
    tell_look(r);
    ft_ras_comms_of(&r->look, &r->comms);
}

static void give_answer(struct responder *r, uint64_t now_ns)
{
    struct ft_ras_client *client = next_in_look(r);
    if (!client) {
        end_look(r, now_ns);
        return;
    }
    answer(r, client);
    ft_ras_client_serve(client, now_ns);
}

/* Other hosts get half of the time that the most patient client gives. */
static void begin_look(struct responder *r, uint64_t now_ns)
{
    double most_s = 0;
    for (int i = 0; i < FT_RAS_CLIENTS; i++) {
        const struct ft_ras_client *client = &r->clients[i];
        double limit_s = client->timeout_s > 0 ? client->timeout_s : WITHOUT_LIMIT_S;
        if (client->fd >= 0 && client->wants_status && limit_s > most_s)
            most_s = limit_s;
    }
    ft_ras_look_begin(&r->look, now_ns);
    r->look.round.via = r->engines;
    r->look.round.budget_ns = (uint64_t)(most_s * 0.5e9);
}

static void read_messages(struct responder *r, uint64_t now_ns)
{
    struct ft_ras_message *message;
    ft_ras_messages_flush(now_ns);
    while ((message = ft_ras_messages_take()) != NULL) {
        if (message->what == FT_RAS_ASK)
            ft_ras_questions_add(&r->questions, message, now_ns);
        else if (message->what == FT_RAS_TELL && message->query == r->look.round.query)
            ft_ras_round_take(&r->look.round, message);
        else if (message->what == FT_RAS_TELL)
            ft_ras_questions_pass_on(&r->questions, message, now_ns);
        free(message);
    }
}

/* One slice of what was asked: a part of the look, or one answer. */
static void work(struct responder *r, uint64_t now_ns)
{
    bool asked = next_asker(r) != NULL;
    if (r->answers)
        give_answer(r, now_ns);
    else if (!asked && r->look.stage != FT_RAS_LOOK_NONE)
        end_look(r, now_ns);
    else if (asked && r->look.stage == FT_RAS_LOOK_NONE && now_ns >= r->rest_ns)
        begin_look(r, now_ns);
    else if (r->look.stage == FT_RAS_LOOK_DONE)
        finish_look(r);
    else
        ft_ras_look_step(&r->look, now_ns);
}

/* ---- clients --------------------------------------------------------------------------------- */

/* A free place, or that of the client that has been silent for longest and wants nothing. */
static struct ft_ras_client *find_place(struct responder *r, uint64_t now_ns)
{
    struct ft_ras_client *found = NULL;
    for (int i = 0; i < FT_RAS_CLIENTS; i++) {
        struct ft_ras_client *client = &r->clients[i];
        if (client->fd < 0)
            return client;
        bool idle = !client->wants_status && !client->monitors &&
                    now_ns - client->moved_ns > IDLE_NS;
        if (idle && (!found || client->moved_ns < found->moved_ns))
            found = client;
    }
    if (found)
        ft_ras_client_close(found);
    return found;
}

static void accept_clients(struct responder *r, uint64_t now_ns)
{
    int fd, rc = FT_OK;
    while (rc == FT_OK && r->port.listener >= 0 && now_ns >= r->accept_ns) {
        struct ft_ras_client *place = find_place(r, now_ns);
        rc = place ? ft_net_accept(r->port.listener, &fd) : FT_NOFILE;
        if (rc != FT_OK)
            break;
        ft_ras_client_open(place, fd, now_ns);
        r->port.heard_ns = now_ns;
    }
    if (rc != FT_OK && rc != FT_AGAIN)
        r->accept_ns = now_ns + REFUSED_NS; /* else the thread would find it readable at once */
}

static void serve_clients(struct responder *r, uint64_t now_ns)
{
    for (int i = 0; i < FT_RAS_CLIENTS; i++) {
        struct ft_ras_client *client = &r->clients[i];
        if (client->fd < 0)
            continue;
        ft_ras_client_serve(client, now_ns);
        if (client->fd >= 0 && ft_ras_client_is_late(client, now_ns))
            ft_ras_client_close(client);
    }
}

/* ---- the thread that serves ------------------------------------------------------------------ */

static int fill(const struct responder *r, struct pollfd fds[FT_RAS_FDS], uint64_t now_ns)
{
    int n = 0;
    if (r->port.listener >= 0 && now_ns >= r->accept_ns)
        fds[n++] = (struct pollfd){.fd = r->port.listener, .events = POLLIN};
    if (r->port.probe >= 0)
        fds[n++] = (struct pollfd){.fd = r->port.probe, .events = r->port.asked ? POLLIN : POLLOUT};
    for (int i = 0; i < FT_RAS_CLIENTS; i++)
        if (r->clients[i].fd >= 0)
            fds[n++] = (struct pollfd){.fd = r->clients[i].fd,
                                       .events = ft_ras_client_events(&r->clients[i])};
    return n;
}

int ft_ras_wait_for(const struct ft_ras *ras, struct pollfd fds[FT_RAS_FDS], uint64_t *wait_ns)
{
    if (atomic_load_explicit(&server, memory_order_relaxed) != ras)
        return 0;
    if (pthread_mutex_trylock(&responder.lock) != 0) {
        *wait_ns = ft_min(*wait_ns, RETRY_NS);
        return 0;
    }
    uint64_t now_ns = ft_now_ns(ft_env_real()),
             due_ns = atomic_load_explicit(&work_ns, memory_order_relaxed);
    int n = fill(&responder, fds, now_ns);
    *wait_ns = ft_min(*wait_ns, due_ns > now_ns ? due_ns - now_ns : 0);
    pthread_mutex_unlock(&responder.lock);
    return n;
}

/* When there is work without a descriptor: a slice that must wait for its turn, the port, a look at
 * the processes, or a client that has been silent for too long. */
static uint64_t next_work(struct responder *r, uint64_t slice_ns, uint64_t now_ns)
{
    uint64_t due_ns = ft_min(now_ns + 1000000000u, ft_ras_port_due(&r->port)),
             question_ns = ft_ras_questions_due(&r->questions, now_ns);
    if (ft_ras_messages_unsent(0) > 0)
        question_ns = ft_min(question_ns, now_ns + ANSWERS_NS);
    due_ns = ft_min(due_ns, ft_max(question_ns, now_ns + slice_ns));
    if (r->accept_ns > now_ns)
        due_ns = ft_min(due_ns, r->accept_ns);
    bool asked = false, monitored = r->monitor.begun;
    for (int i = 0; i < FT_RAS_CLIENTS; i++) {
        asked |= r->clients[i].fd >= 0 && r->clients[i].wants_status;
        monitored |= r->clients[i].fd >= 0 && r->clients[i].monitors;
    }
    if (monitored)
        due_ns = ft_min(due_ns, r->monitor.due_ns);
    if (asked || r->look.stage != FT_RAS_LOOK_NONE) {
        /* the thread does its other work for as long as this took */
        bool waits = r->look.stage == FT_RAS_LOOK_WAITS;
        uint64_t rested_ns = now_ns + (waits ? ft_max(slice_ns, ANSWERS_NS) : slice_ns);
        bool rests = r->look.stage == FT_RAS_LOOK_NONE;
        due_ns = ft_min(due_ns, rests ? ft_max(rested_ns, r->rest_ns) : rested_ns);
    }
    return due_ns;
}

void ft_ras_hurry(void)
{
    atomic_store_explicit(&hurried, 1, memory_order_relaxed);
}

static uint64_t processor_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Does what has waited for its time. Returns how long that took the processor. */
static uint64_t do_due(struct responder *r, uint64_t now_ns)
{
    if (now_ns < atomic_load_explicit(&work_ns, memory_order_relaxed))
        return 0;
    uint64_t began_ns = processor_ns();
    bool question = ft_ras_questions_step(&r->questions, now_ns);
    uint64_t question_ns = processor_ns() - began_ns;
    if (question)
        r->questions.spent_ns += question_ns;
    work(r, now_ns);
    ft_ras_monitor_tick(&r->monitor, r->clients, now_ns);
    uint64_t slice_ns = processor_ns() - began_ns;
    if (r->look.stage != FT_RAS_LOOK_NONE)
        r->spent_ns += slice_ns - question_ns;
    return slice_ns;
}

static void serve(struct responder *r, uint64_t now_ns, int local_ranks)
{
    accept_clients(r, now_ns);
    read_messages(r, now_ns);
    uint64_t slice_ns = do_due(r, now_ns);
    if (atomic_exchange_explicit(&hurried, 0, memory_order_relaxed))
        ft_ras_port_hurry(&r->port, now_ns);
    ft_ras_port_tick(&r->port, now_ns, local_ranks);
    serve_clients(r, now_ns);
    now_ns = ft_now_ns(ft_env_real());
    atomic_store_explicit(&work_ns, next_work(r, slice_ns, now_ns), memory_order_relaxed);
    atomic_store_explicit(&look_ns, now_ns + LOOK_NS, memory_order_relaxed);
}

void ft_ras_serve(struct ft_ras *ras, bool ready)
{
    if (atomic_load_explicit(&server, memory_order_relaxed) != ras)
        return;
    uint64_t now_ns = ft_now_ns(ft_env_real());
    ready |= atomic_load_explicit(&hurried, memory_order_relaxed) || ft_ras_messages_wait();
    if (!ready && now_ns < atomic_load_explicit(&work_ns, memory_order_relaxed) &&
        now_ns < atomic_load_explicit(&look_ns, memory_order_relaxed))
        return;
    if (pthread_mutex_trylock(&responder.lock) != 0)
        return;
    if (responder.engines == ras && responder.on)
        serve(&responder, now_ns, atomic_load_explicit(&ras->local_ranks, memory_order_relaxed));
    pthread_mutex_unlock(&responder.lock);
}

/* ---- engines that come and go ---------------------------------------------------------------- */

static void open_all(struct responder *r)
{
    for (int i = 0; i < FT_RAS_CLIENTS; i++)
        r->clients[i].fd = -1;
    r->on = ft_ras_port_open(&r->port);
}

static void close_all(struct responder *r)
{
    for (int i = 0; i < FT_RAS_CLIENTS; i++)
        ft_ras_client_close(&r->clients[i]);
    ft_ras_monitor_stop(&r->monitor);
    ft_ras_questions_leave(&r->questions, NULL);
    ft_ras_comms_free(&r->comms);
    ft_ras_look_end(&r->look);
    r->answers = false;
    r->spent_ns = r->rest_ns = r->accept_ns = 0;
    ft_ras_port_close(&r->port);
    r->on = false;
}

void ft_ras_join(struct ft_ras *ras)
{
    if (!ft_param_int(FT_PARAM_RAS_ENABLE))
        return;
    pthread_mutex_lock(&responder.lock);
    if (!responder.engines)
        open_all(&responder);
    struct ft_ras **at = &responder.engines;
    while (*at)
        at = &(*at)->next;
    *at = ras;
    ras->next = NULL;
    ft_ras_messages_join(ras);
    set_server();
    pthread_mutex_unlock(&responder.lock);
}

void ft_ras_leave(struct ft_ras *ras)
{
    if (!ras->joined)
        return;
    pthread_mutex_lock(&responder.lock);
    ft_ras_messages_leave(ras);
    ft_ras_questions_leave(&responder.questions, ras);
    if (responder.look.round.via == ras)
        responder.look.round.via = NULL;
    struct ft_ras **at = &responder.engines;
    while (*at && *at != ras)
        at = &(*at)->next;
    if (*at)
        *at = ras->next;
    if (!responder.engines)
        close_all(&responder);
    set_server();
    pthread_mutex_unlock(&responder.lock);
}
