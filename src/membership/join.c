/*
 * The client: a rank sends its endpoint to the service of its unique id and blocks until it has the
 * endpoints of all ranks. With several ids a rank registers with the id of its block and then
 * fetches the parts of the other ids. Every wait is bounded and can be cancelled. A failure before
 * the service has confirmed the endpoint (JOINED) may be retried; later failures are final.
 */
#include "membership/bootstrap.h"

#include <poll.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

/* after its own time limit a rank waits this long for the service, whose answer names missing
 * ranks */
#define GRACE_NS UINT64_C(1000000000)
#define RETRY_NS UINT64_C(2000000) /* doubles up to RETRY_MOST_NS */
#define RETRY_MOST_NS UINT64_C(64000000)
/* time per address if there are several; doubles each round */
#define FIRST_TRY_NS UINT64_C(1000000000)
#define LISTEN_NS UINT64_C(2000000000) /* how long rank 0 waits until its port is free */
#define TELL_NS UINT64_C(200000000)    /* how often it is told who has come */

struct joiner {
    const struct ft_join *arg;
    struct ft_wait wait; /* ends at this rank's time limit */
    struct ft_table *table;
    uint64_t *salt;  /* [nids] */
    struct ft_id id; /* the id whose service is being asked */
    uint64_t pause_ns;
    uint32_t index;
    int fd;
};

/* The results of one round over all addresses. */
struct tries {
    int gone, slow, other;
    char why[400];
};

static uint32_t bound_ms(const struct joiner *j)
{
    return (uint32_t)(j->arg->timeout_ns / 1000000);
}

static int fail_timeout(const struct joiner *j, const char *why)
{
    char text[FT_NET_TEXT_BYTES];
    ft_net_text(&j->id.address[0], text);
    if (j->id.explicit_address)
        return ft_fail(FT_TIMEOUT, "rank 0 of %d never came: nobody served %s within %u ms%s%s",
                       j->arg->nranks, text, bound_ms(j), *why ? "; " : "", why);
    return ft_fail(FT_TIMEOUT,
                   "no answer from the process that made the unique id at %s within %u ms%s%s",
                   text, bound_ms(j), *why ? "; " : "", why);
}

static int fail_gone(const struct joiner *j, const char *how)
{
    char text[FT_NET_TEXT_BYTES];
    return ft_fail(
        FT_PEER,
        "the process that made the unique id is gone, or has forgotten the id because it was used, "
        "withdrawn or expired: %s (%s)",
        ft_net_text(&j->id.address[0], text), how);
}

static int pause_retry(struct joiner *j)
{
    uint64_t ns = j->pause_ns;
    if (j->pause_ns < RETRY_MOST_NS)
        j->pause_ns *= 2;
    return ft_wait_sleep(&j->wait, ns);
}

/* ---- until JOINED ---------------------------------------------------------------------------- */

static int select_id(struct joiner *j, const struct ft_wait *w)
{
    unsigned char bytes[FT_SELECT_BYTES];
    enum ft_answer answer;
    uint64_t nonce;
    ft_select_encode(bytes, FT_ANSWER_GO, j->id.nonce);
    int status = ft_wait_write(w, j->fd, bytes, sizeof bytes);
    if (!status)
        status = ft_wait_read(w, j->fd, bytes, sizeof bytes);
    if (!status)
        status = ft_select_decode(bytes, &answer, &nonce);
    if (status == FT_PROTOCOL)
        return ft_fail(status, "something that is not FTCCL answered");
    if (status == FT_VERSION)
        return ft_fail(status, "the process that made the unique id runs another version of FTCCL");
    if (status)
        return status;
    if (answer == FT_ANSWER_USED)
        return ft_fail(FT_USAGE, "this unique id was already used");
    if (answer == FT_ANSWER_VERSION)
        return ft_fail(FT_VERSION,
                       "the process that made the unique id refuses this version of FTCCL");
    if (answer == FT_ANSWER_UNKNOWN)
        return ft_fail(FT_PEER, "whoever answered does not know the unique id");
    return FT_OK;
}

