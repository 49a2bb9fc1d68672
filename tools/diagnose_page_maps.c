/*
 * Matrices ranks x ranks as heat maps: how long links were waited for, what they carried, how long
 * the network took.
 */
#include "diagnose_page.h"

#include <math.h>
#include <stdlib.h>

struct cell {
    uint64_t value;
    uint64_t messages; /* of traffic */
    bool now;          /* of waits: the row waits for the column at this moment */
    bool named;        /* in a verdict */
};

struct map {
    const char *id, *title, *about;
    void (*put_value)(FILE *, const struct cell *);
    struct cell cell[SHOWN * SHOWN];
};

/* ---- filling --------------------------------------------------------------------------------- */

/* NULL: one of them is not shown. */
static struct cell *cell_of(const struct page *p, struct map *map, int from, int to)
{
    int row = from < 0 ? -1 : p->column[from], column = to < 0 ? -1 : p->column[to];
    return row < 0 || column < 0 ? NULL : &map->cell[row * SHOWN + column];
}

static int row_of_engine(const struct page *p, int engine)
{
    return engine < 0 || engine >= p->s->nengines ? -1 : p->ranks.by_engine[engine];
}

static void fill_waits(const struct page *p, struct map *map)
{
    for (int i = 0; i < p->s->nlinks; i++) {
        const struct ft_snap_link *link = &p->s->links[i];
        struct cell *cell = cell_of(p, map, row_of_engine(p, link->engine),
                                    ranks_of_id(&p->ranks, link->peer));
        if (cell)
            cell->value += link->wait_ns;
    }
    for (int i = 0; i < p->s->nmembers; i++) {
        const struct ft_snap_member *m = &p->s->members[i];
        uint64_t now_ns = ranks_waiting_ns(p->s, m);
        struct cell *cell = now_ns == 0
                                ? NULL
                                : cell_of(p, map, row_of_engine(p, m->engine), waits_for(p, m));
        if (!cell)
            continue;
        cell->value = ft_max(cell->value, now_ns);
        cell->now |= (double)now_ns > p->report->after_s * 1e9;
    }
}

/* Both ends count; the sender's number is the larger one while messages are on the way. */
static void fill_traffic(const struct page *p, struct map *map)
{
    for (int i = 0; i < p->s->nlinks; i++) {
        const struct ft_snap_link *link = &p->s->links[i];
        int here = row_of_engine(p, link->engine), there = ranks_of_id(&p->ranks, link->peer);
        struct cell *cell = link->sender ? cell_of(p, map, here, there)
                                         : cell_of(p, map, there, here);
        if (!cell)
            continue;
        cell->value = ft_max(cell->value, link->bytes);
        cell->messages = ft_max(cell->messages, link->messages);
    }
}

/* Nanoseconds that a megabyte was on its way. */
static void fill_network(const struct page *p, struct map *map)
{
    for (int i = 0; i < p->s->npaths; i++) {
        const struct ft_snap_path *path = &p->s->paths[i];
        struct cell *cell = cell_of(p, map, row_of_engine(p, path->engine),
                                    ranks_of_id(&p->ranks, path->peer));
        if (!cell || path->bytes < 65536)
            continue;
        double ns = (double)path->network_ns / (double)path->bytes * 1e6;
        cell->value = ns < 1e18 ? (uint64_t)ns : 0;
        cell->messages = path->retransmits;
    }
}

static void mark_links(const struct page *p, struct map *map)
{
    for (int i = 0; i < p->report->found; i++)
        for (int k = 0; k < p->report->verdicts[i].nculprits && k < FT_CULPRITS; k++) {
            const struct ft_culprit *c = &p->report->verdicts[i].culprits[k];
            struct cell *cell = cell_of(p, map, ranks_of_culprit(&p->ranks, c),
                                        ranks_of_culprit_peer(&p->ranks, c));
            if (cell)
                cell->named = true;
        }
}

/* ---- drawing --------------------------------------------------------------------------------- */

static void put_waited(FILE *out, const struct cell *cell)
{
    put_duration(out, cell->value);
    fputs(cell->now ? " (it waits now)" : " in sum", out);
}

static void put_carried(FILE *out, const struct cell *cell)
{
    put_bytes(out, cell->value);
    fprintf(out, " in %llu messages", (unsigned long long)cell->messages);
}

static void put_network(FILE *out, const struct cell *cell)
{
    put_duration(out, cell->value);
    fprintf(out, " for a megabyte, %llu retransmits", (unsigned long long)cell->messages);
}

static int size_of_cell(const struct page *p)
{
    return p->nshown <= 12 ? 34 : p->nshown <= 24 ? 18 : p->nshown <= 40 ? 11 : 7;
}

bool has_label(const struct page *p, int place, int apart)
{
    if (p->ranks.row[p->shown[place]].state == RANK_CULPRIT)
        return true;
    for (int i = place - apart + 1; i < place + apart; i++)
        if (i >= 0 && i < p->nshown && p->ranks.row[p->shown[i]].state == RANK_CULPRIT)
            return false;
    return place % apart == 0;
}

static void put_label(const struct page *p, int place, int x, int y)
{
    const struct rank_row *row = &p->ranks.row[p->shown[place]];
    fprintf(p->out, "<text x=\"%d\" y=\"%d\"%s>%d</text>\n", x, y,
            row->state == RANK_CULPRIT ? " class=\"bad\"" : "", row->rank);
}

