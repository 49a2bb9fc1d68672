/*
 * How fast the network is. Of a sending link the kernel says how long bytes were on the way, how
 * long the other host had no room for them, and how many segments were sent again. On a receiving
 * link this file measures how fast long messages come: from the moment when the kernel has no more
 * of a message until all of it is there. What comes before that moment may have waited here, and
 * would make a slow network look fast.
 */
#include "transport/tcp/tcp.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define US 1000u                  /* nanoseconds */
#define FLIGHT_APART_NS 20000000u /* between two that are kept */
#define PROBE_APART_NS 20000000u  /* from the end of one to the next */
#define PROBE_LOOK_NS 4000u       /* between two looks at a message, at least */
#define PROBE_EXACT_NS 16000u     /* a wrong time by less does not matter */
/* The last segments of a message may wait for a receiver's kernel that holds acknowledgements
 * back. */
#define PROBE_REST 2
#define PROBE_LEAST 4 /* segments of a message that is measured */

static struct ft_path_end end_of(const struct ft_net_address *a)
{
    struct ft_path_end end = {.family = (uint16_t)a->family, .port = a->port, .scope = a->scope};
    memcpy(end.ip, a->ip, sizeof(end.ip));
    return end;
}

static bool read_ends(int fd, struct ft_path_end *from, struct ft_path_end *to)
{
    struct ft_net_address source, destination;
    if (ft_net_source(fd, &source) != FT_OK || ft_net_peer(fd, &destination) != FT_OK)
        return false;
    *from = end_of(&source);
    *to = end_of(&destination);
    return true;
}

/* Of the segments that were sent again, some had only been late: the other host has told that it
 * got them twice. */
static uint64_t count_lost(const struct tcp_info *info, socklen_t len)
{
    const uint64_t again = info->tcpi_total_retrans;
#ifdef HAVE_STRUCT_TCP_INFO_TCPI_DSACK_DUPS
    if (len >= offsetof(struct tcp_info, tcpi_dsack_dups) + sizeof(info->tcpi_dsack_dups))
        return again - ft_min(again, info->tcpi_dsack_dups);
#endif
    (void)len;
    return again;
}

/* tcpi_busy_time: bytes waited for their acknowledgement. A part of it is tcpi_rwnd_limited: the
 * other host had announced that it has no room. Both are there since Linux 4.9. */
static bool add_conn(int fd, struct ft_link_path *out)
{
    struct tcp_info info;
    socklen_t len = sizeof(info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0 ||
        len < offsetof(struct tcp_info, tcpi_sndbuf_limited))
        return false;
    const uint64_t busy_us = info.tcpi_busy_time, receiver_us = info.tcpi_rwnd_limited;
    out->network_ns += (busy_us > receiver_us ? busy_us - receiver_us : 0) * US;
    out->receiver_ns += receiver_us * US;
    out->retransmits += count_lost(&info, len);
    if ((uint64_t)info.tcpi_rtt * US > out->rtt_ns) {
        out->rtt_ns = (uint64_t)info.tcpi_rtt * US;
        out->least_rtt_ns = (uint64_t)info.tcpi_min_rtt * US;
    }
    out->connections++;
    return true;
}

void tcp_flight_begins(struct tcp_conn *c)
{
    c->flight_ns = ft_now_ns(c->tcp->base.config.env);
    c->flight_bytes = c->body_left;
}

void tcp_flight_ends(struct tcp_conn *c)
{
    struct ft_flights *flights = &c->link->flights;
    const uint64_t now_ns = ft_now_ns(c->tcp->base.config.env), took_ns = now_ns - c->flight_ns;
    c->flight_ns = 0;
    if (now_ns - flights->seen_ns < FLIGHT_APART_NS)
        return;
    flights->ns_per_kib[flights->count % FT_FLIGHTS] = (uint32_t)ft_min(
        took_ns * 1024 / c->flight_bytes, UINT32_MAX);
    flights->seen_ns = now_ns;
    flights->count++;
}

/* ---- when the other host has a message ------------------------------------------------------- */

