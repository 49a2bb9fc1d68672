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

/* A copy of a state. `held` counts who uses it: responses, and `last` below. */
struct snapshot {
    uint64_t step;
    size_t len_bytes;
    int held;
    unsigned char bytes[];
};

static struct MHD_Daemon *server;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows, and `held` */
static struct snapshot *last[2];                         /* the latest first */

static void let_go(struct snapshot *s)
{
    pthread_mutex_lock(&lock);
    bool unused = s && --s->held == 0;
    pthread_mutex_unlock(&lock);
    if (unused)
        free(s);
}

static struct snapshot *hold(uint64_t step)
{
    struct snapshot *found = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 2 && !found; i++)
        if (last[i] && last[i]->step == step)
            found = last[i];
    if (found)
        found->held++;
    pthread_mutex_unlock(&lock);
    return found;
}

static void sent(void *bytes)
{
    let_go((struct snapshot *)(void *)((char *)bytes - offsetof(struct snapshot, bytes)));
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
    struct snapshot *s = *end || end == url + 1 ? NULL : hold(step);
    struct MHD_Response *response =
        s ? MHD_create_response_from_buffer_with_free_callback(s->len_bytes, s->bytes, sent)
          : MHD_create_response_from_buffer(strlen(no_such), no_such, MHD_RESPMEM_PERSISTENT);
    if (!response) {
        let_go(s);
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

bool serve_publish(const struct state *state)
{
    size_t len_bytes = state_bytes(state);
    struct snapshot *s = malloc(sizeof *s + len_bytes);
    if (!s)
        return false;
    *s = (struct snapshot){.step = state->step, .len_bytes = len_bytes, .held = 1};
    memcpy(s->bytes, state, len_bytes);
    pthread_mutex_lock(&lock);
    struct snapshot *old = last[1];
    last[1] = last[0];
    last[0] = s;
    pthread_mutex_unlock(&lock);
    let_go(old);
    return true;
}

void serve_stop(void)
{
    if (server)
        MHD_stop_daemon(server);
    server = NULL;
    for (int i = 0; i < 2; i++) {
        let_go(last[i]);
        last[i] = NULL;
    }
}

/* ---- fetching -------------------------------------------------------------------------------- */

struct fetch {
    const struct source *source;
    int nsources;
    uint64_t step;
    struct state *state;
    unsigned char *bytes; /* [capacity] what has come */
    size_t len_bytes, capacity;
    bool done;
    atomic_bool cancelled; /* by fetch_end(), for the thread */
    pthread_t thread;
};

static size_t take(char *bytes, size_t one, size_t len_bytes, void *arg)
{
    struct fetch *f = arg;
    (void)one;
    if (len_bytes > f->capacity - f->len_bytes)
        return 0; /* ends the transfer */
    memcpy(f->bytes + f->len_bytes, bytes, len_bytes);
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
    return curl_easy_perform(curl) == CURLE_OK &&
           state_read(f->state, f->bytes, f->len_bytes, f->step) &&
           state_digest(f->state) == source->digest;
}

static void *run(void *arg)
{
    struct fetch *f = arg;
    CURL *curl = curl_easy_init();
    if (!curl)
        return NULL;
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
    for (int i = 0; i < f->nsources && !f->done && !atomic_load(&f->cancelled); i++)
        f->done = fetch_from(f, curl, &f->source[i]);
    curl_easy_cleanup(curl);
    return NULL;
}

static void fetch_free(struct fetch *f)
{
    if (!f)
        return;
    free(f->state);
    free(f->bytes);
    free(f);
}

struct fetch *fetch_start(const struct source *source, int nsources, uint64_t step, int steps)
{
    struct fetch *f = calloc(1, sizeof *f);
    if (f) {
        f->source = source;
        f->nsources = nsources;
        f->step = step;
        f->state = state_new(steps);
        f->capacity = sizeof *f->state + (size_t)step * sizeof f->state->trained[0];
        f->bytes = malloc(f->capacity);
    }
    if (f && f->state && f->bytes && step <= (uint64_t)steps &&
        pthread_create(&f->thread, NULL, run, f) == 0)
        return f;
    fetch_free(f);
    return NULL;
}

struct state *fetch_end(struct fetch *f, bool cancel)
{
    if (!f)
        return NULL;
    atomic_store(&f->cancelled, cancel);
    pthread_join(f->thread, NULL);
    struct state *state = f->done ? f->state : NULL;
    if (state)
        f->state = NULL;
    fetch_free(f);
    return state;
}
