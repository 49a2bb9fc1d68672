/*
 * Encodes and decodes what agents and the master say to each other. docs/wire-protocol.md has the
 * layouts.
 */
#include "rows.h"

#include "base/wire.h"

#include <stdlib.h>
#include <string.h>

enum { IS_OPEN = 1, JOINS = 2, HAS_FAILED = 4, SENDS = 8, IS_SLOWER = 16 };

#define HELLO_BYTES 76
#define REPORT_BYTES 20
#define ENGINE_BYTES 16
#define MEMBER_BYTES 80
#define NAME_BYTES 48
#define CHECK_BYTES 209
#define FETCH_BYTES 8
#define FILE_BYTES 117

#define UNKNOWN_AGE UINT32_MAX
#define NO_SEQ UINT16_MAX

static unsigned char *start(size_t bytes, unsigned char **at, size_t *len)
{
    *at = malloc(bytes > 0 ? bytes : 1);
    *len = bytes;
    return *at;
}

static void put_text(unsigned char **at, const char *text, size_t bytes)
{
    size_t len = strnlen(text, bytes - 1);
    memset(*at, 0, bytes);
    memcpy(*at, text, len);
    *at += bytes;
}

static void get_text(const unsigned char **at, char *text, size_t bytes)
{
    memcpy(text, *at, bytes);
    text[bytes - 1] = '\0';
    ft_text_clean(text, bytes);
    *at += bytes;
}

/* ---- hello ----------------------------------------------------------------------------------- */

unsigned char *rows_encode_hello(const struct rows_hello *hello, size_t *len)
{
    unsigned char *at, *all = start(HELLO_BYTES, &at, len);
    if (!all)
        return NULL;
    put64(&at, hello->host);
    put32(&at, hello->interval_ms);
    put_text(&at, hello->hostname, sizeof hello->hostname);
    return all;
}

bool rows_decode_hello(const struct daemon_message *m, struct rows_hello *out)
{
    const unsigned char *at = m->bytes;
    if (m->len != HELLO_BYTES)
        return false;
    out->host = get64(&at);
    out->interval_ms = get32(&at);
    get_text(&at, out->hostname, sizeof out->hostname);
    return out->host != 0 && out->interval_ms > 0 && out->interval_ms <= 3600000;
}

/* ---- ages ------------------------------------------------------------------------------------ */

static void put_age(unsigned char **at, uint64_t time_ns, uint64_t now_ns)
{
    uint64_t ms = now_ns > time_ns ? (now_ns - time_ns) / 1000000 : 0;
    put32(at, time_ns ? (uint32_t)ft_min(ms, UNKNOWN_AGE - 1) : UNKNOWN_AGE);
}

static uint64_t get_age(const unsigned char **at)
{
    uint32_t ms = get32(at);
    return ms == UNKNOWN_AGE ? 0 : ROWS_NOW_NS - (uint64_t)ms * 1000000;
}

/* How much smaller a number is than another one, in so many bits. */
static uint32_t less_by(uint64_t number, uint64_t than, uint32_t most)
{
    return number < than ? (uint32_t)ft_min(than - number, most) : 0;
}

/* ---- a member -------------------------------------------------------------------------------- */

static void put_place(unsigned char **at, const struct ft_snap_member *m, bool slower)
{
    unsigned flags = (m->open ? IS_OPEN : 0) | (m->joins ? JOINS : 0) |
                     (m->failed ? HAS_FAILED : 0) | (m->wait.sends ? SENDS : 0) |
                     (slower ? IS_SLOWER : 0);
    put64(at, m->ctx);
    put16(at, (uint16_t)m->engine);
    put_bytes(at, flags, 1);
    put_bytes(at, (uint8_t)(int8_t)m->status, 1);
    put24(at, (uint32_t)m->nranks);
    put24(at, (uint32_t)m->rank);
    put24(at, (uint32_t)m->culprit);
    put24(at, (uint32_t)m->wait.peer);
}

