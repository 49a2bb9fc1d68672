/*
 * Property: no bytes make the decoders of the bootstrap protocol (unique id, select, join, fail,
 * table) access memory out of bounds, and what they accept is what an encoder makes. No order of
 * joins, losses and timeouts brings the gather of an id into a state from which it cannot answer.
 * Method: the first byte chooses the decoder, the rest is its input. libFuzzer (-fsanitize=fuzzer
 * -DFT_LIBFUZZER) mutates the inputs. Without it, good messages are mutated under a seed:
 * fuzz_bootstrap [RUNS [SEED]] (FT_FUZZ_SECONDS: as many as fit into that time); fuzz_bootstrap
 * FILE... replays.
 */
#include "membership/bootstrap.h"

#include <limits.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { TARGET_ID, TARGET_SELECT, TARGET_JOIN, TARGET_FAIL, TARGET_TABLE, TARGET_GATHER, TARGETS };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);
static unsigned long accepted[TARGETS];

static void complain(const char *what)
{
    fprintf(stderr, "fuzz_bootstrap: %s\n", what);
    abort();
}

static void try_id(const uint8_t *data, size_t len_bytes)
{
    unsigned char id[FT_UNIQUE_ID_BYTES] = {0}, again[FT_UNIQUE_ID_BYTES];
    struct ft_id out;
    memcpy(id, data, ft_min(len_bytes, sizeof id));
    if (len_bytes < sizeof id) /* no mutation would find the checksum */
        crypto_shorthash(id + 120, id, 120,
                         (const unsigned char[crypto_shorthash_KEYBYTES]){"FTCCL unique id"});
    if (ft_id_decode(&out, id) != FT_OK)
        return;
    if (out.naddresses < 1 || out.naddresses > FT_NET_ADDRESSES)
        complain("an id without or with too many addresses");
    if (out.grow && out.explicit_address)
        complain("an id of two kinds");
    if (ft_id_encode(again, &out) != out.naddresses)
        complain("an accepted id does not fit into an id");
    accepted[TARGET_ID]++;
}

static void try_select(const uint8_t *data, size_t len_bytes)
{
    unsigned char in[FT_SELECT_BYTES], again[FT_SELECT_BYTES];
    enum ft_answer answer;
    uint64_t nonce;
    if (len_bytes < sizeof in)
        return;
    memcpy(in, data, sizeof in);
    if (ft_select_decode(in, &answer, &nonce) != FT_OK)
        return;
    ft_select_encode(again, answer, nonce);
    if (memcmp(in, again, sizeof in) != 0)
        complain("an accepted select is not what the encoder makes");
    accepted[TARGET_SELECT]++;
}

/* As the service does it: the frame's header, then as many bytes as it says. */
static bool decode_join(const uint8_t *data, size_t len_bytes, struct ft_join_msg *msg)
{
    enum ft_frame kind;
    uint32_t len;
    memset(msg, 0, sizeof *msg);
    if (len_bytes < FT_FRAME_BYTES || ft_frame_decode(data, &kind, &len) != FT_OK)
        return false;
    if (kind != FT_FRAME_JOIN || len > len_bytes - FT_FRAME_BYTES)
        return false;
    return ft_join_decode(data + FT_FRAME_BYTES, len, msg) == FT_OK;
}

static void try_join(const uint8_t *data, size_t len_bytes)
{
    static unsigned char once[FT_FRAME_BYTES + FT_JOIN_WIRE_MAX],
        twice[FT_FRAME_BYTES + FT_JOIN_WIRE_MAX];
    struct ft_join_msg msg;
    if (!decode_join(data, len_bytes, &msg))
        return;
    if (msg.rank >= msg.nranks || msg.nranks > FT_RANKS_MAX || msg.nids < 1 ||
        msg.index >= msg.nids)
        complain("an impossible join");
    if (strlen(msg.endpoint.config_text) > FT_ENDPOINT_TEXT_MAX ||
        msg.endpoint.address_bytes > FT_ENDPOINT_BYTES)
        complain("an impossible endpoint");
    size_t n = ft_join_encode(once, &msg);
    if (!decode_join(once, n, &msg) || ft_join_encode(twice, &msg) != n ||
        memcmp(once, twice, n) != 0)
        complain("a join changes when it is passed on");
    accepted[TARGET_JOIN]++;
}

static void try_fail(const uint8_t *data, size_t len_bytes)
{
    char text[FT_FAIL_TEXT_MAX + 1];
    int status;
    if (ft_fail_decode(data, len_bytes, &status, text) != FT_OK)
        return;
    if (status >= 0 || strlen(text) > FT_FAIL_TEXT_MAX)
        complain("a failure that is none");
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p < ' ')
            complain("control characters in a sentence");
    accepted[TARGET_FAIL]++;
}

