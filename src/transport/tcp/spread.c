/*
 * Which connection of a sending link a message takes, if each has a way of its own through the
 * network (FTCCL_PATHS). Short messages take the home of their channel. Long ones take the
 * connections in turn, but none that will be done with it much later than another: that is told by
 * what the other side has not acknowledged of the connection. So ways that are shared with others
 * get less, and one that stands still gets nothing. The speed counts only for a way that is much
 * slower than the best one, because what is seen of it varies: it would hold up the messages that
 * come after its own.
 *
 * The speed is seen by looking at what is acknowledged. Between two looks a connection that had
 * bytes to send all the time was as fast as it can be. If it ran out of them, it was at least so
 * fast, because nobody knows when. So a connection that gets nothing because it was slow is asked
 * now and then, with a message that the receiver drops.
 */
#include "transport/tcp/tcp.h"

#define LOOK_APART_NS 50000u /* between two looks for a choice */
#define SEEN_BYTES 16384u    /* so many make a speed, or fewer in this time: */
#define SEEN_NS 50000000u
#define REST_BYTES 4096u    /* a receiver's kernel may hold the last acknowledgement back */
#define SUM_NS 500000000u   /* times and bytes are added up over so long; then the old ones fade */
#define KNOWN_BYTES 262144u /* the speed is known after so many bytes, or so long */
#define KNOWN_NS 100000000u
#define MUCH_SLOWER 4      /* times as long for the same bytes */
#define ASK_NS 1000000000u /* a connection that got nothing for so long is asked; at most: */
#define ASK_MOST_NS 64000000000u
#define MUCH_BYTES 4194304u
#define USED_NS 100000000u /* a link is in use if a connection was chosen in this time */

/* Bytes that were given to the connection and are not acknowledged. */
static uint64_t ahead_of(const struct tcp_conn *c)
{
    return c->given - c->acknowledged;
}

static bool is_usable(const struct tcp_conn *c)
{
    return c->state == TCP_OPEN && !c->broken && tcp_out_has_room(c);
}

static void look(struct tcp_link *l, uint64_t now_ns)
{
    if (now_ns - l->spread_ns < LOOK_APART_NS)
        return;
    l->spread_ns = now_ns;
    for (int i = 0; i < l->nconns; i++)
        if (ahead_of(l->conn[i]) > 0)
            tcp_out_look(l->conn[i]);
}

uint64_t tcp_speed_per_kib(const struct tcp_conn *c)
{
    const struct tcp_speed *s = &c->speed;
    const bool known = s->bytes >= KNOWN_BYTES || (s->bytes > 0 && s->busy_ns >= KNOWN_NS);
    return known ? ft_max(s->busy_ns * 1024 / s->bytes, 1) : 0;
}

/* Of a connection that always runs out of bytes only a bound is known. */
static uint64_t of_the_fastest(const struct tcp_link *l)
{
    uint64_t least = 0;
    for (int i = 0; i < l->nconns; i++) {
        const uint64_t known = tcp_speed_per_kib(l->conn[i]),
                       one = known > 0 ? known : l->conn[i]->speed.bound;
        least = one > 0 && (least == 0 || one < least) ? one : least;
    }
    return ft_max(least, 1);
}

bool tcp_speeds_differ(const struct tcp_link *l)
{
    uint64_t least = UINT64_MAX, most = 0;
    for (int i = 0; i < l->nconns; i++) {
        const uint64_t one = tcp_speed_per_kib(l->conn[i]);
        least = one > 0 ? ft_min(least, one) : least;
        most = ft_max(most, one);
    }
    return most > 0 && 2 * most >= 3 * least;
}

/* When a connection would be done with so many more bytes, by the speed of the fastest unless it is
 * much slower. */
static uint64_t done_ns(const struct tcp_conn *c, size_t bytes, uint64_t fastest)
{
    const uint64_t one = tcp_speed_per_kib(c);
    return (ahead_of(c) + bytes) * (one >= MUCH_SLOWER * fastest ? one : fastest);
}

/* Of those that are done with so many more bytes first, or not later than with as many again, the
 * next one in turn. `home`, if none can take them. */
