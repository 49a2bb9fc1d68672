/*
 * Property: a STATUS over 128 hosts with 1,024 ranks is complete, goes through a tree whose depth
 * is the logarithm of the hosts to the base of eight, and takes less than a tenth of the time in
 * which one host could read all files. Method: a simulation. Each host has the responder's real
 * code; messages take 0.1 ms and 10 Gbit/s in virtual time, and every call takes the processor time
 * that it really took. Reading a telemetry file is measured once, on a real one. The hosts'
 * snapshots are made up.
 */
#include <queue>

#include "tests/common/sanitizer.h"

extern "C" {
#include "ras/internal.h"
#include "telemetry/format.h"
}

namespace
{

constexpr int HOSTS = 128, RANKS = 8;
constexpr uint64_t LATENCY_NS = 100000;
constexpr double NS_PER_BYTE = 0.8; /* 10 Gbit/s */

uint64_t host_now; /* whose code runs */

uint64_t id_of(int host, int rank)
{
    return 1000 + static_cast<uint64_t>(host * RANKS + rank);
}

uint64_t host_id(int host)
{
    return 0xabc000 + static_cast<uint64_t>(host);
}

/* The processor time that a call takes. */
template <class F> uint64_t cost_of(F f)
{
    timespec a, b;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    f();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    return static_cast<uint64_t>((b.tv_sec - a.tv_sec) * 1000000000 + b.tv_nsec - a.tv_nsec);
}

struct Sim;

struct SimHost {
    Sim *sim = nullptr;
    int number = 0, depth = 0;
    ft_ras ras = {};
    ft_ras_questions questions = {};
    uint64_t free_ns = 0, wire_ns = 0; /* until when its thread and its network are busy */
};

struct Event {
    uint64_t at_ns, order;
    int host;
    ft_ras_message *message; /* NULL: its look is over */
    bool operator<(const Event &other) const
    {
        return at_ns != other.at_ns ? at_ns > other.at_ns : order > other.order;
    }
};

int all_peers(void *, ft_ras_peer **out)
{
    *out = static_cast<ft_ras_peer *>(calloc((HOSTS - 1) * RANKS, sizeof **out));
    int n = 0;
    for (int h = 1; h < HOSTS; h++)
        for (int r = 0; r < RANKS; r++)
            (*out)[n++] = {host_id(h), id_of(h, r), h * RANKS + r};
    return n;
}

int send_to(void *engine, uint64_t peer, enum ft_ras_message_kind what, uint64_t query,
            const void *data, size_t len_bytes);
const ft_ras_net net = {all_peers, send_to};

struct Sim {
    std::vector<SimHost> hosts{HOSTS};
    std::priority_queue<Event> events;
    uint64_t now_ns = 1000000000, order = 0, read_ns = 0;
    int depth = 0;
    ft_ras_look look = {};