static void put_member(unsigned char **at, const struct ft_snap_member *m, uint64_t now_ns,
                       bool slower)
{
    put_place(at, m, slower);
    put64(at, m->called);
    put32(at, less_by(m->started, m->called, UINT32_MAX));
    put32(at, less_by(m->done, m->called, UINT32_MAX));
    put64(at, m->last.sig);
    put64(at, m->running_sig);
    put_age(at, m->last.called_ns ? m->last.called_ns : m->opened_ns, now_ns);
    put_age(at, m->running_since_ns, now_ns);
    put_age(at, m->progress_ns, now_ns);
    put32(at, m->joins ? (uint32_t)m->arrived : (uint32_t)ft_min(m->wait.step, UINT32_MAX));
    put16(at, m->running_seq && m->running_seq <= m->called
                  ? (uint16_t)less_by(m->running_seq, m->called, NO_SEQ)
                  : NO_SEQ);
    put16(at, (uint16_t)less_by(m->p2p_started, m->p2p_called, UINT16_MAX));
    put16(at, (uint16_t)less_by(m->p2p_done, m->p2p_called, UINT16_MAX));
    put16(at, (uint16_t)ft_min(m->p2p_called, UINT16_MAX));
}

static void get_place(const unsigned char **at, struct ft_snap_member *m, bool *slower)
{
    m->ctx = get64(at);
    m->engine = get16(at);
    unsigned flags = (unsigned)get_bytes(at, 1);
    m->open = flags & IS_OPEN;
    m->joins = flags & JOINS;
    m->failed = flags & HAS_FAILED;
    m->wait.sends = flags & SENDS;
    *slower = flags & IS_SLOWER;
    m->status = (int8_t)get_bytes(at, 1);
    m->nranks = get24(at);
    m->rank = get24(at);
    m->culprit = get24(at);
    m->wait.peer = get24(at);
}

/* Of sends and receives the row has the differences; their number is only large enough for them. */
static void get_p2p(const unsigned char **at, struct ft_snap_member *m)
{
    uint64_t unstarted = get16(at), undone = get16(at), called = get16(at);
    m->p2p_called = ft_max(called, ft_max(unstarted, undone));
    m->p2p_started = m->p2p_called - unstarted;
    m->p2p_done = m->p2p_called - undone;
}

static void get_member(const unsigned char **at, struct ft_snap_member *m, bool *slower)
{
    get_place(at, m, slower);
    m->called = get64(at);
    m->started = m->called - ft_min(get32(at), m->called);
    m->done = m->called - ft_min(get32(at), m->called);
    m->last.sig = get64(at);
    m->running_sig = get64(at);
    uint64_t called_ns = get_age(at);
    m->last.called_ns = m->last.sig ? called_ns : 0;
    m->opened_ns = m->last.sig ? 0 : called_ns;
    m->running_since_ns = get_age(at);
    m->progress_ns = get_age(at);
    uint32_t step = get32(at);
    m->arrived = m->joins ? (int)ft_min(step, INT32_MAX) : 0;
    m->wait.step = m->joins ? 0 : step;
    uint16_t back = get16(at);
    m->running_seq = back == NO_SEQ || back >= m->called ? 0 : m->called - back;
    get_p2p(at, m);
}

/* ---- a report -------------------------------------------------------------------------------- */

static bool is_in(const uint64_t *list, int n, uint64_t value)
{
    for (int i = 0; i < n; i++)
        if (list[i] == value)
            return true;
    return false;
}

/* Rows of engines that are not sent are left out. */
static int count_members(const struct ft_snapshot *s, int engines)
{
    int n = 0;
    for (int i = 0; i < s->nmembers && n < ROWS_MEMBERS_MOST; i++)
        n += s->members[i].engine >= 0 && s->members[i].engine < engines;
    return n;
}

