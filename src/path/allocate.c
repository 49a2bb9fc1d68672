#include "path/allocate_parts.h"

#include <limits.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#define SEEN_MOST (1 << 18) /* routers, and links, of the whole network */
#define RULES_MOST 1024
#define HOPS_MOST (1 << 25) /* of all ways: 256 MiB, and a second to look at all */
#define CHAIN_MOST 16       /* connections that move so that one finds a better way */
#define TRIED_MOST 16       /* connections of a link that are considered for that */
#define LOOKED_MOST 200000  /* connections that are looked at for chains in one call, */
#define CHAINS_MOST 256     /* and chains that are tried */

/* ---- routers and links ----------------------------------------------------------------------- */

static int compare_routers(const void *a, const void *b)
{
    return memcmp(a, b, 16);
}

static int compare_links(const void *a, const void *b)
{
    const struct link *x = a, *y = b;
    return x->from != y->from ? (x->from > y->from) - (x->from < y->from)
                              : (x->to > y->to) - (x->to < y->to);
}

/* Makes room for one more pointer in an array that doubles at powers of two. */
static bool grow(void **array, int n)
{
    if (n > 0 && (n & (n - 1)) != 0)
        return true;
    void *grown = realloc(*array, (n > 0 ? 2 * (size_t)n : 1) * sizeof(void *));
    if (grown != NULL)
        *array = grown;
    return grown != NULL;
}

/* Finds what equals `key`, or adds a copy of it. NULL: no memory, or too many. */
static void *find_or_add(void **tree, void **array, int *n, const void *key, size_t bytes,
                         int (*compare)(const void *, const void *))
{
    void *const *found = tfind(key, tree, compare);
    if (found != NULL)
        return *found;
    if (*n == SEEN_MOST)
        return NULL;
    void *copy = malloc(bytes);
    if (copy == NULL || !grow(array, *n) ||
        tsearch(memcpy(copy, key, bytes), tree, compare) == NULL) {
        free(copy);
        return NULL;
    }
    ((void **)*array)[(*n)++] = copy;
    return copy;
}

static struct router *router_of(struct ft_allocator *a, const unsigned char ip[16])
{
    struct router key = {.index = a->nrouters};
    memcpy(key.ip, ip, 16);
    return find_or_add(&a->router_tree, (void **)&a->router, &a->nrouters, &key, sizeof(key),
                       compare_routers);
}

static bool is_out(const struct ft_allocator *a, const struct link *link)
{
    static const unsigned char any[16];
    for (int i = 0; i < a->nrules; i++) {
        const struct rule *rule = &a->rule[i];
        const bool from = memcmp(rule->from, any, 16) == 0 ||
                          (link->from >= 0 &&
                           memcmp(rule->from, a->router[link->from]->ip, 16) == 0);
        if (from && memcmp(rule->to, a->router[link->to]->ip, 16) == 0)
            return true;
    }
    return false;
}

/* -1: as above. */
static int link_of(struct ft_allocator *a, int from, int to)
{
    struct link key = {.from = a->one_address ? from : -1, .to = to, .index = a->nlinks};
    if (tfind(&key, &a->link_tree, compare_links) == NULL)
        key.out = is_out(a, &key);
    const struct link *found = find_or_add(&a->link_tree, (void **)&a->link, &a->nlinks, &key,
                                           sizeof(key), compare_links);
    return found != NULL ? found->index : -1;
}

/* ---- ways ------------------------------------------------------------------------------------ */

static int *links_of(const struct ft_ways *w, int way)
{
    return &w->link[way * w->nlinks];
}

static void count(struct ft_ways *w, int way, int connections)
{
    for (int i = 0; way >= 0 && i < w->nlinks; i++)
        w->allocator->link[links_of(w, way)[i]]->connections += connections;
}

static int complaints_of(const struct link *link)
{
    int n = 0;
    for (int i = 0; i < BAD_FOR_ALL; i++)
        n += link->complaint[i].until_ns != 0;
    return n;
}

/* An owner's complaint takes the place of its last one, or of the one that ends first. */
static void complain_of_link(struct link *link, uint64_t owner, uint64_t until_ns)
{
    struct complaint *place = &link->complaint[0];
    for (int i = 0; i < BAD_FOR_ALL; i++) {
        struct complaint *c = &link->complaint[i];
        if (c->until_ns != 0 && c->owner == owner) {
            place = c;
            break;
        }
        if (c->until_ns < place->until_ns)
            place = c;
    }
    *place = (struct complaint){owner, until_ns};
}

