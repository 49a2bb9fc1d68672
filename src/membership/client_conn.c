/*
 * The connection of a client to a coordinator: which address is tried when, what is sent, and what
 * comes. Everything that comes is input from outside. What makes no sense ends the connection, and
 * the client registers again.
 */
#include "base/wire.h"
#include "membership/client.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define MS UINT64_C(1000000)
#define CONNECT_NS (1000 * MS)
#define PROVE_LEAST_NS (1000 * MS)
#define RETRY_LEAST_NS (20 * MS)
#define RETRY_DOUBLINGS 6 /* then it is more than a second */
#define RETRY_MOST_NS (1000 * MS)
#define STEADY_NS (1000 * MS) /* a connection that has lasted for so long was no failure */
#define READ_BYTES ((size_t)65536)
#define READS_A_TURN 16
#define SLOT 0u /* one member a connection */

/* ---- the end of a connection ----------------------------------------------------------------- */

/* Doubles with each failure, and differs between members, so that they do not come all at once. */
static uint64_t backoff_ns(struct ft_client *c, unsigned failures)
{
    uint64_t chance, most_ns = RETRY_LEAST_NS << ft_min(failures, RETRY_DOUBLINGS);
    most_ns = ft_min(most_ns, RETRY_MOST_NS);
    c->config.env->random(c->config.env, &chance, sizeof chance);
    return most_ns / 2 + chance % (most_ns / 2 + 1);
}

static void refuse_for_good(struct ft_client *c, int status, const char *why)
{
    c->refused = status;
    snprintf(c->why, sizeof c->why, "%s", why);
}

/* All coordinators have another key or version: this does not change by waiting. */
static void judge_round(struct ft_client *c)
{
    int first = c->tried[0].status;
    bool hopeless = !c->was_accepted && (first == FT_AUTH || first == FT_VERSION);
    for (int i = 1; i < c->config.naddresses; i++)
        hopeless &= c->tried[i].status == FT_AUTH || c->tried[i].status == FT_VERSION;
    if (hopeless)
        refuse_for_good(c, first, c->tried[0].why);
}

static void plan_next(struct ft_client *c, uint64_t now_ns, bool was_member, bool silent)
{
    struct ft_client_conn *conn = &c->conn;
    int n = c->config.naddresses;
    conn->stage = FT_CLIENT_RESTS;
    if (was_member && now_ns - conn->begun_ns > STEADY_NS)
        conn->failures = 0;
    conn->tried = was_member ? 0 : conn->tried;
    /* one that has ended may be back at once; one that is silent has its turn after the others */
    if (!was_member || silent) {
        conn->address = (conn->address + 1) % n;
        conn->tried++;
    }
    conn->retry_ns = now_ns;
    if (!was_member && conn->tried < n)
        return;
    conn->retry_ns += backoff_ns(c, conn->failures++);
    if (conn->tried >= n) {
        conn->tried = 0;
        judge_round(c);
    }
}

/* silent: it may still have the connection, but does not answer. */
static void hang_up(struct ft_client *c, uint64_t now_ns, int status, const char *why)
{
    struct ft_client_conn *conn = &c->conn;
    struct ft_client_try *tried = &c->tried[conn->address];
    char text[FT_NET_TEXT_BYTES];
    bool was_member = c->accepted; /* one that does not lead ends those who register */
    if (conn->stage == FT_CLIENT_RESTS)
        return;
    tried->status = status;
    snprintf(tried->why, sizeof tried->why, "%.*s", (int)sizeof tried->why - 1,
             c->again[0] ? c->again : why);
    FT_LOG(INFO, "members", -1, "the coordinator at %s: %s",
           ft_net_text(&c->config.address[conn->address], text), why);
    ft_fd_close(&conn->fd);
    free(conn->in);
    conn->in = NULL;
    conn->in_len = conn->in_room = conn->out_len = 0;
    c->connected = c->accepted = c->ask.sent = false;
    c->waits[0] = c->again[0] = '\0';
    plan_next(c, now_ns, was_member, status == FT_TIMEOUT);
    pthread_cond_broadcast(&c->changed);
}

/* ---- sending --------------------------------------------------------------------------------- */