    Sim()
    {
        for (int h = 0; h < HOSTS; h++) {
            SimHost &host = hosts[static_cast<size_t>(h)];
            host.sim = this;
            host.number = h;
            host.ras.net = &net;
            host.ras.engine = &host;
            host.ras.message_bytes = FT_RAS_MESSAGE_MAX;
        }
    }
    ~Sim()
    {
        ft_ras_look_end(&look);
    }
    /* A call of a host's thread, when it is free. After each it does its other work for as long. */
    template <class F> void run(SimHost &host, F f)
    {
        host_now = host_id(host.number);
        now_ns = host.free_ns = std::max(host.free_ns, now_ns);
        host.free_ns += 2 * cost_of(f);
    }
    void add(uint64_t at_ns, int host, ft_ras_message *message)
    {
        events.push({at_ns, order++, host, message});
    }
    void answer(SimHost &host);
    void take(const Event &event);
    double status();
};

int send_to(void *engine, uint64_t peer, enum ft_ras_message_kind what, uint64_t query,
            const void *data, size_t len_bytes)
{
    auto *from = static_cast<SimHost *>(engine);
    Sim *sim = from->sim;
    int to = static_cast<int>(peer - 1000) / RANKS;
    auto *message = static_cast<ft_ras_message *>(calloc(1, sizeof(ft_ras_message) + len_bytes));
    message->ras = &sim->hosts[static_cast<size_t>(to)].ras;
    message->peer = id_of(from->number, 0);
    message->query = query;
    message->what = what;
    message->len_bytes = len_bytes;
    memcpy(message->data, data, len_bytes);
    if (what == FT_RAS_ASK) {
        sim->hosts[static_cast<size_t>(to)].depth = from->depth + 1;
        sim->depth = std::max(sim->depth, from->depth + 1);
    }
    SimHost &receiver = sim->hosts[static_cast<size_t>(to)];
    receiver.wire_ns = std::max(receiver.wire_ns, sim->now_ns + LATENCY_NS) +
                       static_cast<uint64_t>(NS_PER_BYTE * static_cast<double>(len_bytes));
    sim->add(receiver.wire_ns, to, message);
    return FT_OK;
}

template <class Row> void make_rows(Row *&list, int &count, int n)
{
    list = static_cast<Row *>(calloc(static_cast<size_t>(n), sizeof(Row)));
    count = n;
}

void make_ranks(ft_snapshot *s, int host)
{
    make_rows(s->engines, s->nengines, RANKS);
    make_rows(s->members, s->nmembers, 2 * RANKS);
    for (int r = 0; r < RANKS; r++) {
        ft_snap_engine &engine = s->engines[r];
        engine.id = id_of(host, r);
        engine.host = host_id(host);
        engine.pid = 100 + r;
        engine.state = FT_PROCESS_RUNS;
        snprintf(engine.hostname, sizeof engine.hostname, "node%d", host);
    }
    for (int i = 0; i < s->nmembers; i++) {
        ft_snap_member &m = s->members[i];
        bool world = i < RANKS;
        m.ctx = world ? 5 : 6 + static_cast<uint64_t>(host);
        m.engine = i % RANKS;
        m.rank = world ? host * RANKS + i : i - RANKS;
        m.nranks = world ? HOSTS * RANKS : RANKS;
        m.open = true;
        m.culprit = m.wait.peer = -1;
        m.called = m.started = m.done = 1000;
        m.last.called_ns = s->now_ns - 1000000;
    }
}

void make_links(ft_snapshot *s, int host)
{
    make_rows(s->links, s->nlinks, 24 * RANKS);
    make_rows(s->paths, s->npaths, 12 * RANKS);
    make_rows(s->latencies, s->nlatencies, 12 * RANKS);
    for (int i = 0; i < s->nlinks; i++) {
        ft_snap_link &link = s->links[i];
        link.engine = i / 24;
        link.peer = id_of((host + i % 24 / 2) % HOSTS, i / 24);
        link.sender = i % 2 == 0;
        link.open = true;
        link.messages = 100;
    }
    for (int i = 0; i < s->npaths; i++) {
        s->paths[i].engine = s->latencies[i].engine = i / 12;
        s->paths[i].messages = 10;
    }
}

void make_ops(ft_snapshot *s)
{
    ft_coll coll = {};
    coll.type = FT_FLOAT32;
    coll.count = 5;
    make_rows(s->ops, s->nops, 2 * 64 * RANKS);
    for (int i = 0; i < s->nops; i++) {
        ft_snap_op &op = s->ops[i];
        op.member = i / 64;
        op.seq = static_cast<uint64_t>(937 + i % 64);
        op.sig = ft_sig(&coll);
        op.done = true;
        op.called_ns = op.started_ns = s->now_ns - 100000000 +
                                       static_cast<uint64_t>(i % 64) * 1000000;
        op.ended_ns = op.called_ns + 500000;
    }
}

/* What the files of a host would tell: each rank is in the world and in a communicator of its host,
 * and has 24 links. */
ft_snapshot *snapshot_of(int host, uint64_t now_ns)
{
    auto *s = static_cast<ft_snapshot *>(calloc(1, sizeof(ft_snapshot)));
    s->now_ns = now_ns;
    make_ranks(s, host);
    make_links(s, host);
    make_ops(s);
    return s;
}

/* Its look is over: what questions.c does then. */
void Sim::answer(SimHost &host)
{
    ft_snapshot *s = snapshot_of(host.number, now_ns);
    ft_ras_questions &e = host.questions;
    run(host, [&] {
        EXPECT_EQ(ft_snapshot_pack(s, &e.packed, &e.packed_bytes), FT_OK);
        e.teller = 1;
        for (ft_ras_question &question : e.questions) {
            question.sends = question.fresh;
            question.fresh = false;
        }
    });
    while (e.packed)
        run(host, [&] { ft_ras_questions_step(&e, now_ns); });
    ft_snapshot_free(s);
}

void Sim::take(const Event &event)
{
    SimHost &host = hosts[static_cast<size_t>(event.host)];
    ft_ras_message *message = event.message;
    if (!message)
        return answer(host);
    run(host, [&] {
        if (message->what == FT_RAS_ASK)
            ft_ras_questions_add(&host.questions, message, now_ns);
        else if (event.host == 0)
            ft_ras_round_take(&look.round, message);
        else
            ft_ras_questions_pass_on(&host.questions, message, now_ns);
    });
    if (message->what == FT_RAS_ASK)
        add(host.free_ns + 2 * RANKS * read_ns, event.host, nullptr);
    free(message);
}

/* Seconds from the question of a client to its answer. */
double Sim::status()
{
    const uint64_t begin_ns = now_ns;
    SimHost &root = hosts[0];
    ft_text out = {};
    ft_ras_comms comms;
    out.most = FT_RAS_ANSWER_MAX;
    look.stage = ft_ras_look::FT_RAS_LOOK_ASKS;
    look.begun_ns = now_ns;
    look.snapshot = snapshot_of(0, now_ns);
    look.verdicts = static_cast<ft_verdict *>(calloc(FT_RAS_VERDICTS, sizeof *look.verdicts));
    look.round.via = &root.ras;
    look.round.budget_ns = 5000000000u;
    now_ns = root.free_ns = now_ns + 2 * RANKS * read_ns;
    run(root, [&] { ft_ras_look_step(&look, now_ns); });
    while (!events.empty()) {
        Event event = events.top();
        events.pop();
        now_ns = std::max(now_ns, event.at_ns);
        now_ns = event.at_ns;
        take(event);
    }
    EXPECT_EQ(look.round.left, 0);
    const uint64_t heard_ns = root.free_ns;
    now_ns = heard_ns;
    while (look.stage != ft_ras_look::FT_RAS_LOOK_DONE)
        run(root, [&] { ft_ras_look_step(&look, now_ns); });
    const uint64_t judged_ns = root.free_ns;
    run(root, [&] {
        EXPECT_EQ(ft_ras_comms_of(&look, &comms), FT_OK);
        ft_ras_json(&out, &look, &comms);
    });
    EXPECT_EQ(look.snapshot->nengines, HOSTS * RANKS);
    EXPECT_EQ(comms.n, HOSTS + 1);
    printf(
        "%d ranks on %d hosts, depth %d: a file is read in %.2f ms; all were heard after %.1f ms, "
        "merged and judged after %.1f, answered after %.1f ms (%zu KB)\n",
        HOSTS * RANKS, HOSTS, depth, static_cast<double>(read_ns) / 1e6,
        static_cast<double>(heard_ns - begin_ns) / 1e6,
        static_cast<double>(judged_ns - begin_ns) / 1e6,
        static_cast<double>(root.free_ns - begin_ns) / 1e6, strlen(out.at) / 1024);
    ft_ras_comms_free(&comms);
    ft_text_free(&out);
    return static_cast<double>(root.free_ns - begin_ns) / 1e9;
}

/* The time to read a real file: the fastest of some. */
uint64_t time_of_file()
{
    ft_telemetry *t = ft_telemetry_open(ft_env_real(), 1, 2);
    uint64_t best = UINT64_MAX;
    for (int i = 0; t && i < 20; i++) {
        ft_snapshot *s = nullptr;
        best = std::min(best, cost_of([&] { ft_snapshot_of_file(ft_telemetry_path(t), &s); }));
        ft_snapshot_free(s);
    }
    ft_telemetry_close(t);
    return t ? best : 1000000;
}

TEST(RasScale, AThousandRanksAnswerAsATree)
{
    Sim sim;
    sim.read_ns = time_of_file();
    const double s = sim.status();
    EXPECT_LE(sim.depth, 3) << "8 + 64 + 512 hosts";
    if (!is_sanitized()) {
        EXPECT_LT(s, 2 * HOSTS * RANKS * static_cast<double>(sim.read_ns) / 1e9 / 10);
    }
}

} // namespace

/* Each host has its own. */
extern "C" uint64_t __wrap_ft_host_id(void)
{
    return host_now;
}
