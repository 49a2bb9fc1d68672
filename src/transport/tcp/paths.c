/*
 * Which way through the network each connection of a sending link takes, if FTCCL_PATHS is set. The
 * network chooses the way by the source port; the engine's finder (struct ft_port_finder) says
 * which ports go which way, and numbers the ways alike for all who go from one part of the network
 * to another. The connections of all ranks are numbered, too: rank times connections of a link,
 * plus the index. Ranks are counted from a number that depends on the job. Each takes a way by its
 * number modulo the number of ways. So the connections of a link go different ways, and all ways
 * get as many, without a word between ranks.
 *
 * A link is made wherever the network sends it. Then this file moves (move.c) the connections that
 * are not on their way, and looks about once a second if all are, because one that was reset or
 * stalled is made again by another port. If nothing is known of the ways, connections stay where
 * they are.
 */
#include "transport/tcp/tcp.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MS UINT64_C(1000000)
#define LOOK_NS (1000 * MS)
#define MOVED_NS (50 * MS)    /* until the next look, while connections are being moved */
#define FINDING_NS (1 * MS)   /* and while it is being found out which ports go where */
#define MOVES_A_LOOK 8        /* most connections that are dialled in one look */
#define TAKEN_MOST 16         /* ports that are tried in one look for one connection */
#define TRIES_MOST 3          /* moves that do not succeed; then the ways have changed */
#define RETRY_NS (10000 * MS) /* after that */
#define UNEVEN_NS (2000 * MS) /* so long not equally fast: ports are probed again */
#define PUT_OFF_MOST_NS (3600000 * MS)

/* What a look at connections found, and what it may still do. */
struct look {
    uint64_t now_ns;
    int moves_left;
    bool finding, moving;
};

static struct ft_port_finder *finder_of(const struct tcp *t)
{
    return t->base.config.ports;
}

static bool same_ip(const struct ft_net_address *a, const struct ft_net_address *b)
{
    return a->family == b->family && memcmp(a->ip, b->ip, sizeof(a->ip)) == 0;
}

static int gcd(int a, int b)
{
    return b == 0 ? a : gcd(b, a % b);
}

/* The connection's number among those of all ranks, which follow so many others. Where several
 * interfaces are used, each has numbers of its own. */
static uint64_t number_after(const struct tcp_conn *c, uint64_t ranks)
{
    const struct ft_transport_config *config = &c->tcp->base.config;
    const uint64_t rank = ranks + (config->rank >= 0 ? (uint64_t)config->rank : config->self);
    uint64_t all = 0, before = 0;
    for (int i = 0; i < c->link->nconns; i++) {
        const bool same = c->link->conn[i]->address == c->address;
        all += same;
        before += same && i < c->index;
    }
    return rank * all + before;
}

static uint64_t number_of(const struct tcp_conn *c)
{
    return number_after(c, 0);
}

/* The class that the connection should have. Classes are in the order of their hops, so neighbours
 * begin alike. Numbers that follow each other get classes that are far apart: hosts with two ports
 * use both. */
static int wanted_of(const struct tcp_conn *c, int nclasses)
{
    int stride = nclasses / 2 + 1;
    while (gcd(stride, nclasses) != 1)
        stride++;
    const uint64_t number = number_after(c, finder_of(c->tcp)->first % (uint64_t)nclasses);
    return (int)(number % (uint64_t)nclasses * (uint64_t)stride % (uint64_t)nclasses);
}

static int class_of(const struct ft_ports *ports, uint16_t source_port)
{
    for (int i = 0; i < ports->nports; i++)
        if (ports->port[i].source_port == source_port)
            return ports->port[i].class_index;
    return FT_PATH_UNKNOWN;
}

/* The n-th port of a class, counted round and round. 0: it has none. */
static uint16_t port_of(const struct ft_ports *ports, int class_index, uint64_t n)
{
    uint64_t count = 0;
    for (int i = 0; i < ports->nports; i++)
        count += ports->port[i].class_index == class_index;
    n = count > 0 ? n % count : 0;
    for (int i = 0; i < ports->nports; i++)
        if (ports->port[i].class_index == class_index && n-- == 0)
            return ports->port[i].source_port;
    return 0;
}

static void settle(struct tcp_conn *c, uint64_t again_ns)
{
    c->way.settled = true;
    c->way.again_ns = again_ns;
    c->way.made_ns = c->remake.made_ns;
    c->way.tries = 0;
}

/* Ports do not matter, or nothing is known of them; ft_fail_text() says why. */
static void settle_anywhere(struct tcp_conn *c, uint64_t again_ns)
{
    c->way.nclasses = 0;
    settle(c, again_ns);
    if (c->link->ways_told)
        return;
    c->link->ways_told = true;
    FT_LOG(INFO, "net", c->tcp->base.config.rank,
           "connections of the tcp link to engine %016" PRIx64
           " go where the network sends them: %s",
           c->link->base.peer, ft_fail_text());
}

