// Property: a peer that lies about an immediate, a turn, a slot, a length or a return costs its
// link alone: it goes DOWN with FT_PROTOCOL, and the log names the engine and what is wrong.
// Method: of a schedule of each seed, one write is changed in one way.
#include "tests/rma/pair.h"

namespace
{

// One write as it is about to be stored: of a message, that begins with its descriptor, or a line
// of returns. A descriptor has the length in its word 5 and the turn in word 15; a line has the
// turn in word 0, the number of entries in byte 4, and the entries, of 16 bits, from byte 8 on.
struct Write {
    uint32_t &immediate;
    std::string &bytes;
    uint32_t held; // the immediate of a message that nobody has taken
    uint32_t &word(size_t i) const
    {
        return reinterpret_cast<uint32_t *>(&bytes[0])[i];
    }
    uint16_t &entry(size_t i) const
    {
        return reinterpret_cast<uint16_t *>(&bytes[8])[i];
    }
};

struct Lie {
    const char *name;
    bool message; // or a line
    std::function<void(const Write &)> tell;
    const char *sentence;
};

const Lie lies[] = {
    {"AnImmediateWithAPlaceOutOfRange", true, [](auto &w) { w.immediate |= 0x7fff0000; },
     "a peer's immediate names place 32767 of"},
    {"AnImmediateOfAnotherTurn", true, [](auto &w) { w.immediate ^= 1; },
     "does not fit its message"},
    {"AnImmediateWithAPlaceInUse", true, [](auto &w) { w.immediate = w.held; },
     "which it does not have"},
    {"ATurnOutOfRange", true, [](auto &w) { w.word(15) += 0x10000; },
     "a peer's write has the number"},
    {"ALengthOutOfRange", true, [](auto &w) { w.word(5) = 0xffffffff; },
     "a peer's message of 4294967295 bytes does not fit its place"},
    {"ALengthIntoTheNextPlace", true, [](auto &w) { w.word(5) = 100; },
     "a peer's message of 100 bytes does not fit its place"},
    {"ALineOutOfRange", false, [](auto &w) { w.immediate |= 0x7fff0000; },
     "a peer's immediate names line 32767 of"},
    {"ALineOfAnotherTurn", false, [](auto &w) { w.word(0) ^= 1; }, "does not fit its line"},
    {"ATurnOfALineOutOfRange", false, [](auto &w) { w.word(0) += 0x10000; },
     "a peer's write has the number"},
    {"TooManyReturns", false, [](auto &w) { w.bytes[4] = 13; },
     "a peer's line of returns has 13 and"},
    {"AReturnOutOfRange", false,
     [](auto &w) {
         w.bytes[4] = 1;
         w.entry(0) = 0x7fff;
     },
     "a peer gave back place 32767, where no message was sent"},
    {"AReturnOfAPlaceThatIsFree", false,
     [](auto &w) {
         w.bytes[4] = 2;
         w.entry(1) = w.entry(0);
     },
     "where no message was sent"},
};

class RmaLie : public testing::TestWithParam<Lie>
{
  protected:
    const std::string debug = getenv("FTCCL_DEBUG");
    static void log_at(const char *level)
    {
        setenv("FTCCL_DEBUG", level, 1);
        ft_params_reload();
        ft_log_reset();
    }
    void SetUp() override
    {
        log_at("WARN");
    }
    void TearDown() override
    {
        log_at(debug.c_str());
    }
};
INSTANTIATE_TEST_SUITE_P(Each, RmaLie, testing::ValuesIn(lies),
                         [](const auto &lie) { return lie.param.name; });

TEST_P(RmaLie, CostsItsLinkAndIsNamed)
{
    const Lie &lie = GetParam();
    each_seed({20, 30}, [&](FakeNet &net, Pair &pair) {
        bool told = false;
        uint32_t held = 0;
        pair.release_all();
        ASSERT_TRUE(pair.drain());
        net.spoil = [&](FakeWay *from, uint32_t *immediate, std::string *bytes, size_t *) {
            const bool message = from->base.user == pair.ab;
            const bool small = bytes->size() == 64 && (*immediate >> 16) < 256;
            if (told || message != lie.message || bytes->size() < 64 || (message && !small))
                return;
            if (message && !held) { // the first one stays true, and nobody takes it
                held = *immediate;
                return;
            }
            told = true;
            lie.tell({*immediate, *bytes, held});
        };
        testing::internal::CaptureStderr();
        const bool down = pair.turn_until([&] {
            ft_msg msg;
            (void)(pair.is_down() ? 0 : pair.send(1, "1234567"));
            if (!lie.message && !pair.is_down() && pair.ba->ops->recv(pair.ba, 1, 0, &msg) == FT_OK)
                pair.ba->ops->release(pair.ba, &msg);
            return pair.ab->state == FT_LINK_DOWN && pair.ba->state == FT_LINK_DOWN;
        });
        const std::string log = testing::internal::GetCapturedStderr();
        EXPECT_TRUE(told && down) << "nobody noticed; told " << told << "\n" << log;
        const ft_link *who = lie.message ? pair.ba : pair.ab;
        EXPECT_EQ(who->reason, FT_PROTOCOL) << log;
        EXPECT_NE(log.find(lie.message ? "link from engine 0000000000000001 ends"
                                       : "link to engine 0000000000000002 ends"),
                  std::string::npos)
            << log;
        EXPECT_NE(log.find(lie.sentence), std::string::npos) << log;
    });
}

} // namespace
