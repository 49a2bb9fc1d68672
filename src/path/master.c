#include "path/master.h"

#include "base/auth.h"
#include "base/wire.h"

#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define SECOND_NS UINT64_C(1000000000)
#define HANDSHAKE_NS (5 * SECOND_NS)
#define UNANSWERED_NS SECOND_NS        /* then it is dialled again, from another port */
#define ANSWER_NS SECOND_NS            /* so long a new connection waits for an answer */
#define RETRY_NS (2 * SECOND_NS)       /* until the master is dialled again, */
#define RETRY_MOST_NS (60 * SECOND_NS) /* twice as long each time, to here */
#define UNUSED_NS (30 * SECOND_NS)     /* a connection of which nobody asks is gone */
#define AWAKE_NS (5 * SECOND_NS)       /* after such a gap nobody could ask */
#define KEEP_NS (20 * SECOND_NS)
#define ADDRESSES 8
#define WAYS_WAIT_MOST ((size_t)1 << 20) /* so much waits to be sent: no more ways are told, */
#define OUT_MOST ((size_t)2 << 20)       /* or the master does not read */
#define IN_BYTES 4096
#define WAY_BYTES 14
#define PROBES_APART_NS (5 * SECOND_NS) /* those that the master wants, at least */

enum stage { AWAY, CONNECTS, PROVES, OPEN };

struct use {
    uint64_t connection, begun_ns, asked_ns;
    int way;       /* -1: none, or not known */
    uint64_t hops; /* a hash of its way's hops */
    bool told;     /* this master has heard of it */
    bool answered; /* by some master */
};

struct pair {
    struct pair *next;
    uint32_t number;
    struct ft_net_address from, to;
    uint64_t probed_ns; /* of the table that it stands for */
    int nways;
    bool told;
    int nuses;
    struct use use[FT_PATHS_CONNECTIONS];
};

struct ft_path_master {
    struct ft_path_master_config config;
    uint64_t job;
    struct ft_net_address address[ADDRESSES];
    int naddresses, next_address;
    enum stage stage;
    int fd;
    struct ft_auth auth;
    uint64_t begun_ns, dialled_ns, retry_at_ns, retry_ns, sent_ns, swept_ns, turned_ns, awake_ns;
    bool said_gone;     /* the log has a line about it */
    bool silent;        /* a connection waited for an answer in vain, and none has come since */
    unsigned char *out; /* [out_room] */
    size_t out_len, out_room;
    unsigned char in[IN_BYTES];
    size_t in_len;
    struct pair *pairs;
    int npairs;
    uint32_t next_number;
    /* What it wants to be probed. */
    bool wants;
    struct ft_net_address want_from, want_to;
    uint64_t probed_ns; /* when that was done last */
};

/* ---- the connection -------------------------------------------------------------------------- */

static const char *name_of(const struct ft_path_master *m, char text[FT_NET_TEXT_BYTES])
{
    return ft_net_text(&m->address[m->next_address], text);
}

/* What the master has heard counts no more. */
static void hang_up(struct ft_path_master *m, const char *why)
{
    char text[FT_NET_TEXT_BYTES];
    uint64_t part; /* ranks do not all come back at the same time */
    if (m->stage == OPEN || !m->said_gone)
        FT_LOG(INFO, "net", m->config.rank,
               "the master of paths at %s is away: connections keep their paths, or choose alone: "
               "%s",
               name_of(m, text), why);
    m->said_gone = true;
    ft_fd_close(&m->fd);
    m->stage = AWAY;
    m->out_len = m->in_len = 0;
    m->wants = false;
    m->next_address = (m->next_address + 1) % m->naddresses;
    m->config.env->random(m->config.env, &part, sizeof(part));
    m->retry_at_ns = ft_now_ns(m->config.env) + m->retry_ns / 2 + part % m->retry_ns;
    m->retry_ns = ft_min(2 * m->retry_ns, RETRY_MOST_NS);
    for (struct pair *p = m->pairs; p != NULL; p = p->next) {
        p->told = false;
        for (int i = 0; i < p->nuses; i++)
            p->use[i].told = false;
    }
}

