/*
 * All ranks at a glance, one square each, and a table of those that are shown.
 */
#include "diagnose_page.h"

#include <stdlib.h>

#define SQUARES 65536 /* more ranks are counted, not drawn */
#define TITLES 2048   /* squares that say more when they are pointed at */

static const char *const state_class[] = {"outside", "calls",   "waits",  "stopped",
                                          "gone",    "missing", "culprit"};
static const char *const state_text[] = {
#define X(name, text) text,
    RANK_STATES(X)
#undef X
};

/* ---- the glance ------------------------------------------------------------------------------ */

static int pitch_of(int n)
{
    return n <= 64 ? 26 : n <= 512 ? 16 : n <= 4096 ? 9 : 4;
}

static int columns_of(int n)
{
    return n <= 64 ? 16 : n <= 512 ? 48 : n <= 4096 ? 112 : 256;
}

static void put_square(const struct page *p, int row, int pitch, int columns)
{
    fprintf(p->out, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"><title>",
            state_class[p->ranks.row[row].state], row % columns * pitch, row / columns * pitch,
            pitch - 1, pitch - 1);
    put_rank(p, row);
    fprintf(p->out, ": %s</title></rect>\n", state_text[p->ranks.row[row].state]);
}

/* The squares of one state that say nothing more, as one path. */
static void put_squares(const struct page *p, enum rank_state state, int from)
{
    int n = (int)ft_min(p->ranks.n, SQUARES), pitch = pitch_of(n), columns = columns_of(n);
    fprintf(p->out, "<path class=\"%s\" d=\"", state_class[state]);
    for (int i = from; i < n; i++)
        if (p->ranks.row[i].state == state)
            fprintf(p->out, "M%d %dh%dv%dh-%dz", i % columns * pitch, i / columns * pitch,
                    pitch - 1, pitch - 1, pitch - 1);
    fputs("\"/>\n", p->out);
}

static void put_number(const struct page *p, int row, int pitch, int columns)
{
    fprintf(p->out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\"%s>%d</text>\n",
            row % columns * pitch + pitch / 2, row / columns * pitch + pitch / 2 + 4,
            p->ranks.row[row].state == RANK_MISSING   ? " class=\"none\""
            : p->ranks.row[row].state >= RANK_STOPPED ? " class=\"on\""
                                                      : "",
            p->ranks.row[row].rank);
}

/* A square of few pixels is not seen. */
static void put_ring(const struct page *p, int row, int pitch, int columns)
{
    fprintf(p->out, "<circle class=\"ring\" cx=\"%d\" cy=\"%d\" r=\"9\"/>\n",
            row % columns * pitch + pitch / 2, row / columns * pitch + pitch / 2);
}

static void put_counts(const struct page *p)
{
    int count[RANK_STATE_COUNT] = {0};
    for (int i = 0; i < p->ranks.n; i++)
        count[p->ranks.row[i].state]++;
    fputs("<p class=\"legend\">", p->out);
    for (int i = 0; i < RANK_STATE_COUNT; i++)
        if (count[i])
            fprintf(p->out, "<i class=\"%s\"></i>%d: %s ", state_class[i], count[i], state_text[i]);
    fputs("</p>\n", p->out);
}

void put_overview(const struct page *p)
{
    int n = (int)ft_min(p->ranks.n, SQUARES), pitch = pitch_of(n), columns = columns_of(n);
    int titles = n <= TITLES ? n : 0;
    fputs("<section id=\"ranks\"><h2>All ranks</h2>\n", p->out);
    put_counts(p);
    fprintf(p->out, "<svg class=\"all\" viewBox=\"0 0 %d %d\" width=\"%d\" role=\"img\">\n",
            columns * pitch, (n + columns - 1) / columns * pitch, columns * pitch);
    for (int i = 0; i < titles; i++)
        put_square(p, i, pitch, columns);
    for (int state = 0; titles == 0 && state < RANK_STATE_COUNT; state++)
        put_squares(p, (enum rank_state)state, 0);
    for (int i = 0, named = 0; titles == 0 && i < n && named < TITLES; i++)
        if (p->ranks.row[i].state == RANK_CULPRIT) {
            put_square(p, i, pitch, columns);
            put_ring(p, i, pitch, columns);
            named++;
        }
    for (int i = 0; n <= 64 && i < n; i++)
        put_number(p, i, pitch, columns);
    fputs("</svg>\n", p->out);
    if (n < p->ranks.n)
        fprintf(p->out, "<p>%d more ranks are not drawn.</p>\n", p->ranks.n - n);
    fputs("</section>\n", p->out);
}

