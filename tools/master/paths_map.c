/*
 * The map on the page: leaves below, spines above, and each cable between two of them, by how many
 * connections its links have. What is missing is a dashed line. A picture of lines and words, with
 * nothing that runs.
 */
#include "paths_show.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define WIDE_MOST 64 /* routers of a layer that are drawn */
#define LINKS_DRAWN 4096
#define HOSTS_NAMED 16
#define COLUMN 120 /* of the picture, and the size of a router's box */
#define ROW 150
#define BOX_WIDTH 92
#define BOX_HEIGHT 40
#define RED "#b00020"

const char *paths_router_name(const struct ft_topology *t, int router, char text[PATHS_NAME_BYTES])
{
    if (!t || router < 0 || router >= t->nrouters) {
        text[0] = '\0';
        return text;
    }
    const int layer = t->router[router].layer;
    snprintf(text, PATHS_NAME_BYTES, "%s %d",
             layer == 0   ? "leaf"
             : layer == 1 ? "spine"
                          : "core",
             t->router[router].place);
    return text;
}

/* ---- where routers are drawn ----------------------------------------------------------------- */

struct map {
    const struct paths *p;
    const struct ft_topology *t;
    const struct users *users;
    int wide, layers; /* routers of the largest layer, and the number of layers */
    int *x, *y;       /* of each router's middle */
    int most;         /* connections of the link with most */
};

/* False: the network is too large for a picture. */
static bool place(struct map *m)
{
    const struct ft_topology *t = m->t;
    for (int i = 0, n = 0; i < t->nrouters; i++) {
        n = i > 0 && t->router[i].layer == t->router[i - 1].layer ? n + 1 : 1;
        m->wide = n > m->wide ? n : m->wide;
        m->layers = t->router[i].layer + 1;
    }
    if (m->wide > WIDE_MOST || t->nlinks > LINKS_DRAWN)
        return false;
    for (int first = 0, end; first < t->nrouters; first = end) {
        for (end = first; end < t->nrouters && t->router[end].layer == t->router[first].layer;)
            end++;
        for (int i = first; i < end; i++) {
            m->x[i] = (2 * (i - first) + 1) * m->wide * COLUMN / (2 * (end - first));
            m->y[i] = (m->layers - 1 - t->router[i].layer) * ROW + BOX_HEIGHT;
        }
    }
    return true;
}

/* ---- cables ---------------------------------------------------------------------------------- */

/* A link with its lower router first, so that both directions of a cable are neighbours. */
struct strand {
    int low, high;
    int link; /* -1: it is missing */
    int from, to;
};

static int compare_strands(const void *x, const void *y)
{
    const struct strand *a = x, *b = y;
    return a->low != b->low ? (a->low > b->low) - (a->low < b->low)
                            : (a->high > b->high) - (a->high < b->high);
}

static struct strand strand_of(const struct ft_topology_link *link, int index)
{
    const bool ordered = link->from < link->to;
    return (struct strand){.low = ordered ? link->from : link->to,
                           .high = ordered ? link->to : link->from,
                           .link = index,
                           .from = link->from,
                           .to = link->to};
}

static int list_strands(const struct ft_topology *t, struct strand *out)
{
    int n = 0;
    for (int i = 0; i < t->nlinks; i++)
        if (t->link[i].from >= 0 && t->link[i].from != t->link[i].to)
            out[n++] = strand_of(&t->link[i], i);
    for (int i = 0; i < t->nmissing; i++)
        out[n++] = strand_of(&t->missing[i], -1);
    qsort(out, (size_t)n, sizeof *out, compare_strands);
    return n;
}

static void put_strand(const struct map *m, const struct strand *s, FILE *out)
{
    char from[PATHS_NAME_BYTES], to[PATHS_NAME_BYTES];
    fprintf(out, "%s to %s: ", paths_router_name(m->t, s->from, from),
            paths_router_name(m->t, s->to, to));
    if (s->link < 0) {
        fputs("missing\n", out);
        return;
    }
    const struct ft_allocator_link link = ft_allocator_link_at(m->p->allocator, s->link);
    fprintf(out, "%d connections, %s\n", link.connections, paths_state_text(&link));
    paths_put_users(&m->users[s->link], out);
}

/* How a cable is drawn. */
static const struct style {
    const char *name, *colour, *dashes;
} idle = {"idle", "#b5bcc4", ""}, used = {"used", "#1c5d99", ""},
  bad = {"bad", RED, " stroke-dasharray=\"2 3\""},
  missing = {"missing", RED, " stroke-dasharray=\"7 5\""};

/* By the worst of its links; *connections: of the busier one. */
static const struct style *style_of(const struct map *m, const struct strand *s, int n,
                                    int *connections)
{
    const struct style *style = &idle;
    *connections = 0;
    for (int i = 0; i < n; i++) {
        if (s[i].link < 0)
            return &missing;
        const struct ft_allocator_link link = ft_allocator_link_at(m->p->allocator, s[i].link);
        if (link.out || link.complaints > 1)
            style = &bad;
        else if (link.connections > 0 && style == &idle)
            style = &used;
        *connections = link.connections > *connections ? link.connections : *connections;
    }
    return style;
}