static void flush(struct ft_path_master *m)
{
    size_t done = 0;
    while (m->stage == OPEN && done < m->out_len) {
        const ssize_t n = send(m->fd, m->out + done, m->out_len - done,
                               MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN)
            return hang_up(m, strerror(errno));
        if (n < 0)
            break;
        done += (size_t)n;
    }
    if (done > 0)
        memmove(m->out, m->out + done, m->out_len - done);
    m->out_len -= done;
}

/* Returns where the message's own bytes go; NULL: there is no connection, or no memory. */
static unsigned char *begin_message(struct ft_path_master *m, enum ft_paths_message type,
                                    size_t len)
{
    const size_t need = m->out_len + FT_DAEMON_HEADER_BYTES + len;
    if (m->stage == OPEN && need > OUT_MOST)
        hang_up(m, "it does not read what it is told");
    if (m->stage != OPEN)
        return NULL;
    if (need > m->out_room) {
        const size_t room = ft_max(need, 2 * m->out_room);
        unsigned char *grown = realloc(m->out, room);
        if (grown == NULL)
            return NULL;
        m->out = grown;
        m->out_room = room;
    }
    unsigned char *at = m->out + m->out_len;
    put32(&at, (uint32_t)len);
    put16(&at, FT_PATHS_SERVICE);
    put16(&at, type);
    m->out_len = need;
    m->sent_ns = ft_now_ns(m->config.env);
    return at;
}

static void greet(struct ft_path_master *m)
{
    char text[FT_NET_TEXT_BYTES];
    m->stage = OPEN;
    m->retry_ns = RETRY_NS;
    m->said_gone = false;
    FT_LOG(INFO, "net", m->config.rank, "the master of paths at %s chooses paths",
           name_of(m, text));
    unsigned char *at = begin_message(m, FT_PATHS_HELLO, 12);
    if (at == NULL)
        return hang_up(m, "no memory");
    put64(&at, m->job);
    put32(&at, (uint32_t)m->config.rank);
    flush(m);
}

static void prove(struct ft_path_master *m)
{
    const int status = ft_auth_turn(&m->auth);
    if (status == FT_OK)
        greet(m);
    else if (status != FT_AGAIN)
        hang_up(m, ft_fail_text());
}

static void connect_to_it(struct ft_path_master *m, uint64_t now_ns)
{
    m->dialled_ns = now_ns;
    if (ft_net_connect(&m->address[m->next_address], NULL, &m->fd) != FT_OK)
        return hang_up(m, ft_fail_text());
    m->stage = CONNECTS;
}

static void finish_connect(struct ft_path_master *m, uint64_t now_ns)
{
    const int status = ft_net_connected(m->fd);
    if (status == FT_AGAIN)
        return;
    if (status != FT_OK)
        return hang_up(m, ft_fail_text());
    ft_auth_start(&m->auth, m->config.env, m->fd, true, m->config.key, ft_process_id(), 0,
                  FT_PURPOSE_SERVICE, FT_DAEMON_VERSION, now_ns + HANDSHAKE_NS);
    m->stage = PROVES;
    prove(m);
}

/* ---- what the master says -------------------------------------------------------------------- */

static struct use *find_use(struct pair *p, uint64_t connection)
{
    for (int i = 0; i < p->nuses; i++)
        if (p->use[i].connection == connection)
            return &p->use[i];
    return NULL;
}

/* Bytes from outside. What belongs to a pair or a connection that is gone is passed over. */
static void take_way(struct ft_path_master *m, const unsigned char *at)
{
    const uint32_t number = get32(&at);
    const uint64_t connection = get64(&at);
    const int way = get16(&at) - 1;
    struct pair *p = m->pairs;
    while (p != NULL && p->number != number)
        p = p->next;
    struct use *use = p != NULL ? find_use(p, connection) : NULL;
    if (use != NULL && way < p->nways) {
        use->way = way;
        use->answered = true;
    }
    m->silent = false;
}

/* One at a time; the master asks again. */
static void take_probe(struct ft_path_master *m, const unsigned char *at)
{
    if (m->wants)
        return;
    m->want_from = ft_paths_address(at, 0);
    at += 16;
    const unsigned char *port = at + 16;
    m->want_to = ft_paths_address(at, get16(&port));
    m->wants = true;
}

