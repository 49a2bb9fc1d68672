/*
 * Property: nothing that authenticated peers send to an engine makes it crash, hang, read out of
 * bounds, or hold more than a bound: control messages between engines (agreements, GONE, ASK, TELL,
 * ABANDONED, BEAT, VALIDATE), notices of a communicator, messages of its operations and commit
 * rounds, and links that come and go. What the engine sends is well formed, and every call of its
 * user ends. Method: a whole engine on a transport whose other end is the input. The first bytes
 * choose the size, the rank, the policy, and whether the rank is a survivor or a joiner. Then each
 * byte is a step: a message that is nearly right, an event of a link, which the engine gets when it
 * polls (also inside a call that waits), or a call of the user. The clock advances whenever it is
 * read.
 */
#include "wire.h"

#include "core/group/validation.h"
#include "membership/agree.h"

#define SELF 1000     /* engine id of rank 0 */
#define LIMIT_MS 30   /* of operations */
#define STRANGER 5000 /* ids of engines that nobody knows */
#define RANKS_MAX 6
#define COMMS_MAX 4
#define FIRST_CTX 77

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- the rank that is under attack ----------------------------------------------------------- */

struct facts {
    uint64_t ctx, epoch;
    uint32_t nold;
}; /* as in core/group/grow.c */

static struct {
    struct ft_engine *engine;
    int nranks, rank;
    struct ft_comm *comm[COMMS_MAX];
    int ncomms;
    struct ft_stream *stream;
    struct ft_comm_limits limits;
    uint64_t ctxs[8]; /* the last that were seen */
    unsigned nctxs;
    int32_t buffer[4][600];
} me;

static void remember(uint64_t ctx)
{
    for (size_t i = 0; i < FT_ARRAY_LEN(me.ctxs); i++)
        if (me.ctxs[i] == ctx)
            return;
    me.ctxs[me.nctxs++ % FT_ARRAY_LEN(me.ctxs)] = ctx;
}

static uint64_t some_ctx(void)
{
    const unsigned which = next() % 16;
    for (int i = 0; i < me.ncomms; i++) {
        remember(me.comm[i]->ctx);
        if (me.comm[i]->group->retry.ctx)
            remember(me.comm[i]->group->retry.ctx);
    }
    if (which >= 10 && me.ncomms > 0)
        return me.comm[0]->ctx;
    return which >= 8 ? which : me.ctxs[which];
}

static struct pipe *some_pipe(void)
{
    const uint64_t id = SELF + next() % RANKS_MAX;
    struct pipe *any = NULL;
    for (struct pipe *p = wire->pipes; p; p = p->next) {
        if (p->base.sender || p->base.state != FT_LINK_UP)
            continue;
        any = p;
        if (p->base.peer == id)
            break;
    }
    return any;
}

static void inject(struct pipe *p, struct ft_header header, const void *data)
{
    struct ft_rxq_node *node;
    if (!p)
        return;
    /* a transport would have ended the link, or dropped it */
    if (ft_rxq_admit(&p->rxq, &header, &node) != FT_OK || !node)
        return;
    if (header.len > 0)
        memcpy(node->landing, data, header.len);
    node->data = node->landing;
    ft_rxq_ready(&p->rxq, node);
}

/* ---- messages between engines ---------------------------------------------------------------- */

static void send_control(struct pipe *p, const struct ft_ctl_head *head, const void *data,
                         size_t len)
{
    static unsigned char bytes[CHUNK_BYTES];
    struct ft_header header = {
        .ctx = FT_CTX_ENGINE, .lane = FT_LANE_CTL, .len = (uint32_t)(sizeof *head + len)};
    if (header.len > sizeof bytes)
        return;
    memcpy(bytes, head, sizeof *head);
    if (len > 0)
        memcpy(bytes + sizeof *head, data, len);
    header.crc = ft_message_sum(&header, bytes);
    if (next() % 64 == 1)
        header.crc ^= 1;
    if (next() % 64 == 2)
        header.len = (uint32_t)ft_min(header.len, next() % 20u),
        header.crc = ft_message_sum(&header, bytes);
    inject(p, header, bytes);
}