/* The number of endpoints and the sizes of the pieces come from the input too. */
static void try_table(const uint8_t *data, size_t len_bytes)
{
    static struct ft_table_reader r;
    if (len_bytes < 2)
        return;
    uint32_t count = data[0] % 64 + 1, piece = data[1] + 1u;
    data += 2;
    len_bytes -= 2;
    memset(&r, 0, offsetof(struct ft_table_reader, buf));
    r.endpoint = calloc(count, sizeof *r.endpoint);
    if (!r.endpoint)
        return;
    r.head.count = count;
    r.left_bytes = len_bytes;
    int status;
    size_t got = 0;
    while ((status = ft_table_take(&r, got)) == FT_AGAIN) {
        got = ft_min(piece, ft_table_room(&r));
        if (got == 0)
            complain("a table that wants more but has no room");
        memcpy(r.buf + r.have_bytes, data, got);
        data += got;
    }
    if (status == FT_OK && r.nendpoints != count)
        complain("a table that is complete without all endpoints");
    if (status == FT_OK && r.left_bytes + r.have_bytes > 0)
        complain("a table that is complete before its frame ends");
    accepted[TARGET_TABLE] += status == FT_OK;
    free(r.endpoint);
}

static void check_gather(struct ft_gather *g)
{
    static struct ft_table_reader r;
    if (g->arrived > g->count || g->ntold > g->nranks)
        complain("more ranks than there are");
    if (g->state == FT_GATHER_FULL && g->survivors && !g->supplied)
        complain("a grow without its survivors");
    if (!ft_gather_settled(g))
        return;
    if (!g->answer || g->answer_bytes < FT_FRAME_BYTES)
        complain("settled without an answer");
    uint32_t len;
    enum ft_frame kind;
    if (ft_frame_decode(g->answer, &kind, &len) != FT_OK || len + FT_FRAME_BYTES != g->answer_bytes)
        complain("a bad answer");
    if (g->state != FT_GATHER_FULL)
        return;
    memset(&r, 0, offsetof(struct ft_table_reader, buf));
    r.endpoint = calloc(g->count, sizeof *r.endpoint);
    if (!r.endpoint)
        return;
    r.head.first = g->first;
    r.head.count = g->count;
    r.left_bytes = len;
    const unsigned char *from = g->answer + FT_FRAME_BYTES;
    int status;
    for (size_t got = 0; (status = ft_table_take(&r, got)) == FT_AGAIN; from += got) {
        got = ft_table_room(&r);
        memcpy(r.buf + r.have_bytes, from, got);
    }
    if (status != FT_OK)
        complain("an answer that no rank understands");
    accepted[TARGET_GATHER]++;
    free(r.endpoint);
}

/* Four bytes a step: what happens, and to whom. */
static void try_gather(const uint8_t *data, size_t len_bytes)
{
    static struct ft_endpoint survivor[3];
    struct ft_id id = {.nonce = 1, .explicit_address = len_bytes > 0 && data[0] & 1};
    if (len_bytes > 3 && !id.explicit_address && data[3] & 1)
        id.survivors = 1 + data[3] / 2 % FT_ARRAY_LEN(survivor);
    struct ft_gather *g = ft_gather_new(&id, 0, 1000);
    static struct ft_join_msg msg;
    const unsigned char *answer = NULL;
    if (!g)
        return;
    for (uint64_t now_ns = 0; len_bytes >= 4; data += 4, len_bytes -= 4, now_ns += 1000) {
        uint32_t nids = 1 + (data[0] >> 4) % 3, nranks = 1 + data[1] % 16, who = data[2] % 16;
        if (data[0] % 16 == 14)
            ft_gather_fail(g, now_ns, FT_PEER, "rank %u went away", who);
        if (data[0] % 16 == 15 && g->state == FT_GATHER_OPEN)
            ft_gather_timeout(g, now_ns);
        if (data[0] % 16 == 13)
            ft_gather_mark_told(g, who);
        if (data[0] % 16 == 12 && g->survivors && !g->supplied && nranks > g->survivors)
            ft_gather_supply(g, nranks, survivor, now_ns);
        if (data[0] % 16 < 13 && who < nranks && nids <= nranks) {
            msg.nonce = 1;
            msg.nranks = nranks;
            msg.rank = who;
            msg.nids = nids;
            msg.index = nids > 1 ? 1 : 0;
            msg.left_ms = msg.bound_ms = data[3];
            msg.endpoint.config = data[3] == 255;
            msg.endpoint.address_bytes = data[3];
            (void)ft_gather_add(g, &msg, now_ns);
        }
        check_gather(g);
        if (answer && answer != g->answer)
            complain("the answer changed after some had it");
        answer = g->answer;
    }
    ft_gather_free(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
    static void (*const target[TARGETS])(const uint8_t *, size_t) = {
        try_id, try_select, try_join, try_fail, try_table, try_gather};
    if (len_bytes == 0)
        return 0;
    /* A copy of exactly that size, so that the sanitizer sees a read behind it. */
    uint8_t *copy = malloc(len_bytes);
    if (!copy)
        return 0;
    memcpy(copy, data, len_bytes);
    target[data[0] % TARGETS](copy + 1, len_bytes - 1);
    free(copy);
    return 0;
}

#ifndef FT_LIBFUZZER

static uint64_t state;
static uint32_t draw(uint32_t below)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33) % below;
}

