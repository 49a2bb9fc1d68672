#include "members.h"

#include "base/wire.h"

#include <stdlib.h>
#include <string.h>

#define MS UINT64_C(1000000)
#define TURN_NS (20 * MS)
#define GAP_NS (100 * MS)      /* of a longer time between two turns only so much counts */
#define CONNECT_NS (1000 * MS) /* then the next coordinator is tried */
#define FIRST_WAIT_NS (20 * MS)
#define LONGEST_WAIT_NS (1000 * MS)
#define BEATS_IN_SUSPECT 5 /* heartbeats to the coordinator in the time until it suspects us */
#define SUSPECT_MOST_MS 3600000
#define SUSPECT_LEAST_MS 100
#define UNKNOWN_MS 5000 /* of a connection that has not joined */

/* ---- slots ----------------------------------------------------------------------------------- */

static uint32_t number_of(const struct carrier *c, const struct slot *slot)
{
    return (uint32_t)(slot - c->slot);
}

static struct slot *find_slot(const struct local *local, uint32_t theirs)
{
    struct slot *slot = local->slot;
    while (slot && slot->theirs != theirs)
        slot = slot->next;
    return slot;
}

/* A slot that was left is free when a question that was sent later has been answered: until then
 * something may come for the one who had it. */
static bool is_free(const struct carrier *c, const struct slot *slot)
{
    return slot->state == SLOT_FREE || (slot->state == SLOT_LEFT && c->answers >= slot->reusable);
}

static struct slot *take_slot(struct carrier *c, struct local *local, uint32_t theirs)
{
    for (uint32_t i = 1; i <= FT_SLOTS_MOST; i++) {
        const uint32_t number = (c->last + i) % FT_SLOTS_MOST;
        struct slot *slot = &c->slot[number];
        if (!is_free(c, slot))
            continue;
        *slot = (struct slot){
            .state = SLOT_USED, .local = local, .theirs = theirs, .next = local->slot};
        local->slot = slot;
        c->last = number;
        c->nused++;
        return slot;
    }
    return NULL;
}

static void drop_held(struct slot *slot)
{
    free(slot->held);
    slot->held = NULL;
}

/* The member of the slot has ended, or is no more ours. */
static void leave_slot(struct carrier *c, struct slot *slot)
{
    struct slot **at = &slot->local->slot;
    while (*at != slot)
        at = &(*at)->next;
    *at = slot->next;
    drop_held(slot);
    *slot = (struct slot){.state = c->is_open ? SLOT_LEFT : SLOT_FREE, .reusable = c->asked + 1};
    c->must_ask = true;
    c->nused--;
}

/* ---- what goes to the coordinator ------------------------------------------------------------ */

static void tell_coordinator(struct carrier *c, uint16_t type, const unsigned char *head,
                             size_t head_bytes, const struct daemon_message *rest)
{
    struct daemon_message m = {DAEMON_MEMBERS, type, NULL, 0};
    if (rest) {
        m.bytes = rest->bytes + 4;
        m.len = rest->len - 4;
    }
    if (c->is_open && !daemon_peer_send_parts(c->peer, &m, head, head_bytes))
        daemon_peer_end(c->peer, "it does not read what it is told");
}

/* The message with our slot instead of the member's, which is in front of everything. */
static void pass_on(struct carrier *c, const struct slot *slot, const struct daemon_message *m)
{
    unsigned char number[4], *at = number;
    put32(&at, number_of(c, slot));
    tell_coordinator(c, m->type, number, sizeof number, m);
}

/* silent: it may still run. */
static void tell_gone(struct carrier *c, const struct slot *slot, bool silent)
{
    unsigned char bytes[8], *at = bytes;
    const uint64_t silence_ms = (c->now_ns - slot->local->heard_ns) / MS;
    put32(&at, number_of(c, slot));
    if (silent)
        put32(&at, (uint32_t)silence_ms);
    tell_coordinator(c, FT_MEMBERS_GONE, bytes, (size_t)(at - bytes), NULL);
}

