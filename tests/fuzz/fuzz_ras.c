/*
 * Property: nothing that a client sends, and nothing that telemetry files or other hosts tell,
 * makes the responder crash, hang, read out of bounds, or write what is no JSON; size = ranks +
 * missing ranks. Method: the first byte of the input says whether the rest is what a client sends,
 * in pieces, the rows of a snapshot, or changes of such rows on their way from another host.
 * Answers are read by a parser of this file.
 */
#include "ras/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool truth, const char *what)
{
    if (truth)
        return;
    fprintf(stderr, "fuzz_ras: %s\n", what);
    abort();
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static const char *skip_value(const char *at);

static const char *skip_string(const char *at)
{
    must(*at == '"', "a string does not begin");
    for (at++; *at != '"'; at++) {
        must(*at >= ' ' && *at < 127, "a string has a byte that is not ASCII");
        if (*at != '\\')
            continue;
        must(strspn(at + 2, "0123456789abcdef") >= 4 && at[1] == 'u', "a wrong escape");
        at += 5;
    }
    return at + 1;
}

static const char *skip_elements(const char *at, char end)
{
    for (at++; *at != end; at += *at == ',') {
        if (end == '}') {
            at = skip_string(at);
            must(*at++ == ':', "no colon");
        }
        at = skip_value(at);
        must(*at == end || (*at == ',' && at[1] != end), "neither a comma nor an end");
    }
    return at + 1;
}

static const char *skip_value(const char *at)
{
    static const char *const words[] = {"true", "false", "null"};
    if (*at == '{' || *at == '[')
        return skip_elements(at, *at == '{' ? '}' : ']');
    if (*at == '"')
        return skip_string(at);
    for (size_t i = 0; i < FT_ARRAY_LEN(words); i++)
        if (!strncmp(at, words[i], strlen(words[i])))
            return at + strlen(words[i]);
    size_t digits = strspn(at, "0123456789.");
    must(digits > 0, "a number is negative, or something is no value");
    return at + digits;
}

/* ---- what files tell ------------------------------------------------------------------------- */

struct input {
    const uint8_t *at;
    size_t left;
};

static uint64_t take(struct input *in, size_t len_bytes)
{
    uint64_t value = 0;
    len_bytes = ft_min(len_bytes, in->left);
    memcpy(&value, in->at, len_bytes);
    in->at += len_bytes;
    in->left -= len_bytes;
    return value;
}

/* Mostly small numbers, which fit each other. */
static int take_int(struct input *in)
{
    uint64_t kind = take(in, 1);
    return kind < 250 ? (int)(kind % 6) : (int)(uint32_t)take(in, 4);
}

#define ROWS 12

static void make_snapshot(struct input *in, struct ft_snapshot *s)
{
    static struct ft_snap_engine engines[2];
    static struct ft_snap_member members[ROWS];
    static struct ft_snap_seat seats[ROWS];
    *s = (struct ft_snapshot){.engines = engines,
                              .members = members,
                              .seats = seats,
                              .nengines = FT_ARRAY_LEN(engines),
                              .nmembers = (int)(take(in, 1) % (ROWS + 1)),
                              .nseats = (int)(take(in, 1) % (ROWS + 1))};
    for (size_t i = 0; i < FT_ARRAY_LEN(engines); i++) {
        engines[i].pid = take_int(in);
        engines[i].state = (enum ft_process_state)(take(in, 1) % 4);
        for (size_t k = 0; k < 8; k++)
            engines[i].hostname[k] = (char)take(in, 1);
    }
    for (int i = 0; i < s->nmembers; i++)
        members[i] = (struct ft_snap_member){.ctx = take(in, 1) % 3,
                                             .engine = i % 2,
                                             .rank = take_int(in),
                                             .nranks = take_int(in),
                                             .open = take(in, 1) % 4 != 0,
                                             .failed = take(in, 1) % 2,
                                             .status = -take_int(in),
                                             .kind_called = {take(in, 8)}};
    for (int i = 0; i < s->nseats; i++)
        seats[i] = (struct ft_snap_seat){
            .ctx = take(in, 1) % 3, .rank = take_int(in), .pid = take_int(in)};
}

static void check_comm(const struct ft_ras_comm *comm)
{
    int here = 0;
    for (int i = 0; i < comm->nlisted; i++) {
        must(comm->ranks[i].rank >= 0 && comm->ranks[i].rank < comm->size, "no such rank");
        must(i == 0 || comm->ranks[i].rank > comm->ranks[i - 1].rank, "a rank is listed twice");
        here += !ft_ras_is_missing(&comm->ranks[i]);
    }
    must(here == comm->nranks && here + comm->nmissing == comm->size, "the counts are wrong");
}

static void answer_about(struct input *in, struct ft_snapshot *s)
{
    struct ft_verdict verdict = {.kind = FT_VERDICT_UNKNOWN, .nculprits = take_int(in)};
    verdict.culprits[0].peer = -1;
    verdict.nculprits = verdict.nculprits > 0 ? 1 : 0;
    for (size_t i = 0; i < 32; i++)
        verdict.sentence[i] = (char)take(in, 1);
    struct ft_ras_look look = {
        .snapshot = s, .verdicts = &verdict, .found = 1, .begun_ns = 1, .ended_ns = 5};
    struct ft_ras_comms comms;
    struct ft_text json = {.most = FT_RAS_ANSWER_MAX}, text = {.most = 300};
    must(ft_ras_comms_of(&look, &comms) == FT_OK, "no memory");
    for (int i = 0; i < comms.n; i++)
        check_comm(&comms.comms[i]);
    ft_ras_json(&json, &look, &comms);
    must(!json.broken && json.len == strlen(json.at), "the answer is not whole");
    must(!strcmp(skip_value(json.at), "\n"), "something follows the answer");
    ft_ras_text(&text, &look, &comms, true);
    must(text.len < text.most && text.room <= 2 * text.most, "a text exceeds its bound");
    ft_text_free(&json);
    ft_text_free(&text);
    ft_ras_comms_free(&comms);
}

static void answer(struct input *in)
{
    struct ft_snapshot s;
    make_snapshot(in, &s);
    answer_about(in, &s);
}

/* What another host tells, with some bytes of the input in place of its own. */
static void hear(struct input *in)
{
    struct ft_snapshot s, *other;
    unsigned char *bytes;
    size_t n;
    make_snapshot(in, &s);
    must(ft_snapshot_pack(&s, &bytes, &n) == FT_OK, "no memory");
    for (int left = (int)(take(in, 1) % 32); left > 0; left--) {
        size_t at = take(in, 2) % n;
        bytes[at] = (unsigned char)take(in, 1);
    }
    if (take(in, 1) % 8 == 0)
        n = take(in, 2) % (n + 1);
    if (ft_snapshot_unpack(bytes, n, 1000, &other) == FT_OK) {
        answer_about(in, other);
        ft_snapshot_free(other);
    }
    free(bytes);
}

/* ---- what clients send ----------------------------------------------------------------------- */

static void talk(struct input *in)
{
    struct ft_ras_client client;
    char reply[4096];
    int fd[2];
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) == 0, "no socket pair");
    ft_ras_client_open(&client, ft_fd_own(fd[0]), 1);
    while (in->left > 0 && client.fd >= 0) {
        size_t piece = 1 + take(in, 1) % 64;
        piece = ft_min(piece, in->left);
        if (write(fd[1], in->at, piece) < 0)
            break;
        in->at += piece;
        in->left -= piece;
        ft_ras_client_serve(&client, 2);
        must(client.len <= sizeof client.line, "the line exceeds its bound");
        while (read(fd[1], reply, sizeof reply) > 0) {}
        if (client.wants_status)
            break; /* it obeys nothing now */
    }
    close(fd[1]);
    if (client.fd >= 0)
        ft_ras_client_serve(&client, 3);
    must(client.fd < 0, "a client is kept after its end");
    ft_ras_client_close(&client);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    uint64_t kind = take(&in, 1);
    if (kind >= 128)
        hear(&in);
    else if (kind % 2)
        talk(&in);
    else
        answer(&in);
    must(ft_fd_count() == 0, "a descriptor was left");
    return 0;
}
