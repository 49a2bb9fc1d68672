/*
 * Writes the verdict as a page for people: a sentence first, then the chain of evidence, then what
 * the ranks do, drawn. One file without script, images or fonts from elsewhere. Its size is bounded
 * by what is shown: drawings of at most 64 ranks, a square for each of at most 65,536.
 */
#include "diagnose_page.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- texts ----------------------------------------------------------------------------------- */

void put_text(FILE *out, const char *text)
{
    static const char special[] = "&<>\"'";
    static const char *const escape[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    for (const char *c = text; *c; c++) {
        const char *found = strchr(special, *c);
        if (found)
            fputs(escape[found - special], out);
        else
            fputc(*c < ' ' || *c > '~' ? '?' : *c, out);
    }
}

void put_duration(FILE *out, uint64_t ns)
{
    double s = (double)ns / 1e9;
    if (s >= 100)
        fprintf(out, "%.0f s", s);
    else if (s >= 1)
        fprintf(out, "%.1f s", s);
    else if (s >= 1e-3)
        fprintf(out, "%.3g ms", s * 1e3);
    else
        fprintf(out, "%.3g us", s * 1e6);
}

void put_bytes(FILE *out, uint64_t bytes)
{
    static const char *const unit[] = {"bytes", "kB", "MB", "GB", "TB", "PB", "EB"};
    double n = (double)bytes;
    size_t i = 0;
    for (; n >= 1000 && i + 1 < FT_ARRAY_LEN(unit); i++)
        n /= 1000;
    fprintf(out, "%.3g %s", n, unit[i]);
}

void put_rank(const struct page *p, int row)
{
    const struct rank_row *r = &p->ranks.row[row];
    fprintf(p->out, "rank %d (", r->rank);
    if (r->engine < 0) {
        fputs("no telemetry)", p->out);
        return;
    }
    fprintf(p->out, "pid %d on ", p->s->engines[r->engine].pid);
    put_text(p->out, p->s->engines[r->engine].hostname);
    fputc(')', p->out);
}

void put_call(const struct page *p, const struct ft_snap_member *m, uint64_t sig, uint64_t seq)
{
    char text[128];
    ft_sig_text(sig, text, sizeof text);
    put_text(p->out, text);
    if (seq)
        fprintf(p->out, ", operation %llu", (unsigned long long)seq);
    fputs(" of communicator ", p->out);
    put_name(p->out, m);
}

void put_name(FILE *out, const struct ft_snap_member *m)
{
    if (m->name[0])
        put_text(out, m->name);
    else
        fprintf(out, "%016llx", (unsigned long long)m->ctx);
}

/* ---- who is shown ---------------------------------------------------------------------------- */

static bool add_shown(struct page *p, int row)
{
    if (row < 0 || p->column[row] >= 0 || p->nshown == SHOWN)
        return false;
    p->column[row] = p->nshown;
    p->shown[p->nshown++] = row;
    return true;
}

/* Culprits, then whoever waits for them or is waited for, then what is not as usual. */
static void show_those_that_matter(struct page *p)
{
    for (int i = 0; i < p->report->found; i++)
        for (int k = 0; k < p->report->verdicts[i].nculprits && k < FT_CULPRITS; k++) {
            const struct ft_culprit *c = &p->report->verdicts[i].culprits[k];
            add_shown(p, ranks_of_culprit(&p->ranks, c));
            add_shown(p, ranks_of_culprit_peer(&p->ranks, c));
        }
    for (int i = 0; i < p->s->nmembers && p->nshown < SHOWN / 2; i++) {
        const struct ft_snap_member *m = &p->s->members[i];
        int to = ranks_waiting_ns(p->s, m) ? waits_for(p, m) : -1;
        if (to >= 0 && p->ranks.row[to].state == RANK_CULPRIT && m->engine >= 0 &&
            m->engine < p->s->nengines)
            add_shown(p, p->ranks.by_engine[m->engine]);
    }
    for (int i = 0; i < p->ranks.n && p->nshown < SHOWN * 3 / 4; i++)
        if (p->ranks.row[i].state >= RANK_STOPPED)
            add_shown(p, i);
}

static int by_row(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static void choose_shown(struct page *p)
{
    for (int i = 0; i < p->ranks.n; i++)
        p->column[i] = -1;
    if (p->ranks.n > SHOWN)
        show_those_that_matter(p);
    int room = SHOWN - p->nshown, every = room ? (p->ranks.n + room - 1) / room : p->ranks.n;
    for (int i = 0; room > 0 && i < p->ranks.n; i += every)
        add_shown(p, i);
    qsort(p->shown, (size_t)p->nshown, sizeof *p->shown, by_row);
    for (int i = 0; i < p->nshown; i++)
        p->column[p->shown[i]] = i;
}

/* ---- the page -------------------------------------------------------------------------------- */

/* Light and dark follow the reader's setting. The colours can be told apart by the colour-blind. */
static const char style[] =
    ":root{color-scheme:light dark;--ground:#f6f7f9;--card:#fff;--ink:#16191d;--soft:#5b6470;"
    "--line:#d5dae1;--bad:#c8311b;--warn:#b86e00;--good:#0b7a54;--heat:#b3261e;--coll:#2f6fd0;"
    "--point:#179a8a;--queued:#b9c4d6;--stuck:#e08a00;--gone:#30353c;--stopped:#8a4fbf}\n"
    "@media(prefers-color-scheme:dark){:root{--ground:#111418;--card:#1a1f25;--ink:#e8ebef;"
    "--soft:#9aa5b3;--line:#333b45;--bad:#ff7a66;--warn:#f0ad4e;--good:#4cc79a;--heat:#ff8a70;"
    "--coll:#6ca4ff;--point:#4ccfbd;--queued:#4a5568;--stuck:#ffb23e;--gone:#aab3be;"
    "--stopped:#c08bf0}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--ground);color:var(--ink);"
    "font:15px/1.45 system-ui,sans-serif}main{max-width:1160px;margin:0 auto;padding:20px}\n"
    "header,section{background:var(--card);border:1px solid var(--line);border-radius:10px;"
    "padding:16px 20px;margin:0 0 16px}header{border-left:8px solid var(--bad)}"
    "header.healthy{border-left-color:var(--good)}header.unsure{border-left-color:var(--warn)}\n"
    "h1{font-size:22px;line-height:1.3;margin:4px 0 8px}h2{font-size:16px;margin:0 0 10px}"
    "p{margin:6px 0}.kind{font:600 13px ui-monospace,monospace;letter-spacing:.03em;"
    "color:var(--bad)}.healthy .kind{color:var(--good)}.unsure .kind{color:var(--warn)}\n"
    ".soft,.none,figcaption,.legend{color:var(--soft);font-size:13px}ol{margin:8px 0 0;"
    "padding-left:24px}li{margin:3px 0}svg{max-width:100%;height:auto;display:block}"
    "svg text{fill:var(--soft);font-size:11px}svg text.bad{fill:var(--bad);font-weight:700}\n"
    ".maps{display:flex;flex-wrap:wrap;gap:20px 28px}figure{margin:0;max-width:100%}"
    "figcaption{max-width:320px;margin-bottom:6px}figcaption b{color:var(--ink)}"
    "#traffic{--heat:var(--coll)}#network{--heat:var(--stuck)}.ground{fill:var(--ground);"
    "background:var(--ground)}.heat rect{fill:var(--heat)}"
    ".heat rect.now{stroke:var(--ink);stroke-width:1.5}.heat rect.named{stroke:var(--bad);"
    "stroke-width:3}rect.band{fill:var(--bad);fill-opacity:.08;stroke:var(--bad);"
    "stroke-opacity:.45;pointer-events:none}\n"
    ".scale{display:flex;align-items:center;gap:8px;font-size:12px;color:var(--soft)}.scale i{"
    "width:120px;height:9px;border-radius:3px;background:linear-gradient(90deg,transparent,"
    "var(--heat));border:1px solid var(--line)}.legend i{display:inline-block;width:11px;"
    "height:11px;border-radius:2px;margin:0 5px 0 10px;border:1px solid var(--line)}\n";
static const char style_of_states[] =
    ".coll,.calls{fill:var(--coll);background:var(--coll)}.point{fill:var(--point);"
    "background:var(--point)}.queued{fill:var(--queued);background:var(--queued)}.stuck,.waits{"
    "fill:var(--stuck);background:var(--stuck)}.outside{fill:var(--queued);"
    "background:var(--queued)}.stopped{fill:var(--stopped);background:var(--stopped)}.gone{"
    "fill:var(--gone);background:var(--gone)}.missing{fill:var(--ground);stroke:var(--soft);"
    "stroke-dasharray:2;background:var(--ground)}.culprit{fill:var(--bad);background:var(--bad)}\n"
    ".all,.map{overflow:visible}.ring{fill:none;stroke:var(--bad);stroke-width:4}.all "
    "text{fill:#14181d;font-weight:600}.all text.on{fill:var(--card)}.all "
    "text.none{fill:var(--soft)}.edges path{fill:none;"
    "stroke:var(--stuck);stroke-width:2;marker-end:url(#tip)}#tip path{fill:var(--stuck)}"
    ".node rect{fill:var(--ground);stroke:var(--line);stroke-width:1.5}.node .name{"
    "fill:var(--ink);font-size:13px;font-weight:600}.node.culprit rect{fill:var(--card);"
    "stroke:var(--bad);stroke-width:3}.node.culprit .name{fill:var(--bad)}.time{width:100%}\n"
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;width:100%}th,td{"
    "text-align:left;padding:4px 10px 4px 0;border-bottom:1px solid var(--line);"
    "}th{"
    "white-space:nowrap;color:var(--soft);font-weight:500}td.number{text-align:right;"
    "font-variant-numeric:tabular-nums}tr[class]{background:none}tr.culprit td{color:var(--bad);"
    "font-weight:600}tr.waits td:last-child{color:var(--warn)}\n";

static void put_head(const struct page *p)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
          "'unsafe-inline'\">\n"
          "<meta name=\"viewport\" content=\"width=device-width\">\n<title>",
          p->out);
    put_text(p->out, p->report->found > 0    ? ft_verdict_name(p->report->verdicts[0].kind)
                     : p->report->trouble[0] ? "cannot tell"
                                             : "healthy");
    fputs(" - ftccl-diagnose</title>\n<style>\n", p->out);
    fputs(style, p->out);
    fputs(style_of_states, p->out);
    fputs("</style></head>\n<body><main>\n", p->out);
}