/* ---- the table ------------------------------------------------------------------------------- */

/* The communicator in which the engine waits the longest; else its largest. */
static const struct ft_snap_member **list_members(const struct page *p)
{
    const struct ft_snap_member **member = calloc((size_t)p->ranks.n + 1, sizeof(void *));
    for (int i = 0; member && i < p->s->nmembers; i++) {
        const struct ft_snap_member *m = &p->s->members[i];
        int row = m->engine < 0 || m->engine >= p->s->nengines ? -1 : p->ranks.by_engine[m->engine];
        if (row < 0 || !m->open)
            continue;
        uint64_t waits = ranks_waiting_ns(p->s, m);
        uint64_t other = member[row] ? ranks_waiting_ns(p->s, member[row]) : 0;
        if (!member[row] || waits > other || (waits == other && m->nranks > member[row]->nranks))
            member[row] = m;
    }
    return member;
}

static void put_last_call(const struct page *p, const struct ft_snap_member *m)
{
    uint64_t now_ns = p->s->now_ns;
    if (!m->last.called_ns)
        return;
    char text[128];
    ft_sig_text(m->last.sig, text, sizeof text);
    put_text(p->out, text);
    fputs(", ", p->out);
    put_duration(p->out, now_ns > m->last.called_ns ? now_ns - m->last.called_ns : 0);
    fputs(" ago", p->out);
}

static void put_wait(const struct page *p, const struct ft_snap_member *m)
{
    int peer = waits_for(p, m);
    uint64_t waits_ns = ranks_waiting_ns(p->s, m);
    if (!waits_ns)
        return;
    put_duration(p->out, waits_ns);
    if (peer >= 0)
        fprintf(p->out, m->wait.sends ? ", until rank %d takes" : ", for rank %d",
                p->ranks.row[peer].rank);
}

static void put_member_cells(const struct page *p, const struct ft_snap_member *m)
{
    put_name(p->out, m);
    fprintf(p->out, "</td><td class=\"number\">%llu</td><td class=\"number\">%llu</td><td>",
            (unsigned long long)m->called, (unsigned long long)m->done);
    put_last_call(p, m);
    fputs("</td><td>", p->out);
    put_wait(p, m);
}

static void put_process_cells(const struct page *p, const struct rank_row *row)
{
    const struct ft_snap_engine *engine = row->engine < 0 ? NULL : &p->s->engines[row->engine];
    if (!engine) {
        fputs("</td><td></td><td></td><td>no telemetry", p->out);
        return;
    }
    put_text(p->out, engine->hostname);
    fprintf(p->out, "</td><td class=\"number\">%d</td><td>", engine->pid);
    put_text(p->out, engine->program);
    fputs("</td><td>", p->out);
    put_text(p->out, engine->state == FT_PROCESS_GONE ? "has ended" : engine->doing);
}

void put_table(const struct page *p)
{
    const struct ft_snap_member **member = list_members(p);
    fputs("<section id=\"table\"><h2>Ranks</h2>\n<div class=\"wide\"><table><thead><tr><th>rank"
          "</th><th>host</th><th>pid</th><th>program</th><th>process</th><th>communicator</th>"
          "<th>called</th><th>done</th><th>last call</th><th>has waited</th></tr></thead>\n",
          p->out);
    for (int i = 0; member && i < p->nshown; i++) {
        const struct rank_row *row = &p->ranks.row[p->shown[i]];
        fprintf(p->out, "<tr class=\"%s\"><td class=\"number\">%d</td><td>",
                state_class[row->state], row->rank);
        put_process_cells(p, row);
        fputs("</td><td>", p->out);
        if (member[p->shown[i]])
            put_member_cells(p, member[p->shown[i]]);
        fputs("</td></tr>\n", p->out);
    }
    fputs("</table></div></section>\n", p->out);
    free(member);
}
