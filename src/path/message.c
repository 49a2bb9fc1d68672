/*
 * What messages of the master of paths have in common: addresses and states of links.
 */
#include "path/master.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

static const unsigned char any[16];
static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};

const char *ft_paths_state_text(int state)
{
    static const char *const text[] = {"good", "doubted", "bad", "out"};
    return state >= 0 && state < 4 ? text[state] : "unknown";
}

void ft_paths_put_ip(unsigned char out[16], int family, const unsigned char ip[16])
{
    if (family == AF_INET) {
        memcpy(out, mapped, 12);
        memcpy(out + 12, ip, 4);
    } else {
        memcpy(out, ip, 16);
    }
}

struct ft_net_address ft_paths_address(const unsigned char ip[16], uint16_t port)
{
    struct ft_net_address out = {.family = AF_INET6, .port = port};
    if (memcmp(ip, mapped, 12) == 0) {
        out.family = AF_INET;
        memcpy(out.ip, ip + 12, 4);
    } else {
        memcpy(out.ip, ip, 16);
    }
    return out;
}

bool ft_paths_parse_ip(const char *text, unsigned char out[16])
{
    unsigned char ip[16];
    const int family = strchr(text, ':') != NULL ? AF_INET6 : AF_INET;
    memset(out, 0, 16);
    if (strcmp(text, "any") == 0)
        return true;
    if (inet_pton(family, text, ip) != 1)
        return false;
    ft_paths_put_ip(out, family, ip);
    return true;
}

const char *ft_paths_ip_text(const unsigned char ip[16], char text[FT_NET_TEXT_BYTES])
{
    if (memcmp(ip, any, 16) == 0)
        snprintf(text, FT_NET_TEXT_BYTES, "any");
    else if (memcmp(ip, mapped, 12) == 0)
        inet_ntop(AF_INET, ip + 12, text, FT_NET_TEXT_BYTES);
    else
        inet_ntop(AF_INET6, ip, text, FT_NET_TEXT_BYTES);
    return text;
}
