#include "path/topology.h"

#include "path/allocate_parts.h"

#include <limits.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#define NONE (-1)
#define PORTS_OF_A_PROBING 128
#define SURE 12 /* so many ports for each spine leave none out by chance */
#define MISSING_MOST 1024
/* Leaves times spines, and pairs of hosts times spines: in a larger network no link is missing. */
#define MATRIX_MOST (1 << 24)
#define WORK_MOST (1 << 26)

/* A host and where it was seen. */
struct host {
    unsigned char ip[16]; /* must be the first field */
    /* For each port an address of the router that it sends to; none if it does not send. */
    int nfirsts, firsts[FT_TOPOLOGY_PORTS];
};

struct find {
    const struct ft_allocator *a;
    /* Sets of addresses of one router. The first are addresses; then, for each link, the unknown
     * address at which it begins. */
    int *parent;
    int *number; /* of a set: the router's; NONE */
    void *tree;  /* of hosts; see tsearch(3) */
    struct host **host;
    int nhosts, room;
    struct ft_topology *out;
};

/* ---- sets ------------------------------------------------------------------------------------ */

static int set_of(const struct find *f, int element)
{
    while (f->parent[element] != element) {
        f->parent[element] = f->parent[f->parent[element]];
        element = f->parent[element];
    }
    return element;
}

static void join(const struct find *f, int a, int b)
{
    f->parent[set_of(f, a)] = set_of(f, b);
}

static int tail_of(const struct find *f, int link)
{
    return f->a->nrouters + link;
}

static int first_of(const struct ft_ways *w, int way)
{
    return w->hop[way * w->nhops];
}

static int last_of(const struct ft_ways *w, int way)
{
    return w->hop[way * w->nhops + w->nhops - 1];
}

/* ---- hosts ----------------------------------------------------------------------------------- */

static bool is_known(const unsigned char ip[16])
{
    static const unsigned char zeros[16];
    return memcmp(ip, zeros, 16) != 0;
}

static int compare_ips(const void *a, const void *b)
{
    return memcmp(a, b, 16);
}

/* NULL: its address is not known, or no memory. */
static struct host *host_of(struct find *f, const unsigned char ip[16])
{
    struct host *const *found = is_known(ip) ? tfind(ip, &f->tree, compare_ips) : NULL;
    if (found != NULL || !is_known(ip))
        return found != NULL ? *found : NULL;
    if (f->nhosts == f->room) {
        const int room = f->room > 0 ? 2 * f->room : 64;
        void *grown = realloc(f->host, (size_t)room * sizeof(f->host[0]));
        if (grown == NULL)
            return NULL;
        f->host = grown;
        f->room = room;
    }
    struct host *h = malloc(sizeof(*h));
    if (h == NULL)
        return NULL;
    *h = (struct host){.nfirsts = 0};
    memcpy(h->ip, ip, 16);
    if (tsearch(h, &f->tree, compare_ips) == NULL) {
        free(h);
        return NULL;
    }
    return f->host[f->nhosts++] = h;
}

/* ---- which addresses belong to one router ---------------------------------------------------- */

static void join_links(const struct find *f)
{
    for (const struct ft_ways *w = f->a->ways; w != NULL; w = w->next)
        for (int way = 0; way < w->nways; way++)
            for (int i = 0; i < w->nlinks; i++)
                join(f, tail_of(f, ft_ways_link(w, way, i)), w->hop[way * w->nhops + i]);
}

static void note_port(const struct find *f, struct host *h, int address)
{
    for (int i = 0; i < h->nfirsts; i++)
        if (set_of(f, h->firsts[i]) == set_of(f, address))
            return;
    if (h->nfirsts < FT_TOPOLOGY_PORTS)
        h->firsts[h->nfirsts++] = address;
}

static void note_sources(struct find *f)
{
    for (const struct ft_ways *w = f->a->ways; w != NULL; w = w->next) {
        struct host *h = host_of(f, w->from);
        for (int way = 0; h != NULL && way < w->nways; way++)
            note_port(f, h, first_of(w, way));
    }
}

