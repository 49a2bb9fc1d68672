/*
 * Socket options of an authenticated connection. Over a network, the system's settings stay.
 * Between two processes of one machine nothing is ever lost. There a congestion control that
 * measures the path and paces what it sends (BBR) only measures how slowly this job happened to
 * read. So such connections use the kernel's plain congestion control, from the first packet on: if
 * a connection has once begun with BBR, a timer paces it for ever, whatever is set later.
 */
#include "transport/tcp/tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#define PLAIN "reno" /* always available, and every process may choose it */

union any_address {
    struct sockaddr sa;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

/* True if both ends have the same address. */
static bool is_local(int fd)
{
    union any_address here, devmem;
    socklen_t here_len = sizeof(here), devmem_len = sizeof(devmem);

    if (getsockname(fd, &here.sa, &here_len) != 0 || getpeername(fd, &devmem.sa, &devmem_len) != 0)
        return false;
    if (here.sa.sa_family != devmem.sa.sa_family)
        return false;
    if (here.sa.sa_family == AF_INET)
        return here.in.sin_addr.s_addr == devmem.in.sin_addr.s_addr;
    return here.sa.sa_family == AF_INET6 &&
           memcmp(&here.in6.sin6_addr, &devmem.in6.sin6_addr, sizeof(here.in6.sin6_addr)) == 0;
}

static void choose(int fd, const char *congestion)
{
    (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, (socklen_t)strlen(congestion));
}

/* A connection begins with the listener's congestion control, before anybody knows from where it
 * comes. Only BBR is replaced: with others, what the peers do on the way (ECN) is also decided at
 * that moment. */
void tcp_tune_listener(struct tcp *t, int fd)
{
    char name[sizeof(t->paced)] = "";
    socklen_t len = sizeof(name) - 1;
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len) != 0 ||
        strncmp(name, "bbr", 3) != 0)
        return;
    memcpy(t->paced, name, sizeof(name));
    choose(fd, PLAIN);
}

bool tcp_is_own(const struct tcp *t, const struct ft_net_address *a)
{
    const size_t len = a->family == AF_INET ? 4 : 16;
    for (int i = 0; i < t->naddresses; i++)
        if (t->address[i].family == a->family && memcmp(t->address[i].ip, a->ip, len) == 0)
            return true;
    return false;
}

const char *tcp_congestion(const struct tcp *t, const struct ft_net_address *to)
{
    return tcp_is_own(t, to) ? PLAIN : NULL;
}

void tcp_tune(const struct tcp *t, int fd, bool accepted)
{
    tcp_silence_tune(t, fd);
    if (is_local(fd))
        choose(fd, PLAIN);
    else if (accepted && t->paced[0] != '\0')
        choose(fd, t->paced);
}