static int authenticate(struct joiner *j, const struct ft_wait *w)
{
    struct ft_auth auth;
    unsigned char key[FT_SECRET_BYTES];
    int status;
    ft_auth_derive(key, j->id.secret, "bootstrap", j->id.nonce);
    ft_auth_start(&auth, w->env, j->fd, true, key, j->arg->endpoint->engine, 0,
                  FT_PURPOSE_BOOTSTRAP, 0, w->deadline_ns);
    while ((status = ft_auth_turn(&auth)) == FT_AGAIN) {
        status = ft_wait_fd(w, j->fd, ft_auth_events(&auth));
        if (status)
            break;
    }
    sodium_memzero(&auth, sizeof auth);
    sodium_memzero(key, sizeof key);
    return status;
}

static int read_fail(const struct ft_wait *w, int fd, uint32_t len)
{
    unsigned char bytes[FT_FAIL_WIRE_MAX];
    char text[FT_FAIL_TEXT_MAX + 1];
    int reason, status = ft_wait_read(w, fd, bytes, len);
    if (status == FT_LINK)
        return ft_fail(FT_PEER, "the process that made the unique id is gone");
    if (!status)
        status = ft_fail_decode(bytes, len, &reason, text);
    return status ? status : ft_fail(reason, "%s", text);
}

static int send_endpoint(struct joiner *j, const struct ft_wait *w)
{
    unsigned char bytes[FT_FRAME_BYTES + FT_JOIN_WIRE_MAX];
    uint64_t now_ns = ft_now_ns(w->env),
             left_ns = j->wait.deadline_ns > now_ns ? j->wait.deadline_ns - now_ns : 0;
    struct ft_join_msg msg = {
        .nonce = j->id.nonce,
        .nranks = (uint32_t)j->arg->nranks,
        .rank = (uint32_t)j->arg->rank,
        .nids = (uint32_t)j->arg->nids,
        .index = j->index,
        .left_ms = (uint32_t)(left_ns / 1000000),
        .bound_ms = bound_ms(j),
        .endpoint = *j->arg->endpoint,
    };
    enum ft_frame kind;
    uint32_t len;
    int status = ft_wait_write(w, j->fd, bytes, ft_join_encode(bytes, &msg));
    if (!status)
        status = ft_wait_read(w, j->fd, bytes, FT_FRAME_BYTES);
    if (!status)
        status = ft_frame_decode(bytes, &kind, &len);
    if (!status && kind != FT_FRAME_JOINED)
        status = FT_PROTOCOL;
    return status == FT_PROTOCOL
               ? ft_fail(status, "the process that made the unique id answered out of order")
               : status;
}

static int try_address(struct joiner *j, const struct ft_net_address *to, uint64_t limit_ns)
{
    struct ft_wait w = j->wait;
    uint64_t soon_ns = ft_now_ns(w.env) + limit_ns;
    if (soon_ns < w.deadline_ns)
        w.deadline_ns = soon_ns;
    ft_fail_clear();
    int status = ft_wait_connect(&w, to, &j->fd);
    if (!status)
        status = select_id(j, &w);
    if (!status)
        status = authenticate(j, &w);
    /* Without the limit: the service counts this rank as come when it has the endpoint. A second
     * try could find the id used. */
    if (!status)
        status = send_endpoint(j, &j->wait);
    if (status)
        ft_fd_close(&j->fd);
    return status;
}