/* Where hosts receive. One that has not sent has one port if those that send to it have. */
static void join_targets(struct find *f)
{
    for (const struct ft_ways *w = f->a->ways; w != NULL; w = w->next) {
        const struct host *from = host_of(f, w->from), *to = host_of(f, w->to);
        if (to == NULL || to->nfirsts > 1 ||
            (to->nfirsts == 0 && from != NULL && from->nfirsts > 1))
            continue;
        for (int way = 0; way < w->nways; way++)
            join(f, last_of(w, way), to->nfirsts > 0 ? to->firsts[0] : last_of(w, 0));
    }
}

/* The address at the other end of the cable of a link; NONE: it was not seen. */
static int partner_of(const struct find *f, const struct link *link)
{
    unsigned char ip[16];
    memcpy(ip, f->a->router[link->to]->ip, 16);
    ip[15] ^= 1;
    struct router *const *found = tfind(ip, &f->a->router_tree, compare_ips);
    return found != NULL ? (*found)->index : NONE;
}

static void join_cables(const struct find *f)
{
    int n = 0;
    for (int i = 0; i < f->a->nlinks; i++)
        n += partner_of(f, f->a->link[i]) != NONE;
    if (f->a->one_address || 4 * n < 3 * f->a->nlinks)
        return;
    for (int i = 0; i < f->a->nlinks; i++) {
        const int partner = partner_of(f, f->a->link[i]);
        /* two neighbours that are known to be of one router are no cable */
        if (partner != NONE && set_of(f, partner) != set_of(f, f->a->link[i]->to))
            join(f, tail_of(f, i), partner);
    }
}

/* ---- routers --------------------------------------------------------------------------------- */

/* The router with this address is as far as that from the nearest end of a way. */
static void place_router(struct find *f, int address, int layer)
{
    int *number = &f->number[set_of(f, address)];
    if (*number == NONE) {
        *number = f->out->nrouters++;
        f->out->router[*number] = (struct ft_topology_router){.layer = layer};
        memset(f->out->router[*number].ip, 0xff, 16);
    }
    struct ft_topology_router *r = &f->out->router[*number];
    const unsigned char *ip = f->a->router[address]->ip;
    r->layer = layer < r->layer ? layer : r->layer;
    if (memcmp(ip, r->ip, 16) < 0)
        memcpy(r->ip, ip, 16);
}

static void place_routers(struct find *f)
{
    for (const struct ft_ways *w = f->a->ways; w != NULL; w = w->next)
        for (int way = 0; way < w->nways; way++)
            for (int i = 0; i < w->nhops; i++)
                place_router(f, w->hop[way * w->nhops + i],
                             i < w->nhops - 1 - i ? i : w->nhops - 1 - i);
}

static int compare_places(const void *a, const void *b)
{
    const struct ft_topology_router *x = *(struct ft_topology_router *const *)a,
                                    *y = *(struct ft_topology_router *const *)b;
    return x->layer != y->layer ? (x->layer > y->layer) - (x->layer < y->layer)
                                : memcmp(x->ip, y->ip, 16);
}

/* Copies the routers to `sorted` in the order of layer and address, and notes the new number of
 * each. */
static void copy_in_order(const struct ft_topology *t, struct ft_topology_router **order,
                          struct ft_topology_router *sorted, int *new_number)
{
    for (int i = 0; i < t->nrouters; i++)
        order[i] = &t->router[i];
    qsort(order, (size_t)t->nrouters, sizeof(*order), compare_places);
    for (int i = 0; i < t->nrouters; i++) {
        const bool follows = i > 0 && sorted[i - 1].layer == order[i]->layer;
        sorted[i] = *order[i];
        sorted[i].place = follows ? sorted[i - 1].place + 1 : 0;
        new_number[order[i] - t->router] = i;
    }
}