static uint32_t some_instance(void)
{
    const unsigned which = next() % 8;
    if (which < 3)
        return FT_AGREEMENT_RETRY;
    if (which == 3)
        return next() | next() << 30;
    return (me.ncomms > 0 ? me.comm[0]->group->agreements : 0) + which - 4;
}

/* The agreement's configuration as its ranks have it. */
static struct ft_agree_config config_of(uint64_t ctx, uint32_t instance)
{
    uint64_t salt[2] = {ctx, instance};
    int n = me.nranks;
    for (int i = 0; i < me.ncomms; i++)
        if (me.comm[i]->ctx == ctx)
            n = me.comm[i]->view.nranks;
    return (struct ft_agree_config){.env = &env,
                                    .nranks = n,
                                    .seed = ft_hash64(salt, sizeof salt, 0),
                                    .message_bytes = CHUNK_BYTES - sizeof(struct ft_ctl_head)};
}

/* Endpoints of joiners, or what is nearly that. */
static size_t some_blob(unsigned char *out, size_t room)
{
    const unsigned how = next();
    size_t len = 0;
    if (how % 4 == 0)
        return fill(out, ft_min(room, 300));
    for (unsigned n = how % 4; n > 0 && room - len > FT_ENDPOINT_WIRE_MAX; n--) {
        struct ft_endpoint endpoint = {.engine = next() % 4 ? 2000 + n
                                                            : (uint64_t)SELF + next() % RANKS_MAX,
                                       .host = next() % 3};
        ft_endpoint_put(&endpoint, "wire", &endpoint.engine, sizeof endpoint.engine);
        if (how & 16)
            endpoint.address_bytes = (uint32_t)fill(endpoint.address, 40);
        len += ft_endpoint_encode(out + len, &endpoint);
    }
    return len;
}

static size_t some_contribution(const struct ft_agree_config *config, unsigned char *out)
{
    static unsigned char list[RANKS_MAX], blob[CHUNK_BYTES];
    struct ft_agree_input input = {.kind = (enum ft_agree_kind)(1 + next() % 5),
                                   .flags = next() & 64 ? next() : UINT64_MAX,
                                   .last_op = next(),
                                   .key = (int)next() - 128,
                                   .blob = blob,
                                   .exclude = list};
    for (int r = 0; r < config->nranks; r++)
        list[r] = next() % 8 == 1;
    if (next() % 4 == 1)
        input.blob_bytes = (uint32_t)some_blob(blob, ft_agree_blob_room(config));
    return ft_contribution_encode(out, config->nranks, &input);
}

static size_t some_value(const struct ft_agree_config *config, unsigned char *out)
{
    static unsigned char failed[RANKS_MAX], excluded[RANKS_MAX], blob[CHUNK_BYTES];
    static int order[RANKS_MAX];
    static int64_t keys[RANKS_MAX];
    struct ft_decision d = {.status = next() % 8 == 1 ? FT_USAGE : FT_OK,
                            .kind = (enum ft_agree_kind)(1 + next() % 5),
                            .nonce = next(),
                            .failed = failed,
                            .flags = next() & 192 ? UINT64_MAX & ~(uint64_t)10 : next(),
                            .excluded = excluded,
                            .order = order,
                            .keys = keys,
                            .first_op = next() % 8,
                            .last_op = next() % 4 ? next() % 8 : UINT64_MAX,
                            .blob = blob};
    for (int r = 0; r < config->nranks; r++) {
        const unsigned fate = next() % 8;
        failed[r] = fate == 1;
        excluded[r] = fate == 1 || fate == 2;
        if (!excluded[r])
            order[d.nsurvivors++] = r;
    }
    for (unsigned k = next() % 4; k > 0 && d.nsurvivors > 1; k--) {
        const unsigned a = next() % (unsigned)d.nsurvivors, swap = (unsigned)order[a];
        order[a] = order[0];
        order[0] = (int)swap;
        keys[a] = (int)next() - 128;
    }
    if (next() % 2)
        d.blob_bytes = (uint32_t)some_blob(blob, ft_agree_blob_room(config));
    const size_t len = ft_value_encode(out, config->nranks, &d);
    if (next() % 8 == 1)
        out[next() % len] ^= (unsigned char)next();
    return len;
}

