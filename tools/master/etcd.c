#include "etcd.h"

#include <curl/curl.h>
#include <jansson.h>
#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define ENDPOINTS 8
#define NAME_BYTES 256
#define BODY_MOST (4 * ETCD_TEXT_MOST) /* of an answer; a text grows by a third in base64 */

struct etcd {
    CURL *curl;
    struct curl_slist *headers;
    char endpoint[ENDPOINTS][NAME_BYTES], prefix[NAME_BYTES];
    int nendpoints, next; /* next: the one that is asked first */
    int timeout_ms;       /* of one endpoint */
    atomic_bool stopped;
    char *body; /* [body_len] the answer, ends with a 0 */
    size_t body_len, body_room;
};

/* ---- opening --------------------------------------------------------------------------------- */

static bool add_endpoint(struct etcd *e, const char *from, size_t len)
{
    char *to = e->nendpoints < ENDPOINTS ? e->endpoint[e->nendpoints] : NULL;
    const char *colon = to ? memrchr(from, ':', len) : NULL;
    if (!colon || colon == from || len >= NAME_BYTES)
        return false;
    size_t digits = strspn(colon + 1, "0123456789");
    if (digits == 0 || colon + 1 + digits != from + len)
        return false;
    memcpy(to, from, len);
    to[len] = 0;
    e->nendpoints++;
    return true;
}

static int take_url(struct etcd *e, const char *url)
{
    static const char scheme[] = "etcd://";
    const char *at = url + sizeof scheme - 1;
    bool good = strncmp(url, scheme, sizeof scheme - 1) == 0;
    for (bool more = true; good && more;) {
        size_t len = strcspn(at, ",/");
        good = add_endpoint(e, at, len);
        more = at[len] == ',';
        at += len + (at[len] != 0);
    }
    good = good && strlen(at) < sizeof e->prefix;
    if (!good)
        return ft_fail(FT_INVAL,
                       "%.200s is no store: etcd://HOST:PORT[,HOST:PORT...][/PREFIX], with up to "
                       "%d addresses, is one",
                       url, ENDPOINTS);
    snprintf(e->prefix, sizeof e->prefix, "%s", *at ? at : "ftccl");
    return FT_OK;
}

static size_t on_body(char *bytes, size_t one, size_t n, void *arg)
{
    struct etcd *e = arg;
    (void)one; /* is 1 */
    if (e->body_len + n + 1 > e->body_room) {
        size_t room = ft_max(2 * e->body_room, e->body_len + n + 1);
        char *grown = room <= BODY_MOST ? realloc(e->body, room) : NULL;
        if (!grown)
            return 0; /* the transfer fails */
        e->body = grown;
        e->body_room = room;
    }
    memcpy(e->body + e->body_len, bytes, n);
    e->body_len += n;
    e->body[e->body_len] = 0;
    return n;
}

static int on_progress(void *arg, curl_off_t down_total, curl_off_t down, curl_off_t up_total,
                       curl_off_t up)
{
    struct etcd *e = arg;
    (void)down_total, (void)down, (void)up_total, (void)up;
    return atomic_load(&e->stopped);
}