/* False: no memory. */
static bool sort_routers(struct find *f)
{
    struct ft_topology *t = f->out;
    const size_t n = (size_t)t->nrouters + 1;
    struct ft_topology_router **order = calloc(n, sizeof(*order));
    struct ft_topology_router *sorted = calloc(n, sizeof(*sorted));
    int *new_number = calloc(n, sizeof(*new_number));
    const bool good = order != NULL && sorted != NULL && new_number != NULL;
    if (good) {
        copy_in_order(t, order, sorted, new_number);
        for (int i = 0; i < f->a->nrouters + f->a->nlinks; i++)
            if (f->number[i] != NONE)
                f->number[i] = new_number[f->number[i]];
        free(t->router);
        t->router = sorted;
    } else {
        free(sorted);
    }
    free(order);
    free(new_number);
    return good;
}

static int number_of(const struct find *f, int element)
{
    return f->number[set_of(f, element)];
}

static void place_links(struct find *f)
{
    struct ft_topology *t = f->out;
    t->nlinks = f->a->nlinks;
    for (int i = 0; i < t->nlinks; i++)
        t->link[i] = (struct ft_topology_link){NONE, NONE};
    for (const struct ft_ways *w = f->a->ways; w != NULL; w = w->next)
        for (int way = 0; way < w->nways; way++)
            for (int i = 0; i < w->nlinks; i++)
                t->link[ft_ways_link(w, way, i)] = (struct ft_topology_link){
                    number_of(f, w->hop[way * w->nhops + i]),
                    number_of(f, w->hop[way * w->nhops + i + 1])};
}