static void put_engines(unsigned char **at, const struct ft_snapshot *s, int n)
{
    for (int i = 0; i < n; i++) {
        put64(at, s->engines[i].id);
        put32(at, (uint32_t)s->engines[i].pid);
        put32(at, (uint32_t)s->engines[i].state);
    }
}

unsigned char *rows_encode_report(const struct ft_snapshot *s, const uint64_t *slower, int nslower,
                                  size_t *len)
{
    int engines = (int)ft_min(s->nengines, ROWS_ENGINES_MOST), members = count_members(s, engines);
    unsigned char *at,
        *all = start(REPORT_BYTES + (size_t)engines * ENGINE_BYTES + (size_t)members * MEMBER_BYTES,
                     &at, len);
    if (!all)
        return NULL;
    put64(&at, s->real_ns);
    put32(&at, (uint32_t)(s->unreadable + s->nengines - engines));
    put32(&at, (uint32_t)engines);
    put32(&at, (uint32_t)members);
    put_engines(&at, s, engines);
    for (int i = 0; i < s->nmembers && members > 0; i++) {
        const struct ft_snap_member *m = &s->members[i];
        if (m->engine < 0 || m->engine >= engines)
            continue;
        put_member(&at, m, s->now_ns, is_in(slower, nslower, m->ctx));
        members--;
    }
    return all;
}

static bool take_report(struct rows_report *r, size_t engines, size_t members)
{
    r->engines = calloc(engines + 1, sizeof *r->engines);
    r->members = calloc(members + 1, sizeof *r->members);
    r->slower = calloc(members + 1, sizeof *r->slower);
    r->nengines = (int)engines;
    r->nmembers = (int)members;
    return r->engines && r->members && r->slower;
}

static bool get_rows(const unsigned char **at, struct rows_report *r)
{
    for (int i = 0; i < r->nengines; i++) {
        struct ft_snap_engine *e = &r->engines[i];
        e->id = get64(at);
        uint32_t pid = get32(at), state = get32(at);
        if (pid == 0 || pid > INT32_MAX || state > FT_PROCESS_FROZEN)
            return false;
        e->pid = (int)pid;
        e->state = (enum ft_process_state)state;
    }
    for (int i = 0; i < r->nmembers; i++) {
        get_member(at, &r->members[i], &r->slower[i]);
        if (r->members[i].engine >= r->nengines)
            return false;
    }
    return true;
}

bool rows_decode_report(const struct daemon_message *m, struct rows_report *out)
{
    const unsigned char *at = m->bytes;
    struct rows_report r = {0};
    if (m->len < REPORT_BYTES)
        return false;
    r.real_ns = get64(&at);
    uint32_t unreadable = get32(&at), engines = get32(&at), members = get32(&at);
    if (engines > ROWS_ENGINES_MOST || members > ROWS_MEMBERS_MOST || unreadable > 1 << 20 ||
        m->len != REPORT_BYTES + (size_t)engines * ENGINE_BYTES + (size_t)members * MEMBER_BYTES)
        return false;
    r.unreadable = (int)unreadable;
    if (!take_report(&r, engines, members) || !get_rows(&at, &r)) {
        rows_free_report(&r);
        return false;
    }
    *out = r;
    return true;
}

void rows_free_report(struct rows_report *r)
{
    free(r->engines);
    free(r->members);
    free(r->slower);
    *r = (struct rows_report){0};
}

/* ---- names and checks ------------------------------------------------------------------------ */

unsigned char *rows_encode_names(const struct rows_name *names, int n, size_t *len)
{
    unsigned char *at, *all = start((size_t)n * NAME_BYTES, &at, len);
    for (int i = 0; all && i < n; i++) {
        put64(&at, names[i].ctx);
        put_text(&at, names[i].name, sizeof names[i].name);
    }
    return all;
}

