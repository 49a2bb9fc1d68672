/*
 * What the master of paths shows on its page and to ftccl-path: each link between routers, how many
 * connections it has and of which jobs, and which way each connection takes.
 */
#include "paths_show.h"

#include "base/wire.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LINKS_SHOWN 1024
#define CONNECTIONS_SHOWN 1024

static void add_user(struct users *users, uint64_t job)
{
    for (int i = 0; i < FT_PATHS_JOBS; i++) {
        if (users->connections[i] > 0 && users->job[i] != job)
            continue;
        users->job[i] = job;
        users->connections[i]++;
        return;
    }
    users->more = true;
}

typedef void visit(void *arg, const struct pair *, uint64_t connection, int way);

static void visit_connections(const struct paths *p, visit *each, void *arg)
{
    for (int i = 0; i < p->nclients; i++)
        for (int k = 0; k < p->client[i]->npairs; k++) {
            const struct pair *pair = p->client[i]->pair[k];
            uint64_t connection;
            for (int n = 0; n < ft_ways_connections(pair->ways); n++) {
                const int way = ft_ways_connection(pair->ways, n, &connection);
                each(arg, pair, connection, way);
            }
        }
}

static void note_users(void *arg, const struct pair *pair, uint64_t connection, int way)
{
    struct users *users = arg;
    (void)connection;
    for (int i = 0, link; way >= 0 && (link = ft_ways_link(pair->ways, way, i)) >= 0; i++)
        add_user(&users[link], pair->client->job);
}

/* Of all links. NULL: no memory. */
static struct users *find_users(const struct paths *p)
{
    const size_t n = (size_t)ft_allocator_links(p->allocator);
    struct users *users = calloc(n + 1, sizeof *users);
    if (users)
        visit_connections(p, note_users, users);
    return users;
}

static enum ft_paths_state state_of(const struct ft_allocator_link *link)
{
    return link->out              ? FT_PATHS_OUT_LINK
           : link->complaints > 1 ? FT_PATHS_BAD_LINK
           : link->complaints > 0 ? FT_PATHS_DOUBTED
                                  : FT_PATHS_GOOD;
}

const char *paths_state_text(const struct ft_allocator_link *link)
{
    return ft_paths_state_text(state_of(link));
}

static int count_ranks(const struct paths *p)
{
    int n = 0;
    for (int i = 0; i < p->nclients; i++)
        n += p->client[i]->said_hello;
    return n;
}

/* ---- the page -------------------------------------------------------------------------------- */

/* A link with its users, for sorting. */
struct row {
    struct ft_allocator_link link; /* must be the first field */
    struct users users;
    int index;
};

static int compare_links(const void *x, const void *y)
{
    const struct ft_allocator_link *a = x, *b = y;
    const int from = memcmp(a->from, b->from, 16);
    return from != 0 ? from : memcmp(a->to, b->to, 16);
}

void paths_put_users(const struct users *users, FILE *out)
{
    for (int i = 0; i < FT_PATHS_JOBS && users->connections[i] > 0; i++)
        fprintf(out, "job %016" PRIx64 " (%d) ", users->job[i], users->connections[i]);
    fputs(users->more ? "and others" : "", out);
}

/* "leaf 1 to spine 2" */
static void put_ends(const struct ft_topology *t, int index, FILE *out)
{
    char from[PATHS_NAME_BYTES], to[PATHS_NAME_BYTES];
    if (t && index < t->nlinks && t->link[index].from >= 0)
        fprintf(out, "%s to %s", paths_router_name(t, t->link[index].from, from),
                paths_router_name(t, t->link[index].to, to));
}

static void put_link(const struct ft_topology *t, const struct row *row, int most, FILE *out)
{
    char from[FT_NET_TEXT_BYTES], to[FT_NET_TEXT_BYTES];
    const struct ft_allocator_link *link = &row->link;
    const char *state = paths_state_text(link);
    fputs("<tr><td>", out);
    put_ends(t, row->index, out);
    fprintf(out, "<td>%s<td>%s<td%s>%s<td>%d<td><meter max=\"%d\" value=\"%d\"></meter><td>",
            ft_paths_ip_text(link->from, from), ft_paths_ip_text(link->to, to),
            strcmp(state, "good") == 0 ? "" : " class=\"bad\"", state, link->connections,
            most > 0 ? most : 1, link->connections);
    paths_put_users(&row->users, out);
    fputs("</tr>", out);
}