static void take_messages(struct ft_path_master *m)
{
    size_t done = 0;
    while (m->in_len - done >= FT_DAEMON_HEADER_BYTES) {
        const unsigned char *at = m->in + done;
        const size_t len = get32(&at);
        const unsigned service = get16(&at), type = get16(&at);
        if (len > IN_BYTES - FT_DAEMON_HEADER_BYTES)
            return hang_up(m, "it sent a message that is too long");
        if (m->in_len - done < FT_DAEMON_HEADER_BYTES + len)
            break;
        if (service == FT_PATHS_SERVICE && type == FT_PATHS_WAY && len == WAY_BYTES)
            take_way(m, at);
        if (service == FT_PATHS_SERVICE && type == FT_PATHS_PROBE && len == FT_PATHS_PROBE_BYTES)
            take_probe(m, at);
        done += FT_DAEMON_HEADER_BYTES + len;
    }
    memmove(m->in, m->in + done, m->in_len - done);
    m->in_len -= done;
}

static void receive(struct ft_path_master *m)
{
    while (m->stage == OPEN) {
        const ssize_t n = recv(m->fd, m->in + m->in_len, IN_BYTES - m->in_len, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0)
            return hang_up(m, n == 0 ? "it closed the connection" : strerror(errno));
        m->in_len += (size_t)n;
        take_messages(m);
    }
}

/* ---- pairs ----------------------------------------------------------------------------------- */

static void tell_dropped(struct ft_path_master *m, const struct pair *p)
{
    unsigned char *at = p->told ? begin_message(m, FT_PATHS_DROP, 4) : NULL;
    if (at != NULL)
        put32(&at, p->number);
}

static void tell_released(struct ft_path_master *m, const struct pair *p, const struct use *use)
{
    unsigned char *at = use->told ? begin_message(m, FT_PATHS_RELEASE, 12) : NULL;
    if (at == NULL)
        return;
    put32(&at, p->number);
    put64(&at, use->connection);
}

static void drop(struct ft_path_master *m, struct pair **at)
{
    struct pair *p = *at;
    tell_dropped(m, p);
    *at = p->next;
    m->npairs--;
    free(p);
}

/* Gives up the connections of which nobody has asked for long, though others were asked for. */
static void sweep(struct ft_path_master *m, uint64_t now_ns)
{
    m->swept_ns = now_ns;
    for (struct pair **at = &m->pairs; *at != NULL;) {
        struct pair *p = *at;
        for (int i = p->nuses - 1; i >= 0; i--) {
            if (now_ns - ft_max(p->use[i].asked_ns, m->awake_ns) < UNUSED_NS)
                continue;
            tell_released(m, p, &p->use[i]);
            p->use[i] = p->use[--p->nuses];
        }
        if (p->nuses == 0)
            drop(m, at);
        else
            at = &p->next;
    }
}

static bool same(const struct ft_net_address *a, const struct ft_net_address *b)
{
    return a->family == b->family && a->port == b->port && a->scope == b->scope &&
           memcmp(a->ip, b->ip, sizeof(a->ip)) == 0;
}

static uint64_t hash_hops(const struct ft_path_table *t, int way)
{
    uint64_t hash = 0;
    for (int hop = 0; hop < t->nhops; hop++)
        hash = ft_hash64(t->classes[way].hop[hop].ip, sizeof(t->classes[way].hop[hop].ip), hash);
    return hash;
}

static int find_way(const struct ft_path_table *t, uint64_t hops)
{
    int way = t->nclasses - 1;
    while (way >= 0 && hash_hops(t, way) != hops)
        way--;
    return way;
}

/* The hosts were probed again: the master hears of the ways as of a new pair. Connections keep
 * theirs, if those are still there. */
static void renew(struct ft_path_master *m, struct pair *p, const struct ft_path_table *t)
{
    tell_dropped(m, p);
    p->number = m->next_number++;
    p->probed_ns = t->probed_ns;
    p->nways = t->nclasses;
    p->told = false;
    for (int i = 0; i < p->nuses; i++) {
        struct use *use = &p->use[i];
        *use = (struct use){.connection = use->connection,
                            .begun_ns = ft_now_ns(m->config.env),
                            .asked_ns = use->asked_ns,
                            .way = use->way >= 0 ? find_way(t, use->hops) : -1,
                            .hops = use->hops};
    }
}