/* Tries all addresses once. Returns a final status, or FT_AGAIN if another round makes sense. */
static int try_all(struct joiner *j, uint64_t limit_ns, struct tries *t)
{
    memset(t, 0, sizeof *t);
    int odd = FT_OK;
    for (int i = 0; i < j->id.naddresses; i++) {
        int status = try_address(j, &j->id.address[i],
                                 j->id.naddresses > 1 ? limit_ns : UINT64_MAX / 2);
        if (status == FT_OK || status == FT_ABORTED || status == FT_NOFILE || status == FT_NOMEM ||
            status == FT_INVAL || status == FT_USAGE)
            return status;
        if (status == FT_PEER)
            t->gone++;
        else if (status == FT_TIMEOUT || status == FT_LINK)
            t->slow++;
        else {
            t->other++;
            odd = status;
        }
        if (status == odd || !t->other)
            snprintf(t->why, sizeof t->why, "%s", ft_fail_text());
    }
    if (odd && !t->slow)
        return ft_fail(odd, "%s", *t->why ? t->why : ft_status_text(odd));
    if (!t->slow && !j->id.explicit_address)
        return fail_gone(j, t->why);
    return FT_AGAIN;
}

static int reach_service(struct joiner *j)
{
    struct tries t;
    for (uint64_t limit_ns = FIRST_TRY_NS;; limit_ns *= 2) {
        int status = try_all(j, limit_ns, &t);
        if (status != FT_AGAIN)
            return status;
        status = pause_retry(j);
        if (status == FT_TIMEOUT)
            return fail_timeout(j, t.why);
        if (status)
            return status;
        if (limit_ns > UINT64_MAX / 4)
            limit_ns = UINT64_MAX / 8;
    }
}

/* ---- the answer ------------------------------------------------------------------------------ */

static int read_table(struct joiner *j, const struct ft_wait *w, uint32_t len)
{
    struct ft_table_reader r;
    unsigned char ack[FT_FRAME_BYTES];
    size_t got = 0;
    int status;
    memset(&r, 0, offsetof(struct ft_table_reader, buf));
    ft_block((uint32_t)j->arg->nranks, (uint32_t)j->arg->nids, j->index, &r.head.first,
             &r.head.count);
    r.endpoint = j->table->endpoint + r.head.first;
    r.left_bytes = len;
    while ((status = ft_table_take(&r, got)) == FT_AGAIN) {
        status = ft_wait_some(w, j->fd, r.buf + r.have_bytes, ft_table_room(&r), &got);
        if (status)
            return status;
    }
    if (status)
        return status;
    j->salt[j->index] = r.head.salt;
    ft_frame_encode(ack, FT_FRAME_ACK, 0);
    (void)ft_wait_write(w, j->fd, ack, sizeof ack);
    return FT_OK;
}

/* Tells the service why this rank leaves, so that it can tell the others. If the message is lost,
 * they see the end of the connection. */
static void send_leave(struct joiner *j, int status)
{
    unsigned char bytes[FT_FRAME_BYTES + 4];
    struct ft_wait now = {.env = j->wait.env, .deadline_ns = 0};
    ft_frame_encode(bytes, FT_FRAME_LEAVE, 4);
    ft_put32(bytes + FT_FRAME_BYTES, (uint32_t)status);
    (void)ft_wait_write(&now, j->fd, bytes, sizeof bytes);
}

/* Waits until the answer begins, and tells meanwhile how many ranks have come. */
static int await_first_byte(const struct joiner *j, const struct ft_wait *w)
{
    for (;;) {
        struct ft_wait part = *w;
        part.deadline_ns = ft_min(w->deadline_ns, ft_now_ns(w->env) + TELL_NS);
        if (j->arg->waits)
            j->arg->waits(j->arg->waits_arg, ft_service_arrived(j->id.nonce));
        int status = ft_wait_fd(&part, j->fd, POLLIN);
        if (status != FT_TIMEOUT || part.deadline_ns == w->deadline_ns)
            return status;
    }
}

