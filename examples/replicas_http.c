/*
 * Replicas serve their last states over HTTP, as GET /STEP, and fetch them from each other. The
 * replica computes meanwhile: libmicrohttpd and the fetch have threads of their own, and a state
 * that is being sent is kept until it has been.
 */
#include "replicas.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_MS 2000
#define TRANSFER_S 60
#define IDLE_S 10

/* ---- serving --------------------------------------------------------------------------------- */

static struct MHD_Daemon *server;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static struct state *last[2];                            /* the latest first */

static struct state *hold(uint64_t step)
{
    struct state *found = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 2 && !found; i++)
        if (last[i] && last[i]->step == step)
            found = state_hold(last[i]);
    pthread_mutex_unlock(&lock);
    return found;
}

static void sent(void *bytes)
{
    state_release((struct state *)(void *)((char *)bytes - offsetof(struct state, step)));
}

static enum MHD_Result answer(void *arg, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_bytes, void **request)
{
    static char no_such[] = "no such state\n";
    (void)arg, (void)version, (void)upload, (void)upload_bytes, (void)request;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0)
        return MHD_NO;
    char *end;
    uint64_t step = strtoull(url + 1, &end, 10);
    struct state *s = *end || end == url + 1 ? NULL : hold(step);
    struct MHD_Response *response = s ? MHD_create_response_from_buffer_with_free_callback(
                                            state_sent_bytes(s->step), state_sent(s), sent)
                                      : MHD_create_response_from_buffer(strlen(no_such), no_such,
                                                                        MHD_RESPMEM_PERSISTENT);
    if (!response) {
        state_release(s);
        return MHD_NO;
    }
    enum MHD_Result queued = MHD_queue_response(connection, s ? MHD_HTTP_OK : MHD_HTTP_NOT_FOUND,
                                                response);
    MHD_destroy_response(response);
    return queued;
}

bool serve_start(const char *host, char address[ADDRESS_BYTES])
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    if (inet_pton(AF_INET, host, &at.sin_addr) != 1) {
        fprintf(stderr, "replicas: '%s' is no IPv4 address\n", host);
        return false;
    }
    server = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO, 0, NULL, NULL, answer,
                              NULL, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&at,
                              MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S, MHD_OPTION_END);
    const union MHD_DaemonInfo *port = server
                                           ? MHD_get_daemon_info(server, MHD_DAEMON_INFO_BIND_PORT)
                                           : NULL;
    if (!port) {
        fprintf(stderr, "replicas: cannot serve HTTP on %s\n", host);
        return false;
    }
    snprintf(address, ADDRESS_BYTES, "%s:%u", host, port->port);
    return true;
}

void serve_publish(struct state *state)
{
    state_hold(state);
    pthread_mutex_lock(&lock);
    struct state *old = last[1];
    last[1] = last[0];
    last[0] = state;
    pthread_mutex_unlock(&lock);
    state_release(old);
}

void serve_stop(void)
{
    if (server)
        MHD_stop_daemon(server);
    server = NULL;
    for (int i = 0; i < 2; i++) {
        state_release(last[i]);
        last[i] = NULL;
    }
}

/* ---- fetching -------------------------------------------------------------------------------- */

struct fetch {
    struct source *source; /* [nsources] */
    int nsources;
    uint64_t step;
    struct state *state;
    size_t len_bytes, capacity; /* of it: what has come, and what there should be */
    atomic_int result;          /* by the thread: enum fetch_result */
    atomic_bool cancelled;      /* by fetch_end(), for the thread */
    pthread_t thread;
};

static size_t take(char *bytes, size_t one, size_t len_bytes, void *arg)
{
    struct fetch *f = arg;
    (void)one;
    if (len_bytes > f->capacity - f->len_bytes)
        return 0; /* ends the transfer */
    memcpy(state_sent(f->state) + f->len_bytes, bytes, len_bytes);
    f->len_bytes += len_bytes;
    return len_bytes;
}

static int stop_if_cancelled(void *arg, curl_off_t total, curl_off_t now, curl_off_t up_total,
                             curl_off_t up_now)
{
    struct fetch *f = arg;
    (void)total, (void)now, (void)up_total, (void)up_now;
    return atomic_load(&f->cancelled);
}

static bool fetch_from(struct fetch *f, CURL *curl, const struct source *source)
{
    char url[ADDRESS_BYTES + 40];
    snprintf(url, sizeof url, "http://%s/%llu", source->address, (unsigned long long)f->step);
    f->len_bytes = 0;
    curl_easy_setopt(curl, CURLOPT_URL, url);
    return curl_easy_perform(curl) == CURLE_OK && f->len_bytes == f->capacity &&
           f->state->step == f->step && f->state->digest == source->digest;
}

static void *run(void *arg)
{
    struct fetch *f = arg;
    CURL *curl = curl_easy_init();
    if (!curl) {
        atomic_store(&f->result, FETCH_FAILED);
        return NULL;
    }
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_PROXY, "");
    curl_easy_setopt(curl, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)TRANSFER_S);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, f);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, stop_if_cancelled);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, f);
    bool done = false;
    for (int i = 0; i < f->nsources && !done && !atomic_load(&f->cancelled); i++)
        done = fetch_from(f, curl, &f->source[i]);
    curl_easy_cleanup(curl);
    atomic_store(&f->result, done ? FETCHED : FETCH_FAILED);
    return NULL;
}

static void fetch_free(struct fetch *f)
{
    if (!f)
        return;
    state_release(f->state);
    free(f->source);
    free(f);
}

struct fetch *fetch_start(const struct source *source, int nsources, uint64_t step, int steps)
{
    struct fetch *f = calloc(1, sizeof *f);
    if (f) {
        f->source = malloc((size_t)nsources * sizeof *source + 1);
        f->nsources = nsources;
        f->step = step;
        f->state = state_new(steps);
        f->capacity = state_sent_bytes(step);
    }
    if (f && f->source && f->state && step <= (uint64_t)steps) {
        memcpy(f->source, source, (size_t)nsources * sizeof *source);
        if (pthread_create(&f->thread, NULL, run, f) == 0)
            return f;
    }
    fetch_free(f);
    return NULL;
}

enum fetch_result fetch_result(struct fetch *f)
{
    return (enum fetch_result)atomic_load(&f->result);
}

struct state *fetch_end(struct fetch *f)
{
    if (!f)
        return NULL;
    atomic_store(&f->cancelled, true);
    pthread_join(f->thread, NULL);
    struct state *state = fetch_result(f) == FETCHED ? f->state : NULL;
    if (state)
        f->state = NULL;
    fetch_free(f);
    return state;
}
