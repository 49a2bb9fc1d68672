/*
 * Jobs that are written down: a snapshot is built rank by rank, and what the analysis says of it is
 * compared with who was planted. All times are seconds before now.
 */
#ifndef DIAGNOSE_BUILDER_H
#define DIAGNOSE_BUILDER_H

#include <gtest/gtest.h>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

extern "C" {
#include "diagnose/diagnose.h"
}

namespace diagnose
{

const uint64_t SECOND = 1000000000, NOW = 1000 * SECOND, PATIENCE = 5 * SECOND;

inline uint64_t ago(double seconds)
{
    return NOW - (uint64_t)(seconds * (double)SECOND);
}

inline uint64_t sig_of(enum ft_kind kind, size_t count = 4)
{
    struct ft_coll coll = {kind, FT_FLOAT32, FT_SUM, 0, count};
    return ft_sig(&coll);
}

/* Who is named: communicator, rank and peer (-1: the rank itself). */
struct Named {
    uint64_t ctx;
    int rank, peer;
    bool operator<(const Named &o) const
    {
        return std::tie(ctx, rank, peer) < std::tie(o.ctx, o.rank, o.peer);
    }
    bool operator==(const Named &o) const
    {
        return ctx == o.ctx && rank == o.rank && peer == o.peer;
    }
};

struct Said {
    enum ft_verdict_kind kind;
    std::set<Named> who;
    bool operator==(const Said &o) const
    {
        return kind == o.kind && who == o.who;
    }
};

class Job
{
  public:
    std::vector<ft_snap_engine> engines;
    std::vector<ft_snap_member> members;
    std::vector<ft_snap_link> links;
    std::vector<ft_snap_path> paths;
    std::vector<ft_snap_seat> seats;
    std::vector<ft_snap_op> ops; /* in the order of members */
    std::vector<ft_verdict> verdicts;
    uint64_t patience_ns = PATIENCE;
    int unreadable = 0, found = 0;

