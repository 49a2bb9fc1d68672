/*
 * Property: no bytes from a peer make an agreement crash, access memory out of bounds, grow without
 * limit, send something that is not a message, or change a decision. Method: the first bytes of the
 * input choose the size and the rank. Then each byte is a step: raw bytes, bytes after a good head
 * (no mutation would find magic, seed and lengths), a message whose body is really a contribution
 * or a value, an entry, evidence, or time that passes.
 */
#include "membership/agree.h"
#include "membership/bootstrap.h"

#include <stdlib.h>
#include <string.h>

#define MESSAGE_BYTES 2400
#define RANKS_MAX 200 /* so many that a value is far longer than a contribution */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t now, drawn, sent;
static uint64_t time_ns(struct ft_env *e)
{
    (void)e;
    return now;
}
static void draw(struct ft_env *e, void *buf, size_t len)
{
    (void)e;
    for (size_t i = 0; i < len; i++)
        ((unsigned char *)buf)[i] = (unsigned char)(++drawn * 0x9e3779b97f4a7c15u >> 56);
}
static struct ft_env env = {time_ns, draw, NULL};

static void must(bool truth, const char *what)
{
    if (truth)
        return;
    fprintf(stderr, "fuzz_agree: %s\n", what);
    abort();
}

static void take(void *arg, int to, const void *data, size_t len)
{
    const struct ft_agree_config *config = arg;
    struct ft_agree_msg m;
    sent++;
    must(to >= 0 && to < config->nranks && to != config->rank, "a message to nobody");
    must(len <= config->message_bytes, "a message that is too long");
    must(ft_agree_decode(config, data, len, &m) == FT_OK, "a message that is none");
}

struct input {
    const uint8_t *data;
    size_t left;
};
static unsigned next(struct input *in)
{
    return in->left > 0 ? (in->left--, *in->data++) : 0;
}

static void give(struct ft_agree *a, int from, const unsigned char *bytes, size_t len)
{
    unsigned char *exact = malloc(len > 0 ? len : 1);
    must(exact != NULL, "no memory");
    memcpy(exact, bytes, len);
    ft_agree_receive(a, from, exact, len);
    free(exact);
}

static void raw(struct ft_agree *a, struct input *in, bool good_head)
{
    unsigned char bytes[MESSAGE_BYTES + 8];
    const int from = (int)next(in) - 2;
    size_t len = 0, want = next(in) * 3u;
    for (; len < want && len < sizeof bytes; len++)
        bytes[len] = (unsigned char)next(in);
    const size_t head = ft_agree_head_bytes(a->config.nranks);
    if (good_head && len >= head) {
        memcpy(bytes, "FTag", 4);
        bytes[4] = FT_WIRE_VERSION;
        bytes[5] = (unsigned char)(1 + bytes[5] % 7);
        bytes[6] %= 3;
        ft_put64(bytes + 8, a->config.seed);
        ft_put32(bytes + 16, (uint32_t)a->config.nranks);
        ft_put32(bytes + 20, (uint32_t)(len - head));
    }
    give(a, from, bytes, len);
}

static size_t some_contribution(struct ft_agree *a, struct input *in, unsigned char *out)
{
    static unsigned char list[RANKS_MAX], blob[MESSAGE_BYTES];
    struct ft_agree_input input = {.kind = (enum ft_agree_kind)(1 + next(in) % 5),
                                   .flags = next(in),
                                   .last_op = next(in),
                                   .key = (int)next(in) - 128,
                                   .blob = blob};
    for (int r = 0; r < a->config.nranks; r++)
        list[r] = 0;
    for (unsigned k = next(in) % 4; k > 0; k--)
        list[next(in) % (unsigned)a->config.nranks] = 1;
    input.exclude = list;
    const size_t room = MESSAGE_BYTES - ft_agree_head_bytes(a->config.nranks) -
                        ft_contribution_bytes(a->config.nranks);
    /* may be more than fits into a value */
    input.blob_bytes = (uint32_t)ft_min(next(in) * 9u, room);
    return ft_contribution_encode(out, a->config.nranks, &input);
}

static size_t some_value(struct ft_agree *a, struct input *in, unsigned char *out)
{
    static unsigned char failed[RANKS_MAX];
    static int order[RANKS_MAX];
    static int64_t keys[RANKS_MAX];
    const int n = a->config.nranks;
    struct ft_decision d = {.status = FT_OK,
                            .kind = FT_AGREE_SHRINK,
                            .nonce = next(in),
                            .failed = failed,
                            .excluded = failed,
                            .order = order,
                            .keys = keys};
    for (int r = 0; r < n; r++)
        failed[r] = 0;
    if (n > 1)
        failed[next(in) % (unsigned)n] = 1;
    for (int r = 0; r < n; r++)
        if (!failed[r])
            order[d.nsurvivors++] = r;
    const size_t len = ft_value_encode(out, n, &d);
    if (next(in) % 4 == 0)
        out[next(in) % len] ^= (unsigned char)next(in);
    return len;
}