/* asks: the coordinator is to answer, which costs it more than the heartbeat. */
static void beat(struct carrier *c, bool asks)
{
    c->beat_ns = c->now_ns;
    if (asks && c->answers == c->asked)
        c->asked_ns = c->now_ns;
    c->asked += asks;
    c->must_ask = c->must_ask && !asks;
    tell_coordinator(c, asks ? FT_MEMBERS_BEAT : FT_MEMBERS_QUIET_BEAT, NULL, 0, NULL);
}

/* ---- what goes to members -------------------------------------------------------------------- */

static void tell_member(struct local *local, const struct daemon_message *rest,
                        const unsigned char *head, size_t head_bytes)
{
    if (!daemon_peer_send_parts(local->peer, rest, head, head_bytes))
        daemon_peer_end(local->peer, "it does not read what it is told");
}

static void refuse(struct local *local, uint32_t theirs, const char *sentence)
{
    unsigned char head[8], *at = head;
    const struct daemon_message m = {DAEMON_MEMBERS, FT_MEMBERS_REFUSED,
                                     (const unsigned char *)sentence, strlen(sentence)};
    put32(&at, theirs);
    put32(&at, (uint32_t)FT_AGAIN);
    tell_member(local, &m, head, sizeof head);
}

static void bring(struct slot *slot, const struct daemon_message *m)
{
    unsigned char number[4], *at = number;
    const struct daemon_message rest = {DAEMON_MEMBERS, m->type, m->bytes + 4, m->len - 4};
    put32(&at, slot->theirs);
    tell_member(slot->local, &rest, number, sizeof number);
}

/* ---- the way to the coordinator -------------------------------------------------------------- */

static void tell_trouble(struct carrier *c, const char *why)
{
    snprintf(c->trouble, sizeof c->trouble, "the coordinator %.100s: %.180s", c->name[c->tried],
             why);
}

/* A member that waits here hears once that there is no coordinator, and why. Then it hears nothing,
 * not even answers to its heartbeats: if it knows another way it takes it. */
static void tell_held(const struct carrier *c, struct slot *slot)
{
    unsigned char number[4], *at = number;
    char sentence[400];
    if (!slot->held || slot->told || !c->trouble[0])
        return;
    slot->told = true;
    snprintf(sentence, sizeof sentence, "the agent of its host has no coordinator: %s", c->trouble);
    const struct daemon_message m = {DAEMON_MEMBERS, FT_MEMBERS_WAITS,
                                     (const unsigned char *)sentence, strlen(sentence)};
    put32(&at, slot->theirs);
    tell_member(slot->local, &m, number, sizeof number);
}

static void tell_all_held(const struct carrier *c)
{
    for (const struct local *local = c->local; local; local = local->next)
        for (struct slot *slot = local->slot; slot; slot = slot->next)
            tell_held(c, slot);
}

/* Chooses the coordinator to dial next, and when: at once, or after a pause if all were tried. */
static void plan(struct carrier *c)
{
    uint64_t chance;
    struct ft_env *env = ft_env_real();
    c->tried = (c->tried + 1) % c->nnames;
    c->dial_ns = c->now_ns;
    if (c->tried != 0)
        return;
    env->random(env, &chance, sizeof chance);
    c->dials++;
    c->wait_ns = c->wait_ns ? ft_min(2 * c->wait_ns, LONGEST_WAIT_NS) : FIRST_WAIT_NS;
    c->dial_ns += c->wait_ns / 2 + chance % c->wait_ns;
    tell_all_held(c);
}

/* A name with several addresses: another one each time that all names were tried. What is found
 * late is as good, unless another coordinator is under way. */
static void on_found(void *arg, const struct ft_net_address *at, int n, const char *why)
{
    struct carrier_lookup *lookup = arg;
    struct carrier *c = lookup->carrier;
    lookup->running = NULL;
    if (c->peer)
        return;
    c->tried = (int)(lookup - c->lookup);
    c->dial_ns = c->now_ns; /* the lookup may have taken longer than a connection may */
    if (n > 0)
        c->peer = daemon_peer_connect(c->daemon, &at[c->dials % (unsigned)n]);
    if (c->peer)
        return;
    tell_trouble(c, n > 0 ? ft_fail_text() : why);
    plan(c);
}