/* In the order of addresses. */
static void place_ports(const struct find *f, const struct host *h, struct ft_topology_host *to)
{
    int sorted[FT_TOPOLOGY_PORTS];
    for (int i = 0; i < h->nfirsts; i++) {
        const unsigned char *ip = f->a->router[h->firsts[i]]->ip;
        int at = i;
        for (; at > 0 && memcmp(ip, f->a->router[sorted[at - 1]]->ip, 16) < 0; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = h->firsts[i];
    }
    to->nports = h->nfirsts;
    for (int i = 0; i < h->nfirsts; i++)
        to->port[i] = number_of(f, sorted[i]);
}

static void place_hosts(struct find *f)
{
    struct ft_topology *t = f->out;
    for (int i = 0; i < f->nhosts; i++) {
        const struct host *h = f->host[i];
        struct ft_topology_host *to = &t->host[t->nhosts++];
        memcpy(to->ip, h->ip, 16);
        to->router = h->nfirsts == 1 ? number_of(f, h->firsts[0]) : NONE;
        place_ports(f, h, to);
    }
    for (const struct ft_ways *w = f->a->ways; w != NULL; w = w->next) {
        struct ft_topology_host *to = bsearch(w->to, t->host, (size_t)t->nhosts, sizeof(*to),
                                              compare_ips);
        struct host *const *seen = tfind(w->to, &f->tree, compare_ips);
        if (to != NULL && seen != NULL && to->router == NONE && (*seen)->nfirsts == 0)
            to->router = number_of(f, last_of(w, 0));
    }
}

/* ---- missing links --------------------------------------------------------------------------- */

/* Links between leaves and spines, from leaves (up) or to them. Each array: [nleaves][nspines]. */
struct grid {
    int nleaves, nspines;
    bool *up, *down; /* the link was seen */
    /* Ports that were probed and did not go this way, though the rest of it was seen. */
    int *up_missed, *down_missed;
};

static bool open_grid(struct grid *g)
{
    const size_t n = (size_t)g->nleaves * (size_t)g->nspines + 1;
    g->up = calloc(n, sizeof(bool));
    g->down = calloc(n, sizeof(bool));
    g->up_missed = calloc(n, sizeof(int));
    g->down_missed = calloc(n, sizeof(int));
    return g->up != NULL && g->down != NULL && g->up_missed != NULL && g->down_missed != NULL;
}

static void close_grid(struct grid *g)
{
    free(g->up);
    free(g->down);
    free(g->up_missed);
    free(g->down_missed);
}

/* The place of a link in the grid; -1: it does not join a leaf and a spine. */
static int place_of(const struct grid *g, int leaf, int router)
{
    const int spine = router - g->nleaves;
    const bool joins = leaf >= 0 && leaf < g->nleaves && spine >= 0 && spine < g->nspines;
    return joins ? leaf * g->nspines + spine : NONE;
}

static void note_links(const struct ft_topology *t, struct grid *g)
{
    for (int i = 0; i < t->nlinks; i++) {
        const int up = place_of(g, t->link[i].from, t->link[i].to),
                  down = place_of(g, t->link[i].to, t->link[i].from);
        if (up != NONE)
            g->up[up] = true;
        if (down != NONE)
            g->down[down] = true;
    }
}

static bool uses(const struct find *f, const struct ft_ways *w, int spine)
{
    for (int way = 0; way < w->nways; way++)
        if (number_of(f, w->hop[way * w->nhops + 1]) == spine)
            return true;
    return false;
}

/* A spine that is joined to one of the leaves and is not used lacks its link to the other one. */
static void note_missed(const struct find *f, const struct ft_ways *w, struct grid *g)
{
    const int from = number_of(f, first_of(w, 0)), to = number_of(f, last_of(w, 0));
    if (w->nhops != 3 || from == to)
        return;
    for (int spine = g->nleaves; spine < g->nleaves + g->nspines; spine++) {
        const int up = place_of(g, from, spine), down = place_of(g, to, spine);
        if (up == NONE || down == NONE || g->up[up] == g->down[down] || uses(f, w, spine))
            continue;
        int *missed = g->up[up] ? &g->down_missed[down] : &g->up_missed[up];
        *missed += *missed < INT_MAX / 2 ? PORTS_OF_A_PROBING : 0;
    }
}

static void add_missing(struct ft_topology *t, int from, int to)
{
    if (t->nmissing < MISSING_MOST)
        t->missing[t->nmissing++] = (struct ft_topology_link){from, to};
}

static void list_missing(struct ft_topology *t, const struct grid *g)
{
    for (int leaf = 0; leaf < g->nleaves; leaf++)
        for (int spine = g->nleaves; spine < g->nleaves + g->nspines; spine++) {
            const int place = place_of(g, leaf, spine);
            if (g->up_missed[place] >= SURE * g->nspines)
                add_missing(t, leaf, spine);
            if (g->down_missed[place] >= SURE * g->nspines)
                add_missing(t, spine, leaf);
        }
}

/* Routers are in the order of their layers. False: no memory. */
static bool find_missing(struct find *f)
{
    struct ft_topology *t = f->out;
    struct grid g = {0};
    while (g.nleaves < t->nrouters && t->router[g.nleaves].layer == 0)
        g.nleaves++;
    while (g.nleaves + g.nspines < t->nrouters && t->router[g.nleaves + g.nspines].layer == 1)
        g.nspines++;
    int64_t pairs = 0;
    for (const struct ft_ways *w = f->a->ways; w != NULL; w = w->next)
        pairs++;
    if ((int64_t)g.nleaves * g.nspines > MATRIX_MOST || pairs * g.nspines > WORK_MOST)
        return true;
    const bool good = open_grid(&g);
    if (good) {
        note_links(t, &g);
        for (const struct ft_ways *w = f->a->ways; w != NULL; w = w->next)
            note_missed(f, w, &g);
        list_missing(t, &g);
    }
    close_grid(&g);
    return good;
}

/* ---- making a topology ----------------------------------------------------------------------- */

static int compare_hosts(const void *a, const void *b)
{
    return compare_ips(*(struct host *const *)a, *(struct host *const *)b);
}

static bool allocate(struct find *f)
{
    const size_t n = (size_t)f->a->nrouters + (size_t)f->a->nlinks + 1;
    struct ft_topology *t = f->out;
    f->parent = calloc(n, sizeof(int));
    f->number = calloc(n, sizeof(int));
    t->router = calloc((size_t)f->a->nrouters + 1, sizeof(t->router[0]));
    t->link = calloc((size_t)f->a->nlinks + 1, sizeof(t->link[0]));
    t->located = calloc((size_t)f->a->nrouters + 1, sizeof(t->located[0]));
    t->missing = calloc(MISSING_MOST, sizeof(t->missing[0]));
    if (f->parent == NULL || f->number == NULL || t->router == NULL || t->link == NULL ||
        t->located == NULL || t->missing == NULL)
        return false;
    for (size_t i = 0; i < n; i++) {
        f->parent[i] = (int)i;
        f->number[i] = NONE;
    }
    return true;
}

static bool find(struct find *f)
{
    if (!allocate(f))
        return false;
    join_links(f);
    note_sources(f);
    join_targets(f);
    join_cables(f);
    f->out->host = calloc((size_t)f->nhosts + 1, sizeof(f->out->host[0]));
    if (f->out->host == NULL)
        return false;
    if (f->nhosts > 0)
        qsort(f->host, (size_t)f->nhosts, sizeof(f->host[0]), compare_hosts);
    place_routers(f);
    if (!sort_routers(f))
        return false;
    place_links(f);
    place_hosts(f);
    f->out->naddresses = f->a->nrouters;
    for (int i = 0; i < f->a->nrouters; i++)
        f->out->located[i] = number_of(f, i);
    return find_missing(f);
}

struct ft_topology *ft_topology_find(const struct ft_allocator *a)
{
    struct find f = {.a = a, .out = calloc(1, sizeof(*f.out))};
    const bool good = f.out != NULL && find(&f);
    tdestroy(f.tree, free);
    free(f.host);
    free(f.parent);
    free(f.number);
    if (good)
        return f.out;
    ft_topology_free(f.out);
    return NULL;
}

void ft_topology_free(struct ft_topology *t)
{
    if (t == NULL)
        return;
    free(t->router);
    free(t->link);
    free(t->host);
    free(t->missing);
    free(t->located);
    free(t);
}

/* ---- ports ----------------------------------------------------------------------------------- */

static const struct ft_topology_host *find_host(const struct ft_topology *t,
                                                const unsigned char ip[16])
{
    return bsearch(ip, t->host, (size_t)t->nhosts, sizeof(t->host[0]), compare_ips);
}

/* The number of the port that is joined to the router with this address; NONE: not known. The
 * address may be younger than the topology. */
static int port_at(const struct ft_topology *t, const struct ft_topology_host *h, int address)
{
    const int router = address < t->naddresses ? t->located[address] : NONE;
    for (int i = 0; i < h->nports && router != NONE; i++)
        if (h->port[i] == router)
            return i;
    return NONE;
}

/* Says which ways lead to a port of another number. False: it is not known of all, or a port would
 * be left without a way. */
static bool find_crossing(const struct ft_topology *t, const struct ft_ways *w, bool *crosses)
{
    const struct ft_topology_host *from = find_host(t, w->from), *to = find_host(t, w->to);
    int straight[FT_TOPOLOGY_PORTS] = {0};
    if (from == NULL || to == NULL || from->nports < 2 || to->nports != from->nports)
        return false;
    for (int way = 0; way < w->nways; way++) {
        const int a = port_at(t, from, first_of(w, way)), b = port_at(t, to, last_of(w, way));
        if (a == NONE || b == NONE)
            return false;
        crosses[way] = a != b;
        straight[a] += a == b;
    }
    for (int i = 0; i < from->nports; i++)
        if (straight[i] == 0)
            return false;
    return true;
}

void ft_topology_keep_ports_apart(const struct ft_topology *t, struct ft_allocator *a)
{
    bool crosses[FT_PATHS_MOST];
    for (struct ft_ways *w = a->ways; w != NULL; w = w->next) {
        const size_t n = (size_t)w->nways * sizeof(crosses[0]);
        if (!find_crossing(t, w, crosses) || memcmp(w->crosses, crosses, n) == 0)
            continue;
        memcpy(w->crosses, crosses, n);
        a->changed = true;
    }
}
