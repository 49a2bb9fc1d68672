/*
 * ncclras: asks the responder of a host how its ranks are, in the protocol of NCCL's RAS, and
 * prints the answer. It needs nothing of the library, so it also asks NCCL's own. The options are
 * those of the command of that name in NCCL. Exit status: 0 if there was an answer, else 1; 2 for a
 * usage error.
 */
#include <errno.h>
#include <getopt.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define REPLY_S \
    1.0 /* a process that accepts and says nothing may be stopped: another one is asked */
#define PAUSE_MS 100
/* For so long nobody may listen: the process that did has ended, and another one takes over. */
#define REFUSED_S 2.0
#define MORE_S 1.0 /* how much longer than the responder this program waits */

static const char help[] =
    "usage: ncclras [OPTION]...\n"
    "Asks how the ranks of a job are, and prints the answer.\n"
    "  -h, --host HOST       whom to ask (default localhost)\n"
    "  -p, --port PORT       default 28028\n"
    "  -f, --format FORMAT   text or json (default text)\n"
    "  -v, --verbose         all ranks, too\n"
    "  -t, --timeout SECONDS how long the answer may take (default 5)\n"
    "  -m, --monitor [LIST]  events as they happen, until a signal; of the groups in LIST:\n"
    "                        lifecycle (default), trace, all\n"
    "      --version         the version\n"
    "      --help            this text\n";

struct request {
    const char *host, *port, *format, *groups;
    bool verbose, monitors;
    long timeout_s;
};

enum { OPT_HELP = 256, OPT_VERSION };

static const struct option options[] = {{"host", required_argument, NULL, 'h'},
                                        {"port", required_argument, NULL, 'p'},
                                        {"format", required_argument, NULL, 'f'},
                                        {"verbose", no_argument, NULL, 'v'},
                                        {"timeout", required_argument, NULL, 't'},
                                        {"monitor", optional_argument, NULL, 'm'},
                                        {"help", no_argument, NULL, OPT_HELP},
                                        {"version", no_argument, NULL, OPT_VERSION},
                                        {NULL, 0, NULL, 0}};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- the connection -------------------------------------------------------------------------- */

/* Lines are read without reading past them. */
struct stream {
    int fd;
    double end; /* when to give up; 0: never */
};

/* False: the time is over. */
static bool wait_for(const struct stream *stream, short events)
{
    struct pollfd fd = {.fd = stream->fd, .events = events};
    for (;;) {
        double left = stream->end > 0 ? stream->end - now() : 0;
        if (stream->end > 0 && left <= 0)
            return false;
        int rc = poll(&fd, 1, stream->end > 0 ? (int)(left * 1000) + 1 : -1);
        if (rc > 0)
            return true;
        if (rc < 0 && errno != EINTR)
            return false;
    }
}

static bool connect_to(struct stream *stream, const struct addrinfo *to)
{
    int err = 0;
    socklen_t len = sizeof err;
    stream->fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (stream->fd < 0)
        return false;
    if (connect(stream->fd, to->ai_addr, to->ai_addrlen) == 0)
        return true;
    if (errno == EINPROGRESS && wait_for(stream, POLLOUT) &&
        getsockopt(stream->fd, SOL_SOCKET, SO_ERROR, &err, &len) == 0 && err == 0)
        return true;
    err = err ? err : errno == EINPROGRESS ? ETIMEDOUT : errno;
    close(stream->fd);
    stream->fd = -1;
    errno = err;
    return false;
}

