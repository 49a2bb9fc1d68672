/*
 * What the coordinator shows: groups with their last view and what the next one waits for, their
 * replicas and standbys. The page is for people and leaves out ranks that are as they should be;
 * the JSON has all of them.
 */
#include "members.h"

#include <inttypes.h>
#include <string.h>

#define REPLICAS_SHOWN 1024 /* on the page, of all groups */
#define MISSING_SHOWN 8     /* ranks of a replica */
#define GROUPS_MEASURED 1024
#define MEMBERS_LISTED 65536 /* in the JSON */

static double seconds(uint64_t ns)
{
    return (double)ns / 1e9;
}

/* ---- the page -------------------------------------------------------------------------------- */

/* The replica whose members come now. */
struct page {
    FILE *out;
    int shown, left_out;
    bool in_table, in_group, in_row;
    uint32_t next, missing; /* the local rank after the last one that came; ranks that did not */
    struct ft_coord_replica_row row; /* its name does not hold */
};

static void note_missing(struct page *p, uint32_t end)
{
    for (; p->next < end; p->next++)
        if (p->missing++ < MISSING_SHOWN)
            fprintf(p->out, "%s%" PRIu32, p->missing > 1 ? ", " : "", p->next);
}

static void end_row(struct page *p)
{
    if (!p->in_row)
        return;
    p->in_row = false;
    note_missing(p, p->row.local_size);
    if (p->missing > MISSING_SHOWN)
        fprintf(p->out, " and %" PRIu32 " others", p->missing - MISSING_SHOWN);
    fputs("</tr>", p->out);
}

static void end_table(struct page *p)
{
    end_row(p);
    if (p->in_table)
        fputs("</table>", p->out);
    p->in_table = false;
}

static void put_view(const struct ft_coord_group_row *g, FILE *out)
{
    if (g->epoch == 0) {
        fputs("<p>no view yet; ", out);
    } else {
        fprintf(out,
                "<p>view %" PRIu64 " of term %016" PRIx64 " with %d replicas at step %" PRIu64
                ", for %.1f s; ",
                g->epoch, g->term, g->view_replicas, g->step, seconds(g->age_ns));
    }
    fprintf(out,
            "%d of %d replicas are alive, %d of them ready for the next view; %d standbys; "
            "at least %" PRIu32 " replicas, window %" PRIu32 " ms</p>",
            g->alive, g->replicas, g->ready, g->standbys, g->min_members, g->window_ms);
}

static void page_group(void *arg, const struct ft_coord_group_row *g)
{
    struct page *p = arg;
    end_table(p);
    fputs("<h3>", p->out);
    daemon_put_html(p->out, g->name);
    fputs("</h3>", p->out);
    put_view(g, p->out);
    if (g->waits[0]) {
        fputs("<p class=\"warn\">the next view: ", p->out);
        daemon_put_html(p->out, g->waits);
        fputs("</p>", p->out);
    }
}

static const char *state_of(const struct ft_coord_replica_row *r)
{
    return r->alive < r->local_size    ? "incomplete"
           : r->ready == r->local_size ? "ready"
           : r->ready > 0              ? "partly ready"
                                       : "runs";
}

static void page_replica(void *arg, const struct ft_coord_replica_row *r)
{
    struct page *p = arg;
    end_row(p);
    if (p->shown == REPLICAS_SHOWN) {
        p->left_out++;
        return;
    }
    if (!p->in_table)
        fputs("<table><tr><th>replica<th>place<th>state<th>ranks alive<th>ready<th>step"
              "<th>ranks missing</tr>",
              p->out);
    p->in_table = p->in_row = true;
    p->shown++;
    p->row = *r;
    p->next = p->missing = 0;
    fputs("<tr><td>", p->out);
    daemon_put_html(p->out, r->name);
    if (r->place >= 0)
        fprintf(p->out, "<td>%d", r->place);
    else
        fputs("<td>none", p->out);
    fprintf(p->out, "<td%s>%s<td>%" PRIu32 " of %" PRIu32 "<td>%" PRIu32 "<td>%" PRIu64 "<td>",
            r->alive < r->local_size ? " class=\"bad\"" : "", state_of(r), r->alive, r->local_size,
            r->ready, r->step);
}

static void page_member(void *arg, const struct ft_coord_member_row *row)
{
    struct page *p = arg;
    if (!p->in_row || !row->role.replica[0])
        return;
    note_missing(p, row->role.local_rank);
    p->next = row->role.local_rank + 1;
}

