/*
 * Draws who waits for whom at this moment: the ranks to blame on the right, those that wait for
 * them left of them, and so on. Long layers and chains are cut, and say how many are missing.
 */
#include "diagnose_page.h"

#include <stdlib.h>
#include <string.h>

#define LAYERS 7
#define IN_LAYER 10
#define NODE_WIDTH 128
#define NODE_HEIGHT 40
#define STEP_X 210
#define STEP_Y 56

struct edge {
    int from, to; /* rows */
    const struct ft_snap_member *member;
};

struct graph {
    const struct page *p;
    struct edge *edge;
    int nedges;
    int *layer;        /* [rows] -1: none */
    int *spot;         /* [rows] place in its layer; -1: it is not drawn */
    int count[LAYERS]; /* ranks of a layer */
};

int waits_for(const struct page *p, const struct ft_snap_member *m)
{
    return m->wait.peer < 0 ? -1 : ranks_of_place(&p->ranks, m->ctx, m->wait.peer);
}

/* ---- edges ----------------------------------------------------------------------------------- */

/* Whom the verdict about the member's communicator names; -1: nobody, or the member itself. */
static int named_for(const struct page *p, const struct ft_snap_member *m, int row)
{
    for (int i = 0; i < p->report->found; i++) {
        const struct ft_verdict *v = &p->report->verdicts[i];
        int named = v->ctx == m->ctx && v->nculprits > 0
                        ? ranks_of_culprit(&p->ranks, &v->culprits[0])
                        : -1;
        if (named >= 0 && named != row)
            return named;
    }
    return -1;
}

