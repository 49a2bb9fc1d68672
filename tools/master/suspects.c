/*
 * Before anybody is named, the telemetry files of those who take part are read, twice: what links
 * have received is taken from the second reading, so that heartbeats that went on between two
 * hosts' files do not look lost.
 */
#include "master.h"

#include "telemetry/telemetry.h"

#include <stdlib.h>
#include <string.h>

#define PATIENCE_NS 2000000000u

/* ---- who ------------------------------------------------------------------------------------- */

bool master_is_slower(const struct master *m, uint64_t *ctx)
{
    uint64_t now_ns = daemon_now_ns();
    for (int i = 0; i < m->nhosts; i++)
        for (int k = 0; k < m->host[i]->report.nmembers; k++)
            if (m->host[i]->report.slower[k] && !master_is_silent(m->host[i], now_ns)) {
                *ctx = m->host[i]->report.members[k].ctx;
                return true;
            }
    return false;
}

static bool is_slow(const struct master *m, uint64_t *ctx)
{
    if (master_is_slower(m, ctx))
        return true;
    *ctx = m->slow.ctx;
    return m->slow.n > 0;
}

uint64_t master_signature(const struct master *m)
{
    uint64_t signature = look_signature(&m->rows), ctx;
    if (signature == 0 && is_slow(m, &ctx))
        signature = ft_hash64(&ctx, sizeof ctx, m->slow.rounds == PACE_ROUNDS ? 2 : 1);
    return signature;
}

static void add_suspect(struct suspects *s, struct host *host, uint64_t engine)
{
    for (int i = 0; i < s->n; i++)
        if (s->engine[i] == engine)
            return;
    if (s->n == ROWS_FETCH_MOST) {
        s->more = true;
        return;
    }
    s->engine[s->n] = engine;
    s->host[s->n] = host;
    s->here[s->n++] = false;
}

/* The members of a communicator; rank -1: all. */
static void add_members(const struct master *m, struct suspects *s, uint64_t ctx, int rank)
{
    for (int i = 0; i < m->nhosts; i++) {
        struct host *host = m->host[i];
        for (int k = 0; !host->gone_ns && k < host->report.nmembers; k++) {
            const struct ft_snap_member *member = &host->report.members[k];
            if (member->ctx == ctx && (rank < 0 || member->rank == rank))
                add_suspect(s, host, host->report.engines[member->engine].id);
        }
    }
}

