/*
 * Property: no messages of members make the coordinator, or a decoder, crash, loop or read beyond
 * their end; what the coordinator sends, members can decode; at the end it has forgotten everybody.
 * Method: the input is a program. Each step is a connection that begins or ends, time that passes,
 * a message of the input's bytes, or one that is well formed but for what the input says.
 */
#include "membership/coord.h"
#include "membership/managed.h"

#include <stdlib.h>
#include <string.h>

#define CONNS 6
#define NS_PER_MS UINT64_C(1000000)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool truth, const char *what)
{
    if (truth)
        return;
    fprintf(stderr, "fuzz_managed: %s\n", what);
    abort();
}

static struct {
    const uint8_t *data;
    size_t left;
} in;

static unsigned next(void)
{
    return in.left > 0 ? (in.left--, (unsigned)*in.data++) : 0;
}

/* ---- the world ------------------------------------------------------------------------------- */

static uint64_t now, drawn, term, epoch; /* the last numbers that the coordinator told */
static struct ft_coord *coord;
static struct ft_coord_conn *conns[CONNS];

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

static bool take(void *arg, void *owner, enum ft_members_message type, const void *bytes,
                 size_t len)
{
    (void)arg;
    must(owner >= (void *)conns && owner < (void *)(conns + CONNS) &&
             *(struct ft_coord_conn **)owner != NULL,
         "a message to a connection that has ended");
    if (type == FT_MEMBERS_VIEW) {
        struct ft_members_view view;
        must(ft_members_view_decode(bytes, len, &view) == FT_OK, "a view that is none");
        term = view.term;
        epoch = view.epoch;
    }
    if (type == FT_MEMBERS_JOINED || type == FT_MEMBERS_EPOCH) {
        memcpy(&term, (const char *)bytes + 4, 8);
        memcpy(&epoch, (const char *)bytes + 12, 8);
    }
    return next() % 64 != 63; /* now and then it is full */
}

static void end(unsigned i)
{
    struct ft_coord_conn *conn = conns[i];
    if (!conn)
        return;
    conns[i] = NULL;
    ft_coord_closed(conn);
}

static void tick(void)
{
    void *silent;
    while ((silent = ft_coord_tick(coord)) != NULL)
        end((unsigned)((struct ft_coord_conn **)silent - conns));
}

/* ---- messages -------------------------------------------------------------------------------- */

static size_t make_endpoint(unsigned char *out, uint64_t engine)
{
    struct ft_endpoint endpoint = {.engine = engine, .address_bytes = (uint32_t)(engine % 5)};
    return ft_endpoint_encode(out, &endpoint);
}

static size_t make_join(unsigned char *out)
{
    unsigned char endpoint[FT_ENDPOINT_WIRE_MAX];
    unsigned kind = next();
    struct ft_members_join join = {.slot = next() % 4,
                                   .engine = 1 + next() % 8,
                                   .step = next() % 4,
                                   .min_members = kind & 1,
                                   .window_ms = next() % 3 * 100,
                                   .suspect_ms = next() * 10,
                                   .endpoint = endpoint};
    join.role.group[0] = "gh"[kind >> 1 & 1];
    join.role.replica[0] = "\0abc"[kind >> 2 & 3];
    join.role.local_size = 1 + (kind >> 4 & 1);
    join.role.local_rank = kind >> 5 & 1;
    if (kind >> 6 & 1) {
        join.held_term = kind >> 7 ? term : 5;
        join.held_epoch = kind >> 7 ? epoch : next() % 4;
        join.held_nranks = next() % 3;
        join.held_rank = next() % 2;
        join.held_times = next() % 3;
    }
    join.endpoint_bytes = make_endpoint(endpoint, join.engine);
    return ft_members_join_encode(out, &join);
}

static size_t make_ask(unsigned char *out)
{
    unsigned kind = next();
    uint64_t dead = 1 + next() % 8;
    struct ft_members_ask ask = {.slot = next() % 4,
                                 .step = kind >> 4,
                                 .term = term,
                                 .epoch = epoch + (kind % 8 == 7),
                                 .failed = kind >> 3 & 1,
                                 .dead = (unsigned char *)&dead,
                                 .ndead = kind % 8 == 6};
    return ft_members_ask_encode(out, &ask);
}

static size_t make_slot(unsigned char *out)
{
    memset(out, 0, 4);
    out[0] = (unsigned char)(next() % 4);
    return 4;
}

static size_t make_noise(unsigned char *out)
{
    size_t len = ft_min(next() * 3u, in.left);
    for (size_t i = 0; i < len; i++)
        out[i] = (unsigned char)next();
    return len;
}

static void say(unsigned i, unsigned type)
{
    unsigned char bytes[4096];
    size_t len = 0;
    if (next() % 8 == 7)
        len = make_noise(bytes);
    else if (type == FT_MEMBERS_JOIN)
        len = make_join(bytes);
    else if (type == FT_MEMBERS_ASK)
        len = make_ask(bytes);
    else if (type != FT_MEMBERS_BEAT && type != FT_MEMBERS_QUIET_BEAT)
        len = make_slot(bytes);
    unsigned char *exact = malloc(len + 1); /* so that a sanitizer sees reads beyond it */
    must(exact != NULL, "no memory");
    memcpy(exact, bytes, len);
    if (!ft_coord_message(conns[i], (uint16_t)type, exact, len))
        end(i);
    free(exact);
}

static void step(void)
{
    unsigned what = next(), i = (what >> 4) % CONNS;
    switch (what % 16) {
    case 0:
        end(i);
        break;
    case 1:
    case 2:
        now += next() * 4 * NS_PER_MS;
        tick();
        break;
    case 3:
        if (conns[i])
            say(i, next());
        break;
    default:
        if (!conns[i])
            conns[i] = ft_coord_connected(coord, &conns[i]);
        if (conns[i])
            say(i, what % 16 < 8    ? FT_MEMBERS_JOIN
                   : what % 16 < 14 ? FT_MEMBERS_ASK
                                    : what % 16 - 14 + FT_MEMBERS_LEAVE);
        break;
    }
}

/* ---- decoders -------------------------------------------------------------------------------- */

static void decode(const uint8_t *data, size_t size)
{
    struct ft_members_join join;
    struct ft_members_ask ask;
    struct ft_members_view view;
    struct ft_role role;
    size_t used;
    if (ft_members_join_decode(data, size, &join) == FT_OK)
        must(ft_members_join_encode(NULL, &join) == size, "a join has another length");
    if (ft_members_ask_decode(data, size, &ask) == FT_OK)
        must(ft_members_ask_encode(NULL, &ask) == size, "an ask has another length");
    if (ft_members_view_decode(data, size, &view) == FT_OK)
        must(ft_members_view_encode(NULL, &view) == size, "a view has another length");
    if (ft_members_role_decode(data, size, &role, &used) == FT_OK)
        must(ft_members_role_encode(NULL, &role) == used, "a role has another length");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ft_coord_config config = {.env = &env, .send = take};
    struct ft_coord_counts counts;
    decode(data, size);
    in.data = data;
    in.left = size;
    now = drawn = term = epoch = 0;
    must(ft_coord_open(&config, &coord) == FT_OK, "no memory");
    while (in.left > 0)
        step();
    for (unsigned i = 0; i < CONNS; i++)
        end(i);
    ft_coord_count(coord, &counts);
    must(counts.groups + counts.replicas + counts.members + counts.standbys + counts.connections ==
             0,
         "somebody is left over");
    ft_coord_close(coord);
    return 0;
}