/* ---- the log --------------------------------------------------------------------------------- */

static void tell_ways(struct tcp_link *l)
{
    char text[TCP_CONNS_MAX * 32] = "";
    size_t len = 0;
    for (int i = 0; i < l->nconns; i++) {
        const struct tcp_way *w = &l->conn[i]->way;
        const int n = w->class_index == FT_PATH_UNKNOWN
                          ? snprintf(text + len, sizeof(text) - len, "%s%u (unknown)",
                                     i > 0 ? ", " : "", w->port)
                          : snprintf(text + len, sizeof(text) - len, "%s%u (class %d)",
                                     i > 0 ? ", " : "", w->port, w->class_index);
        len += n > 0 && (size_t)n < sizeof(text) - len ? (size_t)n : 0;
    }
    FT_LOG(INFO, "net", l->tcp->base.config.rank,
           "connections of the tcp link to engine %016" PRIx64
           " have these source ports, of %d classes of paths: %s",
           l->base.peer, l->conn[0]->way.nclasses, text);
}

/* One line when all its connections are settled. */
static void tell(struct tcp_link *l)
{
    for (int i = 0; i < l->nconns; i++)
        if (!l->conn[i]->way.settled || l->conn[i]->way.nclasses == 0)
            return;
    l->ways_told = true;
    tell_ways(l);
}

/* ---- one connection -------------------------------------------------------------------------- */

/* Ports of the class in turn, from one that other ranks of this host do not begin with. */
static int move(struct tcp_conn *c, const struct ft_ports *ports, int class_index)
{
    const uint64_t first = number_of(c) / (uint64_t)ports->nclasses + c->way.tries;
    int status = FT_AGAIN;
    for (uint64_t k = 0; k < TAKEN_MOST && status == FT_AGAIN; k++) {
        const uint16_t port = port_of(ports, class_index, first + k);
        if (port == c->way.port)
            continue;
        status = tcp_conn_move(c, port, false);
    }
    return status;
}

/* The ways have changed, and perhaps their numbers: all connections of the link are looked at. */
static void ask_again(struct tcp_conn *c, const struct ft_net_address *from,
                      const struct ft_net_address *to, uint64_t now_ns)
{
    struct ft_port_finder *finder = finder_of(c->tcp);
    if (!finder->forget(finder, from, to))
        return settle(c, now_ns + RETRY_NS);
    for (int i = 0; i < c->link->nconns; i++) {
        c->link->conn[i]->way.settled = false;
        c->link->conn[i]->way.tries = 0;
    }
}

/* If some connections of a link are slower than others, they may share a way: the network may have
 * chosen all ways anew, for example because a switch has lost one. If the same is found again and
 * again, it is asked less and less often. */
static void look_at_speeds(struct tcp_link *l, uint64_t now_ns)
{
    struct tcp_conn *c = l->conn[0];
    struct ft_net_address from, to;
    const bool uneven = l->spreads && c->way.settled && c->way.nclasses > 1 && tcp_speeds_differ(l);
    if (!uneven || l->uneven_ns == 0)
        l->uneven_ns = uneven ? now_ns : 0;
    if (!uneven || now_ns - l->uneven_ns < UNEVEN_NS || now_ns < l->probe_ns ||
        ft_net_source(c->fd, &from) != FT_OK || ft_net_peer(c->fd, &to) != FT_OK)
        return;
    l->put_off_ns = ft_min(ft_max(2 * l->put_off_ns, RETRY_NS), PUT_OFF_MOST_NS);
    l->probe_ns = now_ns + l->put_off_ns;
    l->uneven_ns = 0;
    FT_LOG(INFO, "net", l->tcp->base.config.rank,
           "connections of the tcp link to engine %016" PRIx64
           " are not equally fast: it is looked whether their paths have changed",
           l->base.peer);
    ask_again(c, &from, &to, now_ns);
}

/* It is not on the way that it should take. */
static void move_there(struct tcp_conn *c, const struct ft_ports *ports, int wanted,
                       const struct ft_net_address *from, const struct ft_net_address *to,
                       struct look *look)
{
    c->link->ways_told = false;
    if (c->way.tries >= TRIES_MOST) {
        if (finder_of(c->tcp)->blame != NULL)
            finder_of(c->tcp)->blame(finder_of(c->tcp), from, to, wanted);
        return ask_again(c, from, to, look->now_ns);
    }
    if (look->moves_left-- <= 0)
        return;
    (void)move(c, ports, wanted);
    c->way.tries++;
    look->moving = true;
}