static void send_agree(struct pipe *p)
{
    static unsigned char body[2 * CHUNK_BYTES], bytes[3 * CHUNK_BYTES], sets[3];
    struct ft_ctl_head head = {FT_CTL_AGREE, some_instance(), some_ctx()};
    const struct ft_agree_config config = config_of(head.ctx, head.instance);
    const unsigned what = next(), owner = next();
    struct ft_agree_msg m = {.type = (enum ft_agree_type)(1 + what % 7),
                             .flags = what & 8 ? FT_AGREE_WAITING : 0,
                             .body = body,
                             .dead = &sets[0],
                             .unreachable = &sets[1],
                             .fenced = &sets[2]};
    memset(sets, 0, sizeof sets);
    for (unsigned k = what & 16 ? next() % 4 : 0; k > 0; k--)
        ft_set_add(&sets[next() % 3], (int)(next() % (unsigned)config.nranks));
    m.ballot = ft_ballot(owner % 4 == 3 ? FT_BALLOT_MAX >> FT_BALLOT_RANK_BITS : owner % 4,
                         (int)(owner / 4 % (unsigned)config.nranks));
    const bool value = m.type == FT_MSG_ACCEPT || m.type == FT_MSG_DECIDE ||
                       (m.type == FT_MSG_PROMISE && what & 32);
    const bool contribution = m.type == FT_MSG_ENTER ||
                              (m.type == FT_MSG_PROMISE && !value && what & 64);
    m.body_kind = value ? FT_BODY_VALUE : contribution ? FT_BODY_CONTRIBUTION : FT_BODY_NONE;
    m.body_bytes = value          ? some_value(&config, body)
                   : contribution ? some_contribution(&config, body)
                                  : 0;
    if (value && m.type != FT_MSG_ACCEPT)
        m.accepted = ft_ballot(1 + next() % 2, 0);
    send_control(p, &head, bytes, ft_agree_encode(bytes, &config, &m));
}

static void send_question(struct pipe *p)
{
    struct ft_ctl_head head = {FT_CTL_ASK, 0, some_ctx()};
    unsigned char bytes[FT_ENDPOINT_WIRE_MAX];
    struct ft_endpoint endpoint = {
        .engine = p && next() % 8 ? p->base.peer : SELF + next() % RANKS_MAX, .host = 1};
    ft_endpoint_put(&endpoint, "wire", &endpoint.engine, sizeof endpoint.engine);
    send_control(p, &head, bytes, ft_endpoint_encode(bytes, &endpoint));
}

/* An answer to a joiner: status, number, the places in their order. */
static void send_answer(struct pipe *p)
{
    struct ft_ctl_head head = {FT_CTL_TELL, next(), some_ctx()};
    int32_t words[2 + 2 * RANKS_MAX] = {next() % 4 ? FT_OK : -(int)next(), me.nranks};
    for (int i = 0; i < me.nranks; i++)
        words[2 + i] = next() % 16 == 1 ? (int)next() - 8 : i;
    send_control(p, &head, words,
                 (size_t)(2 + me.nranks - (int)(next() % 16 == 1)) * sizeof *words);
}

/* The rank to which the other end of a pipe belongs; -1: none. */
static int rank_of(const struct ft_comm *comm, const struct pipe *p)
{
    for (int r = 0; comm && p && r < comm->view.nranks; r++)
        if (comm->view.peer[r] == p->base.peer)
            return r;
    return -1;
}

/* A message of a validation, mostly of the one under way. */
static void send_pause(struct pipe *p, const struct ft_comm *comm, unsigned what, uint64_t number)
{
    const unsigned value = next();
    struct ft_ctl_head head = {FT_CTL_VALIDATE, 0, comm && value % 16 ? comm->ctx : some_ctx()};
    struct ft_pause_message m = {.what = what,
                                 .round = 1 + value / 8 % 4,
                                 .number = number,
                                 .value = value % 4 ? value % 32 : UINT64_MAX,
                                 .bytes = value,
                                 .ns = value / 3,
                                 .pause_ms = value % 3 ? LIMIT_MS / 4 : UINT32_MAX,
                                 .passes = value / 4 % 8,
                                 .leader = value % 9 ? rank_of(comm, p) : (int)value % 16 - 4,
                                 .state = value % 8};
    send_control(p, &head, &m, sizeof m - (value % 32 == 1));
}

