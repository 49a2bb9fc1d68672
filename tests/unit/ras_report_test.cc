/*
 * Property: the responder says of a rank what is known of it: that it runs, is stopped or dead, has
 * no file on this host, or is on another host. A rank is counted once, and what nobody has open is
 * left out. Method: answers about snapshots that are written down here.
 */
#include <cstring>

extern "C" {
#include "ras/internal.h"
}

namespace
{

struct Host {
    std::vector<ft_snap_engine> engines;
    std::vector<ft_snap_member> members;
    std::vector<ft_snap_seat> seats;
    ft_snapshot snapshot = {};

    void rank(uint64_t ctx, int rank, int size, ft_process_state state, bool open = true)
    {
        ft_snap_engine engine = {};
        ft_snap_member member = {};
        engine.id = 50 + static_cast<uint64_t>(rank);
        engine.pid = 100 + rank;
        engine.state = state;
        strcpy(engine.hostname, "node1");
        member.ctx = ctx;
        member.engine = static_cast<int>(engines.size());
        member.rank = rank;
        member.nranks = size;
        member.open = open;
        member.kind_called[FT_ALLREDUCE] = 7;
        engines.push_back(engine);
        members.push_back(member);
    }
    void seat(uint64_t ctx, int rank, bool elsewhere)
    {
        ft_snap_seat seat = {};
        seat.ctx = ctx;
        seat.rank = rank;
        seat.engine = 50 + static_cast<uint64_t>(rank);
        seat.host = elsewhere; /* numbered in each communicator */
        seats.push_back(seat);
    }
    std::string answer(bool json)
    {
        static ft_verdict none;
        ft_ras_look look = {};
        ft_ras_comms comms;
        ft_text out = {};
        snapshot.engines = engines.data();
        snapshot.members = members.data();
        snapshot.seats = seats.data();
        snapshot.nengines = static_cast<int>(engines.size());
        snapshot.nmembers = static_cast<int>(members.size());
        snapshot.nseats = static_cast<int>(seats.size());
        look.snapshot = &snapshot;
        look.verdicts = &none;
        out.most = FT_RAS_ANSWER_MAX;
        EXPECT_EQ(ft_ras_comms_of(&look, &comms), FT_OK);
        if (json)
            ft_ras_json(&out, &look, &comms);
        else
            ft_ras_text(&out, &look, &comms, true);
        std::string text = out.at;
        ft_ras_comms_free(&comms);
        ft_text_free(&out);
        return text;
    }
};

std::string missing(int rank, const std::string &host, int pid, bool unresponsive, bool dead)
{
    return "{\"rank\":" + std::to_string(rank) + ",\"host\":\"" + host +
           "\",\"pid\":" + std::to_string(pid) +
           ",\"cuda_dev\":0,\"nvml_dev\":0,\"status\":{\"unresponsive\":" +
           (unresponsive ? "true" : "false") + ",\"considered_dead\":" + (dead ? "true" : "false") +
           "}}";
}

TEST(RasReport, WhatIsKnownOfARank)
{
    Host host;
    host.rank(5, 0, 6, FT_PROCESS_RUNS);
    host.rank(5, 1, 6, FT_PROCESS_STOPPED);
    host.rank(5, 2, 6, FT_PROCESS_GONE);
    host.seat(6, 0, true); /* a roster of another communicator */
    for (int r = 0; r < 5; r++)
        host.seat(5, r, r == 4);
    std::string json = host.answer(true);
    EXPECT_NE(json.find("\"size\":6,\"ranks_count\":1,\"missing_ranks_count\":5,"),
              std::string::npos)
        << json;
    EXPECT_NE(json.find("\"missing_ranks\":[" + missing(1, "node1", 101, true, false) + "," +
                        missing(2, "node1", 102, true, true) + "," +
                        missing(3, "unknown", 0, true, false) + "," +
                        missing(4, "unknown", 0, false, false) + "," +
                        missing(5, "unknown", 0, false, false) + "]"),
              std::string::npos)
        << json;
    std::string text = host.answer(false);
    EXPECT_NE(text.find("rank 3 is unresponsive"), std::string::npos) << text;
    EXPECT_NE(text.find("2 ranks are on hosts that were not asked"), std::string::npos) << text;
    EXPECT_EQ(text.find("more are missing"), std::string::npos) << text;
}

/* Others have proof that a rank without a file is dead. */
TEST(RasReport, ProofOfOthers)
{
    Host host;
    host.rank(5, 0, 2, FT_PROCESS_RUNS);
    host.seat(5, 1, true);
    host.seats[0].news = FT_NEWS_DEAD;
    EXPECT_NE(host.answer(true).find(missing(1, "unknown", 0, true, true)), std::string::npos)
        << host.answer(true);
    EXPECT_NE(host.answer(false).find("rank 1 is dead"), std::string::npos) << host.answer(false);
}

/* A process that has died and one that has its rank now; a communicator that only dead ones have.
 */
TEST(RasReport, ARankOnceAndNothingOfThePast)
{
    Host host;
    host.rank(5, 0, 2, FT_PROCESS_GONE);
    host.rank(5, 0, 2, FT_PROCESS_RUNS);
    host.rank(5, 1, 2, FT_PROCESS_RUNS, false);
    host.rank(6, 0, 1, FT_PROCESS_GONE);
    host.rank(7, 0, 1, FT_PROCESS_RUNS, false);
    std::string json = host.answer(true);
    EXPECT_NE(json.find("\"communicators_count\":1,"), std::string::npos) << json;
    EXPECT_NE(json.find("\"size\":2,\"ranks_count\":2,\"missing_ranks_count\":0,"),
              std::string::npos)
        << json;
    EXPECT_NE(json.find("\"destroy_flag\":true"), std::string::npos) << json;
    EXPECT_NE(json.find("\"collective_counts\":{\"Broadcast\":0,\"Reduce\":0,\"AllGather\":0,"
                        "\"ReduceScatter\":0,\"AllReduce\":7}"),
              std::string::npos)
        << json;
}

} // namespace
