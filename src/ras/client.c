/*
 * A client and its lines. Everything that it may make the responder keep is bounded: the line that
 * it has begun, what it has not read, how often it may be wrong, and how long it may be silent.
 */
#include "ras/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#define MOST_ERRORS 8
#define SILENT_NS 60000000000u /* a client that wants nothing */
#define SLOW_NS 30000000000u   /* one that does not read its answer */
#define EVENTS_MAX ((size_t)256 << 10)
#define READS_A_SLICE 4

/* ---- commands -------------------------------------------------------------------------------- */

static void say(struct ft_ras_client *client, const char *text)
{
    ft_text_add(&client->out, "%s\n", text);
}

static void refuse(struct ft_ras_client *client, const char *why)
{
    ft_text_add(&client->out, "ERROR: %s\n", why);
    client->ends |= ++client->errors >= MOST_ERRORS;
}

static bool take_number(const char *text, long most, long *out)
{
    char *end;
    errno = 0;
    *out = strtol(text, &end, 10);
    return end != text && !*end && !errno && *out >= 0 && *out <= most;
}

static void do_protocol(struct ft_ras_client *client, const char *rest)
{
    long version;
    if (take_number(rest, 1 << 20, &version))
        say(client, "SERVER PROTOCOL 2");
    else
        refuse(client, "the protocol is a number");
}

static void do_timeout(struct ft_ras_client *client, const char *rest)
{
    long seconds;
    if (!take_number(rest, 86400, &seconds)) {
        refuse(client, "the timeout is a number of seconds");
        return;
    }
    client->timeout_s = (double)seconds;
    say(client, "OK");
}

static void do_format(struct ft_ras_client *client, const char *rest)
{
    if (strcasecmp(rest, "json") && strcasecmp(rest, "text")) {
        refuse(client, "the format is text or json");
        return;
    }
    client->json = !strcasecmp(rest, "json");
    say(client, "OK");
}

static void do_status(struct ft_ras_client *client, const char *rest)
{
    if (*rest)
        refuse(client, "STATUS takes nothing");
    else
        client->wants_status = true;
}

static void do_verbose(struct ft_ras_client *client, const char *rest)
{
    client->verbose = !*rest;
    do_status(client, rest);
}

/* A command of this library's own, for ftccl-diagnose: other versions refuse the answer. */
static void do_snapshot(struct ft_ras_client *client, const char *rest)
{
    client->packed = !*rest;
    do_status(client, rest);
}

/* A list such as "lifecycle,trace"; none: lifecycle. 0: it is no such list. */
static unsigned groups_of(char *text)
{
    static const struct {
        const char *name;
        unsigned group;
    } known[] = {{"lifecycle", FT_RAS_LIFECYCLE}, {"trace", FT_RAS_TRACE}, {"all", FT_RAS_ALL}};
    unsigned groups = *text ? 0 : FT_RAS_LIFECYCLE;
    char *rest = NULL;
    for (char *word = strtok_r(text, ", ", &rest); word; word = strtok_r(NULL, ", ", &rest)) {
        unsigned group = 0;
        for (size_t i = 0; i < FT_ARRAY_LEN(known); i++)
            if (!strcasecmp(word, known[i].name))
                group = known[i].group;
        if (!group)
            return 0;
        groups |= group;
    }
    return groups;
}

static void do_monitor(struct ft_ras_client *client, const char *rest)
{
    char list[sizeof client->line];
    snprintf(list, sizeof list, "%s", rest);
    client->monitors = groups_of(list);
    if (client->monitors)
        say(client, "OK");
    else
        refuse(client, "the groups of events are lifecycle, trace and all");
}

static void obey(struct ft_ras_client *client, const char *line)
{
    static const struct {
        const char *verb;
        void (*act)(struct ft_ras_client *, const char *rest);
    } commands[] = {
        {"CLIENT PROTOCOL", do_protocol}, {"TIMEOUT", do_timeout}, {"SET FORMAT", do_format},
        {"VERBOSE STATUS", do_verbose},   {"STATUS", do_status},   {"MONITOR", do_monitor},
        {"SNAPSHOT", do_snapshot}};
    for (size_t i = 0; i < FT_ARRAY_LEN(commands); i++) {
        size_t len = strlen(commands[i].verb);
        if (strncasecmp(line, commands[i].verb, len) || (line[len] && line[len] != ' '))
            continue;
        commands[i].act(client, line + len + strspn(line + len, " "));
        return;
    }
    refuse(client, "unknown command");
}

