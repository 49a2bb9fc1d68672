// Property: one side publishes and asks whether the other sleeps; the other says that it sleeps and
// looks once more. At least one of them sees what the other did. The same holds for what is given
// back. Method: two threads do this at the same time again and again, with a pause between them
// that grows and shrinks.
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