void members_page(void *arg, FILE *out)
{
    const struct members *m = arg;
    struct page page = {.out = out};
    struct ft_coord_counts counts;
    ft_coord_count(m->coord, &counts);
    fprintf(out,
            "<p>%d groups, %d replicas, %d members, %d standbys; %d connections; %" PRIu64
            " views made</p>",
            counts.groups, counts.replicas, counts.members, counts.standbys, counts.connections,
            counts.views);
    char leads[300];
    members_lead_tell(m, leads, sizeof leads);
    if (leads[0]) {
        fputs("<p>", out);
        daemon_put_html(out, leads);
        fputs("</p>", out);
    }
    if (m->trouble[0]) {
        fputs("<p class=\"bad\">", out);
        daemon_put_html(out, m->trouble);
        fputs("</p>", out);
    }
    const struct ft_coord_visitor visitor = {page_group, page_replica, page_member, &page};
    ft_coord_visit(m->coord, &visitor);
    end_table(&page);
    if (page.left_out > 0)
        fprintf(out, "<p class=\"note\">and %d other replicas</p>", page.left_out);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

struct list {
    struct ft_text *out;
    int members;
    /* What is open; standbys come after the replicas of a group. */
    enum { NOTHING, REPLICAS, REPLICA, STANDBYS } in;
};

static void add_id(struct ft_text *out, const char *key, uint64_t id)
{
    char text[24];
    snprintf(text, sizeof text, "%016" PRIx64, id);
    ft_json_string(out, key, text);
}

static void end_replica(struct list *list)
{
    if (list->in != REPLICA)
        return;
    ft_json_end(list->out, ']');
    ft_json_end(list->out, '}');
    list->in = REPLICAS;
}

static void begin_standbys(struct list *list)
{
    end_replica(list);
    if (list->in != REPLICAS)
        return;
    ft_json_end(list->out, ']');
    ft_json_begin(list->out, "standbys", '[');
    list->in = STANDBYS;
}

static void end_group(struct list *list)
{
    begin_standbys(list);
    if (list->in == NOTHING)
        return;
    ft_json_end(list->out, ']');
    ft_json_end(list->out, '}');
    list->in = NOTHING;
}

static void add_view(const struct ft_coord_group_row *g, struct ft_text *out)
{
    if (g->epoch == 0) {
        ft_json_null(out, "view");
        return;
    }
    ft_json_begin(out, "view", '{');
    add_id(out, "term", g->term);
    ft_json_int(out, "epoch", (int64_t)g->epoch);
    ft_json_int(out, "step", (int64_t)g->step);
    ft_json_int(out, "replicas", g->view_replicas);
    ft_json_real(out, "age_s", seconds(g->age_ns));
    ft_json_end(out, '}');
}

static void list_group(void *arg, const struct ft_coord_group_row *g)
{
    struct list *list = arg;
    struct ft_text *out = list->out;
    end_group(list);
    ft_json_begin(out, NULL, '{');
    ft_json_string(out, "name", g->name);
    add_view(g, out);
    ft_json_int(out, "alive", g->alive);
    ft_json_int(out, "ready", g->ready);
    ft_json_int(out, "min_members", g->min_members);
    ft_json_int(out, "window_ms", g->window_ms);
    if (g->waits[0])
        ft_json_string(out, "waits", g->waits);
    else
        ft_json_null(out, "waits");
    ft_json_begin(out, "replicas", '[');
    list->in = REPLICAS;
}

static void list_replica(void *arg, const struct ft_coord_replica_row *r)
{
    struct list *list = arg;
    struct ft_text *out = list->out;
    end_replica(list);
    ft_json_begin(out, NULL, '{');
    ft_json_string(out, "name", r->name);
    ft_json_int(out, "place", r->place);
    ft_json_string(out, "state", state_of(r));
    ft_json_int(out, "ranks", r->local_size);
    ft_json_int(out, "alive", r->alive);
    ft_json_int(out, "ready", r->ready);
    ft_json_int(out, "step", (int64_t)r->step);
    ft_json_begin(out, "members", '[');
    list->in = REPLICA;
}

static void list_member(void *arg, const struct ft_coord_member_row *row)
{
    struct list *list = arg;
    struct ft_text *out = list->out;
    if (!row->role.replica[0])
        begin_standbys(list);
    if (list->members++ >= MEMBERS_LISTED)
        return;
    ft_json_begin(out, NULL, '{');
    if (row->role.replica[0])
        ft_json_int(out, "local_rank", row->role.local_rank);
    add_id(out, "engine", row->engine);
    add_id(out, "host", row->host);
    ft_json_bool(out, "ready", row->ready);
    ft_json_int(out, "step", (int64_t)row->step);
    ft_json_real(out, "heard_s", seconds(row->silence_ns));
    ft_json_end(out, '}');
}

void members_json(void *arg, struct ft_text *out)
{
    const struct members *m = arg;
    struct list list = {.out = out};
    struct ft_coord_counts counts;
    char leads[300];
    members_lead_tell(m, leads, sizeof leads);
    ft_coord_count(m->coord, &counts);
    ft_json_begin(out, "members", '{');
    ft_json_int(out, "replicas", counts.replicas);
    ft_json_int(out, "members", counts.members);
    ft_json_int(out, "standbys", counts.standbys);
    ft_json_int(out, "connections", counts.connections);
    ft_json_int(out, "views", (int64_t)counts.views);
    ft_json_string(out, "trouble", m->trouble);
    ft_json_bool(out, "leads", !m->lead || m->leads);
    ft_json_string(out, "store", leads);
    ft_json_begin(out, "groups", '[');
    const struct ft_coord_visitor visitor = {list_group, list_replica, list_member, &list};
    ft_coord_visit(m->coord, &visitor);
    end_group(&list);
    ft_json_end(out, ']');
    ft_json_end(out, '}');
}

/* ---- metrics --------------------------------------------------------------------------------- */

/* A metric of each group, chosen by its index. */
struct series {
    FILE *out;
    const char *name;
    int groups;
    int64_t (*value)(const struct ft_coord_group_row *);
};

static void put_sample(void *arg, const struct ft_coord_group_row *g)
{
    struct series *s = arg;
    if (s->groups++ >= GROUPS_MEASURED)
        return;
    fputs(s->name, s->out);
    daemon_put_label(s->out, "{", "group", g->name);
    fprintf(s->out, "} %" PRId64 "\n", s->value(g));
}

static int64_t alive(const struct ft_coord_group_row *g)
{
    return g->alive;
}

static int64_t ready(const struct ft_coord_group_row *g)
{
    return g->ready;
}

static int64_t standbys(const struct ft_coord_group_row *g)
{
    return g->standbys;
}

static int64_t view_replicas(const struct ft_coord_group_row *g)
{
    return g->view_replicas;
}

static int64_t view_epoch(const struct ft_coord_group_row *g)
{
    return (int64_t)g->epoch;
}

static int64_t view_step(const struct ft_coord_group_row *g)
{
    return (int64_t)g->step;
}

static void put_counts(const struct members *m, FILE *out)
{
    struct ft_coord_counts counts;
    ft_coord_count(m->coord, &counts);
    daemon_put_help(out, "ftccl_members_leads", "gauge", "Whether this program serves members.");
    fprintf(out, "ftccl_members_leads %d\n", !m->lead || m->leads);
    daemon_put_help(out, "ftccl_members", "gauge", "Processes that have a role.");
    fprintf(out, "ftccl_members %d\n", counts.members);
    daemon_put_help(out, "ftccl_members_connections", "gauge",
                    "Connections of members and of agents with members.");
    fprintf(out, "ftccl_members_connections %d\n", counts.connections);
    daemon_put_help(out, "ftccl_members_views_total", "counter", "Views that were made.");
    fprintf(out, "ftccl_members_views_total %" PRIu64 "\n", counts.views);
}

void members_metrics(void *arg, FILE *out)
{
    static const struct {
        const char *name, *help;
        int64_t (*value)(const struct ft_coord_group_row *);
    } each[] = {
        {"ftccl_members_replicas_alive", "Replicas all of whose ranks are alive, of a group.",
         alive},
        {"ftccl_members_replicas_ready", "Replicas that have asked for the next view.", ready},
        {"ftccl_members_standbys", "Processes of a group that wait for a role.", standbys},
        {"ftccl_members_view_replicas", "Replicas of the last view.", view_replicas},
        {"ftccl_members_view_epoch", "The number of the last view.", view_epoch},
        {"ftccl_members_view_step", "The step of the last view.", view_step},
    };
    const struct members *m = arg;
    put_counts(m, out);
    for (size_t i = 0; i < FT_ARRAY_LEN(each); i++) {
        struct series series = {.out = out, .name = each[i].name, .value = each[i].value};
        const struct ft_coord_visitor visitor = {.group = put_sample, .arg = &series};
        daemon_put_help(out, each[i].name, "gauge", each[i].help);
        ft_coord_visit(m->coord, &visitor);
    }
}