static void put_verdict(const struct page *p, const struct ft_verdict *v, const char *heading)
{
    fprintf(p->out, "<header class=\"%s\"><div class=\"kind\">",
            v->kind == FT_VERDICT_UNKNOWN ? "unsure" : "verdict");
    put_text(p->out, ft_verdict_name(v->kind));
    fprintf(p->out, "</div>\n<%s>", heading);
    put_text(p->out, v->sentence);
    fprintf(p->out, "</%s>\n", heading);
    if (v->nchain > 0)
        fputs("<b>How this was found</b><ol class=\"chain\">\n", p->out);
    for (int i = 0; i < v->nchain && i < FT_CHAIN; i++) {
        fputs("<li>", p->out);
        put_text(p->out, v->chain[i]);
        fputs("</li>\n", p->out);
    }
    fputs(v->nchain > 0 ? "</ol></header>\n" : "</header>\n", p->out);
}

static void put_no_verdict(const struct page *p)
{
    const char *trouble = p->report->trouble;
    fprintf(p->out, "<header class=\"%s\"><div class=\"kind\">%s</div>\n<h1>",
            trouble[0] ? "unsure" : "healthy", trouble[0] ? "cannot tell" : "healthy");
    if (trouble[0])
        put_text(p->out, trouble);
    else
        fprintf(p->out, "No operation of %d processes has waited for %g s.", p->report->engines,
                p->report->after_s);
    fputs("</h1></header>\n", p->out);
}

