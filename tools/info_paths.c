/*
 * Probes which way through the network source ports take to a host, and prints what came of it.
 */
#include "info.h"

#include "path/path.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#define ANY_PORT 28028 /* usually refused by the host, which is an answer, too */
#define LEAST_NS 5000000000u
#define PORT_NS 5000000u /* five hops at 1000 probes a second */
#define EXAMPLES 6       /* ports printed of a class */

static int find_host(const char *text, int family, struct ft_net_address *out);
static int find_source(const char *text, struct ft_net_address *out);
static void print_table(FILE *out, const struct ft_path_table *t);
static void print_ports(FILE *out, const struct ft_path_table *t, int class_index);
static int judge(const struct ft_path_table *t);
static void print_limits(FILE *out, const struct ft_path_table *t);

int info_paths(FILE *out, const struct paths_request *request)
{
    struct ft_path_config config = {.env = ft_env_real(), .nports = request->nports};
    struct ft_path_table *table = NULL;

    const char *from = request->from != NULL ? request->from : ft_param_str(FT_PARAM_SOCKET_SOURCE);
    int status = find_source(from, &config.from);
    if (status == FT_OK)
        status = find_host(request->host, config.from.family, &config.to);
    if (status != FT_OK)
        return status;
    config.duration_ns = LEAST_NS + (uint64_t)request->nports * PORT_NS;
    status = ft_path_probe(&config, &table);
    if (status != FT_OK)
        return status;
    print_table(out, table);
    status = judge(table);
    ft_path_table_free(table);
    return status;
}

/* HOST, HOST:PORT, [IPv6]:PORT, or an IPv6 address alone. */
static int find_host(const char *text, int family, struct ft_net_address *out)
{
    struct ft_net_address found[FT_NET_ADDRESSES];
    unsigned char ip[16];
    char with_port[300];
    const char *colon = strrchr(text, ':');
    const bool six = inet_pton(AF_INET6, text, ip) == 1;
    const bool has_port = colon != NULL && !six && (text[0] != '[' || colon[-1] == ']');

    if (strlen(text) > 250)
        return ft_fail(FT_USAGE, "the host's name is too long");
    snprintf(with_port, sizeof(with_port),
             six        ? "[%s]:%d"
             : has_port ? "%s"
                        : "%s:%d",
             text, ANY_PORT);
    const int n = ft_net_resolve(with_port, found, FT_NET_ADDRESSES);
    for (int i = 0; i < n; i++)
        if (family == 0 || found[i].family == family) {
            *out = found[i];
            return FT_OK;
        }
    return n < 0 ? n
                 : ft_fail(FT_INVAL, "'%s' has no %s address, but the address to start from is one",
                           text, family == AF_INET6 ? "IPv6" : "IPv4");
}

static int find_source(const char *text, struct ft_net_address *out)
{
    *out = (struct ft_net_address){0};
    if (text[0] == '\0')
        return FT_OK;
    if (inet_pton(AF_INET, text, out->ip) == 1)
        out->family = AF_INET;
    else if (inet_pton(AF_INET6, text, out->ip) == 1)
        out->family = AF_INET6;
    else
        return ft_fail(FT_USAGE, "'%s' is no IP address to start from", text);
    return FT_OK;
}

static const char *text_of(int family, const unsigned char *ip, char text[INET6_ADDRSTRLEN])
{
    return inet_ntop(family, ip, text, INET6_ADDRSTRLEN) != NULL ? text : "?";
}

static void print_class(FILE *out, const struct ft_path_table *t, int c)
{
    char text[INET6_ADDRSTRLEN];
    fprintf(out, "  class %d, %d ports: ", c, t->classes[c].nports);
    for (int h = 0; h < t->nhops; h++) {
        const struct ft_path_hop *hop = &t->classes[c].hop[h];
        fprintf(out, "%s%s (%.2f ms)", h > 0 ? ", " : "", text_of(t->to.family, hop->ip, text),
                (double)hop->rtt_ns / 1e6);
    }
    fputs(t->nhops == 0 ? "no router between" : "", out);
    print_ports(out, t, c);
}

static void print_table(FILE *out, const struct ft_path_table *t)
{
    char text[FT_NET_TEXT_BYTES], from[INET6_ADDRSTRLEN];

    fprintf(out, "paths from %s to %s: %d of %d ports in %d classes\n",
            text_of(t->from.family, t->from.ip, from), ft_net_text(&t->to, text),
            t->nports - t->nunknown, t->nports, t->nclasses);
    for (int c = 0; c < t->nclasses; c++)
        print_class(out, t, c);
    if (t->nunknown > 0) {
        fprintf(out, "  unknown, %d ports", t->nunknown);
        print_ports(out, t, FT_PATH_UNKNOWN);
    }
    fprintf(out, "%d probes in %.3f s", t->nprobes, (double)t->took_ns / 1e9);
    if (t->ntaken > 0)
        fprintf(out, "; ports in use that were passed over: %d", t->ntaken);
    fputc('\n', out);
    if (t->cut)
        fputs("The time was up before all ports were probed.\n", out);
    if (t->outcome == FT_PATH_HIDDEN)
        fputs(
            "The host answers, but routers before it do not: ICMP 'time exceeded' is filtered, or "
            "they limit its rate. Paths cannot be told apart.\n",
            out);
    print_limits(out, t);
}

static void print_ports(FILE *out, const struct ft_path_table *t, int class_index)
{
    int n = 0;
    fputs("; ports", out);
    for (int i = 0; i < t->nports; i++)
        if (t->ports[i].class_index == class_index && n++ < EXAMPLES)
            fprintf(out, " %u", t->ports[i].source_port);
    fputs(n > EXAMPLES ? " ...\n" : "\n", out);
}

static int judge(const struct ft_path_table *t)
{
    char text[INET6_ADDRSTRLEN];
    if (t->nports == 0)
        return ft_fail(FT_INVAL, "all source ports are in use");
    if (t->outcome == FT_PATH_UNREACHABLE)
        return ft_fail(FT_LINK,
                       "there is no route: the router %s says that the host is unreachable",
                       text_of(t->refuser.family, t->refuser.ip, text));
    if (t->outcome == FT_PATH_SILENT)
        return ft_fail(FT_LINK,
                       "neither the host nor routers near it answer: it is down, or a firewall "
                       "drops connections to port %u; try a port on which it listens",
                       t->to.port);
    return FT_OK;
}

static void print_limits(FILE *out, const struct ft_path_table *t)
{
    for (int h = 0; h < FT_PATH_HOPS && h < t->nhops; h++) {
        if (t->asked[h] == t->answered[h])
            continue;
        if (t->answered[h] == 0)
            fprintf(out, "Hop %d answered no probes: ICMP is filtered there.\n", h + 1);
        else
            fprintf(out,
                    "Hop %d answered the probes of %d of %d ports: routers limit the rate of their "
                    "answers, or a path is broken. Ask again later, or with fewer --ports.\n",
                    h + 1, t->answered[h], t->asked[h]);
    }
}
