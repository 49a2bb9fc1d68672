/*
 * Completes the catalogue: connections show only the ways between hosts that talk to each other. Of
 * each two leaves between which no ways are known, a rank of one is asked to probe a host of the
 * other. So a link that is broken is known before a job needs it, and the map is whole. What was
 * probed is probed again after a while.
 */
#include "paths.h"

#include "base/wire.h"

#include <stdlib.h>
#include <string.h>

#define SECOND_NS UINT64_C(1000000000)
#define LOOK_NS (5 * SECOND_NS)
#define ANSWER_NS (60 * SECOND_NS) /* a rank that has not answered for so long is asked again */
#define OLD_NS (600 * SECOND_NS)   /* what was probed so long ago is probed again */
#define ASKED_MOST 64              /* ranks that are asked in one look */
#define LEAVES_MOST 2048           /* of a larger network nothing is probed */
#define PROBED_MOST 65536

static void drop(struct paths *p, int i)
{
    ft_ways_close(p->probed[i]->ways);
    free(p->probed[i]);
    p->probed[i] = p->probed[--p->nprobed];
}

void paths_mesh_close(struct paths *p)
{
    while (p->nprobed > 0)
        drop(p, p->nprobed - 1);
    free(p->probed);
    p->probed = NULL;
}

/* ---- what should be probed ------------------------------------------------------------------- */

struct mesh {
    const struct ft_topology *t;
    int nleaves;
    bool *known; /* [nleaves][nleaves] ways from one to the other, or it is asked for */
    const struct pair **target; /* [nleaves] one whose `to` is there; NULL: none */
};

static int compare_ips(const void *a, const void *b)
{
    return memcmp(a, b, 16);
}

/* -1: it is not known. */
static int leaf_of(const struct mesh *m, const unsigned char ip[16])
{
    const struct ft_topology_host *host = bsearch(ip, m->t->host, (size_t)m->t->nhosts,
                                                  sizeof *host, compare_ips);
    return host && host->router < m->nleaves ? host->router : -1;
}

static void set_known(const struct mesh *m, const unsigned char from[16],
                      const unsigned char to[16])
{
    const int a = leaf_of(m, from), b = leaf_of(m, to);
    if (a >= 0 && b >= 0)
        m->known[a * m->nleaves + b] = true;
}

static void note_pairs(const struct paths *p, struct mesh *m)
{
    for (int i = 0; i < p->nprobed; i++)
        set_known(m, p->probed[i]->from, p->probed[i]->to);
    for (int i = 0; i < p->nclients; i++) {
        const struct client *c = p->client[i];
        if (c->asked_ns != 0)
            set_known(m, c->asked_from, c->asked_to);
        for (int k = 0; k < c->npairs; k++) {
            const struct pair *pair = c->pair[k];
            const int to = leaf_of(m, pair->to);
            set_known(m, pair->from, pair->to);
            if (to >= 0 && !m->target[to])
                m->target[to] = pair;
        }
    }
}

/* The next leaf after its own to which no ways are known, and that has a host; -1: there is none.
 */
static int next_leaf(const struct mesh *m, int from)
{
    for (int i = 1; i < m->nleaves; i++) {
        const int to = (from + i) % m->nleaves;
        if (!m->known[from * m->nleaves + to] && m->target[to])
            return to;
    }
    return -1;
}

static void ask(struct client *c, const unsigned char from[16], const struct pair *target,
                uint64_t now_ns)
{
    unsigned char bytes[FT_PATHS_PROBE_BYTES], *at = bytes + 32;
    memcpy(c->asked_from, from, 16);
    memcpy(c->asked_to, target->to, 16);
    c->asked_ns = now_ns;
    memcpy(bytes, from, 16);
    memcpy(bytes + 16, target->to, 16);
    put16(&at, target->port);
    const struct daemon_message m = {DAEMON_PATHS, FT_PATHS_PROBE, bytes, sizeof bytes};
    daemon_peer_send(c->peer, &m);
}