static int await_answer(struct joiner *j)
{
    struct ft_wait w = j->wait;
    unsigned char bytes[FT_FRAME_BYTES];
    enum ft_frame kind;
    uint32_t len;
    w.deadline_ns += GRACE_NS;
    int status = await_first_byte(j, &w);
    if (!status)
        status = ft_wait_read(&w, j->fd, bytes, sizeof bytes);
    if (!status)
        status = ft_frame_decode(bytes, &kind, &len);
    if (!status && kind == FT_FRAME_FAIL)
        return read_fail(&w, j->fd, len);
    if (!status)
        status = kind == FT_FRAME_TABLE ? read_table(j, &w, len) : FT_PROTOCOL;
    if (status == FT_LINK)
        return ft_fail(FT_PEER,
                       "the process that made the unique id is gone: its connection ended before "
                       "rank %d had the answer",
                       j->arg->rank);
    if (status == FT_PROTOCOL)
        return ft_fail(status, "the process that made the unique id sent a malformed answer");
    if (status == FT_TIMEOUT) {
        send_leave(j, status);
        return fail_timeout(j, "the connection stands but is silent");
    }
    if (status == FT_ABORTED)
        send_leave(j, status);
    return status;
}

static int ask_service(struct joiner *j, uint32_t index)
{
    int status = ft_id_decode(&j->id, j->arg->ids[index]);
    j->index = index;
    j->pause_ns = RETRY_NS;
    if (status)
        return status;
    for (;;) {
        status = reach_service(j);
        if (status)
            return status;
        status = await_answer(j);
        ft_fd_close(&j->fd);
        if (status != FT_AGAIN)
            return status;
        status = pause_retry(j);
        if (status == FT_TIMEOUT)
            return fail_timeout(j, "an earlier job still has it");
        if (status)
            return status;
    }
}

/* ---- the whole join -------------------------------------------------------------------------- */

/* Derives the job's key and first context from the first id's secret and every service's salt. So
 * an id that is used again (an explicit one) never gives the same values twice. A grow keeps the
 * key of its job. */
void ft_table_derive(struct ft_table *table, const struct ft_id *first, const uint64_t *salt,
                     int nids)
{
    unsigned char chain[FT_SECRET_BYTES], next[FT_SECRET_BYTES];
    memcpy(chain, first->secret, sizeof chain);
    for (int i = 0; i < nids; i++) {
        ft_auth_derive(next, chain, "salt", salt[i]);
        memcpy(chain, next, sizeof chain);
    }
    if (first->grow)
        memcpy(table->key, first->secret, sizeof table->key);
    else
        ft_auth_derive(table->key, chain, "links", 0);
    ft_auth_derive(next, chain, "job", 0);
    table->job = ft_get64(next) | 1; /* never 0 */
    sodium_memzero(chain, sizeof chain);
    sodium_memzero(next, sizeof next);
}

static int check_arguments(const struct ft_join *arg)
{
    if (ft_forked())
        return ft_fail(FT_FORKED, "a child of fork cannot join");
    if (arg->nranks < 1 || (uint32_t)arg->nranks > FT_RANKS_MAX || arg->rank < 0 ||
        arg->rank >= arg->nranks)
        return ft_fail(FT_INVAL, "rank %d of %d is not possible (at most %u ranks)", arg->rank,
                       arg->nranks, FT_RANKS_MAX);
    if (arg->nids < 1 || arg->nids > arg->nranks)
        return ft_fail(FT_INVAL, "%d unique ids for %d ranks are not possible", arg->nids,
                       arg->nranks);
    if (arg->endpoint->address_bytes > FT_ENDPOINT_BYTES)
        return ft_fail(FT_INTERNAL, "an endpoint's addresses have %u bytes, at most %d fit",
                       arg->endpoint->address_bytes, FT_ENDPOINT_BYTES);
    for (int i = 0; i < arg->nids; i++) {
        struct ft_id id;
        int status = ft_id_decode(&id, arg->ids[i]);
        if (status)
            return status;
        if (id.grow && !arg->grow)
            return ft_fail(
                FT_USAGE,
                "this unique id was made to grow a communicator: it is for ftcclCommGrow");
        if (!id.grow && arg->grow)
            return ft_fail(FT_USAGE, "to grow a communicator takes a unique id of "
                                     "ftcclCommGetUniqueId: this one is for a new job");
        if (id.grow && arg->nids > 1)
            return ft_fail(FT_USAGE, "a communicator grows by one unique id, not by %d", arg->nids);
        if (!id.explicit_address && ft_service_used(id.nonce))
            return ft_fail(FT_USAGE, "this unique id was already used");
        if (id.explicit_address && arg->nids > 1)
            return ft_fail(
                FT_USAGE,
                "FTCCL_COMM_ID names one address; several unique ids need to be made without it");
    }
    return FT_OK;
}

