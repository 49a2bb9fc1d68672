/* Groups ports by their fingerprints. */
#include "path/probe.h"

#include <stdlib.h>
#include <string.h>

/* A port on its way into a class. */
struct entry {
    const struct ft_path_trace *trace;
    int nhops, at; /* its place among the ports */
};

static int compare(const void *a, const void *b);
static int compare_hops(const struct entry *a, const struct entry *b);
static bool is_known(const struct ft_path_trace *trace, int nhops);
/* Sets port[i] for each trace, of no class yet. Adds an entry for each port that answered in all
 * hops, and returns the number of entries. */
static int list_known(const struct ft_path_trace *trace, int ntraces, int nhops,
                      struct ft_path *port, struct entry *entry);
/* Entries are sorted; returns the number of classes. */
static int number_classes(const struct entry *entry, int n, struct ft_path *port);
static void join(struct ft_path_class *class, const struct entry *e);

int ft_path_classify(struct ft_path_table *t, const struct ft_path_trace *trace, int ntraces)
{
    const size_t n = (size_t)(ntraces > 0 ? ntraces : 1);
    struct ft_path *port = calloc(n, sizeof(*port));
    struct entry *entry = calloc(n, sizeof(*entry));
    struct ft_path_class *classes = NULL;
    int nknown = 0;

    if (port != NULL && entry != NULL) {
        nknown = list_known(trace, ntraces, t->nhops, port, entry);
        qsort(entry, (size_t)nknown, sizeof(*entry), compare);
        t->nclasses = number_classes(entry, nknown, port);
        classes = calloc((size_t)t->nclasses + 1, sizeof(*classes));
    }
    if (classes == NULL) {
        free(port);
        free(entry);
        t->nclasses = 0;
        return ft_fail(FT_NOMEM, "no memory for the paths of %d ports", ntraces);
    }
    for (int i = 0; i < nknown; i++)
        join(&classes[port[entry[i].at].class_index], &entry[i]);
    free(entry);
    t->ports = port;
    t->nports = ntraces;
    t->classes = classes;
    t->nunknown = ntraces - nknown;
    return FT_OK;
}

void ft_path_table_free(struct ft_path_table *t)
{
    if (t == NULL)
        return;
    free(t->ports);
    free(t->classes);
    free(t);
}

static bool is_known(const struct ft_path_trace *trace, int nhops)
{
    for (int i = 0; i < nhops; i++)
        if (!trace->hop[i].known)
            return false;
    return nhops >= 0;
}

static int list_known(const struct ft_path_trace *trace, int ntraces, int nhops,
                      struct ft_path *port, struct entry *entry)
{
    int n = 0;
    for (int i = 0; i < ntraces; i++) {
        port[i] = (struct ft_path){trace[i].port, FT_PATH_UNKNOWN};
        if (is_known(&trace[i], nhops))
            entry[n++] = (struct entry){&trace[i], nhops, i};
    }
    return n;
}

static int number_classes(const struct entry *entry, int n, struct ft_path *port)
{
    int at = -1;
    for (int i = 0; i < n; i++) {
        at += i == 0 || compare_hops(&entry[i - 1], &entry[i]) != 0;
        port[entry[i].at].class_index = (int16_t)at;
    }
    return at + 1;
}

static void join(struct ft_path_class *class, const struct entry *e)
{
    for (int i = 0; i < e->nhops; i++) {
        const struct ft_path_hop *hop = &e->trace->hop[i];
        if (class->nports == 0 || hop->rtt_ns < class->hop[i].rtt_ns)
            class->hop[i] = *hop;
    }
    class->nports++;
}

/* Ports with the same hops stay in the order of their places. */
static int compare(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    const int order = compare_hops(x, y);
    return order != 0 ? order : (x->at > y->at) - (x->at < y->at);
}

static int compare_hops(const struct entry *a, const struct entry *b)
{
    int order = 0;
    for (int i = 0; i < a->nhops && order == 0; i++)
        order = memcmp(a->trace->hop[i].ip, b->trace->hop[i].ip, sizeof(a->trace->hop[i].ip));
    return order;
}
