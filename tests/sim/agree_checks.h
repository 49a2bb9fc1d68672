// Checks of decisions that the tests of agreements share.
#ifndef FT_AGREE_CHECKS_H
#define FT_AGREE_CHECKS_H

#include <gtest/gtest.h>

#include "sim/agree_world.h"

namespace agree
{

inline std::vector<int> ranks_of(const std::vector<unsigned char> &set)
{
    std::vector<int> out;
    for (size_t r = 0; r < set.size(); r++)
        if (set[r])
            out.push_back(int(r));
    return out;
}

using Ranks = std::vector<int>;

// The one decision of these ranks, all of which must have one.
inline const Decided &decision(const World &w, const Ranks &ranks)
{
    static const Decided none;
    EXPECT_EQ(w.fault_text(), "");
    for (int r : ranks) {
        EXPECT_TRUE(w.of(r)) << "rank " << r << " has not decided";
        if (w.of(r) && w.of(ranks[0])) {
            EXPECT_EQ(w.of(r)->text(), w.of(ranks[0])->text()) << "rank " << r;
        }
    }
    return w.of(ranks[0]) ? *w.of(ranks[0]) : none;
}

} // namespace agree

#endif