static int open_curl(struct etcd *e)
{
    e->curl = curl_easy_init();
    e->headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (!e->curl || !e->headers)
        return ft_fail(FT_NOMEM, "no memory to talk to etcd");
    curl_easy_setopt(e->curl, CURLOPT_HTTPHEADER, e->headers);
    curl_easy_setopt(e->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e->curl, CURLOPT_PROXY, "");
    curl_easy_setopt(e->curl, CURLOPT_TIMEOUT_MS, (long)e->timeout_ms);
    curl_easy_setopt(e->curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(e->curl, CURLOPT_WRITEDATA, e);
    curl_easy_setopt(e->curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(e->curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(e->curl, CURLOPT_XFERINFODATA, e);
    return FT_OK;
}

static void init_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

int etcd_open(const char *url, int timeout_ms, struct etcd **out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct etcd *e = calloc(1, sizeof *e);
    if (!e)
        return ft_fail(FT_NOMEM, "no memory to talk to etcd");
    pthread_once(&once, init_curl);
    int status = take_url(e, url);
    e->timeout_ms = e->nendpoints > 0 ? timeout_ms / e->nendpoints : timeout_ms;
    if (status == FT_OK)
        status = open_curl(e);
    if (status == FT_OK)
        *out = e;
    else
        etcd_close(e);
    return status;
}

void etcd_close(struct etcd *e)
{
    if (!e)
        return;
    if (e->curl)
        curl_easy_cleanup(e->curl);
    curl_slist_free_all(e->headers);
    free(e->body);
    free(e);
}

void etcd_stop(struct etcd *e)
{
    atomic_store(&e->stopped, true);
}

/* ---- one call -------------------------------------------------------------------------------- */

/* Asks one endpoint. *again: another one may know better. */
static int post(struct etcd *e, const char *path, const char *request, bool *again)
{
    char url[NAME_BYTES + 64];
    const char *endpoint = e->endpoint[e->next];
    long code = 0;
    snprintf(url, sizeof url, "http://%s/v3/%s", endpoint, path);
    e->body_len = 0;
    curl_easy_setopt(e->curl, CURLOPT_URL, url);
    curl_easy_setopt(e->curl, CURLOPT_POSTFIELDS, request);
    CURLcode rc = curl_easy_perform(e->curl);
    curl_easy_getinfo(e->curl, CURLINFO_RESPONSE_CODE, &code);
    *again = rc != CURLE_OK || code >= 500;
    if (rc == CURLE_OK && code == 200 && e->body_len > 0)
        return FT_OK;
    if (rc != CURLE_OK)
        return ft_fail(FT_PEER, "etcd at %s cannot be reached: %s", endpoint,
                       curl_easy_strerror(rc));
    json_t *answer = e->body_len > 0 ? json_loads(e->body, 0, NULL) : NULL;
    const char *why = json_string_value(json_object_get(answer, "error"));
    int status = ft_fail(FT_PEER, "etcd at %s refuses: %.200s (%ld)", endpoint,
                         why ? why : "it does not say why", code);
    json_decref(answer);
    return status;
}

/* Consumes the request. */
static int call(struct etcd *e, const char *path, json_t *request, json_t **answer)
{
    char *text = request ? json_dumps(request, JSON_COMPACT) : NULL;
    int status = FT_PEER;
    bool again = true;
    json_decref(request);
    if (!text)
        return ft_fail(FT_NOMEM, "no memory for a question to etcd");
    for (int i = 0; i < e->nendpoints && again && !atomic_load(&e->stopped); i++) {
        if (i > 0)
            e->next = (e->next + 1) % e->nendpoints;
        status = post(e, path, text, &again);
        if (status == FT_OK)
            break;
    }
    free(text);
    if (status != FT_OK)
        return status;
    *answer = json_loads(e->body, 0, NULL);
    return json_is_object(*answer) ? FT_OK
                                   : ft_fail(FT_PROTOCOL, "etcd at %s answers with what is no JSON",
                                             e->endpoint[e->next]);
}

/* Numbers of 64 bits are text in the gateway's JSON; zero is left out. */
static int64_t number_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (json_is_integer(value))
        return json_integer_value(value);
    return json_is_string(value) ? strtoll(json_string_value(value), NULL, 10) : 0;
}

static json_t *json_number(int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return json_string(text);
}

static json_t *json_bytes(const char *bytes)
{
    size_t len = strlen(bytes),
           room = sodium_base64_encoded_len(len, sodium_base64_VARIANT_ORIGINAL);
    char *text = malloc(room);
    json_t *value = text ? json_string(sodium_bin2base64(text, room, (const unsigned char *)bytes,
                                                         len, sodium_base64_VARIANT_ORIGINAL))
                         : NULL;
    free(text);
    return value;
}

static json_t *json_key(const struct etcd *e, const char *name)
{
    char key[2 * NAME_BYTES];
    snprintf(key, sizeof key, "%s/%s", e->prefix, name);
    return json_bytes(key);
}

/* The value of the first key of an answer to a range, which the caller frees; NULL: none. */
static char *value_of(const json_t *range)
{
    const char *text = json_string_value(
        json_object_get(json_array_get(json_object_get(range, "kvs"), 0), "value"));
    size_t room = text ? strlen(text) : 0, len;
    char *value = text ? malloc(room + 1) : NULL;
    if (value && sodium_base642bin((unsigned char *)value, room, text, room, NULL, &len, NULL,
                                   sodium_base64_VARIANT_ORIGINAL) == 0) {
        value[len] = 0;
        return value;
    }
    free(value);
    return NULL;
}

/* ---- leases ---------------------------------------------------------------------------------- */

int etcd_grant(struct etcd *e, int64_t ttl_s, int64_t *lease)
{
    json_t *answer = NULL;
    int status = call(e, "lease/grant", json_pack("{so}", "TTL", json_number(ttl_s)), &answer);
    if (status == FT_OK && (*lease = number_of(answer, "ID")) == 0)
        status = ft_fail(FT_PROTOCOL, "etcd gives no lease");
    json_decref(answer);
    return status;
}

int etcd_keep(struct etcd *e, int64_t lease, int64_t *ttl_s)
{
    json_t *answer = NULL;
    int status = call(e, "lease/keepalive", json_pack("{so}", "ID", json_number(lease)), &answer);
    if (status == FT_OK)
        *ttl_s = number_of(json_object_get(answer, "result"), "TTL");
    json_decref(answer);
    return status;
}

int etcd_revoke(struct etcd *e, int64_t lease)
{
    json_t *answer = NULL;
    int status = call(e, "lease/revoke", json_pack("{so}", "ID", json_number(lease)), &answer);
    json_decref(answer);
    return status;
}

/* ---- the leader and its texts ---------------------------------------------------------------- */

/* `success` happens if the key `leader` was made in that revision; 0: if there is none. */
static json_t *if_leader(const struct etcd *e, int64_t revision, json_t *success, json_t *failure)
{
    return json_pack("{s[{so,ss,ss,so}],s[o],s[o*]}", "compare", "key", json_key(e, "leader"),
                     "target", "CREATE", "result", "EQUAL", "create_revision",
                     json_number(revision), "success", success, "failure", failure);
}

/* Another one leads; or this one, which did not hear that it had won. */
static void take_holder(const json_t *answer, int64_t lease, int64_t *revision,
                        char holder[ETCD_VALUE_BYTES])
{
    const json_t *range = json_object_get(json_array_get(json_object_get(answer, "responses"), 0),
                                          "response_range");
    const json_t *key = json_array_get(json_object_get(range, "kvs"), 0);
    char *text = value_of(range);
    snprintf(holder, ETCD_VALUE_BYTES, "%s", text ? text : "");
    free(text);
    if (number_of(key, "lease") == lease)
        *revision = number_of(key, "create_revision");
}

int etcd_claim(struct etcd *e, int64_t lease, const char *value, int64_t *revision,
               char holder[ETCD_VALUE_BYTES])
{
    json_t *answer = NULL;
    json_t *put = json_pack("{s{so,so,so}}", "request_put", "key", json_key(e, "leader"), "value",
                            json_bytes(value), "lease", json_number(lease));
    json_t *get = json_pack("{s{so}}", "request_range", "key", json_key(e, "leader"));
    int status = call(e, "kv/txn", if_leader(e, 0, put, get), &answer);
    *revision = 0;
    if (status == FT_OK && json_is_true(json_object_get(answer, "succeeded"))) {
        *revision = number_of(json_object_get(answer, "header"), "revision");
        snprintf(holder, ETCD_VALUE_BYTES, "%s", value);
    } else if (status == FT_OK) {
        take_holder(answer, lease, revision, holder);
    }
    json_decref(answer);
    return status;
}

int etcd_save(struct etcd *e, int64_t revision, const char *name, const char *text, bool *held)
{
    json_t *answer = NULL;
    json_t *put = json_pack("{s{so,so}}", "request_put", "key", json_key(e, name), "value",
                            json_bytes(text));
    int status = call(e, "kv/txn", if_leader(e, revision, put, NULL), &answer);
    if (status == FT_OK)
        *held = json_is_true(json_object_get(answer, "succeeded"));
    json_decref(answer);
    return status;
}

int etcd_load(struct etcd *e, const char *name, char **text)
{
    json_t *answer = NULL;
    int status = call(e, "kv/range", json_pack("{so}", "key", json_key(e, name)), &answer);
    if (status == FT_OK)
        *text = value_of(answer);
    json_decref(answer);
    return status;
}
