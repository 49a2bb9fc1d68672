// Property: the symbolic checker refuses every mistake that it is made to find. Method: algorithms
// with one mistake each are planned and run. A correct algorithm shows that nothing else is wrong
// with them.
#include <cstring>
#include <gtest/gtest.h>

#include "checker.h"

namespace
{

enum Mistake {
    kNone,
    kOtherOrder,
    kTwice,
    kUnfinished,
    kFinalTwice,
    kEarlyFinal,
    kDeadlock,
    kUnreceived,
    kLengths,
    kTooLong,
    kWritesIn,
    kUnwritten,
    kOutside,
    kUnscaled,
    kLanesShare,
    kNeverMeets,
};
Mistake mistake;

bool fits(const struct ft_view *, const struct ft_coll *, const struct ft_tuning *)
{
    return true;
}
double cost(const struct ft_view *, const struct ft_coll *, const struct ft_tuning *)
{
    return 1;
}
int plan(struct ft_plan *p, const struct ft_tuning *)
{
    p->nlanes = mistake == kLanesShare ? 2 : 1;
    p->nsteps = 3;
    p->tmp_bytes = 64;
    return 0;
}

// AllReduce of 3 ranks over rank 0: it receives from both, finishes and forwards to both.
void root_step(uint64_t i, struct ft_step *s)
{
    if (i == 2 && mistake == kUnreceived) {
        s->send = {FT_BUF_OUT, 0};
        s->send_bytes = 4;
        s->nsend = 1;
        s->send_to[0] = 1;
    }
    if (i != 0)
        return;
    s->nrecv = s->nfwd = 2;
    s->recv_from[0] = s->fwd_to[0] = 1;
    s->recv_from[1] = s->fwd_to[1] = 2;
    s->len_bytes = mistake == kLengths ? 8 : 4;
    s->src = {FT_BUF_IN, 0};
    if (mistake == kUnscaled)
        s->src = {FT_BUF_OUT, 0};
    if (mistake == kUnwritten)
        s->src = {FT_BUF_TMP, 0};
    if (mistake == kOutside)
        s->src = {FT_BUF_IN, 60};
    s->dst = {mistake == kWritesIn ? FT_BUF_IN : FT_BUF_OUT, 0};
    s->flags = mistake == kUnfinished ? 0 : FT_STEP_FINAL;
    if (mistake == kEarlyFinal)
        s->nrecv = 1;
    if (mistake == kTwice)
        s->recv_from[1] = 1;
}

void leaf_step(int rank, uint64_t i, struct ft_step *s)
{
    if (i == (mistake == kDeadlock ? 1 : 0) || (i == 2 && mistake == kTwice && rank == 1)) {
        s->send = {FT_BUF_IN, 0};
        s->send_bytes = mistake == kTooLong ? 40 : 4;
        s->nsend = 1;
    } else if (i == (mistake == kDeadlock ? 0 : 1)) {
        s->nrecv = 1;
        s->len_bytes = 4;
        s->dst = {FT_BUF_OUT, 0};
        if (mistake == kFinalTwice)
            s->flags = FT_STEP_FINAL;
    }
}

void step(const struct ft_plan *p, int lane, uint64_t i, struct ft_step *s)
{
    int rank = p->view->rank;
    if (mistake == kLanesShare && lane == 1) {
        if (i > 0)
            return;
        s->src = {FT_BUF_IN, 0};
        s->dst = {FT_BUF_OUT, 0};
        s->len_bytes = 4;
    } else if (mistake ==
               kOtherOrder) { // everybody to everybody: each rank starts its sum with itself
        if (i > 0)
            return;
        s->send = s->src = {FT_BUF_IN, 0};
        s->dst = {FT_BUF_OUT, 0};
        s->send_bytes = s->len_bytes = 4;
        s->nsend = s->nrecv = 2;
        for (int k = 0; k < 2; k++)
            s->send_to[k] = s->recv_from[k] = (rank + k + 1) % 3;
        s->flags = FT_STEP_FINAL;
    } else if (mistake == kNeverMeets) { // all wait for the next one to have used their messages
                                         // before they take any
        if (i == 0) {
            s->send = {FT_BUF_IN, 0};
            s->send_bytes = 4;
            s->nsend = 1;
            s->send_to[0] = (rank + 1) % 3;
            s->flags = FT_STEP_MEETS;
        } else if (i == 1) {
            s->nrecv = 1;
            s->recv_from[0] = (rank + 2) % 3;
            s->len_bytes = 4;
            s->dst = {FT_BUF_OUT, 0};
        }
    } else if (rank == 0) {
        root_step(i, s);
    } else {
        leaf_step(rank, i, s);
    }
}

std::string run(Mistake which, InPlace in_place = InPlace::none)
{
    static const struct ft_algo algo = {"wrong", ~0u, fits, cost, plan, step};
    mistake = which;
    size_t count = which == kLengths ? 2 : 1;
    return check({&algo,
                  {FT_ALLREDUCE, FT_FLOAT32, FT_SUM, 0, count},
                  32,
                  1,
                  {0, 0, 0},
                  in_place,
                  1,
                  true,
                  1});
}

TEST(Checker, AcceptsWhatIsRight)
{
    EXPECT_EQ(run(kNone), "");
}

TEST(Checker, NamesEachMistake)
{
    struct {
        Mistake which;
        const char *said;
    } table[] = {
        {kOtherOrder, "another order"},
        {kUnfinished, "is not finished"},
        {kFinalTwice, "final twice"},
        {kEarlyFinal, "before all contributions"},
        {kDeadlock, "deadlock"},
        {kUnreceived, "never received"},
        {kLengths, "lengths of send and receive differ"},
        {kTooLong, "longer than a chunk"},
        {kWritesIn, "writes IN"},
        {kUnwritten, "never written"},
        {kOutside, "outside of the buffer"},
        {kLanesShare, "two lanes write"},
        {kTwice, "receives twice"},
        {kNeverMeets, "deadlock"},
    };
    for (auto &row : table) {
        std::string said = run(row.which);
        EXPECT_NE(said.find(row.said), std::string::npos)
            << "mistake " << row.which << ": " << said;
    }
    EXPECT_NE(run(kUnscaled, InPlace::all).find("without its scale"), std::string::npos);
}

// The seam's remark on windows: a ring that forwards needs either a hand or a second message in
// each link.
TEST(Checker, RingNeedsAHandOrASecondMessage)
{
    const struct ft_algo *ring = nullptr;
    for (int i = 0; ft_algos[i]; i++)
        if (!strcmp(ft_algos[i]->name, "ring"))
            ring = ft_algos[i];
    Case c = {ring,
              {FT_ALLREDUCE, FT_FLOAT32, FT_SUM, 0, 8},
              64,
              1,
              {0, 0, 0, 0},
              InPlace::none,
              1,
              false,
              1};
    EXPECT_NE(check(c).find("deadlock"), std::string::npos);
    c.hand = true;
    EXPECT_EQ(check(c), "");
    c.hand = false;
    c.window = 2;
    EXPECT_EQ(check(c), "");
}

} // namespace