static struct tcp_conn *next_of_first_done(struct tcp_link *l, struct tcp_conn *home, size_t bytes)
{
    const uint64_t fastest = of_the_fastest(l);
    uint64_t least_ns = UINT64_MAX;
    for (int i = 0; i < l->nconns; i++)
        if (is_usable(l->conn[i]))
            least_ns = ft_min(least_ns, done_ns(l->conn[i], bytes, fastest));
    for (int i = 1; i <= l->nconns; i++) {
        struct tcp_conn *c = l->conn[(l->chosen + i) % l->nconns];
        if (is_usable(c) && done_ns(c, bytes, fastest) <= least_ns + bytes * fastest) {
            l->chosen = c->index;
            return c;
        }
    }
    return home;
}

struct tcp_conn *tcp_spread_choose(struct tcp_link *l, const struct ft_header *h)
{
    struct tcp_conn *home = tcp_home_of(l, h->lane);
    if (!l->spreads || !l->resumable || h->lane > FT_LANE_P2P ||
        (h->len < FT_LARGE_BYTES && is_usable(home)))
        return home;
    look(l, tcp_now_ns(l->tcp));
    return next_of_first_done(l, home, sizeof(*h) + h->len);
}

/* ---- the speed ------------------------------------------------------------------------------- */

static void begin(struct tcp_conn *c, uint64_t now_ns)
{
    struct tcp_speed *s = &c->speed;
    s->look_ns = ahead_of(c) > REST_BYTES ? now_ns : 0;
    s->look_given = c->given;
    s->look_acked = c->acknowledged;
}

static void fade(struct tcp_speed *s)
{
    s->busy_ns /= 2;
    s->bytes /= 2;
}

static void add(struct tcp_speed *s, uint64_t took_ns, uint64_t bytes)
{
    while (s->busy_ns > SUM_NS)
        fade(s);
    s->busy_ns += took_ns;
    s->bytes += bytes;
}

/* The connection was at least so fast. If that is faster than it was seen before, it has become
 * faster. */
static void add_bound(struct tcp_conn *c, uint64_t took_ns, uint64_t bytes)
{
    struct tcp_speed *s = &c->speed;
    if (bytes < SEEN_BYTES)
        return;
    const uint64_t found = ft_max(took_ns * 1024 / bytes, 1);
    s->bound = s->bound > 0 ? (3 * s->bound + found) / 4 : found;
    if (found >= tcp_speed_per_kib(c))
        return;
    fade(s);
    add(s, took_ns, bytes);
}

void tcp_speed_given(struct tcp_conn *c)
{
    c->speed.used_ns = tcp_now_ns(c->tcp);
    if (c->speed.look_ns == 0)
        begin(c, c->speed.used_ns);
}

void tcp_speed_note(struct tcp_conn *c)
{
    struct tcp_speed *s = &c->speed;
    const uint64_t now_ns = tcp_now_ns(c->tcp), took_ns = now_ns - s->look_ns,
                   bytes = c->acknowledged - s->look_acked;
    const bool ran_out = c->acknowledged + REST_BYTES >= s->look_given;
    if (s->look_ns == 0)
        return begin(c, now_ns);
    if (!ran_out && bytes < SEEN_BYTES && took_ns < SEEN_NS)
        return;
    if (ran_out)
        add_bound(c, took_ns, bytes);
    else if (bytes > 0) /* otherwise it stalls, which is for move.c */
        add(s, took_ns, bytes);
    begin(c, now_ns);
}

void tcp_speed_forget(struct tcp_conn *c)
{
    c->speed = (struct tcp_speed){.used_ns = tcp_now_ns(c->tcp)};
}

bool tcp_speed_matters(const struct tcp_conn *c, uint64_t now_ns)
{
    return c->link->spreads && now_ns - c->link->spread_ns <= USED_NS;
}

/* The longer the connection has carried little, the less often it is asked: what measures it may
 * fit into the burst of a way that is slow, and the messages that follow would be held up. */
int tcp_speed_ask(struct tcp_conn *c, uint64_t now_ns)
{
    struct tcp_speed *s = &c->speed;
    const uint64_t used_ns = ft_max(s->used_ns, c->since_ns), wait_ns = ft_max(s->wait_ns, ASK_NS);
    if (!tcp_speed_matters(c, now_ns) || now_ns - used_ns < wait_ns)
        return FT_OK;
    const bool carried_much = c->given - s->asked_given >= MUCH_BYTES;
    s->wait_ns = carried_much ? ASK_NS : ft_min(2 * wait_ns, ASK_MOST_NS);
    s->asked_given = c->given;
    return tcp_out_ping(c, TCP_FILL_BYTES);
}