    /* One process for each rank of the job. */
    explicit Job(int nranks)
    {
        for (int i = 0; i < nranks; i++) {
            ft_snap_engine engine = {};
            engine.id = id(i);
            engine.host = 7;
            engine.pid = 4000 + i;
            engine.state = FT_PROCESS_RUNS;
            strcpy(engine.hostname, "a");
            engines.push_back(engine);
        }
    }
    static uint64_t id(int process)
    {
        return 1000000 + (uint64_t)process;
    }
    /* A communicator of these processes, in the order of their ranks; five operations are done. */
    void comm(uint64_t ctx, const char *name, const std::vector<int> &processes)
    {
        for (size_t rank = 0; rank < processes.size(); rank++) {
            ft_snap_member m = {};
            m.ctx = ctx;
            m.engine = processes[rank];
            m.rank = (int)rank;
            m.nranks = (int)processes.size();
            strncpy(m.name, name, sizeof m.name - 1);
            m.open = true;
            m.called = m.started = m.done = 5;
            m.last = {sig_of(FT_ALLREDUCE), ago(20), 0x1234, 77};
            m.wait.peer = m.culprit = -1;
            at[{ctx, (int)rank}] = members.size();
            members.push_back(m);
        }
    }
    ft_snap_member &of(uint64_t ctx, int rank)
    {
        return members[at.at({ctx, rank})];
    }
    ft_snap_engine &process(uint64_t ctx, int rank)
    {
        return engines[(size_t)of(ctx, rank).engine];
    }
    /* The rank has called the next collective. */
    void calls(uint64_t ctx, int rank, double seconds = 12, uint64_t sig = sig_of(FT_ALLREDUCE))
    {
        ft_snap_member &m = of(ctx, rank);
        m.called++;
        m.last = {sig, ago(seconds), 0x1234, 77};
    }
    /* It has called it, and waits in it for `peer`. */
    ft_snap_member &waits(uint64_t ctx, int rank, int peer, double seconds = 12,
                          uint64_t sig = sig_of(FT_ALLREDUCE))
    {
        calls(ctx, rank, seconds, sig);
        ft_snap_member &m = of(ctx, rank);
        m.started = m.called;
        m.running_sig = sig;
        m.running_seq = m.called;
        m.running_since_ns = m.progress_ns = ago(seconds);
        m.wait.peer = peer;
        return m;
    }
    void p2p(uint64_t ctx, int rank, int peer, bool sends, double seconds = 12)
    {
        ft_snap_member &m = of(ctx, rank);
        m.p2p_called++;
        m.p2p_started++;
        m.last = {sig_of(FT_SEND), ago(seconds), 0x1234, 77};
        m.running_sig = sig_of(FT_SEND);
        m.running_seq = 0;
        m.running_since_ns = m.progress_ns = ago(seconds);
        m.wait = {peer, sends, 0};
    }
    static ft_snap_link end_of(int engine, uint64_t peer, bool sender, uint64_t messages)
    {
        ft_snap_link link = {};
        link.engine = engine;
        link.peer = peer;
        link.sender = sender;
        link.open = true;
        link.messages = messages;
        strcpy(link.transport, "tcp");
        return link;
    }
    /* What both ends of the link between two ranks have counted. */
    /* What TCP has told `age_s` ago about what one sends to the other. */
    void path(uint64_t ctx, int from, int to, uint64_t retransmits, double age_s)
    {
        ft_snap_path one = {};
        one.engine = of(ctx, from).engine;
        one.peer = engines[(size_t)of(ctx, to).engine].id;
        one.sender = true;
        one.seen_ns = ago(age_s);
        one.retransmits = retransmits;
        paths.push_back(one);
    }
    void link(uint64_t ctx, int from, int to, uint64_t sent, uint64_t received)
    {
        int a = of(ctx, from).engine, b = of(ctx, to).engine;
        links.push_back(end_of(a, engines[(size_t)b].id, true, sent));
        links.push_back(end_of(b, engines[(size_t)a].id, false, received));
    }
    /* A rank of which there is no file; the roster names it. */
    void lose(uint64_t ctx, int rank, bool in_roster = true)
    {
        ft_snap_member &m = of(ctx, rank);
        if (in_roster)
            seats.push_back(
                {ctx, rank, 5000000 + (uint64_t)m.engine, 9, 99, FT_NEWS_NONE, false, -1});
        m.engine = -1;
    }
    void diagnose(int capacity = 16)
    {
        verdicts.assign((size_t)capacity, ft_verdict{});
        ft_snapshot snap = {};
        snap.now_ns = NOW;
        snap.engines = engines.data();
        snap.members = members.data();
        snap.links = links.data();
        snap.paths = paths.data();
        snap.npaths = (int)paths.size();
        snap.seats = seats.data();
        snap.nengines = (int)engines.size();
        snap.nmembers = (int)members.size();
        snap.nlinks = (int)links.size();
        snap.nseats = (int)seats.size();
        snap.unreadable = unreadable;
        snap.ops = ops.data();
        snap.nops = (int)ops.size();
        found = ft_diagnose_hang(&snap, patience_ns, verdicts.data(), capacity);
        ASSERT_GE(found, 0);
        verdicts.resize((size_t)std::min(found, capacity));
    }
    std::vector<Said> said() const
    {
        std::vector<Said> all;
        for (auto &v : verdicts) {
            Said one = {v.kind, {}};
            for (int i = 0; i < v.nculprits && i < FT_CULPRITS; i++)
                one.who.insert({v.culprits[i].ctx, v.culprits[i].rank, v.culprits[i].peer});
            all.push_back(one);
        }
        return all;
    }
    std::string text() const
    {
        std::string all;
        for (auto &v : verdicts) {
            all += std::string(ft_verdict_name(v.kind)) + ": " + v.sentence + "\n";
            for (int i = 0; i < v.nchain; i++)
                all += std::string("    ") + v.chain[i] + "\n";
        }
        return all;
    }
    /* Diagnoses and compares. */
    void expect(const std::vector<Said> &wanted)
    {
        diagnose();
        EXPECT_EQ((size_t)found, wanted.size()) << text();
        EXPECT_TRUE(said() == wanted) << text();
    }
    bool says(const std::string &part) const
    {
        return text().find(part) != std::string::npos;
    }

  private:
    std::map<std::pair<uint64_t, int>, size_t> at;
};

} // namespace diagnose

#endif
