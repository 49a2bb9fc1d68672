#include "paths.h"

#include "base/wire.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CLIENTS_MOST 8192
#define PAIRS_MOST 100000             /* of all clients */
#define LISTS_MOST 8                  /* answered in an interval */
#define BALANCED_MOST 20000           /* connections that are looked at in an interval */
#define QUEUED_MOST ((size_t)4 << 20) /* bytes of answers that a rank has not read */
#define BAD_NS 60000000000u           /* a way that was bad is tried again */
#define FRESH_NS UINT64_C(2000000000) /* a younger topology is used as it is */

/* ---- clients and pairs ----------------------------------------------------------------------- */

bool paths_grow(void *array, int n, int *room)
{
    if (n < *room)
        return true;
    const int more = *room > 0 ? 2 * *room : 8;
    void **at = array, *grown = realloc(*at, (size_t)more * sizeof(void *));
    if (!grown)
        return false;
    *at = grown;
    *room = more;
    return true;
}

static struct client *client_of(struct paths *p, struct daemon_peer *peer)
{
    void **slot = daemon_peer_slot(peer, DAEMON_PATHS);
    if (*slot)
        return *slot;
    if (p->nclients == CLIENTS_MOST || !paths_grow(&p->client, p->nclients, &p->room))
        return NULL;
    struct client *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->peer = peer;
    p->client[p->nclients++] = c;
    *slot = c;
    return c;
}

static struct pair *find_pair(const struct client *c, uint32_t number)
{
    for (int i = 0; i < c->npairs; i++)
        if (c->pair[i]->number == number)
            return c->pair[i];
    return NULL;
}

static void drop_pair(struct paths *p, struct client *c, const struct pair *pair)
{
    for (int i = 0; i < c->npairs; i++) {
        if (c->pair[i] != pair)
            continue;
        ft_ways_close(c->pair[i]->ways);
        free(c->pair[i]);
        c->pair[i] = c->pair[--c->npairs];
        p->npairs--;
        return;
    }
}

static void free_client(struct paths *p, struct client *c)
{
    while (c->npairs > 0)
        drop_pair(p, c, c->pair[0]);
    free(c->pair);
    free(c);
}

static void on_closed(void *arg, struct daemon_peer *peer)
{
    struct paths *p = arg;
    void **slot = daemon_peer_slot(peer, DAEMON_PATHS);
    for (int i = 0; i < p->nclients; i++) {
        if (p->client[i] != *slot)
            continue;
        free_client(p, p->client[i]);
        p->client[i] = p->client[--p->nclients];
        break;
    }
    *slot = NULL;
}

/* ---- answers --------------------------------------------------------------------------------- */

static void send_way(const struct pair *pair, uint64_t connection, int way)
{
    unsigned char bytes[14], *at = bytes;
    put32(&at, pair->number);
    put64(&at, connection);
    put16(&at, (uint16_t)(way + 1));
    const struct daemon_message m = {DAEMON_PATHS, FT_PATHS_WAY, bytes, sizeof bytes};
    struct daemon_peer *peer = pair->client->peer;
    if (daemon_peer_queued(peer) > QUEUED_MOST || !daemon_peer_send(peer, &m))
        daemon_peer_end(peer, "it does not read what it is told");
}

static void on_moved(void *arg, struct ft_ways *ways, uint64_t connection, int way)
{
    struct paths *p = arg;
    p->moves++;
    send_way(ft_ways_user(ways), connection, way);
}

static void send_done(struct daemon_peer *peer, int status, const char *sentence)
{
    unsigned char bytes[256], *at = bytes;
    size_t len = ft_min(strlen(sentence), sizeof bytes - 4);
    put32(&at, (uint32_t)status);
    memcpy(at, sentence, len);
    const struct daemon_message m = {DAEMON_PATHS, FT_PATHS_DONE, bytes, 4 + len};
    daemon_peer_send(peer, &m);
}

/* ---- what ranks say -------------------------------------------------------------------------- */

static bool take_hello(struct client *c, const unsigned char *at, size_t len)
{
    if (len != 12 || c->said_hello)
        return false;
    c->job = get64(&at);
    c->rank = (int)get32(&at);
    return c->said_hello = true;
}

/* Two complaints of one host are one. It is the host that the connection comes from, whatever the
 * rank says. */
static uint64_t host_of(const struct client *c)
{
    const char *name = daemon_peer_name(c->peer), *port = strrchr(name, ':');
    return ft_hash64(name, port ? (size_t)(port - name) : strlen(name), 0);
}

bool paths_parse_hops(const unsigned char *at, size_t len, struct ft_ways_config *ways)
{
    if (len < 3)
        return false;
    ways->nhops = (int)get_bytes(&at, 1);
    ways->nways = get16(&at);
    ways->hops = at;
    return len == 3 + (size_t)ways->nways * (size_t)ways->nhops * 16;
}

/* Fills the pair's addresses and the ways from a message. */
static bool parse_ways(const unsigned char *at, size_t len, struct pair *pair,
                       struct ft_ways_config *ways)
{
    memcpy(pair->from, at, 16);
    memcpy(pair->to, at + 16, 16);
    at += 32;
    pair->port = get16(&at);
    return paths_parse_hops(at, len - (FT_PATHS_WAYS_BYTES - 3), ways);
}

