/*
 * Property: the passes of a validation use every link of the ring once, and every link of both
 * trees in either direction; both ends of a transfer know it, and no rank has two transfers in a
 * slot; a ring takes 2 or 3 slots. Method: the plans of all ranks of views of 1 to 40 ranks on 1 to
 * 5 hosts in mixed order are laid over each other, and compared with the exchanges of the
 * algorithms.
 */
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

extern "C" {
#include "algo/parts.h"
}

namespace
{

using Link = std::pair<int, int>;

struct View {
    std::vector<int> host;
    std::vector<uint64_t> peer;
    ft_view view = {};
    View(int nranks, int nhosts) : host((size_t)nranks), peer((size_t)nranks)
    {
        for (int r = 0; r < nranks; r++)
            host[(size_t)r] = r % nhosts;
        std::iota(peer.begin(), peer.end(), 100u);
        view.nranks = nranks;
        view.nhosts = nhosts;
        view.host = host.data();
        view.peer = peer.data();
    }
};

/* The links that an AllReduce with this algorithm uses, on all lanes. */
std::set<Link> links_of(View &v, const ft_algo *algo)
{
    std::set<Link> links;
    ft_tuning tuning;
    ft_tuning_default(&tuning);
    tuning.chunk_bytes = 64;
    tuning.chunks = 4;
    for (v.view.rank = 0; v.view.rank < v.view.nranks; v.view.rank++) {
        ft_coll coll = {FT_ALLREDUCE, FT_FLOAT32, FT_SUM, 0, 100000};
        ft_plan plan;
        EXPECT_EQ(ft_algo_plan(algo, &v.view, &coll, &tuning, &plan), FT_OK);
        for (int lane = 0; lane < plan.nlanes; lane++)
            for (uint64_t i = 0; i < plan.nsteps && i < 400; i++) {
                ft_step step;
                ft_plan_step(&plan, lane, i, &step);
                for (int k = 0; k < step.nsend && step.send_bytes; k++)
                    links.insert({v.view.rank, step.send_to[k]});
                for (int k = 0; k < step.nfwd && step.len_bytes; k++)
                    links.insert({v.view.rank, step.fwd_to[k]});
            }
    }
    return links;
}

/* The links that the passes use. */
std::set<Link> measured(View &v, unsigned passes, int *nslots)
{
    std::map<int, std::set<Link>> sent, received; /* by slot */
    std::set<Link> all;
    for (v.view.rank = 0; v.view.rank < v.view.nranks; v.view.rank++) {
        ft_transfer out[FT_TRANSFERS];
        int n = ft_passes_plan(&v.view, passes, out, nslots), last = -1;
        EXPECT_LE(n, FT_TRANSFERS);
        for (int i = 0; i < n; i++) {
            EXPECT_GT(out[i].slot, last) << "rank " << v.view.rank << " has two in a slot";
            EXPECT_LT(out[i].slot, *nslots);
            last = out[i].slot;
            int me = v.view.rank, peer = out[i].peer;
            (out[i].sends ? sent : received)[last].insert(out[i].sends ? Link{me, peer}
                                                                       : Link{peer, me});
            if (out[i].sends)
                all.insert({me, peer});
        }
    }
    EXPECT_EQ(sent, received) << v.view.nranks << " ranks: the ends do not agree";
    return all;
}

TEST(Passes, UseEveryLinkAlone)
{
    for (int nhosts = 1; nhosts <= 5; nhosts++)
        for (int n = std::max(2, nhosts); n <= 40; n++) {
            View v(n, nhosts);
            int nslots = 0;
            EXPECT_EQ(measured(v, FT_PASSES_RING, &nslots), links_of(v, &ft_algo_ring))
                << n << " ranks on " << nhosts;
            EXPECT_EQ(nslots, n % 2 ? 3 : 2) << n << " ranks";
            EXPECT_EQ(measured(v, FT_PASSES_TREE, &nslots), links_of(v, &ft_algo_tree))
                << n << " ranks on " << nhosts;
            EXPECT_EQ(nslots, 16) << n << " ranks";
            measured(v, FT_PASSES_RING | FT_PASSES_TREE, &nslots);
        }
}

TEST(Passes, OneRankHasNoLinks)
{
    View v(1, 1);
    ft_transfer out[FT_TRANSFERS];
    int nslots = 7;
    EXPECT_EQ(ft_passes_plan(&v.view, FT_PASSES_RING | FT_PASSES_TREE, out, &nslots), 0);
    EXPECT_EQ(nslots, 0);
}

} // namespace