/* Asks a rank for what is not known of its leaf, unless an answer of it is due. */
static bool ask_client(const struct mesh *m, struct client *c, uint64_t now_ns)
{
    if (c->asked_ns != 0 && now_ns - c->asked_ns >= ANSWER_NS)
        c->asked_ns = 0;
    if (c->asked_ns != 0 || c->npairs == 0)
        return false;
    const int from = leaf_of(m, c->pair[0]->from), to = from >= 0 ? next_leaf(m, from) : -1;
    if (to < 0)
        return false;
    m->known[from * m->nleaves + to] = true;
    ask(c, c->pair[0]->from, m->target[to], now_ns);
    return true;
}

static void ask_clients(struct paths *p, struct mesh *m, uint64_t now_ns)
{
    note_pairs(p, m);
    for (int i = 0, asked = 0; i < p->nclients && asked < ASKED_MOST; i++)
        asked += ask_client(m, p->client[i], now_ns);
}

void paths_mesh_turn(struct paths *p, uint64_t now_ns)
{
    if (now_ns - p->mesh_ns < LOOK_NS || p->nclients == 0)
        return;
    p->mesh_ns = now_ns;
    for (int i = p->nprobed - 1; i >= 0; i--)
        if (now_ns - p->probed[i]->probed_ns >= OLD_NS)
            drop(p, i);
    struct mesh m = {.t = paths_topology(p)};
    if (m.t)
        ft_topology_keep_ports_apart(m.t, p->allocator);
    while (m.t && m.nleaves < m.t->nrouters && m.t->router[m.nleaves].layer == 0)
        m.nleaves++;
    if (m.nleaves < 2 || m.nleaves > LEAVES_MOST)
        return;
    m.known = calloc((size_t)m.nleaves * (size_t)m.nleaves, sizeof *m.known);
    m.target = calloc((size_t)m.nleaves, sizeof *m.target);
    if (m.known && m.target)
        ask_clients(p, &m, now_ns);
    free(m.known);
    free(m.target);
}

/* ---- what was probed ------------------------------------------------------------------------- */

static void forget_same(struct paths *p, const struct client *c)
{
    for (int i = p->nprobed - 1; i >= 0; i--)
        if (memcmp(p->probed[i]->from, c->asked_from, 16) == 0 &&
            memcmp(p->probed[i]->to, c->asked_to, 16) == 0)
            drop(p, i);
}

/* Also if nothing was learned, so that it is not asked for again at once. */
static bool keep(struct paths *p, const struct client *c, struct ft_ways_config *config)
{
    struct pair *pair = p->nprobed < PROBED_MOST &&
                                paths_grow(&p->probed, p->nprobed, &p->probed_room)
                            ? calloc(1, sizeof *pair)
                            : NULL;
    if (!pair)
        return true;
    *pair = (struct pair){.probed_ns = daemon_now_ns()};
    memcpy(pair->from, c->asked_from, 16);
    memcpy(pair->to, c->asked_to, 16);
    config->from = pair->from;
    config->to = pair->to;
    config->user = pair;
    if (config->nways > 0 && ft_ways_open(p->allocator, config, &pair->ways) == FT_INVAL) {
        free(pair);
        return false;
    }
    p->probed[p->nprobed++] = pair;
    return true;
}

bool paths_mesh_take(struct paths *p, struct client *c, const unsigned char *at, size_t len)
{
    struct ft_ways_config config = {0};
    if (len < FT_PATHS_PROBED_BYTES || !paths_parse_hops(at + 32, len - 32, &config))
        return false;
    if (c->asked_ns == 0 || memcmp(at, c->asked_from, 16) != 0 ||
        memcmp(at + 16, c->asked_to, 16) != 0)
        return true; /* it is late */
    c->asked_ns = 0;
    forget_same(p, c);
    return keep(p, c, &config);
}
