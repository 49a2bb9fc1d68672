/*
 * Network interfaces and InfiniBand ports: errors, links that go down and come back, and links that
 * were up and are down. A link that goes down twice in five minutes is bad, once may happen
 * (ByteRobust tolerates one, too).
 */
#include "checks_parts.h"

#include <string.h>
#include <unistd.h>

#define WINDOW 30
#define FLAP_WINDOW 150 /* growth is over one or two of them: 5 minutes */

static const struct check_limit error_limit = {1, 100};    /* a second */
static const struct check_limit change_limit = {0.5, 3.5}; /* two flaps are four changes */
static const struct check_limit down_limit = {0.25, 0.5};

static void judge_errors(struct checks *c, const char *what, uint64_t errors)
{
    char name[48];
    double seconds;
    snprintf(name, sizeof name, "%.36s errors", what);
    double rate = (double)check_growth(c, name, errors, WINDOW, &seconds) / seconds;
    check_judge(c, name, rate, error_limit, "%.3g errors a second of %.40s", rate, what);
}

static void judge_changes(struct checks *c, const char *what, uint64_t changes)
{
    char name[48];
    double seconds;
    snprintf(name, sizeof name, "%.36s flaps", what);
    uint64_t n = check_growth(c, name, changes, FLAP_WINDOW, &seconds);
    check_judge(c, name, (double)n, change_limit,
                "the link of %.40s went up or down %llu times in %.0f s", what,
                (unsigned long long)n, seconds);
}

/* Interfaces without a device are bridges, tunnels and the like. */
static bool is_physical(const struct checks *c, const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/sys/class/net/%s/device", c->root, name);
    return access(path, F_OK) == 0;
}

static void judge_state(struct checks *c, const char *what, const char *name, uint64_t changes)
{
    char state[32], check[48];
    snprintf(check, sizeof check, "%.36s link", what);
    if (changes == 0 || !check_read(c, state, sizeof state, "/sys/class/net/%s/operstate", name))
        return;
    bool down = strcmp(state, "down") == 0;
    check_judge(c, check, down, down_limit, "the link of %.40s is %.16s", what, state);
}

static void visit_interface(struct checks *c, const char *name)
{
    char what[40];
    uint64_t changes, received, sent;
    if (!is_physical(c, name) ||
        !check_read_number(c, &changes, "/sys/class/net/%s/carrier_changes", name))
        return;
    snprintf(what, sizeof what, "nic %.32s", name);
    judge_state(c, what, name, changes);
    judge_changes(c, what, changes);
    if (check_read_number(c, &received, "/sys/class/net/%s/statistics/rx_errors", name) &&
        check_read_number(c, &sent, "/sys/class/net/%s/statistics/tx_errors", name))
        judge_errors(c, what, received + sent);
}

static void visit_hca(struct checks *c, const char *name)
{
    static const char *const counters[] = {"symbol_error", "port_rcv_errors",
                                           "local_link_integrity_errors"};
    char what[40];
    uint64_t errors = 0, downs, one;
    snprintf(what, sizeof what, "hca %.32s", name);
    for (size_t i = 0; i < FT_ARRAY_LEN(counters); i++)
        if (check_read_number(c, &one, "/sys/class/infiniband/%s/ports/1/counters/%s", name,
                              counters[i]))
            errors += one;
    judge_errors(c, what, errors);
    if (check_read_number(c, &downs, "/sys/class/infiniband/%s/ports/1/counters/link_downed", name))
        judge_changes(c, what, 2 * downs);
}

void check_network(struct checks *c)
{
    check_each(c, "/sys/class/net", visit_interface);
    check_each(c, "/sys/class/infiniband", visit_hca);
}