/* NULL: too many, or no memory. */
static struct pair *pair_of(struct ft_path_master *m, const struct ft_path_table *t)
{
    struct pair *p = m->pairs;
    while (p != NULL && (!same(&p->from, &t->from) || !same(&p->to, &t->to)))
        p = p->next;
    if (p != NULL && p->probed_ns != t->probed_ns)
        renew(m, p, t);
    if (p != NULL)
        return p;
    p = m->npairs < FT_PATHS_PAIRS ? calloc(1, sizeof(*p)) : NULL;
    if (p == NULL)
        return NULL;
    *p = (struct pair){.next = m->pairs,
                       .number = m->next_number++,
                       .from = t->from,
                       .to = t->to,
                       .probed_ns = t->probed_ns,
                       .nways = t->nclasses};
    m->pairs = p;
    m->npairs++;
    return p;
}

static struct use *use_of(struct pair *p, uint64_t connection, uint64_t now_ns)
{
    struct use *use = find_use(p, connection);
    if (use == NULL && p->nuses < FT_PATHS_CONNECTIONS) {
        use = &p->use[p->nuses++];
        *use = (struct use){.connection = connection, .begun_ns = now_ns, .way = -1};
    }
    if (use != NULL)
        use->asked_ns = now_ns;
    return use;
}

static void put_hosts(unsigned char **at, const struct ft_net_address *from,
                      const struct ft_net_address *to)
{
    ft_paths_put_ip(*at, from->family, from->ip);
    ft_paths_put_ip(*at + 16, to->family, to->ip);
    *at += 32;
}

static size_t hops_bytes(const struct ft_path_table *t)
{
    return 16 * (size_t)t->nhops * (size_t)t->nclasses;
}

static void put_hops(unsigned char *at, const struct ft_path_table *t)
{
    put_bytes(&at, (uint64_t)t->nhops, 1);
    put16(&at, (uint16_t)t->nclasses);
    for (int way = 0; way < t->nclasses; way++)
        for (int hop = 0; hop < t->nhops; hop++, at += 16)
            ft_paths_put_ip(at, t->to.family, t->classes[way].hop[hop].ip);
}

static void tell_ways(struct ft_path_master *m, struct pair *p, const struct ft_path_table *t)
{
    unsigned char *at = begin_message(m, FT_PATHS_WAYS, FT_PATHS_WAYS_BYTES + hops_bytes(t));
    if (at == NULL)
        return;
    put32(&at, p->number);
    put_hosts(&at, &t->from, &t->to);
    put16(&at, t->to.port);
    put_hops(at, t);
    p->told = true;
}

static bool can_tell(const struct ft_path_table *t)
{
    return t->nhops > 0 && t->nclasses <= FT_PATHS_MOST;
}

/* A new master hears what the connection has. */
static void ask(struct ft_path_master *m, const struct pair *p, struct use *use)
{
    unsigned char *at = p->told ? begin_message(m, FT_PATHS_TAKE, WAY_BYTES) : NULL;
    if (at == NULL)
        return;
    put32(&at, p->number);
    put64(&at, use->connection);
    put16(&at, (uint16_t)(use->way + 1));
    use->told = true;
}

/* ---- what the finder calls ------------------------------------------------------------------- */

static void turn(struct ft_path_master *m)
{
    const uint64_t now_ns = ft_now_ns(m->config.env);
    if (now_ns - m->turned_ns > AWAKE_NS)
        m->awake_ns = now_ns;
    m->turned_ns = now_ns;
    if (m->stage == AWAY && now_ns >= m->retry_at_ns) {
        m->begun_ns = now_ns;
        connect_to_it(m, now_ns);
    }
    if (m->stage == CONNECTS)
        finish_connect(m, now_ns);
    else if (m->stage == PROVES)
        prove(m);
    if ((m->stage == CONNECTS || m->stage == PROVES) && now_ns - m->begun_ns > HANDSHAKE_NS)
        hang_up(m, "it did not answer in time");
    if (m->stage == CONNECTS && now_ns - m->dialled_ns > UNANSWERED_NS) {
        ft_fd_close(&m->fd); /* its way through the network may be broken */
        connect_to_it(m, now_ns);
    }
    receive(m);
    if (now_ns - m->swept_ns > KEEP_NS / 4)
        sweep(m, now_ns);
    if (m->stage == OPEN && now_ns - m->sent_ns > KEEP_NS)
        begin_message(m, FT_PATHS_KEEP, 0);
    flush(m);
}

