/*
 * HTTP: GET / and /status (HTML, or JSON if asked for by ?format=json or Accept) and /metrics, by
 * libmicrohttpd in a thread of its own. It answers from finished texts; nothing else is shared with
 * the loop. Connections are bounded in number, memory and time.
 */
#include "daemon.h"

#include <fcntl.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MOST 128
#define CONNECTION_BYTES 16384 /* for what a client sends */
#define QUIET_S 10
#define LIFE_NS 30000000000u
#define PAUSE_NS 1000000 /* between two looks whether all have gone */
#define STOP_PAUSES 2000

struct daemon_http {
    struct MHD_Daemon *server;
    pthread_mutex_t mutex; /* of all below */
    struct {
        char *at;
        size_t len;
    } text[DAEMON_TEXTS];
    struct client {
        int fd; /* 0: free */
        bool started, ends;
        uint64_t begun_ns;
    } client[CONNECTIONS_MOST];
};

/* ---- answers --------------------------------------------------------------------------------- */

static const char *const types[DAEMON_TEXTS] = {"text/html; charset=utf-8", "application/json",
                                                "text/plain; version=0.0.4; charset=utf-8"};

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, const char *type,
                              const char *text, size_t len)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(len, (void *)(uintptr_t)text,
                                                                    MHD_RESPMEM_MUST_COPY);
    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "Connection", "close");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Content-Security-Policy",
                            "default-src 'none'; style-src 'unsafe-inline'");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, "Allow", "GET, HEAD");
    enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result refuse(struct MHD_Connection *connection, unsigned status, const char *text)
{
    return answer(connection, status, "text/plain; charset=utf-8", text, strlen(text));
}

static bool wants_json(struct MHD_Connection *connection)
{
    const char *format = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "format");
    if (format)
        return strcmp(format, "json") == 0;
    const char *accept = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Accept");
    const char *json = accept ? strstr(accept, "application/json") : NULL;
    const char *html = accept ? strstr(accept, "text/html") : NULL;
    return json && (!html || json < html);
}