/* The master's choice, which may change, or this rank's own. FT_AGAIN: the master will say. */
static int choose(const struct tcp_conn *c, int nclasses, const struct ft_net_address *from,
                  const struct ft_net_address *to, int *wanted)
{
    struct ft_port_finder *finder = finder_of(c->tcp);
    const int status = finder->choose != NULL
                           ? finder->choose(finder, from, to, number_of(c), wanted)
                           : FT_NOTSUP;
    if (status != FT_AGAIN && (status != FT_OK || *wanted < 0 || *wanted >= nclasses))
        *wanted = wanted_of(c, nclasses);
    return status == FT_AGAIN ? FT_AGAIN : FT_OK;
}

static void look_at_ports(struct tcp_conn *c, const struct ft_net_address *from,
                          const struct ft_net_address *to, struct look *look)
{
    struct ft_port_finder *finder = finder_of(c->tcp);
    struct ft_ports ports;
    const int status = finder->find(finder, from, to, &ports);
    if (status == FT_AGAIN) {
        look->finding = true;
        return;
    }
    if (status == FT_OK && ports.nclasses < 2)
        (void)ft_fail(FT_NOTSUP, "all source ports that were probed go the same way");
    if (status != FT_OK || ports.nclasses < 2)
        return settle_anywhere(c, look->now_ns + RETRY_NS);
    c->way.port = from->port;
    c->way.nclasses = ports.nclasses;
    c->way.class_index = class_of(&ports, from->port);
    int wanted;
    if (choose(c, ports.nclasses, from, to, &wanted) == FT_AGAIN)
        look->moving = true; /* soon; the others need not wait */
    else if (c->way.class_index == wanted)
        settle(c, finder->choose != NULL ? look->now_ns + LOOK_NS : UINT64_MAX);
    else
        move_there(c, &ports, wanted, from, to, look);
}

static bool is_settled(const struct tcp_conn *c, uint64_t now_ns)
{
    return c->way.settled && now_ns < c->way.again_ns && c->way.made_ns == c->remake.made_ns;
}

static void look_at_conn(struct tcp_conn *c, struct look *look)
{
    struct ft_net_address from, to;
    if (is_settled(c, look->now_ns))
        return;
    c->way.settled = false;
    if (!tcp_can_move(c)) {
        look->moving = look->moving || c->move.second != NULL;
        return;
    }
    if (ft_net_source(c->fd, &from) != FT_OK || ft_net_peer(c->fd, &to) != FT_OK ||
        same_ip(&from, &to)) /* the same machine */
        return settle(c, UINT64_MAX);
    look_at_ports(c, &from, &to, look);
}

/* ---- the turn -------------------------------------------------------------------------------- */

static void look_at_link(struct tcp_link *l, struct look *look)
{
    look_at_speeds(l, look->now_ns);
    for (int i = 0; i < l->nconns && l->base.state == FT_LINK_UP && !look->finding; i++)
        look_at_conn(l->conn[i], look);
    if (l->base.state == FT_LINK_UP && !l->ways_told)
        tell(l);
}

void tcp_paths_turn(struct tcp *t, uint64_t now_ns)
{
    struct look look = {.now_ns = now_ns, .moves_left = MOVES_A_LOOK};
    if (finder_of(t) == NULL || now_ns < t->path_ns)
        return;
    /* One pair of hosts after another: who waits for the finder makes the others wait. */
    for (struct tcp_link *l = t->links; l != NULL && !look.finding; l = l->next)
        if (l->base.sender && l->resumable && l->base.state == FT_LINK_UP)
            look_at_link(l, &look);
    if (t->finding && !look.finding)
        finder_of(t)->stop(finder_of(t));
    if (finder_of(t)->turn != NULL)
        look.finding |= finder_of(t)->turn(finder_of(t));
    t->finding = look.finding;
    t->path_ns = now_ns + (look.finding ? FINDING_NS : look.moving ? MOVED_NS : LOOK_NS);
}

uint64_t tcp_paths_look_ns(const struct tcp *t)
{
    return t->finding ? FINDING_NS : UINT64_MAX;
}

uint16_t tcp_paths_other(struct tcp_conn *c)
{
    struct ft_port_finder *finder = finder_of(c->tcp);
    struct ft_net_address from, to;
    struct ft_ports ports;
    if (finder == NULL || c->way.nclasses < 2 || ft_net_source(c->fd, &from) != FT_OK ||
        ft_net_peer(c->fd, &to) != FT_OK || finder->find(finder, &from, &to, &ports) != FT_OK ||
        ports.nclasses < 2)
        return 0;
    const int class_index = class_of(&ports, from.port);
    const uint64_t further = (uint64_t)(class_index < 0 ? 0 : class_index) + c->move.tries;
    return port_of(&ports, (int)((further + 1) % (uint64_t)ports.nclasses), number_of(c));
}