static void dial(struct carrier *c)
{
    if (c->peer && c->now_ns - c->dial_ns > CONNECT_NS)
        daemon_peer_end(c->peer, "it does not answer");
    if (c->peer || c->now_ns < c->dial_ns)
        return;
    struct carrier_lookup *lookup = &c->lookup[c->tried];
    const bool runs = lookup->running;
    if (!runs) {
        *lookup = (struct carrier_lookup){.carrier = c, .since_ns = c->now_ns};
        lookup->running = daemon_lookup_start(c->daemon, c->name[c->tried], on_found, lookup);
    }
    if (lookup->running && c->now_ns - lookup->since_ns <= CONNECT_NS)
        return;
    tell_trouble(c, runs ? "its name has not been found yet" : ft_fail_text());
    plan(c);
}

static void on_opened(void *arg, struct daemon_peer *peer)
{
    struct carrier *c = arg;
    if (peer != c->peer)
        return;
    c->is_open = true;
    daemon_peer_watched(peer);
    c->trouble[0] = '\0';
    c->asked = c->answers = 0;
    c->heard_ns = c->now_ns;
    beat(c, true);
    for (struct local *local = c->local; local; local = local->next) {
        for (struct slot *slot = local->slot; slot; slot = slot->next) {
            if (!slot->held)
                continue;
            const struct daemon_message m = {DAEMON_MEMBERS, FT_MEMBERS_JOIN, slot->held,
                                             slot->held_bytes};
            pass_on(c, slot, &m);
            drop_held(slot);
        }
    }
}

/* All who had registered do so again. Those who still wait go on waiting. */
static void lose_coordinator(struct carrier *c)
{
    const bool was_open = c->is_open;
    const bool served = was_open && c->answers > 0; /* one that does not lead answers nothing */
    if (c->nlocal > 0)
        tell_trouble(c, daemon_peer_why(c->peer));
    c->peer = NULL;
    c->is_open = false;
    if (!served)
        plan(c);
    if (!was_open)
        return;
    if (served) {
        c->tried = 0;
        c->dial_ns = c->now_ns;
    }
    for (struct local *local = c->local; local; local = local->next) {
        while (local->slot)
            leave_slot(c, local->slot);
        daemon_peer_end(local->peer, "the coordinator has gone");
    }
    for (int i = 0; i < FT_SLOTS_MOST; i++)
        c->slot[i].state = SLOT_FREE;
}

static bool take_from_coordinator(struct carrier *c, const struct daemon_message *m)
{
    struct ft_role role;
    size_t used;
    c->heard_ns = c->now_ns;
    if (m->type == FT_MEMBERS_ALIVE) {
        c->answers += c->answers < c->asked;
        c->wait_ns = c->dials = 0;
        return m->len == 0;
    }
    const unsigned char *at = m->bytes;
    const uint32_t number = m->len >= 4 ? get32(&at) : FT_SLOTS_MOST;
    if (m->type < FT_MEMBERS_JOINED || m->type > FT_MEMBERS_ALIVE || number >= FT_SLOTS_MOST)
        return false;
    struct slot *slot = &c->slot[number];
    if (slot->state != SLOT_USED)
        return true; /* it has just ended */
    slot->accepted = m->type != FT_MEMBERS_REFUSED &&
                     (slot->accepted || m->type == FT_MEMBERS_JOINED);
    if (m->type == FT_MEMBERS_JOINED && m->len > 20 &&
        ft_members_role_decode(m->bytes + 20, m->len - 20, &role, &used) == FT_OK)
        slot->role = role; /* a standby has got one */
    bring(slot, m);
    return true;
}

/* ---- members --------------------------------------------------------------------------------- */

static void on_timer(void *arg);

static struct local *local_of(struct carrier *c, struct daemon_peer *peer)
{
    void **place = daemon_peer_slot(peer, DAEMON_MEMBERS);
    if (*place)
        return *place;
    if (!c->timer.runs) {
        c->turned_ns = daemon_now_ns();
        if (daemon_timer_start(c->daemon, &c->timer, TURN_NS, on_timer, c) != FT_OK)
            return NULL;
    }
    struct local *local = calloc(1, sizeof *local);
    if (!local)
        return NULL;
    daemon_peer_watched(peer);
    *local = (struct local){.peer = peer, .next = c->local, .link = &c->local};
    if (c->local)
        c->local->link = &local->next;
    c->local = local;
    c->nlocal++;
    return *place = local;
}