/* ---- reading --------------------------------------------------------------------------------- */

/* It takes no more lines: it waits for an answer, or it will be closed. */
static bool is_deaf(const struct ft_ras_client *client)
{
    return client->wants_status || client->ends;
}

/* Obeys the complete lines that were read. */
static void take_lines(struct ft_ras_client *client)
{
    char line[sizeof client->line + 1];
    for (char *end; !is_deaf(client) && (end = memchr(client->line, '\n', client->len));) {
        size_t len = (size_t)(end - client->line), used = len + 1;
        memcpy(line, client->line, len);
        while (len > 0 && strchr(" \t\r", line[len - 1]))
            len--;
        line[len] = '\0';
        memmove(client->line, client->line + used, client->len - used);
        client->len -= used;
        if (len > 0)
            obey(client, line);
    }
    if (client->len == sizeof client->line && !is_deaf(client)) {
        refuse(client, "the line is too long");
        client->ends = true;
    }
}

/* False: the connection is broken. */
static bool receive(struct ft_ras_client *client, uint64_t now_ns)
{
    for (int i = 0; i < READS_A_SLICE && !is_deaf(client) && !client->hung_up; i++) {
        ssize_t n = recv(client->fd, client->line + client->len, sizeof client->line - client->len,
                         MSG_DONTWAIT);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        client->moved_ns = now_ns;
        client->hung_up = n == 0;
        client->len += (size_t)n;
        take_lines(client);
    }
    return true;
}

/* ---- writing --------------------------------------------------------------------------------- */

static bool flush(struct ft_ras_client *client, uint64_t now_ns)
{
    while (client->sent < client->out.len) {
        ssize_t n = send(client->fd, client->out.at + client->sent, client->out.len - client->sent,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        client->sent += (size_t)n;
        client->moved_ns = now_ns;
    }
    client->out.len = client->sent = 0;
    return true;
}

/* Of a client that waits nothing is read, so this is how its end shows. */
static bool is_gone(const struct ft_ras_client *client)
{
    struct pollfd fd = {.fd = client->fd};
    return client->wants_status && poll(&fd, 1, 0) > 0;
}

/* ---- life ------------------------------------------------------------------------------------ */

void ft_ras_client_open(struct ft_ras_client *client, int fd, uint64_t now_ns)
{
    *client = (struct ft_ras_client){
        .fd = fd, .timeout_s = 5, .moved_ns = now_ns, .out = {.most = FT_RAS_ANSWER_MAX}};
}

void ft_ras_client_close(struct ft_ras_client *client)
{
    ft_fd_close(&client->fd);
    ft_text_free(&client->out);
    client->wants_status = false;
    client->monitors = 0;
}

short ft_ras_client_events(const struct ft_ras_client *client)
{
    bool reads = !is_deaf(client) && !client->hung_up;
    return (short)((reads ? POLLIN : 0) | (client->sent < client->out.len ? POLLOUT : 0));
}

void ft_ras_client_serve(struct ft_ras_client *client, uint64_t now_ns)
{
    bool good = receive(client, now_ns) && flush(client, now_ns) && !is_gone(client);
    bool waits = client->sent < client->out.len || client->wants_status;
    bool floods = client->monitors && client->out.len - client->sent > EVENTS_MAX;
    if (!good || floods || client->out.broken || ((client->ends || client->hung_up) && !waits))
        ft_ras_client_close(client);
}

bool ft_ras_client_is_late(const struct ft_ras_client *client, uint64_t now_ns)
{
    uint64_t limit_ns = client->sent < client->out.len             ? SLOW_NS
                        : client->wants_status || client->monitors ? UINT64_MAX
                                                                   : SILENT_NS;
    return now_ns - client->moved_ns > limit_ns;
}
