/*
 * Events for clients that monitor: processes that come, stop, go on and end. They are found by a
 * short look at each telemetry file once a second, and only while somebody wants to know.
 */
#include "ras/internal.h"

#include <stdlib.h>
#include <string.h>

#define PERIOD_NS 1000000000u

/* ---- telling --------------------------------------------------------------------------------- */

static void add_json(struct ft_text *out, const struct ft_ras_event *event, const char *timestamp)
{
    ft_json_begin(out, NULL, '{');
    ft_json_string(out, "timestamp", timestamp);
    ft_json_string(out, "group", event->group == FT_RAS_TRACE ? "trace" : "lifecycle");
    ft_json_string(out, "event", event->name);
    if (event->peer) {
        ft_json_string(out, "host", event->peer->look.hostname);
        ft_json_int(out, "pid", event->peer->file.pid);
    }
    ft_json_string(out, "details", event->text);
    ft_json_end(out, '}');
    ft_text_add(out, "\n");
}

static void add_text(struct ft_text *out, const struct ft_ras_event *event, const char *timestamp)
{
    ft_text_add(out, "%s %s", timestamp, event->name);
    if (event->peer)
        ft_text_add(out, " host %s pid %d", event->peer->look.hostname, event->peer->file.pid);
    ft_text_add(out, ": %s\n", event->text);
}

void ft_ras_tell(struct ft_ras_client *clients, const struct ft_ras_event *event)
{
    char timestamp[32];
    ft_ras_timestamp(timestamp);
    for (int i = 0; i < FT_RAS_CLIENTS; i++) {
        struct ft_ras_client *client = &clients[i];
        if (client->fd < 0 || !(client->monitors & event->group))
            continue;
        if (client->json)
            add_json(&client->out, event, timestamp);
        else
            add_text(&client->out, event, timestamp);
    }
}

static void tell_of(struct ft_ras_client *clients, const struct ft_ras_seen *peer, const char *name,
                    const char *text)
{
    const struct ft_ras_event event = {FT_RAS_LIFECYCLE, name, peer, text};
    ft_ras_tell(clients, &event);
}

/* ---- looking --------------------------------------------------------------------------------- */

static int look_at_all(struct ft_ras_seen **out)
{
    struct ft_telemetry_file *files;
    int n = ft_telemetry_files(FT_TELEMETRY_DIR, &files), kept = 0;
    struct ft_ras_seen *seen = n > 0 ? calloc((size_t)n, sizeof *seen) : NULL;
    for (int i = 0; seen && i < n; i++) {
        seen[kept].file = files[i];
        kept += ft_telemetry_look(&files[i], &seen[kept].look);
    }
    if (n >= 0)
        free(files);
    *out = seen;
    return n > 0 && !seen ? -1 : kept;
}

static void compare(struct ft_ras_client *clients, const struct ft_ras_seen *before,
                    const struct ft_ras_seen *now)
{
    if (now->look.ended && !before->look.ended)
        tell_of(clients, now, "PEER_DEAD", "its process has ended");
    else if (now->look.stopped && !before->look.stopped)
        tell_of(clients, now, "PEER_UNRESPONSIVE", "its process is stopped");
    else if (!now->look.stopped && before->look.stopped)
        tell_of(clients, now, "PEER_RECOVERED", "its process goes on");
}

static void tell_new(struct ft_ras_client *clients, const struct ft_ras_seen *now)
{
    if (!now->look.ended)
        tell_of(clients, now, "PEER_NEW", "its process has opened an engine");
}

static void tell_gone(struct ft_ras_client *clients, const struct ft_ras_seen *before)
{
    if (!before->look.ended)
        tell_of(clients, before, "PEER_LEFT", "its process has closed an engine");
}

/* Walks both lists, which are ordered. */
static void tell_changes(struct ft_ras_monitor *monitor, struct ft_ras_client *clients,
                         const struct ft_ras_seen *now, int n)
{
    const struct ft_ras_seen *before = monitor->seen;
    for (int i = 0, k = 0; i < monitor->nseen || k < n;) {
        int order = i == monitor->nseen ? 1
                    : k == n            ? -1
                                        : strcmp(before[i].file.path, now[k].file.path);
        if (order == 0)
            compare(clients, &before[i++], &now[k++]);
        else if (order < 0)
            tell_gone(clients, &before[i++]);
        else
            tell_new(clients, &now[k++]);
    }
}

void ft_ras_monitor_stop(struct ft_ras_monitor *monitor)
{
    free(monitor->seen);
    *monitor = (struct ft_ras_monitor){0};
}

void ft_ras_monitor_tick(struct ft_ras_monitor *monitor, struct ft_ras_client *clients,
                         uint64_t now_ns)
{
    bool wanted = false;
    struct ft_ras_seen *seen;
    for (int i = 0; i < FT_RAS_CLIENTS; i++)
        wanted |= clients[i].fd >= 0 && clients[i].monitors;
    if (!wanted) {
        if (monitor->begun)
            ft_ras_monitor_stop(monitor);
        return;
    }
    if (monitor->begun && now_ns < monitor->due_ns)
        return;
    int n = look_at_all(&seen);
    monitor->due_ns = now_ns + PERIOD_NS;
    if (n < 0)
        return; /* no memory: the next look may have some */
    if (monitor->begun)
        tell_changes(monitor, clients, seen, n);
    free(monitor->seen);
    monitor->seen = seen;
    monitor->nseen = n;
    monitor->begun = true;
}