static struct ft_endpoint some_endpoint(void)
{
    struct ft_endpoint endpoint = {
        .engine = draw(UINT_MAX), .host = 1, .config = 2, .address_bytes = draw(200)};
    snprintf(endpoint.config_text, sizeof endpoint.config_text, "chunk=%u", draw(1u << 20));
    return endpoint;
}

/* A good message for the target; returns its length. */
static size_t good_input(uint8_t *out, unsigned target)
{
    size_t n = 1;
    out[0] = (uint8_t)target;
    if (target == TARGET_ID) {
        struct ft_id id = {.naddresses = 2, .nonce = draw(UINT_MAX), .grow = draw(2)};
        id.address[0].family = AF_INET;
        id.address[1].family = AF_INET6;
        id.address[0].port = id.address[1].port = (uint16_t)(1 + draw(65535));
        ft_id_encode(out + n, &id);
        n += FT_UNIQUE_ID_BYTES;
    } else if (target == TARGET_SELECT) {
        ft_select_encode(out + n, FT_ANSWER_GO, draw(UINT_MAX));
        n += FT_SELECT_BYTES;
    } else if (target == TARGET_JOIN) {
        struct ft_join_msg msg = {.nranks = 1 + draw(64), .nids = 1, .endpoint = some_endpoint()};
        msg.rank = draw(msg.nranks);
        n += ft_join_encode(out + n, &msg);
    } else if (target == TARGET_FAIL) {
        uint8_t frame[FT_FRAME_BYTES + FT_FAIL_WIRE_MAX];
        size_t len = ft_fail_encode(frame, FT_TIMEOUT, "rank 3 of 4 never came within 600 ms");
        memcpy(out + n, frame + FT_FRAME_BYTES, len - FT_FRAME_BYTES);
        n += len - FT_FRAME_BYTES;
    } else if (target == TARGET_TABLE) {
        struct ft_table_head head = {.salt = 1, .count = 1 + draw(16)};
        out[n++] = (uint8_t)(head.count - 1);
        out[n++] = (uint8_t)draw(256);
        n += ft_table_head_encode(out + n, &head);
        for (uint32_t i = 0; i < head.count; i++) {
            struct ft_endpoint endpoint = some_endpoint();
            n += ft_endpoint_encode(out + n, &endpoint);
        }
    } else {
        uint32_t nranks = draw(16);
        for (uint32_t i = 0; i < 24; i++, n += 4)
            ft_put32(out + n, draw(13) | nranks << 8 | (i % 16) << 16 | draw(255) << 24);
    }
    return n;
}

static void mutate(uint8_t *data, size_t *len_bytes)
{
    for (uint32_t times = draw(4); times > 0; times--) {
        size_t at = 1 + draw((uint32_t)*len_bytes - 1);
        switch (draw(4)) {
        case 0:
            data[at] ^= (uint8_t)(1 << draw(8));
            break;
        case 1:
            data[at] = (uint8_t)draw(256);
            break;
        case 2:
            memset(data + at, draw(2) ? 255 : 0, ft_min(4, *len_bytes - at));
            break;
        default:
            if (draw(2))
                *len_bytes = at + 1;
            else
                memset(data + *len_bytes, 0, 4), *len_bytes += 4;
            break;
        }
    }
}

static int replay(int n, char **files)
{
    static uint8_t data[1 << 20];
    for (int i = 0; i < n; i++) {
        FILE *in = fopen(files[i], "rbe");
        if (!in) {
            perror(files[i]);
            return 1;
        }
        size_t len = fread(data, 1, sizeof data, in);
        fclose(in);
        LLVMFuzzerTestOneInput(data, len);
    }
    return 0;
}

int main(int argc, char **argv)
{
    static uint8_t data[64 * 1024];
    char *end = NULL;
    const char *seconds = getenv("FT_FUZZ_SECONDS"), *given = getenv("FT_SEED");
    unsigned long runs = argc > 1  ? strtoul(argv[1], &end, 10)
                         : seconds ? ULONG_MAX
                                   : 300000,
                  i = 0;
    if (end && *end)
        return replay(argc - 1, argv + 1);
    uint64_t stop_ns = ft_now_ns(ft_env_real()) +
                       (seconds ? strtoull(seconds, NULL, 10) : 3600) * 1000000000;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10)
                    : given  ? strtoull(given, NULL, 10)
                             : ft_now_ns(ft_env_real());
    setenv("FTCCL_DEBUG", "VERSION", 0); /* the failures here are meant */
    printf("replay: fuzz_bootstrap %lu %llu\n", runs, (unsigned long long)seed);
    fflush(stdout);
    state = seed;
    for (; i < runs && (i % 1024 || ft_now_ns(ft_env_real()) < stop_ns); i++) {
        size_t len = good_input(data, (unsigned)(i % TARGETS));
        mutate(data, &len);
        LLVMFuzzerTestOneInput(data, len);
    }
    printf("accepted:");
    for (int t = 0; t < TARGETS; t++)
        printf(" %lu", accepted[t]);
    printf(" of %lu each\n", i / TARGETS);
    for (int t = 0; t < TARGETS; t++)
        if (i >= 10000 && accepted[t] == 0)
            complain("a target accepted nothing: its good messages are not good");
    return 0;
}

#endif