/* Those of a whole one in their order, or any one. */
static void send_pauses(struct pipe *p, const struct ft_comm *comm)
{
    static const unsigned order[] = {FT_PAUSE_HOLD, FT_PAUSE_GO, FT_PAUSE_START, FT_PAUSE_SEND};
    const struct ft_pause *pause = comm ? comm->group->pause : NULL;
    const unsigned what = next();
    const uint64_t number = pause && what % 3 ? pause->ask.number : 1 + what;
    if (what % 2)
        send_pause(p, comm, what / 2 % 9, number);
    for (unsigned i = 0; what % 2 == 0 && i < FT_ARRAY_LEN(order); i++)
        send_pause(p, comm, order[i], number);
}

void wire_sent(const unsigned char *bytes, size_t len)
{
    struct ft_ctl_head head;
    struct ft_agree_msg m;
    must(len >= sizeof head && len <= CHUNK_BYTES, "a control message of a wrong length");
    memcpy(&head, bytes, sizeof head);
    must(head.what >= FT_CTL_AGREE && head.what <= FT_CTL_VALIDATE,
         "an unknown control message was sent");
    if (head.what != FT_CTL_AGREE)
        return;
    for (const struct ft_agreement *agreement = me.engine->group->agreements; agreement;
         agreement = agreement->next)
        if (agreement->ctx == head.ctx && agreement->instance == head.instance)
            must(ft_agree_decode(&agreement->agree->config, bytes + sizeof head, len - sizeof head,
                                 &m) == FT_OK,
                 "a message of an agreement that is none");
}

/* ---- messages of communicators --------------------------------------------------------------- */

/* as in core/group/notice.c */
struct notice {
    uint32_t what;
    int32_t status, culprit;
    uint32_t proof;
    uint64_t seq, sig, done;
    char text[388];
    int32_t noticed;
};

static uint64_t some_sig(const struct ft_comm *comm)
{
    const struct ft_op *op = comm->works.running ? comm->works.head->ops : NULL;
    uint64_t sig = 0;
    if (op && next() % 2)
        return (op->next && next() % 2 ? op->next : op)->sig;
    for (int i = 0; i < 8; i++)
        sig = sig << 8 | next();
    return sig;
}

static void seal(const struct ft_comm *comm, struct ft_header *header, const void *data)
{
    if (comm->limits.verify && next() % 16 != 1)
        header->crc = ft_message_sum(header, data);
}

static void send_notice(struct pipe *p, const struct ft_comm *comm)
{
    struct notice notice;
    memset(&notice, 0, sizeof notice);
    const unsigned what = next();
    notice.what = what % 8 == 7 ? what : 1u << what % 3;
    notice.status = -(int)(next() % 32);
    notice.culprit = (int)next() % (RANKS_MAX + 4) - 2;
    notice.proof = next() % 4 == 1;
    notice.seq = next() % 4 ? comm->calls.seq + next() % 3 : ~(uint64_t)next();
    notice.sig = some_sig(comm);
    notice.done = next();
    notice.noticed = (int)next() % (RANKS_MAX + 4) - 2;
    if (next() % 2)
        memset(notice.text, (int)next(), sizeof notice.text);
    struct ft_header header = {
        .ctx = comm->ctx, .lane = FT_LANE_CTL, .len = next() % 16 == 1 ? next() : sizeof notice};
    header.len = (uint32_t)ft_min(header.len, sizeof notice);
    seal(comm, &header, &notice);
    inject(p, header, &notice);
}

static void send_data(struct pipe *p, const struct ft_comm *comm)
{
    static unsigned char bytes[CHUNK_BYTES];
    const unsigned lane = next(), len = next();
    struct ft_header header = {.ctx = comm->ctx,
                               .lane = (uint16_t)(lane % 4 ? 0 : lane / 4 % FT_LANES_ALL),
                               .sig = some_sig(comm),
                               .step = (uint16_t)next()};
    header.seq = (uint32_t)comm->calls.seq + next() % 3 - 1;
    header.len = len % 4 ? (uint32_t)sizeof(uint32_t) * (len / 4)
                         : (uint32_t)ft_min(len * 17u, sizeof bytes);
    for (size_t i = 0; i < 16; i++)
        bytes[i] = (unsigned char)next();
    seal(comm, &header, bytes);
    inject(p, header, bytes);
}

/* ---- steps ----------------------------------------------------------------------------------- */

