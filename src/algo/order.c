/*
 * The order of the ranks along rings and chains: host by host, and within a host by rank. So a ring
 * enters and leaves each host once. It needs no tables and takes O(nranks log nhosts) time. If the
 * ranks are already numbered host by host, a position equals the rank.
 */
#include <string.h>

#include "algo/parts.h"

#define HOSTS_AT_ONCE 256 /* number of counters kept on the stack */

static bool is_contiguous(const struct ft_view *view)
{
    for (int r = 1; r < view->nranks; r++)
        if (view->host[r] < view->host[r - 1])
            return false;
    return true;
}

int ft_order_pos(const struct ft_view *view, int rank)
{
    int pos = 0;
    for (int r = 0; r < view->nranks; r++)
        if (view->host[r] < view->host[rank] || (view->host[r] == view->host[rank] && r < rank))
            pos++;
    return pos;
}

/* Number of ranks on hosts with a number below `host`. */
static int ranks_below(const struct ft_view *view, int host)
{
    int count = 0;
    for (int r = 0; r < view->nranks; r++)
        count += view->host[r] < host;
    return count;
}

int ft_order_rank(const struct ft_view *view, int pos)
{
    if (view->nhosts <= 1 || is_contiguous(view))
        return pos;
    int host = 0, beyond = view->nhosts; /* the position is on one of the hosts [host, beyond) */
    while (beyond - host > 1) {
        int middle = host + (beyond - host) / 2;
        if (ranks_below(view, middle) <= pos)
            host = middle;
        else
            beyond = middle;
    }
    pos -= ranks_below(view, host);
    for (int r = 0;; r++)
        if (view->host[r] == host && pos-- == 0)
            return r;
}

int ft_host_size(const struct ft_view *view, int host)
{
    int size = 0;
    for (int r = 0; r < view->nranks; r++)
        size += view->host[r] == host;
    return size;
}

int ft_host_size_max(const struct ft_view *view)
{
    int most = 1, size[HOSTS_AT_ONCE];
    if (view->nhosts <= 1)
        return view->nranks;
    for (int first = 0; first < view->nhosts; first += HOSTS_AT_ONCE) {
        memset(size, 0, sizeof size);
        for (int r = 0; r < view->nranks; r++) {
            int h = view->host[r] - first;
            if (h >= 0 && h < HOSTS_AT_ONCE && ++size[h] > most)
                most = size[h];
        }
    }
    return most;
}

struct ft_fold ft_fold_of(const struct ft_view *view)
{
    int rest = view->nranks - (1 << ft_log2_floor(view->nranks));
    int pos = ft_order_pos(view, view->rank);
    struct ft_fold fold = {.rest = rest, .place = pos - rest, .partner = -1};
    if (pos < 2 * rest) {
        fold.place = pos % 2 ? pos / 2 : -1;
        fold.partner = ft_order_rank(view, pos ^ 1);
    }
    return fold;
}

int ft_fold_rank(const struct ft_view *view, int place)
{
    int rest = view->nranks - (1 << ft_log2_floor(view->nranks));
    return ft_order_rank(view, place < rest ? 2 * place + 1 : place + rest);
}