static enum MHD_Result publish_answer(struct daemon_http *http, struct MHD_Connection *connection,
                                      enum daemon_text which)
{
    pthread_mutex_lock(&http->mutex);
    enum MHD_Result result = http->text[which].at
                                 ? answer(connection, MHD_HTTP_OK, types[which],
                                          http->text[which].at, http->text[which].len)
                                 : refuse(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                                          "nothing has been looked at yet\n");
    pthread_mutex_unlock(&http->mutex);
    return result;
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *body,
                                  size_t *body_bytes, void **state)
{
    (void)version, (void)body, (void)state;
    *body_bytes = 0;
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return refuse(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET and HEAD only\n");
    if (strcmp(url, "/metrics") == 0)
        return publish_answer(arg, connection, DAEMON_METRICS);
    if (strcmp(url, "/status") == 0 || strcmp(url, "/") == 0)
        return publish_answer(arg, connection, wants_json(connection) ? DAEMON_JSON : DAEMON_PAGE);
    return refuse(connection, MHD_HTTP_NOT_FOUND, "there are /status and /metrics\n");
}

/* ---- connections ----------------------------------------------------------------------------- */

/* The library is never let reach a limit of its own: with connections that are given to it, version
 * 0.9.75 then waits for its own lock for ever. So they are counted here, from when they are given
 * to it until it closes them. */
static struct client *find(struct daemon_http *http, int fd)
{
    for (int i = 0; i < CONNECTIONS_MOST; i++)
        if (http->client[i].fd == fd)
            return &http->client[i];
    return NULL;
}

/* Called before a connection's descriptor is closed, and after it was taken. */
static void on_connection(void *arg, struct MHD_Connection *connection, void **state,
                          enum MHD_ConnectionNotificationCode code)
{
    struct daemon_http *http = arg;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    (void)state;
    pthread_mutex_lock(&http->mutex);
    struct client *client = find(http, info->connect_fd);
    if (client && code == MHD_CONNECTION_NOTIFY_STARTED)
        client->started = true;
    else if (client)
        client->fd = 0;
    pthread_mutex_unlock(&http->mutex);
}

/* A client that sends or reads a byte now and then does not keep its connection. */
void daemon_http_tick(struct daemon_http *http)
{
    uint64_t now_ns = daemon_now_ns();
    pthread_mutex_lock(&http->mutex);
    for (int i = 0; i < CONNECTIONS_MOST; i++) {
        struct client *client = &http->client[i];
        if (!client->fd || now_ns - client->begun_ns <= LIFE_NS)
            continue;
        if (client->started)
            shutdown(client->fd, SHUT_RDWR);
        else
            client->fd = 0; /* the library had no memory for it */
    }
    pthread_mutex_unlock(&http->mutex);
}

/* Half of the places are for those who come when many others stay: the oldest then has to go. */
static bool take_place(struct daemon_http *http, int fd)
{
    struct client *place = find(http, fd), *oldest = NULL; /* one that was closed unnoticed */
    int n = 0;
    for (int i = 0; i < CONNECTIONS_MOST; i++) {
        struct client *client = &http->client[i];
        n += client->fd != 0;
        if (client->started && client->fd && !client->ends &&
            (!oldest || client->begun_ns < oldest->begun_ns))
            oldest = client;
    }
    place = place ? place : find(http, 0);
    if (n >= CONNECTIONS_MOST / 2 && oldest) {
        oldest->ends = true;
        shutdown(oldest->fd, SHUT_RDWR);
    }
    if (place)
        *place = (struct client){.fd = fd, .begun_ns = daemon_now_ns()};
    return place;
}

/* The library closes the descriptor by itself, so it gets one that we do not count as ours. */
void daemon_http_take(struct daemon_http *http, int fd)
{
    struct sockaddr_in nobody = {.sin_family = AF_INET};
    int given = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    ft_fd_close(&fd);
    pthread_mutex_lock(&http->mutex);
    bool taken = given >= 0 && take_place(http, given);
    pthread_mutex_unlock(&http->mutex);
    if (taken)
        MHD_add_connection(http->server, given, (struct sockaddr *)&nobody, sizeof nobody);
    else if (given >= 0)
        close(given);
}

/* ---- the server ------------------------------------------------------------------------------ */

void daemon_http_publish(struct daemon_http *http, enum daemon_text which, char *text, size_t len)
{
    pthread_mutex_lock(&http->mutex);
    char *before = http->text[which].at;
    http->text[which].at = text;
    http->text[which].len = len;
    pthread_mutex_unlock(&http->mutex);
    free(before);
}

struct daemon_http *daemon_http_open(void)
{
    struct daemon_http *http = calloc(1, sizeof *http);
    if (!http) {
        ft_fail(FT_NOMEM, "no memory for HTTP");
        return NULL;
    }
    pthread_mutex_init(&http->mutex, NULL);
    http->server = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ITC, 0, NULL, NULL,
        on_request, http, MHD_OPTION_CONNECTION_LIMIT, 4 * (unsigned)CONNECTIONS_MOST,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)QUIET_S, MHD_OPTION_NOTIFY_CONNECTION, on_connection, http, MHD_OPTION_END);
    if (http->server)
        return http;
    ft_fail(FT_SYSTEM, "cannot start the HTTP server");
    daemon_http_close(http);
    return NULL;
}

static int hang_up(struct daemon_http *http)
{
    int n = 0;
    pthread_mutex_lock(&http->mutex);
    for (int i = 0; i < CONNECTIONS_MOST; i++) {
        n += http->client[i].fd != 0;
        if (http->client[i].fd && http->client[i].started)
            shutdown(http->client[i].fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&http->mutex);
    return n;
}

/* Version 0.9.75 crashes if it refuses a request while it is being stopped: it uses the response
 * that it then does not have. So all connections end before. */
static void stop(struct daemon_http *http)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    for (int pauses = 0; hang_up(http) > 0 && pauses < STOP_PAUSES; pauses++)
        nanosleep(&pause, NULL);
    MHD_stop_daemon(http->server);
}

void daemon_http_close(struct daemon_http *http)
{
    if (!http)
        return;
    if (http->server)
        stop(http);
    for (int i = 0; i < DAEMON_TEXTS; i++)
        free(http->text[i].at);
    pthread_mutex_destroy(&http->mutex);
    free(http);
}