#define USER 128 /* steps from here on are the user's, unless it waits in a call */

/* Engines that nobody knows come, say something, and go. */
static void pass_by(unsigned count)
{
    struct ft_ctl_head head = {1 + next() % 7, 0, some_ctx()};
    for (; count > 0 && wire->nevents < EVENTS_MAX; count--) {
        struct pipe *p = new_pipe(STRANGER + drawn++, false);
        p->base.state = FT_LINK_UP;
        tell(p, FT_EVENT_ACCEPTED);
        send_control(p, &head, NULL, 0);
        p->passing = true;
    }
}

static void change_link(unsigned how)
{
    if (how % 16 == 15) {
        pass_by(how / 16);
        return;
    }
    struct pipe *p = wire->pipes;
    for (unsigned k = next() % 16; p && p->next && k > 0; k--)
        p = p->next;
    if (how % 4 < 2) {
        p = new_pipe(how % 4 == 0 ? SELF + next() % RANKS_MAX : STRANGER + drawn++, false);
        p->base.state = FT_LINK_UP;
        tell(p, FT_EVENT_ACCEPTED);
        return;
    }
    /* news of an accepted link come first */
    if (!p || p->base.state == FT_LINK_DOWN || wire->nevents > 0)
        return;
    p->base.state = FT_LINK_DOWN;
    p->base.reason = next() % 4 ? FT_LINK : -(int)(next() % 24);
    p->base.orderly = how & 4;
    p->base.proof = how & 8;
    tell(p, FT_EVENT_DOWN);
}

void wire_step(void)
{
    static unsigned char raw[600];
    const unsigned what = next(), which = next();
    struct pipe *p = some_pipe();
    struct ft_comm *comm = me.ncomms > 0 ? me.comm[which % (unsigned)me.ncomms] : NULL;
    struct ft_ctl_head head = {which % 8, 0, 0};
    switch (what % 12) {
    case 0:
        head.instance = some_instance();
        head.ctx = some_ctx();
        send_control(p, &head, raw, fill(raw, sizeof raw));
        break;
    case 1:
        head = (struct ft_ctl_head){FT_CTL_GONE + which % 5, some_instance(), some_ctx()};
        if (which / 8 % 2)
            send_pauses(p, comm);
        else
            send_control(p, &head, NULL, 0);
        break;
    case 2:
        if (which % 2)
            send_question(p);
        else
            send_answer(p);
        break;
    case 3:
        if (comm)
            send_notice(p, comm);
        break;
    case 4:
        if (comm)
            send_data(p, comm);
        break;
    case 5:
        change_link(which);
        break;
    case 6:
        now += (uint64_t)which * 1000000u;
        break;
    default:
        send_agree(p);
        break;
    }
}

/* ---- the user -------------------------------------------------------------------------------- */

static void submit(struct ft_comm *comm)
{
    const unsigned what = next(), size = next();
    struct ft_entry *entry = ft_entry_new(&me.stream, 1);
    must(entry != NULL, "no memory");
    for (unsigned k = 0; k <= what / 64; k++) {
        struct ft_op *op = ft_op_new();
        must(op != NULL, "no memory");
        op->coll = (struct ft_coll){.kind = (enum ft_kind)((what + k) % (FT_RECV + 1)),
                                    .type = FT_INT32,
                                    .count = 1 + size % 90};
        if (op->coll.kind == FT_SEND || op->coll.kind == FT_RECV || op->coll.kind == FT_BROADCAST ||
            op->coll.kind == FT_REDUCE)
            op->coll.root = (int)size % comm->view.nranks;
        op->in = me.buffer[0];
        op->out = me.buffer[1 + what % 3];
        op->epoch = comm->view.epoch;
        op->root_id = comm->view.peer[op->coll.root];
        ft_work_add(ft_entry_work(entry, comm), op);
    }
    ft_entry_submit(entry);
}

static void drop(int i)
{
    ft_comm_abort(me.comm[i]);
    ft_comm_close(me.comm[i]);
    me.comm[i] = me.comm[--me.ncomms];
}