int rows_decode_names(const struct daemon_message *m, struct rows_name *out, int capacity)
{
    const unsigned char *at = m->bytes;
    if (m->len % NAME_BYTES != 0 || m->len / NAME_BYTES > (size_t)capacity)
        return -1;
    int n = (int)(m->len / NAME_BYTES);
    for (int i = 0; i < n; i++) {
        out[i].ctx = get64(&at);
        get_text(&at, out[i].name, sizeof out[i].name);
    }
    return n;
}

unsigned char *rows_encode_checks(const struct rows_check *checks, int n, size_t *len)
{
    unsigned char *at, *all = start((size_t)n * CHECK_BYTES, &at, len);
    for (int i = 0; all && i < n; i++) {
        put_bytes(&at, checks[i].state, 1);
        put_text(&at, checks[i].name, sizeof checks[i].name);
        put_text(&at, checks[i].sentence, sizeof checks[i].sentence);
    }
    return all;
}

int rows_decode_checks(const struct daemon_message *m, struct rows_check *out, int capacity)
{
    const unsigned char *at = m->bytes;
    if (m->len % CHECK_BYTES != 0 || m->len / CHECK_BYTES > (size_t)capacity)
        return -1;
    int n = (int)(m->len / CHECK_BYTES);
    for (int i = 0; i < n; i++) {
        out[i].state = (uint8_t)get_bytes(&at, 1);
        get_text(&at, out[i].name, sizeof out[i].name);
        get_text(&at, out[i].sentence, sizeof out[i].sentence);
    }
    return n;
}

/* ---- files ----------------------------------------------------------------------------------- */

unsigned char *rows_encode_fetch(uint32_t request, const uint64_t *engines, int n, size_t *len)
{
    unsigned char *at, *all = start(FETCH_BYTES + (size_t)n * 8, &at, len);
    if (!all)
        return NULL;
    put32(&at, request);
    put32(&at, (uint32_t)n);
    for (int i = 0; i < n; i++)
        put64(&at, engines[i]);
    return all;
}

int rows_decode_fetch(const struct daemon_message *m, uint32_t *request, uint64_t *engines,
                      int capacity)
{
    const unsigned char *at = m->bytes;
    if (m->len < FETCH_BYTES)
        return -1;
    *request = get32(&at);
    uint32_t n = get32(&at);
    if (n > (uint32_t)capacity || m->len != FETCH_BYTES + (size_t)n * 8)
        return -1;
    for (uint32_t i = 0; i < n; i++)
        engines[i] = get64(&at);
    return (int)n;
}

unsigned char *rows_encode_file(uint32_t request, uint64_t engine,
                                const struct ft_telemetry_copy *copy, size_t *len)
{
    static const struct ft_telemetry_copy none = {.state = FT_PROCESS_UNKNOWN};
    const struct ft_telemetry_copy *from = copy ? copy : &none;
    unsigned char *at, *all = start(FILE_BYTES + from->len_bytes, &at, len);
    if (!all)
        return NULL;
    put32(&at, request);
    put64(&at, engine);
    put64(&at, from->now_ns);
    put_bytes(&at, (uint64_t)from->state, 1);
    put_text(&at, from->doing, sizeof from->doing);
    if (from->len_bytes > 0)
        memcpy(at, from->bytes, from->len_bytes);
    return all;
}

bool rows_decode_file(const struct daemon_message *m, struct rows_file *out)
{
    const unsigned char *at = m->bytes;
    if (m->len < FILE_BYTES)
        return false;
    out->request = get32(&at);
    out->engine = get64(&at);
    out->copy.now_ns = get64(&at);
    out->copy.state = (int)get_bytes(&at, 1);
    get_text(&at, out->copy.doing, sizeof out->copy.doing);
    out->copy.len_bytes = m->len - FILE_BYTES;
    out->copy.bytes = out->copy.len_bytes > 0 ? (void *)(uintptr_t)at : NULL;
    return true;
}