/* Those who were named first, then all who wait with them. */
void master_choose(struct master *m, struct suspects *s, const struct look *look)
{
    for (int i = 0; i < look->report.found; i++)
        for (int k = 0; k < look->verdicts[i].nculprits && k < FT_CULPRITS; k++) {
            const struct ft_culprit *c = &look->verdicts[i].culprits[k];
            if (c->rank >= 0)
                add_members(m, s, c->ctx, c->rank);
            if (c->peer >= 0)
                add_members(m, s, c->ctx, c->peer);
        }
    for (int i = 0; i < look->report.found; i++)
        add_members(m, s, look->verdicts[i].ctx, -1);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static void ask_host(const struct master *m, struct suspects *s, struct host *host, uint16_t type)
{
    uint64_t engines[ROWS_FETCH_MOST];
    int n = 0;
    size_t len;
    for (int i = 0; i < s->n; i++)
        if (s->host[i] == host) {
            engines[n++] = s->engine[i];
            s->here[i] = !host->local && !host->peer;
        }
    unsigned char *bytes = n > 0 ? rows_encode_fetch(s->request, engines, n, &len) : NULL;
    if (!bytes)
        return;
    const struct daemon_message message = {DAEMON_DIAGNOSIS, type, bytes, len};
    if (host->local)
        agent_take(m->agent, &message);
    else if (host->peer)
        daemon_peer_send(host->peer, &message);
    free(bytes);
}

void master_ask_all(struct master *m, struct suspects *s, uint16_t type)
{
    s->request++;
    s->begun_ns = daemon_now_ns();
    memset(s->here, 0, sizeof s->here);
    for (int i = 0; i < m->nhosts; i++)
        ask_host(m, s, m->host[i], type);
}

bool master_ask(struct master *m)
{
    struct suspects *s = &m->suspects;
    uint64_t ctx;
    master_drop_suspects(m);
    master_choose(m, s, &m->rows);
    if (m->rows.report.found == 0 && is_slow(m, &ctx)) {
        for (int i = 0; i < m->slow.n; i++)
            add_members(m, s, m->slow.ctx, m->slow.rank[i]);
        add_members(m, s, ctx, -1);
    }
    s->signature = master_signature(m);
    s->details = s->n > 0 ? calloc(1, sizeof *s->details) : NULL;
    if (!s->details)
        return false;
    s->details->now_ns = ROWS_NOW_NS;
    s->phase = FIRST;
    master_ask_all(m, s, ROWS_FETCH);
    return true;
}

bool master_ask_again(struct master *m)
{
    if (m->suspects.phase != FIRST || m->suspects.details->nengines == 0)
        return false;
    m->suspects.phase = SECOND;
    master_ask_all(m, &m->suspects, ROWS_FETCH);
    return true;
}

static bool has_heard_all(const struct master *m)
{
    uint64_t now_ns = daemon_now_ns();
    for (int i = 0; i < m->nhosts; i++)
        if (!m->host[i]->gone_ns && !master_is_silent(m->host[i], now_ns) &&
            m->host[i]->heard_ns < m->suspects.begun_ns)
            return false;
    return true;
}

bool master_answered(const struct master *m)
{
    const struct suspects *s = &m->suspects;
    bool all = true;
    if (daemon_now_ns() - s->begun_ns > PATIENCE_NS)
        return true;
    for (int i = 0; i < s->n; i++)
        all &= s->here[i] || !s->host[i];
    /* The rows of those who were not asked must be as new as the files. */
    return all && (!s->more || s->phase == FIRST || has_heard_all(m));
}

void master_drop_suspects(struct master *m)
{
    struct suspects *s = &m->suspects;
    ft_snapshot_free(s->details);
    s->details = NULL;
    s->phase = IDLE;
    s->n = 0;
    s->more = false;
    s->done_ns = daemon_now_ns();
}

void master_forget_suspects_of(struct master *m, const struct host *host)
{
    for (int i = 0; i < m->suspects.n; i++)
        if (m->suspects.host[i] == host)
            m->suspects.host[i] = NULL;
    for (int i = 0; i < m->asked.n; i++)
        if (m->asked.host[i] == host)
            m->asked.host[i] = NULL;
}

/* ---- answers --------------------------------------------------------------------------------- */

/* What links have received may only have grown. */
static void take_received(struct ft_snapshot *details, const struct ft_snapshot *again,
                          uint64_t engine)
{
    for (int i = 0; i < details->nlinks; i++) {
        struct ft_snap_link *link = &details->links[i];
        if (link->sender || details->engines[link->engine].id != engine)
            continue;
        for (int k = 0; k < again->nlinks; k++)
            if (!again->links[k].sender && again->links[k].peer == link->peer)
                link->messages = ft_max(link->messages, again->links[k].messages);
    }
}

static void take_snapshot(struct master *m, struct ft_snapshot *of_file, uint64_t engine)
{
    struct suspects *s = &m->suspects;
    if (of_file->nengines != 1 || of_file->engines[0].id != engine)
        return;
    master_shift(of_file, ROWS_NOW_NS);
    if (s->phase == FIRST)
        ft_snapshot_merge(s->details, of_file);
    else
        take_received(s->details, of_file, engine);
}

void master_take_file(struct master *m, struct host *host, const struct rows_file *file)
{
    struct suspects *s = &m->suspects;
    struct ft_snapshot *of_file;
    int at = 0;
    while (at < s->n && s->engine[at] != file->engine)
        at++;
    bool wanted = s->phase != IDLE && file->request == s->request && at < s->n &&
                  s->host[at] == host && !s->here[at];
    if (!wanted)
        return;
    s->here[at] = true;
    if (!file->copy.bytes || ft_snapshot_of_copy(&file->copy, &of_file) != FT_OK)
        return;
    take_snapshot(m, of_file, file->engine);
    ft_snapshot_free(of_file);
    if (!host->local && master_answered(m))
        daemon_hurry(m->daemon);
}
