/*
 * Finds silent hosts. A host that vanished answers nothing, while the kernel of a stopped process
 * still answers. On an idle connection the kernel sends probes (keepalive). While bytes wait for
 * their acknowledgement, the kernel sends no probes, but repeats the bytes for a quarter of an
 * hour. TCP_USER_TIMEOUT would end that; but since Linux 5.11 it also ends a connection whose other
 * side only does not read. So this file looks from time to time, on connections that were written
 * to, how long ago the last answer came.
 */
#include "transport/tcp/tcp.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define LOOKS 8         /* number of looks in the time of silence that ends a link */
#define PROBES_MOST 127 /* most probes that Linux sends */
#define REPEAT_MS 1000  /* longest time between repetitions; the least that can be set */
#ifndef TCP_RTO_MAX_MS  /* since Linux 6.15; older kernels keep two minutes */
#define TCP_RTO_MAX_MS 44
#endif
/* The least number of repetitions or probes without an answer. Two of them, a second apart, may
 * both fall into a short break. */
#define UNANSWERED 3
/* The last repetition must have left in the last LATE_MS of the time of silence, or after it, and
 * have waited ANSWER_MS. An earlier one may have been the last that a break of the link swallowed.
 * Without such a repetition (the kernel sends none, or seldom), the silence must be LONGER_MS
 * longer. */
#define LATE_MS 500
#define ANSWER_MS 250
#define LONGER_MS 1000

uint64_t tcp_silence_look_ns(const struct tcp *t)
{
    return t->base.config.suspect_ms * 1000000 / LOOKS;
}

/* Probes come every second, or less often if the kernel would not send so many. The shortest
 * silence that this finds is four seconds. REPEAT_MS: after a slow phase the kernel would wait for
 * seconds before it repeats what a short break lost, and that looks like silence. */
void tcp_silence_tune(const struct tcp *t, int fd)
{
    const int on = 1, second = 1, repeat_ms = REPEAT_MS,
              seconds = (int)ft_max(t->base.config.suspect_ms / 1000, 2);
    const int apart = 1 + seconds / PROBES_MOST,
              probes = (int)ft_max((seconds + apart - 1) / apart, UNANSWERED);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &second, sizeof(second));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &apart, sizeof(apart));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &repeat_ms, sizeof(repeat_ms));
}

/* True: answers are due, and none has come for too long. */
static bool is_silent(const struct tcp *t, struct tcp_conn *c)
{
    struct tcp_info info;
    socklen_t len = sizeof(info);
    int unanswered = 0;

    if (ioctl(c->fd, SIOCOUTQ, &unanswered) == 0 && unanswered == 0) {
        c->wrote = false;
        return false;
    }
    if (getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
        return false;
    if (info.tcpi_retransmits < UNANSWERED && info.tcpi_probes < UNANSWERED)
        return false;
    const uint64_t suspect_ms = t->base.config.suspect_ms, silent_ms = info.tcpi_last_ack_recv;
    const uint64_t waited_ms = info.tcpi_last_data_sent;
    const bool asked_late = waited_ms >= ANSWER_MS && silent_ms + LATE_MS >= suspect_ms + waited_ms;
    return silent_ms >= suspect_ms + (asked_late ? 0 : LONGER_MS);
}

void tcp_check_silence(struct tcp *t, uint64_t now_ns, bool *moved)
{
    if (now_ns < t->silence_ns)
        return;
    t->silence_ns = now_ns + tcp_silence_look_ns(t);
    for (struct tcp_link *l = t->links; l != NULL; l = l->next) {
        for (int i = 0; i < l->nconns && l->base.state == FT_LINK_UP; i++) {
            struct tcp_conn *c = l->conn[i];
            if (c->state != TCP_OPEN || !c->wrote || !is_silent(t, c))
                continue;
            l->base.silent = true;
            tcp_link_down(l, ft_fail(FT_LINK, "the other side's host has not answered for %llu ms",
                                     (unsigned long long)t->base.config.suspect_ms));
            *moved = true;
        }
    }
}
