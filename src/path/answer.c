/*
 * What the error queue of a probe's socket says. The kernel hands over ICMP messages only of the
 * socket's own connection: it compares addresses, ports and the sequence number that the message
 * quotes, so that late answers to an earlier probe from the same port are not among them. Lengths
 * and types are checked here all the same, because the rest of a message comes from the network.
 */
#include "path/probe.h"

#include <linux/errqueue.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <string.h>

union sender {
    struct sockaddr sa;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

static bool about(const struct msghdr *msg, const struct ft_net_address *to);
static enum ft_path_answer meaning(const struct sock_extended_err *err);
static enum ft_path_answer read_error(const struct cmsghdr *c, size_t len_bytes, int family,
                                      unsigned char by[16]);

enum ft_path_answer ft_path_read_answer(struct msghdr *msg, const struct ft_net_address *to,
                                        unsigned char by[16])
{
    const bool six = to->family == AF_INET6;
    const int level = six ? IPPROTO_IPV6 : IPPROTO_IP, type = six ? IPV6_RECVERR : IP_RECVERR;

    if ((msg->msg_flags & MSG_CTRUNC) != 0 || !about(msg, to))
        return FT_PATH_NOTHING;
    const char *end = (const char *)msg->msg_control + msg->msg_controllen;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_len < CMSG_LEN(0) || c->cmsg_len > (size_t)(end - (const char *)c))
            return FT_PATH_NOTHING;
        if (c->cmsg_level == level && c->cmsg_type == type)
            return read_error(c, c->cmsg_len - CMSG_LEN(0), to->family, by);
    }
    return FT_PATH_NOTHING;
}

/* The name of such a message is the destination of the packet that it is about. */
static bool about(const struct msghdr *msg, const struct ft_net_address *to)
{
    union sender sa = {0};
    struct ft_net_address named;
    const size_t need = to->family == AF_INET6 ? sizeof(sa.in6) : sizeof(sa.in);

    if (msg->msg_name == NULL || msg->msg_namelen < need)
        return false;
    memcpy(&sa, msg->msg_name, need);
    return ft_net_from_sockaddr(&sa.sa, &named) && named.family == to->family &&
           named.port == to->port && memcmp(named.ip, to->ip, to->family == AF_INET6 ? 16 : 4) == 0;
}

/* The error is followed by the address of who sent it. */
static enum ft_path_answer read_error(const struct cmsghdr *c, size_t len_bytes, int family,
                                      unsigned char by[16])
{
    struct {
        struct sock_extended_err err;
        union sender from;
    } said = {0};
    struct ft_net_address from;
    const size_t need = offsetof(__typeof__(said), from) +
                        (family == AF_INET6 ? sizeof(said.from.in6) : sizeof(said.from.in));
    if (len_bytes < need)
        return FT_PATH_NOTHING;
    memcpy(&said, CMSG_DATA(c), need);
    const enum ft_path_answer answer = meaning(&said.err);
    if (answer == FT_PATH_NOTHING || !ft_net_from_sockaddr(&said.from.sa, &from) ||
        from.family != family)
        return FT_PATH_NOTHING;
    memcpy(by, from.ip, sizeof(from.ip));
    return answer;
}

static enum ft_path_answer meaning(const struct sock_extended_err *err)
{
    if (err->ee_origin == SO_EE_ORIGIN_ICMP) {
        if (err->ee_type == ICMP_TIME_EXCEEDED && err->ee_code == ICMP_EXC_TTL)
            return FT_PATH_ROUTER;
        if (err->ee_type == ICMP_DEST_UNREACH && err->ee_code != ICMP_FRAG_NEEDED)
            return FT_PATH_REFUSAL;
    } else if (err->ee_origin == SO_EE_ORIGIN_ICMP6) {
        if (err->ee_type == ICMP6_TIME_EXCEEDED && err->ee_code == ICMP6_TIME_EXCEED_TRANSIT)
            return FT_PATH_ROUTER;
        if (err->ee_type == ICMP6_DST_UNREACH)
            return FT_PATH_REFUSAL;
    }
    return FT_PATH_NOTHING;
}
