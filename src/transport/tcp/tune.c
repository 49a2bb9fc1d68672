/*
 * Socket options of a connection that has proved itself. What a network needs stays the system's
 * choice. Between two processes of one machine there is no network: nothing is lost, and a
 * congestion control that measures the path and paces what it sends (BBR) only finds out how slowly
 * this very job happened to read. There the kernel's plain one is used, from the first packet on: a
 * connection that has once begun with BBR is paced by a timer for ever, whatever it is given later.
 */
#include "transport/tcp/tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#define PLAIN "reno" /* always there, and every process may choose it */

union any_address {
    struct sockaddr sa;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

/* Both ends have the same address. */
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

/* What it accepts begins with its own, before anybody knows where that comes from. Others than BBR
 * stay: what their peers do on the way (ECN) is settled then, too. */
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

const char *tcp_congestion(const struct tcp *t, const struct ft_net_address *to)
{
    const size_t len = to->family == AF_INET ? 4 : 16;
    for (int i = 0; i < t->naddresses; i++)
        if (t->address[i].family == to->family && memcmp(t->address[i].ip, to->ip, len) == 0)
            return PLAIN;
    return NULL;
}

void tcp_tune(const struct tcp *t, int fd, bool accepted)
{
    tcp_silence_tune(t, fd);
    if (is_local(fd))
        choose(fd, PLAIN);
    else if (accepted && t->paced[0] != '\0')
        choose(fd, t->paced);
}