static void adopt(struct ft_comm *child)
{
    if (!child)
        return;
    must(child->view.nranks >= 1 && child->view.nranks <= RANKS_MAX && child->view.rank >= 0 &&
             child->view.rank < child->view.nranks,
         "a child of an impossible size");
    for (int r = 0; r < child->view.nranks; r++)
        for (int k = 0; k <= r; k++)
            must((child->view.peer[k] == child->view.peer[r]) == (k == r) &&
                     (child->view.peer[r] == me.engine->id) == (r == child->view.rank),
                 "a child with the same engine twice");
    if (me.ncomms == COMMS_MAX)
        drop(COMMS_MAX - 1);
    me.comm[me.ncomms++] = child;
}

static void reshape(struct ft_comm *comm, unsigned what)
{
    struct ft_comm *child = NULL;
    const unsigned how = next();
    int list[1] = {(int)how % comm->view.nranks};
    struct ft_agree_input input = {.kind = FT_AGREE_FLAGS, .flags = how};
    const struct ft_decision *decision;
    struct ft_shrink shrink = {.exclude = list,
                               .count = how & 64 ? 1 : 0,
                               .abort = how & 128,
                               .key = 1,
                               .name = "child",
                               .limits = me.limits};
    struct ft_grow grow = {
        .nranks = comm->view.nranks + 1 + (int)how % 2, .name = "grown", .limits = me.limits};
    ft_engine_lock(comm->engine);
    remember(ft_agreement_child_held(comm, what % 4 == 0 ? FT_AGREE_GROW : FT_AGREE_SHRINK));
    ft_engine_unlock(comm->engine);
    switch (what % 4) {
    case 0:
        if (grow.nranks <= RANKS_MAX)
            ft_grow_run(comm, &grow, &child);
        break;
    case 1:
        ft_shrink_run(comm, &shrink, &child);
        break;
    case 2:
        ft_split_run(comm, (int)how % 3 - 1, 0, "part", &me.limits, &child);
        break;
    default:
        ft_comm_agree(comm, &input, &decision);
        break;
    }
    adopt(child);
}

static void user_step(void)
{
    const unsigned what = next(), which = next();
    struct ft_comm *comm = me.ncomms > 0 ? me.comm[which % (unsigned)me.ncomms] : NULL;
    if (!comm)
        return;
    switch (what / 4 % 8) {
    case 0:
        ft_comm_revoke(comm, "fuzz");
        break;
    case 1:
        if (me.ncomms > 1)
            drop((int)(which % (unsigned)me.ncomms));
        break;
    case 2:
        ft_comm_finalize(comm);
        break;
    case 3:
    case 4:
        reshape(comm, what);
        break;
    default:
        submit(comm);
        break;
    }
}

/* ---- what must hold -------------------------------------------------------------------------- */

static void check_bounds(void)
{
    int agreements = 0, undecided = 0, peers = 0, queued_messages = 0, growths = 0, pipes = 0;
    if (!wire)
        return;
    for (const struct ft_agreement *agreement = me.engine->group->agreements; agreement;
         agreement = agreement->next) {
        agreements++;
        undecided += agreement->state == FT_AGAIN;
        must(agreement->comm || ft_agree_state(agreement->agree) == FT_OK,
             "an agreement without end");
    }
    for (const struct ft_peer *peer = me.engine->roster; peer; peer = peer->next_known)
        peers++, queued_messages += peer->queued_messages;
    for (const struct ft_growth *growth = me.engine->group->growths; growth;
         growth = *(struct ft_growth *const *)(const void *)growth)
        growths++;
    for (const struct pipe *p = wire->pipes; p; p = p->next)
        pipes += p->base.state == FT_LINK_UP;
    must(undecided == me.engine->group->undecided, "undecided agreements are miscounted");
    must(agreements <= 64 + COMMS_MAX * 24, "agreements without bound");
    must(me.engine->hung_up || peers <= RANKS_MAX + 8 + pipes + wire->nevents,
         "peers without bound");
    must(queued_messages == me.engine->unsent && queued_messages <= 64 * peers,
         "letters without bound");
    must(growths <= 18, "grows without bound");
}