static void put_facts(const struct page *p)
{
    char text[64] = "";
    struct tm tm;
    time_t seconds = (time_t)(p->report->real_ns / 1000000000u);
    if (gmtime_r(&seconds, &tm))
        strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &tm);
    fprintf(p->out, "<p class=\"soft\">%s &middot; %d processes &middot; waits from %g s on count",
            text, p->report->engines, p->report->after_s);
    if (p->report->unreadable)
        fprintf(p->out, " &middot; %d files could not be read", p->report->unreadable);
    fputs("</p>\n", p->out);
    if (p->ranks.others)
        fprintf(p->out, "<p class=\"soft\">%d ranks of other jobs are not drawn.</p>\n",
                p->ranks.others);
    if (p->ranks.n > p->nshown)
        fprintf(p->out,
                "<p class=\"soft\">Links, time and table show %d of %d ranks: those to blame, who "
                "waits for them, what is not as usual, and a sample.</p>\n",
                p->nshown, p->ranks.n);
}

static void put_page(FILE *out, const void *what)
{
    struct page page = *(const struct page *)what, *p = &page;
    p->out = out;
    put_head(p);
    for (int i = 0; i < p->report->found; i++)
        put_verdict(p, &p->report->verdicts[i], i == 0 ? "h1" : "h2");
    if (p->report->found <= 0)
        put_no_verdict(p);
    put_facts(p);
    put_stacks(p);
    put_graph(p);
    put_overview(p);
    put_times(p);
    put_maps(p);
    put_table(p);
    fputs("</main></body></html>\n", out);
}

int write_page(const struct ft_snapshot *s, const struct report *report, const char *path)
{
    struct page page = {.s = s, .report = report};
    int status = ranks_open(&page.ranks, s, report, true);
    if (status != FT_OK)
        return status;
    page.column = calloc((size_t)page.ranks.n + 1, sizeof *page.column);
    if (page.column) {
        choose_shown(&page);
        status = write_whole(path, put_page, &page);
    } else {
        status = ft_fail(FT_NOMEM, "no memory for %d ranks", page.ranks.n);
    }
    free(page.column);
    ranks_close(&page.ranks);
    return status;
}