/* How many columns the number of a rank is wide. */
static int width_of_label(const struct page *p, int size)
{
    int digits = snprintf(NULL, 0, "%d", p->ranks.row[p->shown[p->nshown - 1]].rank);
    return (7 * digits + 3) / size + 1;
}

static void put_axes(const struct page *p, int size)
{
    int side = size * p->nshown;
    fprintf(p->out, "<rect class=\"ground\" x=\"40\" y=\"24\" width=\"%d\" height=\"%d\"/>\n", side,
            side);
    fputs("<g class=\"axis\" text-anchor=\"end\">\n", p->out);
    for (int i = 0; i < p->nshown; i++)
        if (has_label(p, i, 12 / size + 1))
            put_label(p, i, 35, 24 + i * size + size / 2 + 4);
    fputs("</g><g class=\"axis\" text-anchor=\"middle\">\n", p->out);
    for (int i = 0; i < p->nshown; i++)
        if (has_label(p, i, width_of_label(p, size)))
            put_label(p, i, 40 + i * size + size / 2, 18);
    fputs("</g>\n", p->out);
}

/* Rows and columns of those who are to blame. */
static void put_bands(const struct page *p, int size)
{
    int side = size * p->nshown;
    for (int i = 0; i < p->nshown; i++) {
        if (p->ranks.row[p->shown[i]].state != RANK_CULPRIT)
            continue;
        fprintf(p->out, "<rect class=\"band\" x=\"40\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n",
                24 + i * size, side, size);
        fprintf(p->out, "<rect class=\"band\" x=\"%d\" y=\"24\" width=\"%d\" height=\"%d\"/>\n",
                40 + i * size, size, side);
    }
}

static void put_cell(const struct page *p, const struct map *map, int i, uint64_t most)
{
    const struct cell *cell = &map->cell[i / p->nshown * SHOWN + i % p->nshown];
    int size = size_of_cell(p), x = 40 + i % p->nshown * size, y = 24 + i / p->nshown * size;
    if (cell->value == 0 && !cell->named)
        return;
    fprintf(p->out,
            "<rect%s x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill-opacity=\"%.2f\"><title>",
            cell->named ? " class=\"named\""
            : cell->now ? " class=\"now\""
                        : "",
            x + 1, y + 1, size - 2, size - 2,
            most ? 0.08 + 0.92 * sqrt((double)cell->value / (double)most) : 0.08);
    fprintf(p->out, "rank %d to rank %d: ", p->ranks.row[p->shown[i / p->nshown]].rank,
            p->ranks.row[p->shown[i % p->nshown]].rank);
    map->put_value(p->out, cell);
    fputs("</title></rect>\n", p->out);
}

static void put_scale(const struct page *p, const struct map *map, uint64_t most)
{
    const struct cell full = {.value = most};
    fputs("<p class=\"scale\"><span>0</span><i></i><span>", p->out);
    if (map->put_value == put_carried)
        put_bytes(p->out, full.value);
    else
        put_duration(p->out, full.value);
    fputs("</span></p>\n", p->out);
}

static void put_map(const struct page *p, const struct map *map)
{
    int size = size_of_cell(p), side = size * p->nshown, cells = p->nshown * p->nshown;
    uint64_t most = 0;
    for (int i = 0; i < cells; i++)
        most = ft_max(most, map->cell[i / p->nshown * SHOWN + i % p->nshown].value);
    if (most == 0)
        return;
    fprintf(p->out, "<figure id=\"%s\"><figcaption><b>%s</b> %s</figcaption>\n", map->id,
            map->title, map->about);
    fprintf(p->out, "<svg class=\"map\" viewBox=\"0 0 %d %d\" width=\"%d\" role=\"img\">\n",
            side + 48, side + 30, side + 48);
    put_axes(p, size);
    fputs("<g class=\"heat\">\n", p->out);
    for (int i = 0; i < cells; i++)
        put_cell(p, map, i, most);
    fputs("</g>\n", p->out);
    put_bands(p, size);
    fputs("</svg>\n", p->out);
    put_scale(p, map, most);
    fputs("</figure>\n", p->out);
}

void put_maps(const struct page *p)
{
    static const struct {
        const char *id, *title, *about;
        void (*fill)(const struct page *, struct map *);
        void (*put_value)(FILE *, const struct cell *);
    } kind[] = {
        {"waits", "Who waits for whom.",
         "A row waits for a column: sampled since the link was made, or for how long it waits now "
         "(framed).",
         fill_waits, put_waited},
        {"traffic", "What links have carried.", "From a row to a column, since the link was made.",
         fill_traffic, put_carried},
        {"network", "How long the network takes.",
         "For a megabyte from a row to a column, over the last seconds.", fill_network,
         put_network},
    };
    fputs("<section id=\"links\"><h2>Links</h2>\n<div class=\"maps\">\n", p->out);
    if (p->s->nlinks == 0)
        fputs("<p class=\"none\">No link is recorded.</p>\n", p->out);
    for (size_t i = 0; i < FT_ARRAY_LEN(kind); i++) {
        struct map *map = p->nshown ? calloc(1, sizeof *map) : NULL;
        if (!map)
            continue;
        map->id = kind[i].id;
        map->title = kind[i].title;
        map->about = kind[i].about;
        map->put_value = kind[i].put_value;
        kind[i].fill(p, map);
        mark_links(p, map);
        put_map(p, map);
        free(map);
    }
    fputs("</div></section>\n", p->out);
}