/* Rank 0 serves an explicit id itself. */
static int serve_explicit(struct joiner *j)
{
    struct ft_wait busy = j->wait, listen = j->wait;
    listen.deadline_ns = ft_now_ns(j->wait.env) + LISTEN_NS;
    if (listen.deadline_ns > busy.deadline_ns)
        listen.deadline_ns = busy.deadline_ns;
    for (;;) {
        char why[FT_FAIL_TEXT_MAX];
        int status = ft_service_add(&j->id);
        if (status != FT_AGAIN && status != FT_SYSTEM)
            return status;
        snprintf(why, sizeof why, "%s", ft_fail_text());
        int waited = ft_wait_sleep(status == FT_AGAIN ? &busy : &listen, RETRY_NS);
        if (waited == FT_TIMEOUT)
            return ft_fail(status == FT_AGAIN ? FT_TIMEOUT : status, "%s", why);
        if (waited)
            return waited;
    }
}

/* Each service has compared its own block. Here every rank compares the blocks, with the same
 * result. */
static int compare_blocks(const struct ft_table *table)
{
    for (int r = 1; r < table->nranks; r++)
        if (table->endpoint[r].config != table->endpoint[0].config)
            return ft_fail(FT_MISMATCH,
                           "rank %d has another configuration than rank 0: \"%s\" against \"%s\"",
                           r, table->endpoint[r].config_text, table->endpoint[0].config_text);
    return FT_OK;
}

static int collect_table(struct joiner *j)
{
    const struct ft_join *arg = j->arg;
    uint32_t nids = (uint32_t)arg->nids;
    struct ft_id first;
    int status = ft_id_decode(&first, arg->ids[0]);
    if (status)
        return status;
    if (arg->nranks == 1 && !first.grow) {
        j->table->endpoint[0] = *arg->endpoint;
        j->wait.env->random(j->wait.env, &j->salt[0], sizeof j->salt[0]);
        status = first.explicit_address ? FT_OK : ft_service_consume(first.nonce);
    } else {
        uint32_t own = ft_block_of((uint32_t)arg->nranks, nids, (uint32_t)arg->rank);
        bool serves = first.explicit_address && arg->rank == 0;
        j->id = first;
        if (serves)
            status = serve_explicit(j);
        for (uint32_t i = 0; !status && i < nids; i++)
            status = ask_service(j, (own + i) % nids);
        if (status && serves)
            ft_service_withdraw(first.nonce, ft_status_text(status));
        if (!status && nids > 1)
            status = compare_blocks(j->table);
    }
    if (!status)
        ft_table_derive(j->table, &first, j->salt, arg->nids);
    sodium_memzero(&first, sizeof first);
    return status;
}

int ft_bootstrap_join(const struct ft_join *arg, struct ft_table **out)
{
    int status = check_arguments(arg);
    if (status)
        return status;
    struct joiner j = {.arg = arg, .wait = {.env = ft_env_real(), .cancel = arg->cancel}, .fd = -1};
    j.wait.deadline_ns = ft_now_ns(j.wait.env) + arg->timeout_ns;
    j.table = calloc(1, sizeof *j.table + (size_t)arg->nranks * sizeof j.table->endpoint[0]);
    j.salt = calloc((size_t)arg->nids, sizeof *j.salt);
    if (j.table && j.salt) {
        j.table->nranks = arg->nranks;
        status = collect_table(&j);
    } else {
        status = ft_fail(FT_NOMEM, "no memory for a table of %d ranks", arg->nranks);
    }
    if (status == FT_ABORTED)
        ft_fail(status, "aborted while rank %d waited for the others", arg->rank);
    ft_fd_close(&j.fd);
    free(j.salt);
    if (status == FT_OK)
        *out = j.table;
    else
        free(j.table);
    return status;
}