static bool say(const struct stream *stream, const char *text)
{
    for (size_t len = strlen(text); len > 0;) {
        ssize_t n = send(stream->fd, text, len, MSG_NOSIGNAL);
        if (n < 0 && (errno != EAGAIN || !wait_for(stream, POLLOUT)))
            return false;
        text += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

/* Reads a line without its end. False: there is none. */
static bool hear(const struct stream *stream, char *line, size_t size)
{
    for (size_t len = 0; len < size;) {
        ssize_t n = wait_for(stream, POLLIN) ? recv(stream->fd, line + len, 1, 0) : -1;
        if (n != 1)
            return false;
        if (line[len] == '\n') {
            line[len] = '\0';
            return true;
        }
        len++;
    }
    return false;
}

/* Prints what comes until the other side ends. Returns whether anything came and all was read. */
static bool copy(const struct stream *stream)
{
    char bytes[65536];
    bool any = false;
    while (wait_for(stream, POLLIN)) {
        ssize_t n = recv(stream->fd, bytes, sizeof bytes, 0);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        if (n == 0)
            return any;
        if (n > 0 && (fwrite(bytes, 1, (size_t)n, stdout) != (size_t)n || fflush(stdout)))
            return false;
        any |= n > 0;
    }
    return false;
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* Connects to somebody who answers. */
static bool meet(struct stream *stream, const struct addrinfo *list, double end)
{
    char line[128];
    double patient = now() + REFUSED_S;
    while (now() < end) {
        bool refused = false;
        for (const struct addrinfo *to = list; to; to = to->ai_next) {
            *stream = (struct stream){-1, now() + REPLY_S};
            if (!connect_to(stream, to)) {
                refused |= errno == ECONNREFUSED;
                continue;
            }
            if (say(stream, "CLIENT PROTOCOL 2\n") && hear(stream, line, sizeof line) &&
                !strncasecmp(line, "SERVER PROTOCOL ", 16))
                return true;
            close(stream->fd);
            patient = end;
        }
        if (refused && now() >= patient) {
            fprintf(stderr, "ncclras: nobody listens there: no rank runs, or NCCL_RAS_ENABLE=0\n");
            return false;
        }
        usleep(PAUSE_MS * 1000);
    }
    fprintf(stderr, "ncclras: no answer\n");
    return false;
}

/* Says a line to which the answer is OK. */
static bool command(const struct stream *stream, const char *line)
{
    char reply[256];
    if (!say(stream, line) || !hear(stream, reply, sizeof reply))
        return false;
    if (!strcmp(reply, "OK"))
        return true;
    fprintf(stderr, "ncclras: %.200s\n", reply);
    return false;
}

static bool set_up(const struct stream *stream, const struct request *request)
{
    char timeout[64], format[64], monitor[256];
    snprintf(timeout, sizeof timeout, "TIMEOUT %ld\n", request->timeout_s);
    snprintf(format, sizeof format, "SET FORMAT %s\n", request->format);
    snprintf(monitor, sizeof monitor, "MONITOR%s%.200s\n", request->groups ? " " : "",
             request->groups ? request->groups : "");
    /* servers of older versions know no formats, and their only one is text */
    bool plain = !strcasecmp(request->format, "text");
    if (!command(stream, timeout) || (!plain && !command(stream, format)))
        return false;
    if (request->monitors)
        return command(stream, monitor);
    return say(stream, request->verbose ? "VERBOSE STATUS\n" : "STATUS\n");
}

static int ask(const struct request *request)
{
    struct addrinfo *list = NULL, hints = {.ai_socktype = SOCK_STREAM};
    struct stream stream;
    int rc = getaddrinfo(request->host, request->port, &hints, &list);
    if (rc != 0) {
        fprintf(stderr, "ncclras: %s port %s: %s\n", request->host, request->port,
                gai_strerror(rc));
        return 1;
    }
    double end = now() + (double)request->timeout_s + MORE_S;
    bool good = meet(&stream, list, end);
    freeaddrinfo(list);
    if (!good)
        return 1;
    stream.end = end;
    good = set_up(&stream, request);
    if (request->monitors)
        stream.end = 0;
    good = good && copy(&stream);
    if (!good)
        fprintf(stderr, "ncclras: the answer is not complete\n");
    close(stream.fd);
    return !good;
}

/* ---- the command line ------------------------------------------------------------------------ */

static bool take_seconds(const char *text, long *out)
{
    char *end;
    errno = 0;
    *out = strtol(text, &end, 10);
    if (*text && !*end && !errno && *out >= 1 && *out <= 86400)
        return true;
    fprintf(stderr, "ncclras: --timeout: %s is not a number of seconds from 1 to 86400\n", text);
    return false;
}

static bool take_format(const char *text, const char **out)
{
    *out = text;
    if (!strcasecmp(text, "text") || !strcasecmp(text, "json"))
        return true;
    fprintf(stderr, "ncclras: --format: %s is neither text nor json\n", text);
    return false;
}

/* Returns -1 to go on, or the exit status. */
static int take_option(int c, struct request *request)
{
    switch (c) {
    case 'h':
        request->host = optarg;
        return -1;
    case 'p':
        request->port = optarg;
        return -1;
    case 'f':
        return take_format(optarg, &request->format) ? -1 : 2;
    case 'v':
        request->verbose = true;
        return -1;
    case 't':
        return take_seconds(optarg, &request->timeout_s) ? -1 : 2;
    case 'm':
        request->monitors = true;
        request->groups = optarg && *optarg == '=' ? optarg + 1 : optarg;
        return -1;
    case OPT_HELP:
        fputs(help, stdout);
        return 0;
    case OPT_VERSION:
        printf("ncclras of FTCCL %s\n", PACKAGE_VERSION);
        return 0;
    default:
        return 2;
    }
}

int main(int argc, char **argv)
{
    struct request request = {
        .host = "localhost", .port = "28028", .format = "text", .timeout_s = 5};
    for (int c; (c = getopt_long(argc, argv, "h:p:f:vt:m::", options, NULL)) != -1;) {
        int status = take_option(c, &request);
        if (status >= 0)
            return status;
    }
    if (optind == argc - 1 && request.monitors && !request.groups)
        request.groups = argv[optind++];
    if (optind < argc) {
        fprintf(stderr, "ncclras: unknown argument %s; see --help\n", argv[optind]);
        return 2;
    }
    signal(SIGPIPE, SIG_DFL);
    return ask(&request);
}