static void list_edges(struct graph *g)
{
    const struct page *p = g->p;
    for (int i = 0; i < p->s->nmembers; i++) {
        const struct ft_snap_member *m = &p->s->members[i];
        bool waits = (double)ranks_waiting_ns(p->s, m) > p->report->after_s * 1e9;
        bool known = m->engine >= 0 && m->engine < p->s->nengines;
        int from = waits && known ? p->ranks.by_engine[m->engine] : -1;
        int to = from < 0 ? -1 : waits_for(p, m);
        to = from >= 0 && to < 0 ? named_for(p, m, from) : to;
        if (to >= 0 && to != from)
            g->edge[g->nedges++] = (struct edge){from, to, m};
    }
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* The first layer: the culprits; without any, those who are waited for and wait for nobody. */
static void find_ends(struct graph *g)
{
    const struct page *p = g->p;
    bool any = false;
    for (int i = 0; i < p->ranks.n; i++) {
        bool culprit = p->ranks.row[i].state == RANK_CULPRIT;
        g->layer[i] = culprit ? 0 : -1;
        any |= culprit;
    }
    for (int i = 0; !any && i < g->nedges; i++)
        g->layer[g->edge[i].to] = 0;
    for (int i = 0; !any && i < g->nedges; i++)
        g->layer[g->edge[i].from] = -1;
}

static void find_layers(struct graph *g)
{
    find_ends(g);
    for (int layer = 0; layer + 1 < LAYERS; layer++)
        for (int i = 0; i < g->nedges; i++)
            if (g->layer[g->edge[i].to] == layer && g->layer[g->edge[i].from] < 0)
                g->layer[g->edge[i].from] = layer + 1;
    for (int i = 0; i < g->p->ranks.n; i++) {
        int layer = g->layer[i];
        g->spot[i] = layer < 0 || g->count[layer] >= IN_LAYER ? -1 : g->count[layer];
        if (layer >= 0)
            g->count[layer]++;
    }
}

/* ---- drawing --------------------------------------------------------------------------------- */

static int last_layer(const struct graph *g)
{
    int last = 0;
    while (last + 1 < LAYERS && g->count[last + 1])
        last++;
    return last;
}

static int x_of(const struct graph *g, int layer)
{
    return 4 + (last_layer(g) - layer) * STEP_X;
}

static int y_of(int spot)
{
    return 4 + spot * STEP_Y;
}

static void put_node(const struct graph *g, int row)
{
    FILE *out = g->p->out;
    const struct rank_row *r = &g->p->ranks.row[row];
    const struct ft_snap_engine *engine = r->engine < 0 ? NULL : &g->p->s->engines[r->engine];
    int x = x_of(g, g->layer[row]), y = y_of(g->spot[row]);
    bool culprit = r->state == RANK_CULPRIT;
    fprintf(out, "<g class=\"node%s\"><title>", culprit ? " culprit" : "");
    put_rank(g->p, row);
    fprintf(out, "</title><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n", x, y,
            NODE_WIDTH, NODE_HEIGHT);
    fprintf(out, "<text x=\"%d\" y=\"%d\" class=\"name\">%srank %d</text>", x + 10, y + 17,
            culprit ? "&#9654; " : "", r->rank);
    fprintf(out, "<text x=\"%d\" y=\"%d\">", x + 10, y + 32);
    if (engine) {
        char host[16];
        snprintf(host, sizeof host, "%.12s", engine->hostname);
        put_text(out, host);
        fprintf(out, " %d", engine->pid);
    } else {
        fputs("no telemetry", out);
    }
    fputs("</text></g>\n", out);
}

/* From the right side of a node to the left of the next one; what goes back (a cycle) goes below.
 */
static void put_curve(const struct graph *g, const struct edge *e)
{
    int from = g->layer[e->from], to = g->layer[e->to], middle = NODE_WIDTH / 2;
    int x1 = x_of(g, from) + NODE_WIDTH, y1 = y_of(g->spot[e->from]) + NODE_HEIGHT / 2,
        x2 = x_of(g, to), y2 = y_of(g->spot[e->to]) + NODE_HEIGHT / 2;
    if (from > to)
        fprintf(g->p->out, "<path d=\"M%d %dC%d %d %d %d %d %d\">", x1, y1, x1 + 40, y1, x2 - 40,
                y2, x2 - 3, y2);
    else
        fprintf(g->p->out, "<path d=\"M%d %dC%d %d %d %d %d %d\">", x1 - middle,
                y1 + NODE_HEIGHT / 2, x1 - middle, y1 + NODE_HEIGHT, x2 + middle, y2 + NODE_HEIGHT,
                x2 + middle, y2 + NODE_HEIGHT / 2);
}

static void put_edge(const struct graph *g, const struct edge *e)
{
    FILE *out = g->p->out;
    if (g->spot[e->from] < 0 || g->spot[e->to] < 0)
        return;
    put_curve(g, e);
    fputs("<title>", out);
    put_rank(g->p, e->from);
    fputs(e->member->wait.peer < 0 ? " waits, and the verdict names "
          : e->member->wait.sends  ? " waits until it takes something: "
                                   : " waits for something from ",
          out);
    put_rank(g->p, e->to);
    fputs(", in ", out);
    put_call(g->p, e->member, e->member->running_sig, e->member->running_seq);
    fputs("</title></path>\n", out);
}

static void put_labels(const struct graph *g)
{
    for (int layer = 0; layer < LAYERS; layer++) {
        if (g->count[layer] > IN_LAYER)
            fprintf(g->p->out, "<text class=\"more\" x=\"%d\" y=\"%d\">and %d more</text>\n",
                    x_of(g, layer) + 10, y_of(IN_LAYER) + 12, g->count[layer] - IN_LAYER);
    }
}

static void put_drawing(const struct graph *g)
{
    int tallest = 0, layers = last_layer(g) + 1, drawn = 0, waiting = 0;
    for (int i = 0; i < LAYERS; i++)
        if (g->count[i] > tallest)
            tallest = g->count[i] > IN_LAYER ? IN_LAYER + 1 : g->count[i];
    fprintf(g->p->out, "<svg class=\"graph\" viewBox=\"0 0 %d %d\" width=\"%d\" role=\"img\">\n",
            layers * STEP_X, tallest * STEP_Y, layers * STEP_X);
    fputs("<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" "
          "markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\"/></marker></defs>\n<g "
          "class=\"edges\">\n",
          g->p->out);
    for (int i = 0; i < g->nedges; i++) {
        put_edge(g, &g->edge[i]);
        waiting += g->layer[g->edge[i].from] < 0;
    }
    fputs("</g>\n", g->p->out);
    for (int i = 0; i < g->p->ranks.n && drawn < LAYERS * IN_LAYER; i++)
        if (g->spot[i] >= 0) {
            put_node(g, i);
            drawn++;
        }
    put_labels(g);
    fputs("</svg>\n", g->p->out);
    if (waiting)
        fprintf(g->p->out, "<p>%d more ranks wait further away, or for others.</p>\n", waiting);
}

void put_graph(const struct page *p)
{
    size_t rows = (size_t)p->ranks.n + 1;
    struct graph g = {.p = p,
                      .edge = calloc((size_t)p->s->nmembers + 1, sizeof *g.edge),
                      .layer = calloc(rows, sizeof *g.layer),
                      .spot = calloc(rows, sizeof *g.spot)};
    fputs("<section id=\"graph\"><h2>Who waits for whom now</h2>\n", p->out);
    if (g.edge && g.layer && g.spot) {
        list_edges(&g);
        find_layers(&g);
    }
    if (g.nedges > 0)
        put_drawing(&g);
    else
        fputs("<p class=\"none\">No rank has waited for another for too long.</p>\n", p->out);
    fputs("</section>\n", p->out);
    free(g.edge);
    free(g.layer);
    free(g.spot);
}
