/*
 * What the agent shows of the members that it carries.
 */
#include "members.h"

#include <inttypes.h>

static double silence_s(const struct carrier *c, const struct local *local)
{
    return (double)(c->now_ns - local->heard_ns) / 1e9;
}

static const char *state_of(const struct carrier *c, const struct slot *slot)
{
    return slot->accepted ? "registered" : c->is_open ? "asks" : "waits for a coordinator";
}

static void put_row(const struct carrier *c, const struct local *local, const struct slot *slot,
                    FILE *out)
{
    fputs("<tr><td>", out);
    daemon_put_html(out, slot->role.group);
    fputs("<td>", out);
    daemon_put_html(out, slot->role.replica[0] ? slot->role.replica : "standby");
    fputs("<td>", out);
    if (slot->role.replica[0])
        fprintf(out, "%" PRIu32 " of %" PRIu32, slot->role.local_rank, slot->role.local_size);
    fprintf(out, "<td>%s<td>%.1f s</tr>", state_of(c, slot), silence_s(c, local));
}

static void put_coordinator(const struct carrier *c, FILE *out)
{
    fprintf(out, "<p>%d members of this host; the coordinator ", c->nused);
    daemon_put_html(out, c->name[c->tried]);
    fputs(c->is_open      ? " is there</p>"
          : c->nlocal > 0 ? " is looked for</p>"
                          : " is not needed</p>",
          out);
    if (c->trouble[0]) {
        fputs("<p class=\"warn\">", out);
        daemon_put_html(out, c->trouble);
        fputs("</p>", out);
    }
}

void carrier_page(void *arg, FILE *out)
{
    const struct carrier *c = arg;
    put_coordinator(c, out);
    if (c->nused == 0)
        return;
    fputs("<table><tr><th>group<th>replica<th>rank<th>state<th>last heard</tr>", out);
    for (const struct local *local = c->local; local; local = local->next)
        for (const struct slot *slot = local->slot; slot; slot = slot->next)
            put_row(c, local, slot, out);
    fputs("</table>", out);
}

static void add_slot(const struct carrier *c, const struct slot *slot, struct ft_text *out)
{
    ft_json_begin(out, NULL, '{');
    ft_json_string(out, "group", slot->role.group);
    ft_json_string(out, "replica", slot->role.replica);
    ft_json_int(out, "local_rank", slot->role.local_rank);
    ft_json_bool(out, "registered", slot->accepted);
    ft_json_real(out, "heard_s", silence_s(c, slot->local));
    ft_json_end(out, '}');
}

void carrier_json(void *arg, struct ft_text *out)
{
    const struct carrier *c = arg;
    ft_json_begin(out, "members", '{');
    ft_json_string(out, "coordinator", c->name[c->tried]);
    ft_json_bool(out, "connected", c->is_open);
    ft_json_string(out, "trouble", c->trouble);
    ft_json_int(out, "connections", c->nlocal);
    ft_json_begin(out, "members", '[');
    for (const struct local *local = c->local; local; local = local->next)
        for (const struct slot *slot = local->slot; slot; slot = slot->next)
            add_slot(c, slot, out);
    ft_json_end(out, ']');
    ft_json_end(out, '}');
}

void carrier_metrics(void *arg, FILE *out)
{
    const struct carrier *c = arg;
    daemon_put_help(out, "ftccl_agent_members", "gauge",
                    "Members of managed groups on this host whose messages the agent carries.");
    fprintf(out, "ftccl_agent_members %d\n", c->nused);
    daemon_put_help(out, "ftccl_agent_has_coordinator", "gauge",
                    "1: it is connected to a coordinator of managed groups.");
    fprintf(out, "ftccl_agent_has_coordinator %d\n", c->is_open);
}