/* Rather one that is heard. */
static int some_rank(struct ft_agree *a, struct input *in)
{
    int r = (int)(next(in) % (unsigned)a->config.nranks);
    for (int i = 0; i < a->config.nranks && (r == a->config.rank || ft_set_has(a->dead, r)); i++)
        r = (r + 1) % a->config.nranks;
    return r;
}

static void made(struct ft_agree *a, struct input *in)
{
    static unsigned char body[2 * MESSAGE_BYTES], bytes[3 * MESSAGE_BYTES],
        sets[3][RANKS_MAX / 8 + 1];
    const int n = a->config.nranks, from = some_rank(a, in);
    const unsigned what = next(in), round = next(in) % 4, owner = next(in) % 3;
    struct ft_agree_msg m = {.type = (enum ft_agree_type)(1 + what % 7),
                             .flags = what & 8 ? FT_AGREE_WAITING : 0,
                             .body = body,
                             .dead = sets[0],
                             .unreachable = sets[1],
                             .fenced = sets[2]};
    memset(sets, 0, sizeof sets);
    for (unsigned k = what & 16 ? next(in) % 8 : 0; k > 0; k--)
        ft_set_add(sets[next(in) % 3], (int)(next(in) % (unsigned)n));
    if (what & 128)
        memcpy(sets[0], a->dead, a->set_bytes);
    m.ballot = ft_ballot(round, owner == 0   ? from
                                : owner == 1 ? a->config.rank
                                             : (int)(next(in) % (unsigned)n));
    if (owner == 1)
        m.ballot = a->ballot;
    const bool value = m.type == FT_MSG_ACCEPT || m.type == FT_MSG_DECIDE ||
                       (m.type == FT_MSG_PROMISE && what & 32);
    const bool contribution = m.type == FT_MSG_ENTER ||
                              (m.type == FT_MSG_PROMISE && !value && what & 64);
    m.body_kind = value ? FT_BODY_VALUE : contribution ? FT_BODY_CONTRIBUTION : FT_BODY_NONE;
    m.body_bytes = value          ? some_value(a, in, body)
                   : contribution ? some_contribution(a, in, body)
                                  : 0;
    if (value && m.type != FT_MSG_ACCEPT)
        m.accepted = ft_ballot(1 + next(in) % 2, 0);
    give(a, from, bytes, ft_agree_encode(bytes, &a->config, &m));
}

static void enter(struct ft_agree *a, struct input *in)
{
    struct ft_agree_input input = {.kind = FT_AGREE_SHRINK, .flags = next(in), .last_op = next(in)};
    if (a->entered_ns == 0)
        must(ft_agree_enter(a, &input) == FT_OK, "entering failed");
}

/* All but this rank and another one, with proof. */
static void die(struct ft_agree *a, int but)
{
    for (int r = 0; r < a->config.nranks; r++)
        if (r != but)
            ft_agree_learn(a, r, FT_DEAD);
}

static void step(struct ft_agree *a, struct input *in)
{
    const unsigned what = next(in);
    switch (what % 8) {
    case 0:
        raw(a, in, false);
        break;
    case 1:
        raw(a, in, true);
        break;
    case 2:
        if (what >= 224)
            die(a, (int)(next(in) % (unsigned)a->config.nranks));
        else
            ft_agree_learn(a, (int)next(in) - 1, (enum ft_peer_evidence)(what / 8 % 4));
        break;
    case 3:
        enter(a, in);
        break;
    case 4:
        now += next(in) * 4000000u;
        ft_agree_tick(a);
        break;
    default:
        made(a, in);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    const unsigned first = next(&in);
    struct ft_agree_config config = {.env = &env,
                                     .nranks = first % 16 == 0 ? RANKS_MAX : 1 + (int)(first % 9),
                                     .seed = 7,
                                     .message_bytes = MESSAGE_BYTES,
                                     .silent_ns = 100000000,
                                     .enter_ns = 300000000,
                                     .send = take};
    struct ft_agree *a;
    const struct ft_decision *d = NULL;
    uint64_t nonce = 0;

    config.rank = (int)(next(&in) % (unsigned)config.nranks);
    config.arg = &config;
    now = 1000000000;
    must(ft_agree_open(&config, &a) == FT_OK, "no instance");
    while (in.left > 0) {
        step(a, &in);
        if (d)
            must(ft_agree_decision(a) == d && d->nonce == nonce && ft_agree_state(a) == FT_OK,
                 "a decision changed");
        d = ft_agree_decision(a);
        nonce = d ? d->nonce : 0;
        must(!d || (d->nsurvivors >= 1 && d->nsurvivors <= config.nranks),
             "an impossible decision");
    }
    for (int i = 0; i < 200 && a->entered_ns; i++) {
        now += 10000000;
        ft_agree_tick(a);
    }
    must(!a->entered_ns || ft_agree_state(a) != FT_AGAIN, "no end of waiting");
    ft_agree_close(a);
    return 0;
}
