/*
 * Moves a connection of a sending link to another way through the network, for example because
 * nothing that it sends is acknowledged any more. The network chooses the way by the source port.
 * So a second connection is dialled from another port, while the first is still used. From the
 * moment that the receiver may know what it is for, the second has the place of the first, and goes
 * on at the byte that the receiver names, as after a reset (remake.c). Until the receiver has named
 * it, the first stays open, because its end would be the end of the link.
 *
 * If nobody answers, the first one is kept: whether the host is dead is for silence.c to say.
 */
#include "transport/tcp/tcp.h"

#include <inttypes.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define MS 1000000u
#define LOOK_NS (10 * MS)
#define STALL_NS (50 * MS) /* least time without an acknowledgement after which one is moved */
#define TRY_NS (50 * MS)   /* time for a dial */
#define ASK_NS (100 * MS)  /* time without anything new from a receiver after which it is asked */
#define TRIES_QUICK 16     /* after so many dials in vain the time doubles with each, so often: */
#define TRY_SHIFT_MOST 6
#define CHOSEN_NS (2000 * MS) /* the same for one that does not stall */

void tcp_move_forget(struct tcp_conn *c)
{
    struct tcp_conn *second = c->move.second;
    c->move.second = NULL;
    if (second != NULL)
        tcp_conn_retire(second);
}

static uint64_t try_ns(const struct tcp_move *m)
{
    const unsigned slow = m->tries > TRIES_QUICK ? m->tries - TRIES_QUICK : 0;
    return (uint64_t)TRY_NS << ft_min(slow, TRY_SHIFT_MOST);
}

/* To where the connection goes now. */
static int dial(struct tcp_conn *c, uint16_t source_port, struct tcp_conn **second)
{
    struct tcp *t = c->tcp;
    struct ft_net_address from, to;
    int fd = -1;
    if (ft_net_source(c->fd, &from) != FT_OK || ft_net_peer(c->fd, &to) != FT_OK)
        return FT_AGAIN;
    const char *congestion = tcp_congestion(t, &to);
    int status = source_port != 0 ? ft_net_connect_from(&to, &from, source_port, congestion, &fd)
                                  : ft_net_connect(&to, congestion, &fd);
    if (status != FT_OK)
        return status;
    *second = tcp_conn_open(t, fd, TCP_DIALING, false);
    if (*second != NULL)
        return FT_OK;
    ft_fd_close(&fd);
    return ft_fail(FT_NOMEM, "no memory for a connection");
}

bool tcp_can_move(const struct tcp_conn *c)
{
    const struct tcp_link *l = c->link;
    return l->base.sender && l->resumable && l->base.state == FT_LINK_UP && c->state == TCP_OPEN &&
           c->move.second == NULL;
}

int tcp_conn_move(struct tcp_conn *c, uint16_t source_port, bool stalls)
{
    const struct tcp_link *l = c->link;
    const struct ft_transport_config *config = &c->tcp->base.config;
    struct tcp_move *m = &c->move;
    if (!tcp_can_move(c))
        return FT_AGAIN;
    const uint64_t now_ns = tcp_now_ns(c->tcp);
    m->begun_ns = now_ns;
    m->stalls = stalls;
    m->tries += stalls;
    int status = dial(c, source_port, &m->second);
    if (status != FT_OK)
        return status;
    m->second->link = c->link;
    m->second->replaces = c;
    tcp_conn_want(m->second, EPOLLOUT);
    ft_auth_start(&m->second->auth, config->env, m->second->fd, true, config->key, config->self,
                  l->base.peer, FT_PURPOSE_TCP, tcp_remake_detail(c), now_ns + c->tcp->remake_ns);
    return FT_OK;
}

void tcp_move_failed(struct tcp_conn *second)
{
    tcp_move_forget(second->replaces);
}

/* The first one is not used any more: its end says nothing. */
struct tcp_conn *tcp_move_claimed(struct tcp_conn *second)
{
    struct tcp_conn *c = second->replaces;
    FT_LOG(INFO, "net", c->tcp->base.config.rank,
           "a connection of the tcp link to engine %016" PRIx64 " moves to another source port",
           c->link->base.peer);
    tcp_remake_moved(c, second);
    return c;
}

/* ---- stalls ---------------------------------------------------------------------------------- */