static void complain_of_links(struct ft_ways *w, int way)
{
    struct ft_allocator *a = w->allocator;
    for (int i = 0; i < w->nlinks; i++)
        complain_of_link(a->link[links_of(w, way)[i]], w->owner, w->bad_until_ns[way]);
    a->changed = true;
}

/* Which ways a pair of hosts may have now: over bad links only if there are no others. */
enum choice { GOOD_LINKS, ALL_LINKS };

static bool is_allowed(const struct ft_ways *w, int way, enum choice choice)
{
    if (w->bad_until_ns[way] != 0 || w->crosses[way])
        return false;
    for (int i = 0; i < w->nlinks; i++) {
        const struct link *link = w->allocator->link[links_of(w, way)[i]];
        if (link->out || (choice == GOOD_LINKS && complaints_of(link) == BAD_FOR_ALL))
            return false;
    }
    return true;
}

static enum choice choice_of(const struct ft_ways *w)
{
    for (int way = 0; way < w->nways; way++)
        if (is_allowed(w, way, GOOD_LINKS))
            return GOOD_LINKS;
    return ALL_LINKS;
}

/* How many connections more than needed the links of a way have: each is compared with the link
 * that has fewest at the same hop of the allowed ways. Some leaves have more to send than others.
 */
struct cost {
    int most, all;
};

static int load_of(const struct ft_ways *w, int way, int hop)
{
    return w->allocator->link[links_of(w, way)[hop]]->connections;
}

static void find_least(const struct ft_ways *w, enum choice choice, int least[FT_PATH_HOPS])
{
    for (int i = 0; i < w->nlinks; i++)
        least[i] = INT_MAX;
    for (int way = 0; way < w->nways; way++) {
        if (!is_allowed(w, way, choice))
            continue;
        for (int i = 0; i < w->nlinks; i++)
            if (load_of(w, way, i) < least[i])
                least[i] = load_of(w, way, i);
    }
}

static struct cost cost_of(const struct ft_ways *w, int way, const int least[FT_PATH_HOPS])
{
    struct cost cost = {0, 0};
    for (int i = 0; i < w->nlinks; i++) {
        const int more = load_of(w, way, i) - least[i];
        cost.most = more > cost.most ? more : cost.most;
        cost.all += more;
    }
    return cost;
}

static bool is_less(struct cost a, struct cost b)
{
    return a.most != b.most ? a.most < b.most : a.all < b.all;
}

/* The best way; among equals the next after a place that depends on the connection. -1: none is
 * allowed. */
static int best_way(const struct ft_ways *w, uint64_t connection, enum choice choice,
                    const int least[FT_PATH_HOPS])
{
    const int first = (int)(ft_hash64(&connection, sizeof(connection), 0) % (uint64_t)w->nways);
    struct cost lowest = {0, 0};
    int best = -1;
    for (int i = 0; i < w->nways; i++) {
        const int way = (first + i) % w->nways;
        if (!is_allowed(w, way, choice))
            continue;
        const struct cost cost = cost_of(w, way, least);
        if (best < 0 || is_less(cost, lowest)) {
            best = way;
            lowest = cost;
        }
    }
    return best;
}

static int choose(const struct ft_ways *w, uint64_t connection, enum choice choice)
{
    int least[FT_PATH_HOPS];
    find_least(w, choice, least);
    return best_way(w, connection, choice, least);
}

static void put_on(struct ft_ways *w, struct connection *c, int way)
{
    count(w, c->way, -1);
    c->way = way;
    count(w, c->way, 1);
}

static void move_to(struct ft_ways *w, struct connection *c, int way)
{
    put_on(w, c, way);
    w->allocator->moved(w->allocator->arg, w, c->id, way);
}

/* Moves the connections whose ways are not allowed any more. */
static void leave_forbidden(struct ft_ways *w)
{
    const enum choice choice = choice_of(w);
    for (int i = 0; i < w->nconnections; i++) {
        struct connection *c = &w->connection[i];
        if (c->way >= 0 && is_allowed(w, c->way, choice))
            continue;
        const int way = choose(w, c->id, choice);
        if (way != c->way)
            move_to(w, c, way);
    }
}