static void put_cable(const struct map *m, const struct strand *s, int n, FILE *out)
{
    int connections;
    const struct style *style = style_of(m, s, n, &connections);
    const double load = m->most > 0 ? (double)connections / m->most : 0;
    fprintf(out,
            "<line class=\"%s\" x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"%s\" "
            "stroke-width=\"%.1f\"%s><title>",
            style->name, m->x[s->low], m->y[s->low], m->x[s->high], m->y[s->high], style->colour,
            style == &used ? 2 + 4 * load : 2, style->dashes);
    for (int i = 0; i < n; i++)
        put_strand(m, &s[i], out);
    fputs("</title></line>", out);
}

/* ---- routers --------------------------------------------------------------------------------- */

static int count_hosts(const struct ft_topology *t, int router)
{
    int n = 0;
    for (int i = 0; i < t->nhosts; i++)
        n += t->host[i].router == router;
    return n;
}

static void put_box(const struct map *m, int router, int hosts, FILE *out)
{
    char name[PATHS_NAME_BYTES];
    const int x = m->x[router], y = m->y[router];
    fprintf(out,
            "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"5\" fill=\"#fff\" "
            "stroke=\"#333\"/><text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>",
            x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2, BOX_WIDTH, BOX_HEIGHT, x, y + 5,
            paths_router_name(m->t, router, name));
    if (hosts > 0)
        fprintf(out,
                "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\" fill=\"#555\" "
                "font-size=\"12\">%d host%s</text>",
                x, y + BOX_HEIGHT / 2 + 16, hosts, hosts == 1 ? "" : "s");
}

/* What a pointer on the box tells. */
static void put_title(const struct ft_topology *t, int router, int hosts, FILE *out)
{
    char text[FT_NET_TEXT_BYTES], name[PATHS_NAME_BYTES];
    int named = 0;
    fprintf(out, "<title>%s answers as %s", paths_router_name(t, router, name),
            ft_paths_ip_text(t->router[router].ip, text));
    for (int i = 0; i < t->nhosts && named < HOSTS_NAMED; i++)
        if (t->host[i].router == router)
            fprintf(out, "%s%s", named++ ? ", " : "; hosts ",
                    ft_paths_ip_text(t->host[i].ip, text));
    fprintf(out, "%s</title>", hosts > named ? ", ..." : "");
}

static void put_router(const struct map *m, int router, FILE *out)
{
    const int hosts = count_hosts(m->t, router);
    fputs("<g class=\"router\">", out);
    put_box(m, router, hosts, out);
    put_title(m->t, router, hosts, out);
    fputs("</g>", out);
}

/* ---- drawing the map ------------------------------------------------------------------------- */

static void draw(struct map *m, struct strand *strand, FILE *out)
{
    const int n = list_strands(m->t, strand);
    for (int i = 0; i < m->t->nlinks; i++) {
        const int connections = ft_allocator_link_at(m->p->allocator, i).connections;
        m->most = connections > m->most ? connections : m->most;
    }
    fprintf(out,
            "<svg class=\"map\" viewBox=\"0 0 %d %d\" width=\"%d\" style=\"max-width:100%%\" "
            "role=\"img\" aria-label=\"map of the network\" font-size=\"15\">",
            m->wide * COLUMN, (m->layers - 1) * ROW + 2 * BOX_HEIGHT + 10, m->wide * COLUMN);
    for (int first = 0, end; first < n; first = end) {
        for (end = first; end < n && compare_strands(&strand[first], &strand[end]) == 0;)
            end++;
        put_cable(m, &strand[first], end - first, out);
    }
    for (int i = 0; i < m->t->nrouters; i++)
        put_router(m, i, out);
    fputs("</svg><p class=\"note\">A line is as thick as the busier direction of a cable has "
          "connections; grey ones have none. Red: out or bad, or missing. A pointer on a line or a "
          "box tells more.</p>",
          out);
}

static void put_missing(const struct ft_topology *t, FILE *out)
{
    char from[PATHS_NAME_BYTES], to[PATHS_NAME_BYTES];
    for (int i = 0; i < t->nmissing; i++)
        fprintf(out,
                "<p class=\"bad\">No way goes from %s to %s, though both have others: that link "
                "may be broken.</p>",
                paths_router_name(t, t->missing[i].from, from),
                paths_router_name(t, t->missing[i].to, to));
}

void paths_put_map(struct paths *p, const struct users *users, FILE *out)
{
    struct map m = {.p = p, .t = paths_topology(p), .users = users};
    if (!m.t || m.t->nrouters == 0)
        return;
    put_missing(m.t, out);
    const size_t n = (size_t)m.t->nrouters;
    struct strand *strand = calloc((size_t)m.t->nlinks + (size_t)m.t->nmissing + 1, sizeof *strand);
    m.x = calloc(n, sizeof *m.x);
    m.y = calloc(n, sizeof *m.y);
    fputs("<h3>map</h3>", out);
    if (!strand || !m.x || !m.y)
        fputs("<p class=\"note\">no memory</p>", out);
    else if (place(&m))
        draw(&m, strand, out);
    else
        fprintf(out, "<p class=\"note\">%d routers and %d links are too many for a picture</p>",
                m.t->nrouters, m.t->nlinks);
    free(strand);
    free(m.x);
    free(m.y);
}
