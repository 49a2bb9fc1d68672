/*
 * What each rank did over time: a strip of buckets, one line a rank. A job that hangs has done
 * nothing for long, so the time since the last event is drawn apart, on its own scale.
 */
#include "diagnose_page.h"

#include <stdlib.h>
#include <string.h>

#define BUCKETS 360   /* of the time up to the last event */
#define OPERATIONS 30 /* the latest of the ranks decide how far back it goes */
#define LEFT 90       /* pixels before the strip */
#define BUCKET_PIXELS 2
#define GAP 14
#define SINCE_PIXELS 150

/* What a rank does; the larger one wins in a bucket. */
enum doing { OUTSIDE, QUEUED, POINT, COLLECTIVE, RUNS_NOW, DOINGS };
static const char *const doing_class[] = {"", "queued", "point", "coll", "stuck"};

struct strip {
    uint64_t begin_ns, last_ns, now_ns;
    unsigned char (*bucket)[BUCKETS + 1]; /* [nshown]; the last is the time since */
};

/* ---- the span -------------------------------------------------------------------------------- */

static int column_of_member(const struct page *p, int member)
{
    int engine = p->s->members[member].engine;
    int row = engine < 0 || engine >= p->s->nengines ? -1 : p->ranks.by_engine[engine];
    return row < 0 ? -1 : p->column[row];
}

static int column_of(const struct page *p, const struct ft_snap_op *op)
{
    return op->member < 0 || op->member >= p->s->nmembers ? -1 : column_of_member(p, op->member);
}

static uint64_t not_after(uint64_t time_ns, uint64_t now_ns)
{
    return time_ns > now_ns ? 0 : time_ns;
}

static uint64_t last_event(const struct page *p)
{
    uint64_t last = 0, now = p->s->now_ns;
    for (int i = 0; i < p->s->nops; i++) {
        const struct ft_snap_op *op = &p->s->ops[i];
        if (column_of(p, op) < 0)
            continue;
        last = ft_max(last, ft_max(not_after(op->started_ns, now), not_after(op->ended_ns, now)));
    }
    for (int i = 0; i < p->s->nmembers; i++)
        if (column_of_member(p, i) >= 0)
            last = ft_max(last, not_after(p->s->members[i].last.called_ns, now));
    return last;
}