static void all_leave_forbidden(struct ft_allocator *a)
{
    for (struct ft_ways *w = a->ways; w != NULL; w = w->next)
        leave_forbidden(w);
}

/* ---- ports ----------------------------------------------------------------------------------- */

/* The routers of one hop of all ways, each once, in the order of their addresses. Returns their
 * number. */
static int list_routers(const struct ft_ways *w, int hop, int out[FT_PATHS_MOST])
{
    struct ft_allocator *a = w->allocator;
    int n = 0;
    for (int way = 0; way < w->nways; way++) {
        const int router = w->hop[way * w->nhops + hop];
        int at = 0, order = 1;
        while (at < n && (order = compare_routers(a->router[out[at]], a->router[router])) < 0)
            at++;
        if (at < n && order == 0)
            continue;
        memmove(&out[at + 1], &out[at], (size_t)(n - at) * sizeof(out[0]));
        out[at] = router;
        n++;
    }
    return n;
}

static int index_in(const int *list, int n, int router)
{
    int at = 0;
    while (at < n && list[at] != router)
        at++;
    return at;
}

/* Says which ways lead from a port to one of another number. If some port would be left without a
 * way, all ways are good. */
static void mark_crossing(struct ft_ways *w)
{
    int first[FT_PATHS_MOST], last[FT_PATHS_MOST], straight[FT_PATHS_MOST] = {0};
    const int n = w->nhops > 1 ? list_routers(w, 0, first) : 0;
    bool all = n > 1 && n == list_routers(w, w->nhops - 1, last);
    for (int way = 0; all && way < w->nways; way++) {
        const int from = index_in(first, n, w->hop[way * w->nhops]);
        w->crosses[way] = from != index_in(last, n, w->hop[way * w->nhops + w->nhops - 1]);
        straight[from] += !w->crosses[way];
    }
    for (int i = 0; i < n; i++)
        all &= straight[i] > 0;
    if (!all)
        memset(w->crosses, 0, (size_t)w->nways * sizeof(w->crosses[0]));
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool find_links(struct ft_ways *w)
{
    for (int way = 0; way < w->nways; way++)
        for (int i = 0; i < w->nlinks; i++) {
            const int *hop = &w->hop[way * w->nhops + i];
            if ((links_of(w, way)[i] = link_of(w->allocator, hop[0], hop[1])) < 0)
                return false;
        }
    return true;
}

/* It turned out that routers answer by one address each. What was counted by interfaces is counted
 * again. False: no memory, and counting goes on by interfaces. */
static bool count_pairs_of_routers(struct ft_allocator *a)
{
    const int before = a->nlinks;
    struct ft_ways *w = a->ways;
    a->one_address = true;
    for (; w != NULL; w = w->next)
        for (int way = 0; way < w->nways; way++)
            for (int i = 0; i < w->nlinks; i++)
                if (link_of(a, w->hop[way * w->nhops + i], w->hop[way * w->nhops + i + 1]) < 0) {
                    a->one_address = false;
                    return false;
                }
    for (int i = 0; i < before; i++)
        a->link[i]->connections = 0;
    for (w = a->ways; w != NULL; w = w->next) {
        find_links(w);
        for (int i = 0; i < w->nconnections; i++)
            count(w, w->connection[i].way, 1);
        for (int way = 0; w->nbad > 0 && way < w->nways; way++)
            if (w->bad_until_ns[way] != 0)
                complain_of_links(w, way);
    }
    return true;
}

/* Says whether a router answers as the first and as the last one of ways: then it has one
 * address. */
static bool learn_hops(struct ft_ways *w, const unsigned char *hops)
{
    bool both = false;
    for (int i = 0; i < w->nways * w->nhops; i++) {
        struct router *router = router_of(w->allocator, hops + 16 * i);
        if (router == NULL)
            return false;
        router->first |= w->nhops > 1 && i % w->nhops == 0;
        router->last |= w->nhops > 1 && i % w->nhops == w->nhops - 1;
        both |= router->first && router->last;
        w->hop[i] = router->index;
    }
    return !both || w->allocator->one_address || count_pairs_of_routers(w->allocator);
}

/* Memory for ways. NULL: there is none. */
static struct ft_ways *make_ways(struct ft_allocator *a, const struct ft_ways_config *c)
{
    const size_t n = (size_t)c->nways, nlinks = (size_t)c->nhops - 1;
    struct ft_ways *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return NULL;
    *w = (struct ft_ways){.allocator = a,
                          .user = c->user,
                          .owner = c->owner,
                          .nways = c->nways,
                          .nhops = c->nhops,
                          .nlinks = (int)nlinks,
                          .hop = calloc(n * (nlinks + 1), sizeof(int)),
                          .link = calloc(n * (nlinks + 1), sizeof(int)),
                          .crosses = calloc(n, sizeof(bool)),
                          .bad_until_ns = calloc(n, sizeof(uint64_t))};
    if (c->from != NULL)
        memcpy(w->from, c->from, 16);
    if (c->to != NULL)
        memcpy(w->to, c->to, 16);
    if (w->hop != NULL && w->link != NULL && w->crosses != NULL && w->bad_until_ns != NULL)
        return w;
    ft_ways_close(w);
    return NULL;
}

static void list_ways(struct ft_ways *w)
{
    struct ft_allocator *a = w->allocator;
    w->next = a->ways;
    if (w->next != NULL)
        w->next->at = &w->next;
    w->at = &a->ways;
    a->ways = w;
    a->nhops += (int64_t)w->nways * w->nhops;
}

int ft_ways_open(struct ft_allocator *a, const struct ft_ways_config *c, struct ft_ways **out)
{
    if (c->nways < 1 || c->nways > FT_PATHS_MOST || c->nhops < 1 || c->nhops > FT_PATH_HOPS)
        return ft_fail(FT_INVAL, "%d ways of %d hops", c->nways, c->nhops);
    if (a->nhops + (int64_t)c->nways * c->nhops > HOPS_MOST)
        return ft_fail(FT_INVAL, "the ways of all hosts have more than %d hops", HOPS_MOST);
    struct ft_ways *w = make_ways(a, c);
    if (w == NULL || !learn_hops(w, c->hops) || !find_links(w)) {
        ft_ways_close(w);
        return ft_fail(FT_NOMEM, "no memory for %d ways", c->nways);
    }
    mark_crossing(w);
    list_ways(w);
    *out = w;
    return FT_OK;
}

static void unlink_ways(struct ft_ways *w)
{
    struct ft_allocator *a = w->allocator;
    a->nhops -= (int64_t)w->nways * w->nhops;
    *w->at = w->next;
    if (w->next != NULL)
        w->next->at = w->at;
    if (a->next_balanced == w) {
        a->next_balanced = w->next;
        a->next_connection = 0;
    }
}

void ft_ways_close(struct ft_ways *w)
{
    if (w == NULL)
        return;
    for (int i = 0; i < w->nconnections; i++)
        count(w, w->connection[i].way, -1);
    if (w->at != NULL)
        unlink_ways(w);
    free(w->hop);
    free(w->link);
    free(w->crosses);
    free(w->bad_until_ns);
    free(w->connection);
    free(w);
}

void *ft_ways_user(const struct ft_ways *w)
{
    return w->user;
}

int ft_ways_connections(const struct ft_ways *w)
{
    return w->nconnections;
}

int ft_ways_connection(const struct ft_ways *w, int i, uint64_t *connection)
{
    *connection = w->connection[i].id;
    return w->connection[i].way;
}

int ft_ways_link(const struct ft_ways *w, int way, int i)
{
    return i < w->nlinks ? links_of(w, way)[i] : -1;
}

/* ---- connections ----------------------------------------------------------------------------- */

static struct connection *find(const struct ft_ways *w, uint64_t connection)
{
    for (int i = 0; i < w->nconnections; i++)
        if (w->connection[i].id == connection)
            return &w->connection[i];
    return NULL;
}

static struct connection *add(struct ft_ways *w, uint64_t connection)
{
    if (w->nconnections == w->room) {
        const int room = w->room > 0 ? 2 * w->room : 8;
        void *grown = realloc(w->connection, (size_t)room * sizeof(w->connection[0]));
        if (grown == NULL)
            return NULL;
        w->connection = grown;
        w->room = room;
    }
    struct connection *c = &w->connection[w->nconnections++];
    *c = (struct connection){connection, -1};
    return c;
}

int ft_ways_take(struct ft_ways *w, uint64_t connection, int held, int *way)
{
    struct connection *c = find(w, connection);
    const enum choice choice = choice_of(w);
    if (c == NULL && w->nconnections == FT_PATHS_CONNECTIONS)
        return ft_fail(FT_INVAL, "two hosts have more than %d connections", FT_PATHS_CONNECTIONS);
    if (c == NULL)
        c = add(w, connection);
    if (c == NULL)
        return ft_fail(FT_NOMEM, "no memory for a connection");
    const bool keeps = held >= 0 && held < w->nways && is_allowed(w, held, choice);
    if (c->way < 0)
        put_on(w, c, keeps ? held : choose(w, connection, choice));
    *way = c->way;
    return FT_OK;
}

void ft_ways_release(struct ft_ways *w, uint64_t connection)
{
    struct connection *c = find(w, connection);
    if (c == NULL)
        return;
    count(w, c->way, -1);
    *c = w->connection[--w->nconnections];
}

void ft_ways_complain(struct ft_ways *w, int way, uint64_t until_ns)
{
    if (way < 0 || way >= w->nways)
        return;
    w->nbad += w->bad_until_ns[way] == 0;
    w->bad_until_ns[way] = until_ns;
    complain_of_links(w, way);
    leave_forbidden(w);
}

static void forgive_ways(struct ft_ways *w, uint64_t now_ns)
{
    for (int way = 0; w->nbad > 0 && way < w->nways; way++) {
        if (w->bad_until_ns[way] == 0 || now_ns < w->bad_until_ns[way])
            continue;
        w->bad_until_ns[way] = 0;
        w->nbad--;
        w->allocator->changed = true;
    }
}

void ft_allocator_tick(struct ft_allocator *a, uint64_t now_ns)
{
    for (int i = 0; i < a->nlinks; i++)
        for (int k = 0; k < BAD_FOR_ALL; k++) {
            struct complaint *c = &a->link[i]->complaint[k];
            if (c->until_ns == 0 || now_ns < c->until_ns)
                continue;
            *c = (struct complaint){0, 0};
            a->changed = true;
        }
    for (struct ft_ways *w = a->ways; w != NULL; w = w->next)
        forgive_ways(w, now_ns);
    if (a->changed)
        all_leave_forbidden(a);
    a->changed = false;
}

/* ---- the whole ------------------------------------------------------------------------------- */

struct ft_allocator *ft_allocator_open(ft_allocator_moved *moved, void *arg)
{
    struct ft_allocator *a = calloc(1, sizeof(*a));
    if (a != NULL)
        *a = (struct ft_allocator){.moved = moved, .arg = arg};
    return a;
}

static void keep(void *node)
{
    (void)node; /* the arrays have them, too */
}

void ft_allocator_close(struct ft_allocator *a)
{
    if (a == NULL)
        return;
    while (a->ways != NULL)
        ft_ways_close(a->ways);
    tdestroy(a->router_tree, keep);
    tdestroy(a->link_tree, keep);
    for (int i = 0; i < a->nrouters; i++)
        free(a->router[i]);
    for (int i = 0; i < a->nlinks; i++)
        free(a->link[i]);
    free(a->router);
    free(a->link);
    free(a->rule);
    free(a);
}

/* True if the connection moved. It moves only if that takes from its most loaded link. */
static bool improve(struct ft_ways *w, struct connection *c)
{
    const int before = c->way;
    const enum choice choice = choice_of(w);
    int least[FT_PATH_HOPS], best = -1;
    if (before < 0)
        return false;
    count(w, before, -1);
    find_least(w, choice, least);
    const int most = cost_of(w, before, least).most;
    if (most > 0)
        best = best_way(w, c->id, choice, least);
    const bool better = best >= 0 && cost_of(w, best, least).most < most;
    count(w, before, 1);
    if (better)
        move_to(w, c, best);
    return better;
}

/* ---- chains ---------------------------------------------------------------------------------- */

/*
 * Where few connections share many links, one that could leave a loaded link may find each other
 * way blocked at its other end. Then it takes a way with one loaded link, a connection of that link
 * takes another way, and so on, until one finds a way that is better. If that does not happen, all
 * stay where they were.
 */
struct step {
    struct ft_ways *w;
    int connection, before; /* its index and its way */
};

/* What one call may still do. */
struct budget {
    int looks, chains;
};

struct chain {
    struct ft_allocator *a;
    struct step step[CHAIN_MOST];
    int n;
    int64_t squares; /* by how much the sum of the squares of loads has grown */
    struct budget *budget;
};

/* By how much the sum of the squares of loads would shrink without a connection of this way. */
static int64_t squares_of(const struct ft_ways *w, int way)
{
    int64_t sum = 0;
    for (int i = 0; i < w->nlinks; i++)
        sum += 2 * load_of(w, way, i) - 1;
    return sum;
}

static void take_step(struct chain *ch, struct ft_ways *w, int connection, int way)
{
    struct connection *c = &w->connection[connection];
    ch->step[ch->n++] = (struct step){w, connection, c->way};
    ch->squares -= squares_of(w, c->way);
    put_on(w, c, way);
    ch->squares += squares_of(w, way);
}

static bool is_in(const struct chain *ch, const struct ft_ways *w, int connection)
{
    for (int i = 0; i < ch->n; i++)
        if (ch->step[i].w == w && ch->step[i].connection == connection)
            return true;
    return false;
}

static bool goes_over(const struct ft_ways *w, int way, int link)
{
    for (int i = 0; i < w->nlinks; i++)
        if (links_of(w, way)[i] == link)
            return true;
    return false;
}

/* Whether the way has a link that the last step has left. */
static bool was_freed(const struct chain *ch, const struct ft_ways *w, int way)
{
    const struct step *last = ch->n > 0 ? &ch->step[ch->n - 1] : NULL;
    for (int i = 0; last != NULL && i < last->w->nlinks; i++)
        if (goes_over(w, way, links_of(last->w, last->before)[i]))
            return true;
    return false;
}

/* Of the ways that are blocked by one link the one that the last step has left, if there is one.
 * -1: there is none. */
static int find_blocked(const struct chain *ch, const struct ft_ways *w, int before,
                        enum choice choice, const int least[FT_PATH_HOPS], int *blocking)
{
    int found = -1;
    for (int way = 0; way < w->nways; way++) {
        int loaded = 0, link = -1;
        if (way == before || !is_allowed(w, way, choice))
            continue;
        for (int i = 0; i < w->nlinks; i++) {
            if (load_of(w, way, i) <= least[i])
                continue;
            loaded++;
            link = links_of(w, way)[i];
        }
        const bool freed = loaded == 1 && was_freed(ch, w, way);
        if (loaded != 1 || (found >= 0 && !freed))
            continue;
        found = way;
        *blocking = link;
        if (freed)
            break;
    }
    return found;
}

/* The way that one connection should take. *blocking: its loaded link; -1: it is better than what
 * the connection has. -1: there is no way. */
static int next_way(const struct chain *ch, struct ft_ways *w, int connection, int *blocking)
{
    const struct connection *c = &w->connection[connection];
    const enum choice choice = choice_of(w);
    int least[FT_PATH_HOPS];
    *blocking = -1;
    count(w, c->way, -1);
    find_least(w, choice, least);
    const int most = cost_of(w, c->way, least).most;
    int way = most > 0 ? best_way(w, c->id, choice, least) : -1;
    if (way >= 0 && cost_of(w, way, least).most >= most)
        way = find_blocked(ch, w, c->way, choice, least, blocking);
    count(w, c->way, 1);
    return way;
}

/* Another connection of the link that can go on. Its way is *way. */
static bool next_step(struct chain *ch, int link, struct step *next, int *way, int *blocking)
{
    bool found = false;
    int tried = 0;
    for (struct ft_ways *w = ch->a->ways; w != NULL; w = w->next)
        for (int i = 0; i < w->nconnections && tried < TRIED_MOST && ch->budget->looks > 0; i++) {
            int by;
            ch->budget->looks--;
            if (w->connection[i].way < 0 || !goes_over(w, w->connection[i].way, link) ||
                is_in(ch, w, i))
                continue;
            tried++;
            const int to = next_way(ch, w, i, &by);
            if (to < 0 || (found && by >= 0))
                continue;
            *next = (struct step){.w = w, .connection = i};
            *way = to;
            *blocking = by;
            found = true;
            if (by < 0)
                return true;
        }
    return found;
}

static void take_back(struct chain *ch)
{
    for (; ch->n > 0; ch->n--) {
        const struct step *s = &ch->step[ch->n - 1];
        put_on(s->w, &s->w->connection[s->connection], s->before);
    }
}

/* Returns the number of connections that moved. */
static int rearrange(struct ft_allocator *a, struct ft_ways *w, int connection,
                     struct budget *budget)
{
    struct chain ch = {.a = a, .budget = budget};
    struct step at = {.w = w, .connection = connection};
    int blocking, way = next_way(&ch, w, connection, &blocking);
    bool good = way >= 0 && blocking >= 0;
    while (good) {
        take_step(&ch, at.w, at.connection, way);
        if (blocking < 0)
            break;
        good = ch.n < CHAIN_MOST && next_step(&ch, blocking, &at, &way, &blocking);
    }
    if (!good || ch.squares >= 0) {
        take_back(&ch);
        return 0;
    }
    for (int i = 0; i < ch.n; i++) {
        const struct connection *c = &ch.step[i].w->connection[ch.step[i].connection];
        a->moved(a->arg, ch.step[i].w, c->id, c->way);
    }
    return ch.n;
}

static int improve_or_rearrange(struct ft_allocator *a, struct ft_ways *w, int connection,
                                struct budget *budget)
{
    if (improve(w, &w->connection[connection]))
        return 1;
    const bool may = w->connection[connection].way >= 0 && budget->looks > 0 && budget->chains > 0;
    budget->chains -= may;
    return may ? rearrange(a, w, connection, budget) : 0;
}

int ft_allocator_balance(struct ft_allocator *a, int most)
{
    struct budget budget = {LOOKED_MOST, CHAINS_MOST};
    int moves = 0;
    for (int i = 0; i < most && a->ways != NULL; i++) {
        struct ft_ways *w = a->next_balanced != NULL ? a->next_balanced : a->ways;
        if (a->next_connection < w->nconnections)
            moves += improve_or_rearrange(a, w, a->next_connection++, &budget);
        a->next_balanced = w;
        if (a->next_connection >= w->nconnections) {
            a->next_balanced = w->next;
            a->next_connection = 0;
        }
    }
    return moves;
}

int ft_allocator_links(const struct ft_allocator *a)
{
    return a->nlinks;
}

struct ft_allocator_link ft_allocator_link_at(const struct ft_allocator *a, int index)
{
    const struct link *link = a->link[index];
    struct ft_allocator_link out = {
        .connections = link->connections, .complaints = complaints_of(link), .out = link->out};
    if (link->from >= 0)
        memcpy(out.from, a->router[link->from]->ip, 16);
    memcpy(out.to, a->router[link->to]->ip, 16);
    return out;
}

static int add_rule(struct ft_allocator *a, const struct rule *rule)
{
    if (a->nrules == RULES_MOST)
        return ft_fail(FT_INVAL, "%d links are out, which is the most", RULES_MOST);
    void *grown = realloc(a->rule, ((size_t)a->nrules + 1) * sizeof(a->rule[0]));
    if (grown == NULL)
        return ft_fail(FT_NOMEM, "no memory for a link that is out");
    a->rule = grown;
    a->rule[a->nrules++] = *rule;
    return FT_OK;
}

int ft_allocator_set_out(struct ft_allocator *a, const unsigned char from[16],
                         const unsigned char to[16], bool out)
{
    struct rule rule;
    int at = 0, status = FT_OK;
    memcpy(rule.from, from, 16);
    memcpy(rule.to, to, 16);
    while (at < a->nrules && memcmp(&a->rule[at], &rule, sizeof(rule)) != 0)
        at++;
    if (out && at == a->nrules)
        status = add_rule(a, &rule);
    else if (!out && at < a->nrules)
        a->rule[at] = a->rule[--a->nrules];
    else if (!out)
        status = ft_fail(FT_NOTSUP, "this link is not out");
    for (int i = 0; i < a->nlinks; i++)
        a->link[i]->out = is_out(a, a->link[i]);
    all_leave_forbidden(a);
    return status;
}

bool ft_allocator_out_at(const struct ft_allocator *a, int index, unsigned char from[16],
                         unsigned char to[16])
{
    if (index >= a->nrules)
        return false;
    memcpy(from, a->rule[index].from, 16);
    memcpy(to, a->rule[index].to, 16);
    return true;
}