static void flush(struct ft_client *c, uint64_t now_ns)
{
    struct ft_client_conn *conn = &c->conn;
    size_t done = 0;
    while (done < conn->out_len) {
        ssize_t n = send(conn->fd, conn->out + done, conn->out_len - done,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
            return hang_up(c, now_ns, FT_LINK, strerror(errno));
        if (n < 0)
            break;
        done += (size_t)n;
    }
    if (done > 0)
        memmove(conn->out, conn->out + done, conn->out_len - done);
    conn->out_len -= done;
}

/* Returns where the message's own bytes go. NULL: the connection has ended. */
static unsigned char *begin_message(struct ft_client *c, uint64_t now_ns,
                                    enum ft_members_message type, size_t len)
{
    struct ft_client_conn *conn = &c->conn;
    size_t need = conn->out_len + FT_DAEMON_HEADER_BYTES + len;
    bool fits = need <= 4 * FT_MEMBERS_REQUEST_MOST;
    if (fits && need > conn->out_room) {
        size_t room = ft_max(need, 2 * conn->out_room);
        unsigned char *grown = realloc(conn->out, room);
        fits = grown != NULL;
        conn->out = fits ? grown : conn->out;
        conn->out_room = fits ? room : conn->out_room;
    }
    if (!fits) {
        hang_up(c, now_ns, FT_LINK, "it does not read what it is told");
        return NULL;
    }
    unsigned char *at = conn->out + conn->out_len;
    put32(&at, (uint32_t)len);
    put16(&at, FT_MEMBERS_SERVICE);
    put16(&at, (uint16_t)type);
    conn->out_len = need;
    return at;
}

static void send_join(struct ft_client *c, uint64_t now_ns)
{
    bool holds = c->held.peers && !c->base_lost;
    uint64_t told_term = c->epoch ? c->term : 0; /* of a view that it does not have */
    const struct ft_members_join m = {.slot = SLOT,
                                      .role = c->role,
                                      .engine = c->engine,
                                      .step = c->ask.step,
                                      .held_term = holds ? c->held.term : told_term,
                                      .held_epoch = holds ? c->held.epoch : c->epoch,
                                      .held_nranks = holds ? (uint32_t)c->held.peers->n : 0,
                                      .held_rank = holds ? (uint32_t)c->held.rank : 0,
                                      .held_times = holds ? c->held.times : 0,
                                      .min_members = c->config.min_members,
                                      .window_ms = c->config.window_ms,
                                      .suspect_ms = c->config.suspect_ms,
                                      .endpoint = c->endpoint,
                                      .endpoint_bytes = c->endpoint_bytes};
    c->conn.rejoin_ns = 0;
    unsigned char *at = begin_message(c, now_ns, FT_MEMBERS_JOIN, ft_members_join_encode(NULL, &m));
    if (at)
        ft_members_join_encode(at, &m);
}

/* The caller has bound what it needs for the view after the one that is the last now. */
static void send_ask(struct ft_client *c, uint64_t now_ns)
{
    struct ft_client_ask *ask = &c->ask;
    if (!c->accepted || !ask->open || !ask->bound || ask->sent || ask->term != c->term ||
        ask->epoch != c->epoch)
        return;
    const struct ft_members_ask m = {.slot = SLOT,
                                     .step = ask->step,
                                     .term = ask->term,
                                     .epoch = ask->epoch,
                                     .failed = ask->failed || c->missed,
                                     .dead = ask->dead,
                                     .ndead = ask->ndead};
    unsigned char *at = begin_message(c, now_ns, FT_MEMBERS_ASK, ft_members_ask_encode(NULL, &m));
    if (at) {
        ft_members_ask_encode(at, &m);
        ask->sent = true;
    }
}

static uint64_t beat_every_ns(const struct ft_client *c)
{
    uint64_t beat_ns = c->config.heartbeat_ms * MS, most_ns = c->config.suspect_ms * MS / 4;
    return beat_ns > 0 ? ft_min(beat_ns, most_ns) : most_ns;
}

/* Whether a heartbeat asks for an answer: when a third of the time has passed after which the
 * coordinator counts as silent. So one that lives has more than half of it to answer, and while
 * nothing comes each heartbeat asks. */
static bool must_ask(const struct ft_client *c)
{
    uint64_t silence_ns = ft_detect_silence_ns(&c->conn.detect, &c->conn.pulse);
    return silence_ns + beat_every_ns(c) / 2 >= c->config.suspect_ms * MS / 3;
}

/* One that has not read the last one gets no more. */
static void send_beat(struct ft_client *c, uint64_t now_ns)
{
    struct ft_client_conn *conn = &c->conn;
    if (now_ns < conn->beat_ns)
        return;
    conn->beat_ns = now_ns + beat_every_ns(c);
    if (conn->out_len == 0)
        begin_message(c, now_ns, must_ask(c) ? FT_MEMBERS_BEAT : FT_MEMBERS_QUIET_BEAT, 0);
}

/* ---- what the coordinator says --------------------------------------------------------------- */

static void complain(struct ft_client *c, uint64_t now_ns)
{
    hang_up(c, now_ns, FT_PROTOCOL, "it sent what makes no sense");
}

/* It may be printed: control characters go. */
static void copy_sentence(char out[FT_FAIL_BYTES], const unsigned char *bytes, size_t len)
{
    len = ft_min(len, FT_FAIL_BYTES - 1);
    for (size_t i = 0; i < len; i++)
        out[i] = bytes[i] < ' ' || bytes[i] == 0x7f ? ' ' : (char)bytes[i];
    out[len] = '\0';
}

static void copy_reason(char out[FT_FAIL_BYTES], const unsigned char *bytes, size_t len)
{
    copy_sentence(out, bytes, len);
    if (!out[0])
        snprintf(out, FT_FAIL_BYTES, "the coordinator gave no reason");
}

/* The last view is another one. A view that this member may have been given is out of reach. */
static void learn_epoch(struct ft_client *c, uint64_t term, uint64_t epoch)
{
    c->missed |= c->ask.bound && c->ask.term == term && c->ask.epoch != epoch &&
                 (c->given_term != term || c->given_epoch != epoch);
    c->term = term;
    c->epoch = epoch;
}

/* A standby may get a role; others keep theirs. */
static bool role_fits(const struct ft_client *c, const struct ft_role *role)
{
    const struct ft_role *mine = &c->role;
    if (strcmp(role->group, mine->group) != 0)
        return false;
    if (!mine->replica[0])
        return !role->replica[0] ||
               (role->local_size <= FT_LOCAL_MOST && role->local_rank < role->local_size);
    return !strcmp(role->replica, mine->replica) && role->local_rank == mine->local_rank &&
           role->local_size == mine->local_size;
}

static bool take_joined(struct ft_client *c, const unsigned char *at, size_t len)
{
    struct ft_role role;
    size_t used;
    if (len < 20 || get32(&at) != SLOT)
        return false;
    uint64_t term = get64(&at), epoch = get64(&at);
    if (ft_members_role_decode(at, len - 20, &role, &used) != FT_OK || used != len - 20 ||
        !role_fits(c, &role))
        return false;
    learn_epoch(c, term, epoch);
    c->role = role;
    c->accepted = c->was_accepted = true;
    c->again[0] = '\0';
    memset(c->tried, 0, sizeof c->tried);
    c->conn.stage = FT_CLIENT_MEMBER;
    c->conn.tried = 0;
    c->conn.refusals = 0;
    c->conn.rejoin_ns = 0;
    return true;
}

static bool take_refused(struct ft_client *c, const unsigned char *at, size_t len, uint64_t now_ns)
{
    char why[FT_FAIL_BYTES];
    if (len < 8 || get32(&at) != SLOT)
        return false;
    int status = (int)(int32_t)get32(&at);
    if (status >= FT_OK || status < FT_MIXED)
        return false;
    copy_reason(why, at, len - 8);
    if (status == FT_AGAIN || status == FT_NOMEM) { /* the coordinator may have memory later */
        memcpy(c->again, why, sizeof why);
        c->accepted = c->ask.sent = false;
        c->conn.stage = FT_CLIENT_JOINS;
        c->conn.rejoin_ns = now_ns + backoff_ns(c, c->conn.refusals++);
        return true;
    }
    refuse_for_good(c, status, why);
    hang_up(c, now_ns, status, why);
    return true;
}

static bool take_epoch(struct ft_client *c, const unsigned char *at, size_t len)
{
    if (len != 20 || get32(&at) != SLOT || !c->accepted)
        return false;
    uint64_t term = get64(&at), epoch = get64(&at);
    if (c->ask.sent && term == c->ask.term && epoch == c->ask.epoch)
        return true; /* the answer to an earlier ask */
    learn_epoch(c, term, epoch);
    c->ask.sent = false;
    return true;
}

/* The caller can use a view if it has bound what belongs to it, or has it already. */
static bool is_usable(const struct ft_client *c, bool same)
{
    const struct ft_client_ask *ask = &c->ask;
    return same || (ask->bound && c->held.term == ask->term && c->held.epoch == ask->epoch + 1);
}

/* After a view that is wrong the next coordinator must send all of it. */
static bool take_view(struct ft_client *c, const unsigned char *at, size_t len, uint64_t now_ns)
{
    struct ft_members_view m;
    if (!c->accepted || !c->role.replica[0])
        return false;
    c->base_lost = true;
    if (ft_members_view_decode(at, len, &m) != FT_OK || m.slot != SLOT)
        return false;
    int status = ft_client_held_apply(&c->held, &m, &c->role, c->engine);
    if (status != FT_OK) {
        hang_up(c, now_ns, status, ft_fail_text());
        return true;
    }
    c->base_lost = false;
    bool same = m.term == c->given_term && m.epoch == c->given_epoch;
    struct ft_managed_view *view = is_usable(c, same)
                                       ? ft_client_held_view(&c->held, &m, &c->role, same)
                                       : NULL;
    if (!view && is_usable(c, same)) {
        c->base_lost = true; /* so the coordinator hears that this member has not got it */
        hang_up(c, now_ns, FT_NOMEM, "no memory for a view");
        return true;
    }
    if (view) {
        ft_managed_view_free(c->fresh);
        c->fresh = view;
    }
    c->missed = !view;
    c->ask.sent = false;
    if (view)
        c->ask.open = c->ask.bound = false;
    if (!same) {
        c->term = m.term;
        c->epoch = m.epoch;
    }
    return true;
}

/* Tells the owner, without the lock: only the thread uses what the caller of this reads. */
static bool take_broken(struct ft_client *c, const unsigned char *at, size_t len)
{
    char why[FT_FAIL_BYTES];
    if (len < 20 || get32(&at) != SLOT)
        return false;
    uint64_t term = get64(&at), epoch = get64(&at);
    if ((term == c->broken_term && epoch == c->broken_epoch) || !c->held.peers ||
        term != c->held.term || epoch != c->held.epoch)
        return true;
    c->broken_term = term;
    c->broken_epoch = epoch;
    if (c->fresh && c->fresh->term == term && c->fresh->epoch == epoch) {
        ft_managed_view_free(c->fresh);
        c->fresh = NULL;
        c->missed = true;
    }
    copy_reason(why, at, len - 20);
    pthread_mutex_unlock(&c->lock);
    if (c->config.broken)
        c->config.broken(c->config.arg, term, epoch, why);
    pthread_mutex_lock(&c->lock);
    return true;
}

static bool take_waits(struct ft_client *c, const unsigned char *at, size_t len)
{
    if (len < 4 || get32(&at) != SLOT)
        return false;
    copy_sentence(c->waits, at, len - 4);
    return true;
}

static bool take_message(struct ft_client *c, unsigned type, const unsigned char *at, size_t len,
                         uint64_t now_ns)
{
    switch (type) {
    case FT_MEMBERS_JOINED:
        return take_joined(c, at, len);
    case FT_MEMBERS_REFUSED:
        return take_refused(c, at, len, now_ns);
    case FT_MEMBERS_EPOCH:
        return take_epoch(c, at, len);
    case FT_MEMBERS_VIEW:
        return take_view(c, at, len, now_ns);
    case FT_MEMBERS_BROKEN:
        return take_broken(c, at, len);
    case FT_MEMBERS_WAITS:
        return take_waits(c, at, len);
    case FT_MEMBERS_ALIVE:
        return len == 0;
    default:
        return false;
    }
}

/* ---- receiving ------------------------------------------------------------------------------- */

static void take_messages(struct ft_client *c, uint64_t now_ns)
{
    struct ft_client_conn *conn = &c->conn;
    size_t done = 0;
    while (conn->in_len - done >= FT_DAEMON_HEADER_BYTES) {
        const unsigned char *at = conn->in + done;
        size_t len = get32(&at);
        unsigned service = get16(&at), type = get16(&at);
        if (service != FT_MEMBERS_SERVICE || len > FT_MEMBERS_MESSAGE_MOST)
            return complain(c, now_ns);
        if (conn->in_len - done - FT_DAEMON_HEADER_BYTES < len)
            break;
        done += FT_DAEMON_HEADER_BYTES + len;
        bool sane = take_message(c, type, at, len, now_ns);
        if (!sane)
            complain(c, now_ns);
        if (conn->stage == FT_CLIENT_RESTS)
            return;
    }
    if (done > 0)
        pthread_cond_broadcast(&c->changed);
    conn->in_len -= done;
    if (conn->in_len > 0 && done > 0)
        memmove(conn->in, conn->in + done, conn->in_len);
    if (conn->in_len == 0 && conn->in_room > READ_BYTES) {
        free(conn->in);
        conn->in = NULL;
        conn->in_room = 0;
    }
}

static bool make_room(struct ft_client_conn *conn)
{
    if (conn->in_room - conn->in_len >= READ_BYTES / 2)
        return true;
    size_t room = ft_max(READ_BYTES, 2 * conn->in_room);
    unsigned char *grown = realloc(conn->in, room);
    if (!grown)
        return false;
    conn->in = grown;
    conn->in_room = room;
    return true;
}

static void receive(struct ft_client *c, uint64_t now_ns)
{
    struct ft_client_conn *conn = &c->conn;
    for (int i = 0; i < READS_A_TURN && conn->stage != FT_CLIENT_RESTS; i++) {
        if (!make_room(conn))
            return hang_up(c, now_ns, FT_NOMEM, "no memory for what it says");
        ssize_t n = recv(conn->fd, conn->in + conn->in_len, conn->in_room - conn->in_len,
                         MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (n <= 0)
            return hang_up(c, now_ns, FT_LINK,
                           n == 0 ? "it closed the connection" : strerror(errno));
        conn->in_len += (size_t)n;
        ft_detect_heard(&conn->detect, &conn->pulse, now_ns);
        take_messages(c, now_ns);
    }
}

/* ---- turns ----------------------------------------------------------------------------------- */

static uint64_t prove_ns(const struct ft_client *c)
{
    return ft_max(c->config.suspect_ms * MS, PROVE_LEAST_NS);
}

static void begin_to_connect(struct ft_client *c, uint64_t now_ns)
{
    struct ft_client_conn *conn = &c->conn;
    conn->stage = FT_CLIENT_CONNECTS;
    conn->begun_ns = now_ns;
    int status = ft_net_connect(&c->config.address[conn->address], NULL, &conn->fd);
    if (status != FT_OK)
        hang_up(c, now_ns, status, ft_fail_text());
}

static void finish_connect(struct ft_client *c, uint64_t now_ns)
{
    struct ft_client_conn *conn = &c->conn;
    int status = ft_net_connected(conn->fd);
    if (status == FT_AGAIN && now_ns - conn->begun_ns > CONNECT_NS)
        hang_up(c, now_ns, FT_TIMEOUT, "no answer");
    else if (status != FT_AGAIN && status != FT_OK)
        hang_up(c, now_ns, status, ft_fail_text());
    if (status != FT_OK)
        return;
    ft_auth_start(&conn->auth, c->config.env, conn->fd, true, c->config.key, c->engine, 0,
                  FT_PURPOSE_SERVICE, FT_DAEMON_VERSION, now_ns + prove_ns(c));
    conn->stage = FT_CLIENT_PROVES;
}

static void prove(struct ft_client *c, uint64_t now_ns)
{
    struct ft_client_conn *conn = &c->conn;
    int status = ft_auth_turn(&conn->auth);
    if (status != FT_OK && status != FT_AGAIN)
        hang_up(c, now_ns, status, ft_fail_text());
    if (status != FT_OK)
        return;
    conn->stage = FT_CLIENT_JOINS;
    conn->begun_ns = now_ns;
    conn->beat_ns = now_ns + beat_every_ns(c);
    conn->refusals = 0;
    conn->detect.ticked_ns = now_ns;
    conn->pulse = (struct ft_pulse){0};
    ft_detect_heard(&conn->detect, &conn->pulse, now_ns);
    c->connected = true;
    send_join(c, now_ns);
}

static void be_member(struct ft_client *c, uint64_t now_ns)
{
    struct ft_client_conn *conn = &c->conn;
    receive(c, now_ns);
    if (conn->stage < FT_CLIENT_JOINS)
        return;
    ft_detect_tick(&conn->detect, now_ns);
    if (ft_detect_missed(&conn->detect, &conn->pulse))
        return hang_up(c, now_ns, FT_TIMEOUT, "it was silent for too long");
    if (conn->rejoin_ns && now_ns >= conn->rejoin_ns)
        send_join(c, now_ns);
    send_ask(c, now_ns);
    send_beat(c, now_ns);
    if (conn->stage >= FT_CLIENT_JOINS)
        flush(c, now_ns);
}

void ft_client_conn_open(struct ft_client *c, uint64_t now_ns)
{
    c->conn.fd = -1;
    c->conn.retry_ns = now_ns;
    ft_detect_open(&c->conn.detect, beat_every_ns(c), c->config.suspect_ms * MS, now_ns);
}

void ft_client_conn_turn(struct ft_client *c, uint64_t now_ns)
{
    struct ft_client_conn *conn = &c->conn;
    if (conn->stage == FT_CLIENT_RESTS && !c->refused && now_ns >= conn->retry_ns)
        begin_to_connect(c, now_ns);
    if (conn->stage == FT_CLIENT_CONNECTS)
        finish_connect(c, now_ns);
    if (conn->stage == FT_CLIENT_PROVES)
        prove(c, now_ns);
    if (conn->stage >= FT_CLIENT_JOINS)
        be_member(c, now_ns);
}

static uint64_t until(uint64_t due_ns, uint64_t now_ns)
{
    return due_ns > now_ns ? due_ns - now_ns : 0;
}

uint64_t ft_client_conn_wait(const struct ft_client *c, uint64_t now_ns, short *events)
{
    const struct ft_client_conn *conn = &c->conn;
    uint64_t wait_ns = beat_every_ns(c) / 2;
    *events = 0;
    switch (conn->stage) {
    case FT_CLIENT_RESTS:
        return c->refused ? 60000 * MS : until(conn->retry_ns, now_ns);
    case FT_CLIENT_CONNECTS:
        *events = POLLOUT;
        return until(conn->begun_ns + CONNECT_NS, now_ns) + 1;
    case FT_CLIENT_PROVES:
        *events = ft_auth_events(&conn->auth);
        return until(conn->auth.deadline_ns, now_ns);
    case FT_CLIENT_JOINS:
    case FT_CLIENT_MEMBER:
        break;
    }
    *events = POLLIN;
    if (conn->out_len > 0)
        *events |= POLLOUT;
    if (conn->rejoin_ns)
        wait_ns = ft_min(wait_ns, until(conn->rejoin_ns, now_ns));
    return ft_min(wait_ns, until(conn->beat_ns, now_ns));
}

/* Says that this member ends, and reads until the coordinator has heard it: to close a socket that
 * has bytes to read may cost those under way. */
static void leave(struct ft_client *c)
{
    struct ft_client_conn *conn = &c->conn;
    uint64_t now_ns = ft_now_ns(c->config.env), end_ns = now_ns + FT_CLIENT_LEAVE_NS;
    unsigned char *at = begin_message(c, now_ns, FT_MEMBERS_LEAVE, 4);
    bool told = false;
    if (at)
        put32(&at, SLOT);
    for (; conn->stage == FT_CLIENT_MEMBER && now_ns < end_ns; now_ns = ft_now_ns(c->config.env)) {
        unsigned char some[4096];
        struct pollfd fd = {.fd = conn->fd, .events = POLLIN};
        flush(c, now_ns);
        if (conn->stage != FT_CLIENT_MEMBER)
            break;
        if (conn->out_len > 0)
            fd.events |= POLLOUT;
        else if (!told)
            told = shutdown(conn->fd, SHUT_WR) == 0;
        poll(&fd, 1, (int)((end_ns - now_ns) / MS + 1));
        ssize_t n = recv(conn->fd, some, sizeof some, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            break;
    }
}

void ft_client_conn_close(struct ft_client *c)
{
    if (c->leaves && c->conn.stage == FT_CLIENT_MEMBER)
        leave(c);
    ft_fd_close(&c->conn.fd);
    free(c->conn.in);
    free(c->conn.out);
    c->conn.in = c->conn.out = NULL;
}
