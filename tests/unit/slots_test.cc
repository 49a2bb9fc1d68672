// Property: of one side that publishes and asks whether the other sleeps, and the other, that says
// it sleeps and looks once more, at least one sees what the other did; so it is for what is given
// back. Method: two threads do so at the same time again and again, a spin apart that grows and
// shrinks.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/unit/slots_race.h"

static int rounds()
{
    return getenv("FT_TEST_SLOWDOWN") ? 20000 : 200000;
}

TEST(Slots, WhoPublishesOrWhoSleepsSeesTheOther)
{
    EXPECT_EQ(slots_race(false, rounds()), 0) << "of " << rounds();
}

TEST(Slots, WhoGivesBackOrWhoSleepsSeesTheOther)
{
    EXPECT_EQ(slots_race(true, rounds()), 0) << "of " << rounds();
}