static void put_links(struct paths *p, const struct users *users, FILE *out)
{
    const struct ft_topology *t = paths_topology(p);
    const int n = ft_allocator_links(p->allocator);
    int most = 0;
    struct row *row = calloc((size_t)n + 1, sizeof *row);
    for (int i = 0; row && i < n; i++) {
        row[i] = (struct row){ft_allocator_link_at(p->allocator, i), users[i], i};
        most = row[i].link.connections > most ? row[i].link.connections : most;
    }
    if (row)
        qsort(row, (size_t)n, sizeof *row, compare_links);
    fputs("<h3>links</"
          "h3><table><tr><th>between<th>from<th>to<th>state<th>connections<th>load<th>jobs</tr>",
          out);
    for (int i = 0; row && i < n && i < LINKS_SHOWN; i++)
        put_link(t, &row[i], most, out);
    fputs("</table>", out);
    if (n > LINKS_SHOWN)
        fprintf(out, "<p class=\"note\">and %d others</p>", n - LINKS_SHOWN);
    free(row);
}

void paths_page(void *arg, FILE *out)
{
    struct paths *p = arg;
    struct users *users = find_users(p);
    fprintf(out, "<p>%d ranks ask; %" PRIu64 " paths given, %" PRIu64 " connections moved</p>",
            count_ranks(p), p->asked, p->moves);
    if (p->trouble[0]) {
        fputs("<p class=\"bad\">", out);
        daemon_put_html(out, p->trouble);
        fputs("</p>", out);
    }
    if (users && ft_allocator_links(p->allocator) > 0) {
        paths_put_map(p, users, out);
        put_links(p, users, out);
    }
    free(users);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void add_routers(const struct ft_topology *t, struct ft_text *out)
{
    char text[FT_NET_TEXT_BYTES], name[PATHS_NAME_BYTES];
    ft_json_begin(out, "routers", '[');
    for (int i = 0; t && i < t->nrouters && i < LINKS_SHOWN; i++) {
        ft_json_begin(out, NULL, '{');
        ft_json_string(out, "name", paths_router_name(t, i, name));
        ft_json_int(out, "layer", t->router[i].layer);
        ft_json_string(out, "address", ft_paths_ip_text(t->router[i].ip, text));
        ft_json_end(out, '}');
    }
    ft_json_end(out, ']');
    ft_json_begin(out, "hosts", '[');
    for (int i = 0; t && i < t->nhosts && i < LINKS_SHOWN; i++) {
        ft_json_begin(out, NULL, '{');
        ft_json_string(out, "address", ft_paths_ip_text(t->host[i].ip, text));
        ft_json_string(out, "router", paths_router_name(t, t->host[i].router, name));
        ft_json_end(out, '}');
    }
    ft_json_end(out, ']');
}

static void add_ends(const struct ft_topology *t, const struct ft_topology_link *link,
                     struct ft_text *out)
{
    char name[PATHS_NAME_BYTES];
    ft_json_string(out, "from_router", paths_router_name(t, link->from, name));
    ft_json_string(out, "to_router", paths_router_name(t, link->to, name));
}

static void add_missing(const struct ft_topology *t, struct ft_text *out)
{
    ft_json_begin(out, "missing", '[');
    for (int i = 0; t && i < t->nmissing; i++) {
        ft_json_begin(out, NULL, '{');
        add_ends(t, &t->missing[i], out);
        ft_json_end(out, '}');
    }
    ft_json_end(out, ']');
}

static void add_link(const struct paths *p, const struct ft_topology *t, int index,
                     const struct users *users, struct ft_text *out)
{
    char text[FT_NET_TEXT_BYTES];
    const struct ft_allocator_link at = ft_allocator_link_at(p->allocator, index), *link = &at;
    ft_json_begin(out, NULL, '{');
    ft_json_string(out, "from", ft_paths_ip_text(link->from, text));
    ft_json_string(out, "to", ft_paths_ip_text(link->to, text));
    ft_json_string(out, "state", paths_state_text(link));
    ft_json_int(out, "connections", link->connections);
    ft_json_begin(out, "jobs", '[');
    for (int i = 0; i < FT_PATHS_JOBS && users->connections[i] > 0; i++) {
        snprintf(text, sizeof text, "%016" PRIx64, users->job[i]);
        ft_json_string(out, NULL, text);
    }
    ft_json_end(out, ']');
    if (t && index < t->nlinks)
        add_ends(t, &t->link[index], out);
    ft_json_end(out, '}');
}

struct listing {
    struct ft_text *out;
    int n;
};

static void add_connection(void *arg, const struct pair *pair, uint64_t connection, int way)
{
    struct listing *listing = arg;
    char text[FT_NET_TEXT_BYTES];
    if (listing->n++ >= CONNECTIONS_SHOWN)
        return;
    struct ft_text *out = listing->out;
    ft_json_begin(out, NULL, '{');
    snprintf(text, sizeof text, "%016" PRIx64, pair->client->job);
    ft_json_string(out, "job", text);
    ft_json_int(out, "rank", pair->client->rank);
    ft_json_string(out, "from", ft_paths_ip_text(pair->from, text));
    ft_json_string(out, "to", ft_paths_ip_text(pair->to, text));
    ft_json_int(out, "connection", (int64_t)connection);
    ft_json_int(out, "way", way);
    ft_json_end(out, '}');
}

void paths_json(void *arg, struct ft_text *out)
{
    struct paths *p = arg;
    struct users *users = find_users(p);
    const struct ft_topology *t = paths_topology(p);
    const int n = ft_allocator_links(p->allocator);
    struct listing listing = {out, 0};
    ft_json_begin(out, "paths", '{');
    ft_json_int(out, "ranks", count_ranks(p));
    ft_json_int(out, "given", (int64_t)p->asked);
    ft_json_int(out, "moves", (int64_t)p->moves);
    ft_json_string(out, "trouble", p->trouble);
    add_routers(t, out);
    add_missing(t, out);
    ft_json_begin(out, "links", '[');
    for (int i = 0; users && i < n && i < LINKS_SHOWN; i++)
        add_link(p, t, i, &users[i], out);
    ft_json_end(out, ']');
    ft_json_begin(out, "connections", '[');
    visit_connections(p, add_connection, &listing);
    ft_json_end(out, ']');
    ft_json_end(out, '}');
    free(users);
}

/* ---- metrics --------------------------------------------------------------------------------- */

void paths_metrics(void *arg, FILE *out)
{
    struct paths *p = arg;
    const struct ft_topology *t = paths_topology(p);
    const int n = ft_allocator_links(p->allocator);
    char text[FT_NET_TEXT_BYTES];
    daemon_put_help(out, "ftccl_paths_ranks", "gauge", "Ranks that ask for paths.");
    fprintf(out, "ftccl_paths_ranks %d\n", count_ranks(p));
    daemon_put_help(out, "ftccl_paths_moves_total", "counter", "Connections that were moved.");
    fprintf(out, "ftccl_paths_moves_total %" PRIu64 "\n", p->moves);
    daemon_put_help(out, "ftccl_paths_links_missing", "gauge",
                    "Links of leaves and spines that no way takes, though others do.");
    fprintf(out, "ftccl_paths_links_missing %d\n", t ? t->nmissing : 0);
    daemon_put_help(out, "ftccl_link_connections", "gauge",
                    "Connections on a link between routers; of at most 1,024 links.");
    for (int i = 0; i < n && i < LINKS_SHOWN; i++) {
        const struct ft_allocator_link link = ft_allocator_link_at(p->allocator, i);
        fputs("ftccl_link_connections", out);
        daemon_put_label(out, "{", "from", ft_paths_ip_text(link.from, text));
        daemon_put_label(out, ",", "to", ft_paths_ip_text(link.to, text));
        daemon_put_label(out, ",", "state", paths_state_text(&link));
        fprintf(out, "} %d\n", link.connections);
    }
}

/* ---- the answer to ftccl-path ---------------------------------------------------------------- */

static void put_row(unsigned char *at, const struct ft_allocator_link *link,
                    const struct users *users)
{
    memcpy(at, link->from, 16);
    memcpy(at + 16, link->to, 16);
    at += 32;
    put_bytes(&at, state_of(link), 1);
    put32(&at, (uint32_t)link->connections);
    for (int i = 0; i < FT_PATHS_JOBS; i++) {
        put64(&at, users->job[i]);
        put32(&at, (uint32_t)users->connections[i]);
    }
}

void paths_list(const struct paths *p, struct daemon_peer *peer)
{
    const int n = ft_allocator_links(p->allocator);
    const int listed = n < FT_PATHS_LISTED ? n : FT_PATHS_LISTED;
    struct users *users = find_users(p);
    unsigned char *bytes = malloc(4 + (size_t)listed * FT_PATHS_LINK_BYTES), *at = bytes;
    if (users && bytes) {
        put32(&at, (uint32_t)n);
        for (int i = 0; i < listed; i++, at += FT_PATHS_LINK_BYTES) {
            const struct ft_allocator_link link = ft_allocator_link_at(p->allocator, i);
            put_row(at, &link, &users[i]);
        }
        const struct daemon_message m = {DAEMON_PATHS, FT_PATHS_LINKS, bytes, (size_t)(at - bytes)};
        daemon_peer_send(peer, &m);
    }
    free(bytes);
    free(users);
}