static bool take_ways(struct paths *p, struct client *c, const unsigned char *at, size_t len)
{
    struct pair *pair = len >= FT_PATHS_WAYS_BYTES ? calloc(1, sizeof *pair) : NULL;
    if (!pair)
        return false;
    *pair = (struct pair){.client = c, .number = get32(&at)};
    const struct pair *before = find_pair(c, pair->number);
    if (before)
        drop_pair(p, c, before);
    struct ft_ways_config config = {
        .owner = host_of(c), .user = pair, .from = pair->from, .to = pair->to};
    if (c->npairs == FT_PATHS_PAIRS || p->npairs == PAIRS_MOST ||
        !paths_grow(&c->pair, c->npairs, &c->room) || !parse_ways(at, len, pair, &config) ||
        ft_ways_open(p->allocator, &config, &pair->ways) != FT_OK) {
        free(pair);
        return false;
    }
    c->pair[c->npairs++] = pair;
    p->npairs++;
    return true;
}

static bool take_take(struct paths *p, const struct client *c, const unsigned char *at, size_t len)
{
    if (len != 14)
        return false;
    const struct pair *pair = find_pair(c, get32(&at));
    const uint64_t connection = get64(&at);
    const int held = get16(&at) - 1;
    int way;
    if (!pair)
        return false;
    p->asked++;
    if (ft_ways_take(pair->ways, connection, held, &way) == FT_OK)
        send_way(pair, connection, way);
    return true; /* one that is too many gets no answer */
}

static bool take_release(const struct client *c, const unsigned char *at, size_t len)
{
    if (len != 12)
        return false;
    const struct pair *pair = find_pair(c, get32(&at));
    if (pair)
        ft_ways_release(pair->ways, get64(&at));
    return true;
}

static bool take_bad(const struct client *c, const unsigned char *at, size_t len)
{
    if (len != 6)
        return false;
    const struct pair *pair = find_pair(c, get32(&at));
    if (pair)
        ft_ways_complain(pair->ways, get16(&at), daemon_now_ns() + BAD_NS);
    return true;
}

static bool take_drop(struct paths *p, struct client *c, const unsigned char *at, size_t len)
{
    if (len != 4)
        return false;
    const struct pair *pair = find_pair(c, get32(&at));
    if (pair)
        drop_pair(p, c, pair);
    return true;
}

static bool take_out(struct paths *p, struct daemon_peer *peer, const struct daemon_message *m)
{
    const bool out = m->type == FT_PATHS_OUT;
    if (m->len != 32)
        return false;
    int status = ft_allocator_set_out(p->allocator, m->bytes, m->bytes + 16, out);
    if (status == FT_OK)
        status = paths_save(p);
    send_done(peer, status, status == FT_OK ? "" : ft_fail_text());
    return true;
}

static bool on_message(void *arg, struct daemon_peer *peer, const struct daemon_message *m)
{
    struct paths *p = arg;
    if (m->type == FT_PATHS_OUT || m->type == FT_PATHS_IN)
        return take_out(p, peer, m);
    if (m->type == FT_PATHS_LIST) {
        if (p->lists++ < LISTS_MOST)
            paths_list(p, peer);
        return true;
    }
    struct client *c = client_of(p, peer);
    if (!c)
        return false;
    switch (m->type) {
    case FT_PATHS_HELLO:
        return take_hello(c, m->bytes, m->len);
    case FT_PATHS_WAYS:
        return take_ways(p, c, m->bytes, m->len);
    case FT_PATHS_TAKE:
        return take_take(p, c, m->bytes, m->len);
    case FT_PATHS_RELEASE:
        return take_release(c, m->bytes, m->len);
    case FT_PATHS_BAD:
        return take_bad(c, m->bytes, m->len);
    case FT_PATHS_DROP:
        return take_drop(p, c, m->bytes, m->len);
    case FT_PATHS_PROBED:
        return paths_mesh_take(p, c, m->bytes, m->len);
    default:
        return m->type == FT_PATHS_KEEP;
    }
}

/* ---- the topology ---------------------------------------------------------------------------- */

const struct ft_topology *paths_topology(struct paths *p)
{
    const uint64_t now_ns = daemon_now_ns();
    if (p->topology && now_ns - p->topology_ns < FRESH_NS)
        return p->topology;
    ft_topology_free(p->topology);
    p->topology = ft_topology_find(p->allocator);
    p->topology_ns = now_ns;
    return p->topology;
}

/* ---- time ------------------------------------------------------------------------------------ */

static void on_tick(void *arg)
{
    struct paths *p = arg;
    p->lists = 0;
    ft_allocator_tick(p->allocator, daemon_now_ns());
    ft_allocator_balance(p->allocator, BALANCED_MOST);
    paths_mesh_turn(p, daemon_now_ns());
}

struct paths *paths_open(struct daemon *d)
{
    struct paths *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->daemon = d;
    p->allocator = ft_allocator_open(on_moved, p);
    if (!p->allocator) {
        free(p);
        return NULL;
    }
    paths_load(p);
    return p;
}

void paths_add(struct paths *p)
{
    const struct daemon_service service = {.number = DAEMON_PATHS,
                                           .name = "paths",
                                           .arg = p,
                                           .message = on_message,
                                           .closed = on_closed,
                                           .tick = on_tick,
                                           .json = paths_json,
                                           .page = paths_page,
                                           .metrics = paths_metrics};
    daemon_add(p->daemon, &service);
}

void paths_close(struct paths *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->nclients; i++)
        free_client(p, p->client[i]);
    free(p->client);
    paths_mesh_close(p);
    ft_topology_free(p->topology);
    ft_allocator_close(p->allocator);
    free(p);
}