int ft_path_master_choose(struct ft_path_master *m, const struct ft_path_table *t,
                          uint64_t connection, int *class_index)
{
    turn(m);
    const uint64_t now_ns = ft_now_ns(m->config.env);
    struct pair *p = can_tell(t) ? pair_of(m, t) : NULL;
    struct use *use = p != NULL ? use_of(p, connection, now_ns) : NULL;
    if (use == NULL)
        return FT_NOTSUP;
    if (m->stage == OPEN && !p->told && m->out_len < WAYS_WAIT_MOST)
        tell_ways(m, p, t);
    if (m->stage == OPEN && !use->told)
        ask(m, p, use);
    flush(m);
    if (use->way >= 0) {
        *class_index = use->way;
        use->hops = hash_hops(t, use->way);
        return FT_OK;
    }
    if (now_ns - use->begun_ns >= ANSWER_NS && !use->answered)
        m->silent = true;
    return use->answered || m->silent || m->said_gone ? FT_NOTSUP : FT_AGAIN;
}

bool ft_path_master_wants(struct ft_path_master *m, struct ft_net_address *from,
                          struct ft_net_address *to)
{
    const uint64_t now_ns = ft_now_ns(m->config.env);
    if (!m->wants || (m->probed_ns != 0 && now_ns - m->probed_ns < PROBES_APART_NS))
        return false;
    *from = m->want_from;
    *to = m->want_to;
    return true;
}

void ft_path_master_probed(struct ft_path_master *m, const struct ft_net_address *from,
                           const struct ft_net_address *to, const struct ft_path_table *t)
{
    const bool known = t != NULL && can_tell(t) && t->nclasses > 0;
    if (!m->wants || !same(from, &m->want_from) || !same(to, &m->want_to))
        return; /* it has gone in the meantime */
    m->wants = false;
    m->probed_ns = ft_now_ns(m->config.env);
    unsigned char *at = begin_message(m, FT_PATHS_PROBED,
                                      FT_PATHS_PROBED_BYTES + (known ? hops_bytes(t) : 0));
    if (at == NULL)
        return;
    put_hosts(&at, from, to);
    if (known)
        put_hops(at, t);
    else
        memset(at, 0, 3); /* no hops, no ways */
    flush(m);
}

void ft_path_master_bad(struct ft_path_master *m, const struct ft_path_table *t, int class_index)
{
    struct pair *p = pair_of(m, t);
    unsigned char *at = p != NULL && p->told ? begin_message(m, FT_PATHS_BAD, 6) : NULL;
    if (at == NULL)
        return;
    put32(&at, p->number);
    put16(&at, (uint16_t)class_index);
    flush(m);
}

struct ft_path_master *ft_path_master_open(const struct ft_path_master_config *config)
{
    struct ft_path_master *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return NULL;
    m->config = *config;
    m->fd = -1;
    m->retry_ns = RETRY_NS;
    m->naddresses = ft_net_resolve(config->at, m->address, ADDRESSES);
    if (m->naddresses > 0)
        return m;
    FT_LOG(WARN, "net", config->rank, "there is no master of paths at %s: %s", config->at,
           ft_fail_text());
    free(m);
    return NULL;
}

void ft_path_master_set_job(struct ft_path_master *m, uint64_t job)
{
    m->job = job;
}

void ft_path_master_close(struct ft_path_master *m)
{
    if (m == NULL)
        return;
    ft_fd_close(&m->fd);
    while (m->pairs != NULL) {
        struct pair *next = m->pairs->next;
        free(m->pairs);
        m->pairs = next;
    }
    sodium_memzero(m->config.key, sizeof(m->config.key));
    sodium_memzero(&m->auth, sizeof(m->auth));
    free(m->out);
    free(m);
}