static void open_engine(void)
{
    struct ft_engine_config config = {.env = &env,
                                      .transports = {&wire_ops},
                                      .id = SELF + (uint64_t)me.rank,
                                      .rank = me.rank,
                                      .heartbeat_ms = 5,
                                      .suspect_ms = 10,
                                      .manual = true};
    must(ft_rank_open(&config, &me.engine) == FT_OK, "no engine");
    me.engine->tuning.chunk_bytes = CHUNK_BYTES;
    me.stream = ft_stream_new();
    for (int r = 0; r < me.nranks; r++) {
        struct ft_endpoint endpoint = {.engine = SELF + (uint64_t)r};
        if (r == me.rank)
            continue;
        ft_endpoint_put(&endpoint, "wire", &endpoint.engine, sizeof endpoint.engine);
        must(ft_engine_learn(me.engine, endpoint.engine, 1, endpoint.address,
                             endpoint.address_bytes, r) == FT_OK,
             "no memory");
        struct pipe *p = new_pipe(endpoint.engine, false);
        p->base.state = FT_LINK_UP;
        tell(p, FT_EVENT_ACCEPTED);
    }
}

static bool open_survivor(void)
{
    int host[RANKS_MAX] = {0};
    uint64_t peer[RANKS_MAX];
    for (int r = 0; r < me.nranks; r++)
        peer[r] = SELF + (uint64_t)r;
    struct ft_view view = {
        .epoch = 1, .nranks = me.nranks, .rank = me.rank, .nhosts = 1, .host = host, .peer = peer};
    must(ft_engine_bind(me.engine, FIRST_CTX) == FT_OK, "no memory");
    must(ft_comm_open(me.engine, &view, FIRST_CTX, "fuzz", &me.limits, &me.comm[0]) == FT_OK,
         "no communicator");
    me.ncomms = 1;
    return true;
}

static bool open_joiner(void)
{
    atomic_int cancel = 0;
    struct facts facts;
    memset(&facts, 0, sizeof facts);
    facts = (struct facts){FIRST_CTX, 2, 1 + next() % (unsigned)me.nranks};
    struct ft_table *table = calloc(1, sizeof *table + RANKS_MAX * sizeof *table->endpoint);
    must(table != NULL, "no memory");
    table->nranks = me.nranks;
    for (int r = 0; r < me.nranks; r++)
        table->endpoint[r].engine = SELF + (uint64_t)r;
    ft_endpoint_put(&table->endpoint[0], "grow", &facts, sizeof facts);
    struct ft_init init = {.nranks = me.nranks,
                           .rank = me.rank,
                           .name = "joiner",
                           .settings = {.limits = me.limits},
                           .cancel = &cancel,
                           .joins = true};
    const int rc = ft_grow_join(me.engine, &init, table, &me.comm[0]);
    free(table);
    if (rc == FT_OK)
        me.ncomms = 1;
    else
        ft_rank_close(me.engine);
    return rc == FT_OK;
}

static void turn(void)
{
    me.engine->turns |= 63; /* it looks at everything */
    ft_engine_lock(me.engine);
    ft_rank_turn(me.engine);
    ft_engine_unlock(me.engine);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    setenv("FTCCL_DEBUG", "VERSION", 0);
    setenv("FTCCL_CHUNK_BYTES", "4096", 1);
    in.data = data;
    in.left = size;
    now = 1000000000;
    drawn = 0;
    const unsigned first = next();
    memset(&me, 0, sizeof me);
    me.nranks = 2 + (int)(first % (RANKS_MAX - 1));
    me.rank = (int)(next() % (unsigned)me.nranks);
    me.limits = (struct ft_comm_limits){.op_timeout_ms = LIMIT_MS,
                                        .init_timeout_ms = 40,
                                        .suspect_ms = 10,
                                        .min_ranks = 1,
                                        .heartbeat_ms = 5,
                                        .verify = first & 32,
                                        .retry = first & 64};
    me.ctxs[0] = FIRST_CTX;
    open_engine();
    bool open = (first & 128) && me.rank > 0 ? open_joiner() : open_survivor();
    while (open && in.left > 0) {
        if (*in.data >= USER)
            user_step();
        else
            turn();
        check_bounds();
    }
    for (int i = 0; open && i < 100; i++)
        turn();
    must(!open || !me.engine->hung_up, "strangers are not forgotten");
    if (open)
        check_bounds();
    while (me.ncomms > 0)
        drop(me.ncomms - 1);
    must(wire == NULL, "the engine outlived its last communicator");
    ft_engine_unref(me.engine);
    ft_stream_release(me.stream);
    return 0;
}