void tcp_probe_begins(struct tcp_conn *c, size_t ahead)
{
    struct tcp *t = c->tcp;
    if (c->probe_ns != 0 || t->nprobed == TCP_PROBES)
        return;
    const uint64_t now_ns = ft_now_ns(t->base.config.env);
    if (now_ns - c->probe_look_ns < PROBE_APART_NS)
        return;
    int segment = 0;
    socklen_t len = sizeof(segment);
    c->probe_look_ns = now_ns;
    if (getsockopt(c->fd, IPPROTO_TCP, TCP_MAXSEG, &segment, &len) != 0 || segment <= 0 ||
        ahead < PROBE_LEAST * (size_t)segment)
        return;
    c->probe_ns = now_ns;
    c->probe_end = c->written + ahead - PROBE_REST * (size_t)segment;
    t->probed[t->nprobed++] = c;
}

void tcp_probe_drop(struct tcp_conn *c)
{
    struct tcp *t = c->tcp;
    for (unsigned i = 0; i < t->nprobed; i++) {
        if (t->probed[i] != c)
            continue;
        t->probed[i] = t->probed[--t->nprobed];
        c->probe_ns = 0;
        return;
    }
}

/* Looks less often the longer it takes, so that a message costs few system calls. If nobody turned
 * the engine for a while, the end is not known well enough. */
static void look_at_probe(struct tcp_conn *c, uint64_t now_ns)
{
    const uint64_t took_ns = now_ns - c->probe_ns, gap_ns = now_ns - c->probe_look_ns;
    int unacked;
    if (gap_ns < PROBE_LOOK_NS || gap_ns < took_ns / 8)
        return;
    c->probe_look_ns = now_ns;
    if (c->written < c->probe_end)
        return;
    if (ioctl(c->fd, SIOCOUTQ, &unacked) == 0 && c->written - (uint64_t)unacked < c->probe_end)
        return;
    if (gap_ns <= took_ns / 2 || gap_ns <= PROBE_EXACT_NS)
        ft_latency_add(&c->link->base.latency[FT_LATENCY_NETWORK], took_ns);
    tcp_probe_drop(c);
}

void tcp_probes_look(struct tcp *t)
{
    const uint64_t now_ns = ft_now_ns(t->base.config.env);
    for (unsigned i = t->nprobed; i-- > 0;)
        look_at_probe(t->probed[i], now_ns);
}

void tcp_measure_keep(struct tcp_conn *c)
{
    struct ft_link_path *past = &c->link->past, sum = *past;
    if (c->link->base.sender && add_conn(c->fd, &sum))
        *past = (struct ft_link_path){.network_ns = sum.network_ns,
                                      .receiver_ns = sum.receiver_ns,
                                      .retransmits = sum.retransmits};
}

bool tcp_measure(struct ft_link *link, struct ft_link_path *out)
{
    const struct tcp_link *l = FT_CONTAINER(link, struct tcp_link, base);
    *out = l->past;
    if (l->base.state != FT_LINK_UP || !read_ends(l->conn[0]->fd, &out->source, &out->destination))
        return false;
    out->flights = l->flights;
    for (int i = 0; i < l->nconns && l->base.sender; i++)
        if (!add_conn(l->conn[i]->fd, out))
            return false;
    return true;
}

/* What can be said of one that is being made again is what it had before. */
static void describe_conn(const struct tcp_conn *c, struct ft_link_conn *out)
{
    struct ft_link_path path = {0};
    *out = (struct ft_link_conn){.class_index = c->way.nclasses > 0 ? c->way.class_index : -1,
                                 .nclasses = c->way.nclasses,
                                 .bytes = c->written,
                                 .ns_per_kib = tcp_speed_per_kib(c)};
    if (read_ends(c->fd, &out->source, &out->destination) && add_conn(c->fd, &path)) {
        out->rtt_ns = path.rtt_ns;
        out->retransmits = path.retransmits;
    }
}

int tcp_connections(struct ft_link *link, struct ft_link_conn *out, int most)
{
    const struct tcp_link *l = FT_CONTAINER(link, struct tcp_link, base);
    const int n = l->base.state == FT_LINK_UP && l->base.sender ? l->nconns : 0;
    for (int i = 0; i < n && i < most; i++)
        describe_conn(l->conn[i], &out[i]);
    return n < most ? n : most;
}