static bool hold(const struct carrier *c, struct slot *slot, const struct daemon_message *m)
{
    drop_held(slot);
    slot->held = malloc(m->len);
    if (!slot->held)
        return false;
    memcpy(slot->held, m->bytes, m->len);
    slot->held_bytes = m->len;
    tell_held(c, slot);
    return true;
}

/* As patient as its most patient member wants. */
static void note_suspect(struct local *local, uint32_t suspect_ms)
{
    const uint32_t bounded = suspect_ms < SUSPECT_LEAST_MS  ? SUSPECT_LEAST_MS
                             : suspect_ms > SUSPECT_MOST_MS ? SUSPECT_MOST_MS
                                                            : suspect_ms;
    if (bounded > local->suspect_ms)
        local->suspect_ms = bounded;
}

static bool take_join(struct carrier *c, struct local *local, const struct daemon_message *m)
{
    struct ft_members_join join;
    if (ft_members_join_decode(m->bytes, m->len, &join) != FT_OK)
        return false;
    struct slot *slot = find_slot(local, join.slot);
    if (!slot && !(slot = take_slot(c, local, join.slot))) {
        refuse(local, join.slot, "the agent of this host has as many members as it can carry");
        return true;
    }
    slot->role = join.role;
    note_suspect(local, join.suspect_ms);
    if (!c->is_open)
        return hold(c, slot, m);
    pass_on(c, slot, m);
    return true;
}

static bool take_leave(struct carrier *c, struct local *local, const struct daemon_message *m)
{
    const unsigned char *at = m->bytes;
    struct slot *slot = m->len == 4 ? find_slot(local, get32(&at)) : NULL;
    if (!slot)
        return m->len == 4; /* it was refused, or left before */
    pass_on(c, slot, m);
    leave_slot(c, slot);
    return true;
}

static bool take_ask(struct carrier *c, struct local *local, const struct daemon_message *m)
{
    struct ft_members_ask ask;
    if (ft_members_ask_decode(m->bytes, m->len, &ask) != FT_OK)
        return false;
    const struct slot *slot = find_slot(local, ask.slot);
    if (slot)
        pass_on(c, slot, m);
    return slot;
}

static bool take_from_member(struct carrier *c, struct local *local, const struct daemon_message *m)
{
    const struct daemon_message alive = {DAEMON_MEMBERS, FT_MEMBERS_ALIVE, NULL, 0};
    local->heard_ns = c->now_ns;
    switch (m->type) {
    case FT_MEMBERS_JOIN:
        return take_join(c, local, m);
    case FT_MEMBERS_ASK:
        return take_ask(c, local, m);
    case FT_MEMBERS_LEAVE:
        return take_leave(c, local, m);
    case FT_MEMBERS_BEAT:
        if (c->is_open)
            tell_member(local, &alive, NULL, 0);
        return m->len == 0;
    case FT_MEMBERS_QUIET_BEAT:
        return m->len == 0;
    default:
        return false;
    }
}

static bool on_message(void *arg, struct daemon_peer *peer, const struct daemon_message *m)
{
    struct carrier *c = arg;
    if (peer == c->peer)
        return take_from_coordinator(c, m);
    const bool is_new = !*daemon_peer_slot(peer, DAEMON_MEMBERS);
    struct local *local = local_of(c, peer);
    if (!local) {
        daemon_peer_end(peer, "no memory or descriptor for a member");
        return true;
    }
    bool good = take_from_member(c, local, m);
    if (is_new && !c->is_open)
        dial(c);
    return good;
}

static void forget(struct carrier *c, struct local *local, bool silent)
{
    while (local->slot) {
        tell_gone(c, local->slot, silent);
        leave_slot(c, local->slot);
    }
}

static void on_closed(void *arg, struct daemon_peer *peer)
{
    struct carrier *c = arg;
    void **place = daemon_peer_slot(peer, DAEMON_MEMBERS);
    struct local *local = *place;
    if (peer == c->peer)
        lose_coordinator(c);
    if (!local)
        return;
    *place = NULL;
    forget(c, local, false);
    *local->link = local->next;
    if (local->next)
        local->next->link = local->link;
    c->nlocal--;
    free(local);
}