/* Bytes wait for their acknowledgement, or the receiver had no room for more, and the kernel has
 * asked whether it has now. */
static bool is_waiting(const struct tcp_info *info)
{
    return info->tcpi_unacked > 0 || info->tcpi_probes > 0;
}

/* The receiver has not given back everything, perhaps because what it sent was swallowed. An
 * acknowledgement would show that it was not. */
static int ask(struct tcp_conn *c, const struct tcp_info *info, uint64_t now_ns)
{
    struct tcp_move *m = &c->move;
    const bool idle = !is_waiting(info) && c->out_count == 0 && info->tcpi_bytes_acked == m->acked;
    if (!idle || c->places == 0)
        m->active_ns = now_ns;
    if (now_ns - m->active_ns < ASK_NS)
        return FT_OK;
    m->active_ns = now_ns;
    return tcp_out_ping(c, 0);
}

/* Since when the connection waits and nothing is acknowledged. */
static void watch(struct tcp_conn *c, const struct tcp_info *info, uint64_t now_ns)
{
    struct tcp_move *m = &c->move;
    const bool waited = m->stalled_ns != 0, waits = is_waiting(info);
    if (info->tcpi_bytes_acked != m->acked || waits != waited) {
        m->stalled_ns = waits ? now_ns : 0;
        m->tries = 0;
        m->acked = info->tcpi_bytes_acked;
    }
}

/* It has waited for longer than the kernel would before it sends again, if that was not 200 ms at
 * least. */
static bool is_stalled(const struct tcp_move *m, const struct tcp_info *info, uint64_t now_ns)
{
    const uint64_t late_ns = (uint64_t)1000 * (info->tcpi_rtt + 4 * info->tcpi_rttvar);
    return m->stalled_ns != 0 && now_ns - m->stalled_ns >= ft_max(STALL_NS, late_ns);
}

/* The second one is not needed any more, or has taken too long. */
static bool is_over(const struct tcp_move *m, bool stalled, uint64_t now_ns)
{
    if (m->stalls && !stalled)
        return true;
    return now_ns - m->begun_ns >= (stalled ? try_ns(m) : CHOSEN_NS);
}

/* Whether something may be on its way, or is to be asked. */
static bool matters(const struct tcp_conn *c, uint64_t now_ns)
{
    return c->state == TCP_OPEN &&
           (c->wrote || c->places > 0 || c->move.second != NULL || tcp_speed_matters(c, now_ns));
}

/* Gives a second one up, or begins with it. */
static void turn_second(struct tcp_conn *c, bool stalled, uint64_t now_ns)
{
    struct tcp_move *m = &c->move;
    if (m->second != NULL && is_over(m, stalled, now_ns))
        tcp_move_forget(c);
    if (stalled && m->second == NULL && now_ns - m->begun_ns >= TRY_NS)
        (void)tcp_conn_move(c, tcp_paths_other(c), true);
}

static void look(struct tcp_conn *c, uint64_t now_ns)
{
    struct tcp_info info;
    socklen_t len = sizeof info;
    if (!matters(c, now_ns) || getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
        return;
    c->wrote = is_waiting(&info) || info.tcpi_notsent_bytes > 0 || c->out_count > 0;
    int status = ask(c, &info, now_ns);
    if (status == FT_OK)
        status = tcp_speed_ask(c, now_ns);
    if (status != FT_OK && status != FT_AGAIN)
        return tcp_conn_failed(c, status);
    watch(c, &info, now_ns);
    turn_second(c, is_stalled(&c->move, &info, now_ns), now_ns);
}

uint64_t tcp_moves_look_ns(const struct tcp *t)
{
    return t->wrote && t->remake_ns > 0 ? LOOK_NS : UINT64_MAX;
}

void tcp_moves_turn(struct tcp *t, uint64_t now_ns)
{
    if (now_ns < t->move_ns || t->remake_ns == 0)
        return;
    t->move_ns = now_ns + LOOK_NS;
    t->wrote = false;
    for (struct tcp_link *l = t->links; l != NULL; l = l->next)
        for (int i = 0; i < l->nconns && l->base.sender && l->resumable; i++)
            if (l->base.state == FT_LINK_UP) {
                look(l->conn[i], now_ns);
                t->wrote = t->wrote || l->conn[i]->wrote;
            }
}