static int by_time(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* When the 30th operation from the end began, of the ranks that are shown. */
static uint64_t first_event(const struct page *p, uint64_t last_ns)
{
    uint64_t *time = calloc((size_t)p->s->nops + 1, sizeof *time);
    int n = 0, wanted = OPERATIONS * p->nshown;
    for (int i = 0; time && i < p->s->nops; i++) {
        uint64_t began = p->s->ops[i].started_ns;
        if (began && began <= last_ns && column_of(p, &p->s->ops[i]) >= 0)
            time[n++] = began;
    }
    if (time)
        qsort(time, (size_t)n, sizeof *time, by_time);
    uint64_t first = n == 0 ? last_ns : time[n > wanted ? n - wanted : 0];
    free(time);
    return first;
}

/* ---- filling --------------------------------------------------------------------------------- */

static int bucket_of(const struct strip *strip, uint64_t time_ns)
{
    if (time_ns > strip->last_ns)
        return BUCKETS;
    if (time_ns <= strip->begin_ns)
        return 0;
    double part = (double)(time_ns - strip->begin_ns) / (double)(strip->last_ns - strip->begin_ns);
    return part < 1 ? (int)(part * BUCKETS) : BUCKETS - 1;
}

static void paint(struct strip *strip, int line, uint64_t from_ns, uint64_t to_ns, enum doing what)
{
    if (from_ns == 0 || to_ns < from_ns || to_ns < strip->begin_ns || from_ns > strip->now_ns)
        return;
    for (int i = bucket_of(strip, from_ns), end = bucket_of(strip, to_ns); i <= end; i++)
        strip->bucket[line][i] = (unsigned char)ft_max(strip->bucket[line][i], what);
}

static void paint_op(const struct page *p, struct strip *strip, const struct ft_snap_op *op)
{
    int line = column_of(p, op);
    if (line < 0)
        return;
    bool point = (op->sig & 15) == FT_SEND || (op->sig & 15) == FT_RECV;
    bool runs = op->ended_ns == 0;
    uint64_t end_ns = runs ? strip->now_ns : op->ended_ns;
    paint(strip, line, op->called_ns, op->started_ns, QUEUED);
    paint(strip, line, op->started_ns, end_ns, point ? POINT : COLLECTIVE);
    bool waits = runs && op->started_ns < strip->now_ns &&
                 (double)(strip->now_ns - op->started_ns) > p->report->after_s * 1e9;
    if (waits)
        paint(strip, line, op->started_ns, end_ns, RUNS_NOW);
}

/* ---- drawing --------------------------------------------------------------------------------- */

static int x_of(int bucket)
{
    return LEFT + bucket * BUCKET_PIXELS + (bucket == BUCKETS ? GAP : 0);
}

static int end_of(int bucket) /* of the one before it */
{
    return bucket == BUCKETS + 1 ? x_of(BUCKETS) + SINCE_PIXELS : LEFT + bucket * BUCKET_PIXELS;
}

static void put_line(const struct page *p, const struct strip *strip, int line, int height)
{
    const struct rank_row *row = &p->ranks.row[p->shown[line]];
    const unsigned char *bucket = strip->bucket[line];
    int y = 4 + line * height;
    bool culprit = row->state == RANK_CULPRIT;
    if (has_label(p, line, height >= 12 ? 1 : 2))
        fprintf(p->out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\"%s>%srank %d</text>\n",
                LEFT - 8, y + height / 2 + 4, culprit ? " class=\"bad\"" : "",
                culprit ? "&#9654; " : "", row->rank);
    for (int i = 0, end; i <= BUCKETS; i = end) {
        for (end = i + 1; end < BUCKETS && bucket[end] == bucket[i]; end++) {}
        if (bucket[i] == OUTSIDE)
            continue;
        fprintf(p->out, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n",
                doing_class[bucket[i]], x_of(i), y + 1, end_of(end) - x_of(i), height - 2);
    }
    if (culprit)
        fprintf(p->out, "<rect class=\"band\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n",
                LEFT, y, end_of(BUCKETS + 1) - LEFT, height);
}

static void put_ground(const struct page *p, const struct strip *strip, int bottom)
{
    fprintf(p->out,
            "<rect class=\"ground\" x=\"%d\" y=\"4\" width=\"%d\" height=\"%d\"/>\n"
            "<rect class=\"ground\" x=\"%d\" y=\"4\" width=\"%d\" height=\"%d\"/>\n",
            LEFT, BUCKETS * BUCKET_PIXELS, bottom - 4, x_of(BUCKETS), SINCE_PIXELS, bottom - 4);
    fprintf(p->out, "<text x=\"%d\" y=\"%d\">&#8722;", LEFT, bottom + 16);
    put_duration(p->out, strip->last_ns - strip->begin_ns);
    fprintf(p->out,
            "</text>\n<text x=\"%d\" y=\"%d\" text-anchor=\"end\">last event</text>\n"
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">until now: ",
            LEFT + BUCKETS * BUCKET_PIXELS, bottom + 16, x_of(BUCKETS) + SINCE_PIXELS / 2,
            bottom + 16);
    put_duration(p->out, strip->now_ns - strip->last_ns);
    fputs("</text>\n", p->out);
}

static void put_legend(FILE *out)
{
    fputs("<p class=\"legend\"><i class=\"coll\"></i>in a collective <i class=\"point\"></i>in a "
          "send or receive <i class=\"queued\"></i>called, waits in its stream <i "
          "class=\"stuck\"></i>has waited for too long <i class=\"ground\"></i>outside</p>\n",
          out);
}

static void put_strip(const struct page *p, struct strip *strip)
{
    int height = p->nshown <= 16 ? 22 : p->nshown <= 32 ? 14 : 9, bottom = 4 + p->nshown * height;
    for (int i = 0; i < p->s->nops; i++)
        paint_op(p, strip, &p->s->ops[i]);
    put_legend(p->out);
    fprintf(p->out, "<svg class=\"time\" viewBox=\"0 0 %d %d\" role=\"img\">\n",
            end_of(BUCKETS + 1) + 4, bottom + 24);
    put_ground(p, strip, bottom);
    for (int line = 0; line < p->nshown; line++)
        put_line(p, strip, line, height);
    fputs("</svg>\n", p->out);
}

void put_times(const struct page *p)
{
    struct strip strip = {.now_ns = p->s->now_ns, .last_ns = last_event(p)};
    strip.begin_ns = first_event(p, strip.last_ns);
    strip.bucket = calloc((size_t)p->nshown + 1, sizeof *strip.bucket);
    fputs("<section id=\"time\"><h2>Time</h2>\n", p->out);
    if (strip.bucket && strip.last_ns && strip.begin_ns < strip.last_ns)
        put_strip(p, &strip);
    else
        fputs("<p class=\"none\">No operation is recorded.</p>\n", p->out);
    fputs("</section>\n", p->out);
    free(strip.bucket);
}