/* ---- time ------------------------------------------------------------------------------------ */

static uint64_t suspect_ns(const struct local *local)
{
    return (local->suspect_ms ? local->suspect_ms : UNKNOWN_MS) * MS;
}

static void look_at_members(struct carrier *c)
{
    for (struct local *local = c->local; local; local = local->next) {
        if (c->now_ns - local->heard_ns <= suspect_ns(local))
            continue;
        forget(c, local, true);
        daemon_peer_end(local->peer, "it has been silent for too long");
    }
}

/* Asks when half the time has passed in which something must come: the other half is for the
 * answer. One that hangs is left when nothing has come for that time and a heartbeat. */
static void look_at_coordinator(struct carrier *c)
{
    uint64_t least_ns = UINT64_MAX, most_ns = 0;
    for (const struct local *local = c->local; local; local = local->next) {
        least_ns = ft_min(least_ns, suspect_ns(local));
        most_ns = ft_max(most_ns, suspect_ns(local));
    }
    const uint64_t every_ns = least_ns / BEATS_IN_SUSPECT, silence_ns = c->now_ns - c->heard_ns;
    most_ns = ft_max(most_ns, CONNECT_NS);
    if (c->answers < c->asked && silence_ns > most_ns + every_ns &&
        c->now_ns - c->asked_ns >= most_ns / 2)
        daemon_peer_end(c->peer, "it does not answer");
    else if (c->now_ns - c->beat_ns >= every_ns)
        beat(c, c->must_ask || silence_ns >= most_ns / 2);
}

static void on_timer(void *arg)
{
    struct carrier *c = arg;
    const uint64_t now_ns = daemon_now_ns();
    c->now_ns += ft_min(now_ns - c->turned_ns, GAP_NS);
    c->turned_ns = now_ns;
    look_at_members(c);
    if (c->is_open)
        look_at_coordinator(c);
    else if (c->nlocal > 0)
        dial(c);
}

/* Once an interval. A host without members needs no connection. */
static void on_tick(void *arg)
{
    struct carrier *c = arg;
    if (c->nlocal > 0)
        return;
    daemon_timer_stop(c->daemon, &c->timer);
    if (c->peer)
        daemon_peer_end(c->peer, "there are no members");
}

/* ---- opening --------------------------------------------------------------------------------- */

static int take_names(struct carrier *c, const char *names)
{
    for (const char *at = names, *end; *at; at = *end ? end + 1 : end) {
        end = at + strcspn(at, ",");
        const size_t len = (size_t)(end - at);
        if (len == 0)
            continue;
        if (c->nnames == FT_COORDINATORS_MOST || len >= sizeof c->name[0])
            return ft_fail(FT_INVAL, "--coordinator: more than %d addresses, or one is too long",
                           FT_COORDINATORS_MOST);
        memcpy(c->name[c->nnames++], at, len);
    }
    return c->nnames > 0 ? FT_OK : ft_fail(FT_INVAL, "--coordinator: %s is no address", names);
}

struct carrier *carrier_open(struct daemon *d, const char *coordinators)
{
    struct carrier *c = calloc(1, sizeof *c);
    if (!c)
        ft_fail(FT_NOMEM, "no memory for members");
    if (c && take_names(c, coordinators) == FT_OK) {
        c->daemon = d;
        c->now_ns = 1;
        return c;
    }
    fprintf(stderr, "%s: %s\n", daemon_options_of(d)->program, ft_fail_text());
    free(c);
    return NULL;
}

void carrier_add(struct carrier *c)
{
    const struct daemon_service service = {.number = DAEMON_MEMBERS,
                                           .name = "members",
                                           .arg = c,
                                           .message = on_message,
                                           .opened = on_opened,
                                           .closed = on_closed,
                                           .tick = on_tick,
                                           .json = carrier_json,
                                           .page = carrier_page,
                                           .metrics = carrier_metrics};
    daemon_add(c->daemon, &service);
}

void carrier_close(struct carrier *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->nnames; i++)
        daemon_lookup_end(c->lookup[i].running);
    free(c);
}
