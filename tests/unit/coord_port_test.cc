// Property: whatever others do to the port of a coordinator, its members get their views, and what
// it keeps for them is bounded. Method: connections by hand that are silent, send rubbish, read
// nothing or end at any time; too few descriptors.
#include <sys/resource.h>

#include <atomic>
#include <random>

#include "tests/unit/managed_helpers.h"

using namespace managed;
using talk::operator+;

namespace
{

class CoordPortTest : public Clean
{
};

// Three members get a view.
void expect_service(const Coordinator &coordinator, int round = 0)
{
    Options options;
    options.at = {coordinator.at};
    options.min_members = 3;
    Members members;
    for (int i = 0; i < 3; i++) {
        options.engine = 1000 + static_cast<uint64_t>(10 * round + i);
        options.role = role_of("r" + std::to_string(i));
        members.push_back(std::make_unique<Member>(options));
    }
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, views_of(members), 3));
    for (const auto &member : members)
        member->close(true);
}

// ---- where it listens ---------------------------------------------------------------------------

TEST_F(CoordPortTest, WhereItListens)
{
    for (const char *where : {"127.0.0.1:0", "localhost:0"}) {
        Coordinator coordinator(where);
        EXPECT_TRUE(address_of(coordinator.at).family == AF_INET6 ||
                    coordinator.at.rfind("127.0.0.1:", 0) == 0)
            << coordinator.at;
        ASSERT_NO_FATAL_FAILURE(expect_service(coordinator));
    }
    ft_net_address own[FT_NET_ADDRESSES];
    ASSERT_LT(0, ft_net_addresses(own, FT_NET_ADDRESSES)) << ft_fail_text();
    for (const char *where : {":0", "*:0"}) {
        Coordinator coordinator(where);
        ft_net_address at = address_of(coordinator.at);
        EXPECT_EQ(own[0].family, at.family);
        EXPECT_EQ(0, memcmp(own[0].ip, at.ip, sizeof at.ip)) << coordinator.at;
        ASSERT_NO_FATAL_FAILURE(expect_service(coordinator));
    }
    Coordinator everywhere("0.0.0.0:0");
    EXPECT_EQ(AF_INET, address_of(everywhere.at).family);
    EXPECT_NE(0u, everywhere.at.rfind("0.0.0.0", 0)) << everywhere.at;
    ASSERT_NO_FATAL_FAILURE(expect_service(everywhere));
}

TEST_F(CoordPortTest, WhereItCannotListen)
{
    Coordinator coordinator;
    ft_coordinator *another = nullptr;
    char text[FT_NET_TEXT_BYTES];
    Key key = key_of();
    const char *wrong[] = {nullptr,
                           "",
                           "host",
                           "127.0.0.1",
                           "127.0.0.1:",
                           "127.0.0.1:x",
                           "127.0.0.1:70000",
                           "127.0.0.1:-1",
                           "127.0.0.1:1 ",
                           "no.such.host.:0"};
    for (const char *where : wrong) {
        EXPECT_EQ(FT_INVAL, ft_coordinator_start(where, key.data(), text, &another))
            << (where ? where : "NULL");
        EXPECT_NE('\0', ft_fail_text()[0]);
    }
    EXPECT_NE(FT_OK, ft_coordinator_start(coordinator.at.c_str(), key.data(), text, &another));
    EXPECT_NE(nullptr, strstr(ft_fail_text(), coordinator.at.c_str())) << ft_fail_text();
    EXPECT_EQ(nullptr, another);
    ft_coordinator_stop(nullptr);
}

// ---- strangers
// ------------------------------------------------------------------------------------

TEST_F(CoordPortTest, HundredsSayNothing)
{
    Coordinator coordinator;
    std::vector<int> silent;
    for (int i = 0; i < 600; i++)
        silent.push_back(Hand::connect_only(coordinator.at));
    int most = 0;
    std::atomic<bool> done(false);
    std::thread watcher([&] {
        while (!done) {
            most = std::max(most, ft_fd_count());
            poll(nullptr, 0, 5);
        }
    });
    ASSERT_NO_FATAL_FAILURE(expect_service(coordinator));
    done = true;
    watcher.join();
    EXPECT_LT(most, 300) << "of 600 silent ones it keeps 256";
    for (int fd : silent)
        close(fd);
}

TEST_F(CoordPortTest, StrangersTalkRubbish)
{
    const char *given = getenv("FT_TEST_SEED");
    unsigned seed = given ? static_cast<unsigned>(atoi(given)) : std::random_device()();
    SCOPED_TRACE("repeat with FT_TEST_SEED=" + std::to_string(seed));
    std::mt19937 random(seed);
    Coordinator coordinator;
    for (int i = 0; i < 100; i++) {
        int fd = Hand::connect_only(coordinator.at);
        talk::Bytes bytes(random() % 2000);
        for (unsigned char &byte : bytes)
            byte = static_cast<unsigned char>(random());
        (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (bytes.size() >= 16) {
            pollfd ended = {fd, POLLIN, 0};
            EXPECT_EQ(1, poll(&ended, 1, 60000)) << "it is not ended";
        }
        close(fd);
    }
    Hand wrong;
    EXPECT_FALSE(wrong.connect_to(coordinator.at, key_of(2)));
    EXPECT_EQ(FT_AUTH, wrong.status);
    ASSERT_NO_FATAL_FAILURE(expect_service(coordinator));
}

// ---- members that break the rules ---------------------------------------------------------------

TEST_F(CoordPortTest, MembersTalkRubbish)
{
    const char *given = getenv("FT_TEST_SEED");
    unsigned seed = given ? static_cast<unsigned>(atoi(given)) : std::random_device()();
    SCOPED_TRACE("repeat with FT_TEST_SEED=" + std::to_string(seed));
    std::mt19937 random(seed);
    Coordinator coordinator;
    const talk::Bytes header = talk::number(FT_MEMBERS_SERVICE, 2) +
                               talk::number(FT_MEMBERS_JOIN, 2);
    const talk::Bytes wrong[] = {
        talk::number(FT_MEMBERS_REQUEST_MOST + 1, 4) + header,
        talk::number(UINT32_MAX, 4) + header,
        talk::number(0, 4) + talk::number(2, 2) + talk::number(1, 2),
        talk::number(0, 4) + talk::number(FT_MEMBERS_SERVICE, 2) + talk::number(99, 2),
        talk::number(0, 4) + talk::number(FT_MEMBERS_SERVICE, 2) + talk::number(FT_MEMBERS_VIEW, 2),
        talk::number(0, 4) + header,
        talk::number(3, 4) + header + talk::Bytes(3),
        talk::number(1000, 4) + header + talk::Bytes(1000),
    };
    for (size_t i = 0; i < std::size(wrong); i++) {
        SCOPED_TRACE(i);
        Hand hand;
        ASSERT_TRUE(hand.connect_to(coordinator.at));
        hand.join(role_of("bad"), 77);
        EXPECT_TRUE(hand.say_raw(wrong[i]));
        EXPECT_TRUE(hand.await_end());
    }
    for (int i = 0; i < 30; i++) {
        Hand hand;
        ASSERT_TRUE(hand.connect_to(coordinator.at));
        hand.join(role_of("bad"), 77);
        talk::Bytes bytes(1 + random() % 300);
        for (unsigned char &byte : bytes)
            byte = static_cast<unsigned char>(random());
        hand.tell(1 + random() % 5, bytes);
        if (random() % 2)
            hand.say_raw(talk::number(500, 4) + header + bytes); // and the rest never comes
    }
    ASSERT_NO_FATAL_FAILURE(expect_service(coordinator));
}

// Each byte comes alone, and many messages come in one piece.
TEST_F(CoordPortTest, AnyPieces)
{
    Coordinator coordinator;
    Hand hand;
    talk::Message message;
    ASSERT_TRUE(hand.connect_to(coordinator.at));
    auto framed = [](unsigned type, const talk::Bytes &bytes) {
        return talk::number(bytes.size(), 4) + talk::number(FT_MEMBERS_SERVICE, 2) +
               talk::number(type, 2) + bytes;
    };
    for (unsigned char byte : framed(FT_MEMBERS_JOIN, Hand::join_of(role_of("a"), 5)))
        ASSERT_TRUE(hand.say_raw({byte}));
    ASSERT_TRUE(hand.hear_type(FT_MEMBERS_JOINED, message));
    talk::Bytes beats;
    for (int i = 0; i < 3000; i++) // quiet ones are not answered
        beats = beats + framed(FT_MEMBERS_QUIET_BEAT, {}) + framed(FT_MEMBERS_BEAT, {});
    beats.resize(beats.size() - 3);
    ASSERT_TRUE(hand.say_raw(beats));
    for (int i = 0; i < 2999; i++)
        ASSERT_TRUE(hand.hear_type(FT_MEMBERS_ALIVE, message));
    const unsigned char *at = message.bytes.data();
    EXPECT_EQ(0u, message.bytes.size()) << static_cast<const void *>(at);
    talk::Bytes rest = framed(FT_MEMBERS_BEAT, {});
    rest.erase(rest.begin(), rest.begin() + 5);
    ASSERT_TRUE(hand.say_raw(rest));
    ASSERT_TRUE(hand.hear_type(FT_MEMBERS_ALIVE, message));
}

// It asks for answers and never reads one. It is ended, and the others do not notice.
TEST_F(CoordPortTest, OneNeverReads)
{
    Coordinator coordinator;
    Hand hand;
    ASSERT_TRUE(hand.connect_to(coordinator.at));
    hand.join(role_of("deaf"), 77, 60000);
    talk::Bytes beats;
    for (int i = 0; i < 4096; i++)
        beats = beats + talk::number(0, 4) + talk::number(FT_MEMBERS_SERVICE, 2) +
                talk::number(FT_MEMBERS_BEAT, 2);
    std::atomic<bool> ended(false);
    std::thread flood([&] {
        size_t from = 0;
        ended = await([&] {
            for (;;) {
                ssize_t n = send(hand.fd, beats.data() + from, beats.size() - from,
                                 MSG_NOSIGNAL | MSG_DONTWAIT);
                if (n < 0)
                    return errno != EAGAIN;
                from = (from + static_cast<size_t>(n)) % beats.size();
            }
        });
    });
    // it never asks, so the others go on without it when it has gone
    ASSERT_NO_FATAL_FAILURE(expect_service(coordinator));
    flood.join();
    EXPECT_TRUE(ended);
    ASSERT_NO_FATAL_FAILURE(expect_service(coordinator, 1));
}

// One connection carries the members of a host.
TEST_F(CoordPortTest, ManyMembersOnOneConnection)
{
    Coordinator coordinator;
    constexpr unsigned many = 150;
    Hand hand;
    talk::Message message;
    ASSERT_TRUE(hand.connect_to(coordinator.at));
    Number last;
    for (unsigned slot = 0; slot < many; slot++) {
        ASSERT_TRUE(hand.tell(FT_MEMBERS_JOIN,
                              Hand::join_of(role_of("r" + std::to_string(slot)), 1 + slot, slot)));
        ASSERT_TRUE(hand.hear_type(FT_MEMBERS_JOINED, message));
        const unsigned char *at = message.bytes.data() + 4;
        last.first = get64(&at);
        last.second = get64(&at);
    }
    for (unsigned slot = 0; slot < many; slot++)
        ASSERT_TRUE(hand.tell(FT_MEMBERS_ASK, Hand::ask_of(last, slot)));
    std::vector<bool> told(many);
    for (unsigned i = 0; i < many; i++) {
        ft_members_view view;
        ASSERT_TRUE(hand.hear_type(FT_MEMBERS_VIEW, message));
        ASSERT_EQ(FT_OK, ft_members_view_decode(message.bytes.data(), message.bytes.size(), &view));
        EXPECT_EQ(many, view.nranks);
        EXPECT_EQ(many, view.nadded);
        EXPECT_FALSE(told[view.slot]);
        told[view.slot] = true;
    }
    // an agent tells that a process has ended; the rest ask again
    ASSERT_TRUE(hand.tell(FT_MEMBERS_GONE, talk::number(7, 4)));
    for (unsigned slot = 0; slot < many; slot++)
        if (slot != 7) {
            ASSERT_TRUE(
                hand.tell(FT_MEMBERS_ASK, Hand::ask_of({last.first, last.second + 1}, slot)));
        }
    for (unsigned i = 1; i < many; i++) {
        ft_members_view view;
        ASSERT_TRUE(hand.hear_type(FT_MEMBERS_VIEW, message));
        ASSERT_EQ(FT_OK, ft_members_view_decode(message.bytes.data(), message.bytes.size(), &view));
        EXPECT_EQ(many - 1, view.nranks);
        EXPECT_EQ(1u, view.ngone);
        EXPECT_EQ(0u, view.nadded);
    }
}

// Connections end in every stage while members come and go.
TEST_F(CoordPortTest, ConnectionsEndAtAnyTime)
{
    Coordinator coordinator;
    std::atomic<bool> done(false);
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 3; caller++)
        callers.emplace_back([&, caller] {
            for (int i = 0; !done; i++) {
                Hand hand;
                if (i % 4 == 0)
                    close(Hand::connect_only(coordinator.at));
                else if (hand.connect_to(coordinator.at) && i % 4 > 1)
                    hand.join(role_of("bad" + std::to_string(caller)), 90 + i % 4);
                if (i % 4 == 3)
                    hand.tell(FT_MEMBERS_ASK, Hand::ask_of({1, 1}));
            }
        });
    for (int round = 0; round < 60; round++)
        ASSERT_NO_FATAL_FAILURE(expect_service(coordinator, round));
    done = true;
    for (std::thread &caller : callers)
        caller.join();
    ASSERT_NO_FATAL_FAILURE(expect_service(coordinator, 99));
}

// ---- descriptors
// ----------------------------------------------------------------------------------

TEST_F(CoordPortTest, NoDescriptorIsFree)
{
    Coordinator coordinator;
    Options options;
    options.at = {coordinator.at};
    Member before(options);
    ASSERT_EQ(FT_OK, before.accepted().status);
    options.engine = 2;
    options.role = role_of("b");
    std::vector<int> taken;
    rlimit limit, small;
    getrlimit(RLIMIT_NOFILE, &limit);
    small = limit;
    small.rlim_cur = std::min<rlim_t>(limit.rlim_cur, 200);
    setrlimit(RLIMIT_NOFILE, &small);
    for (int fd; (fd = dup(0)) >= 0;)
        taken.push_back(fd);
    ft_client *client = nullptr;
    ft_client_config config = {};
    ft_endpoint endpoint = endpoint_of(9);
    config.env = ft_env_real();
    config.naddresses = 1;
    config.role = role_of("c");
    config.endpoint = &endpoint;
    EXPECT_EQ(FT_NOFILE, ft_client_open(&config, &client)) << ft_fail_text();
    ft_coordinator *another = nullptr;
    char text[FT_NET_TEXT_BYTES];
    EXPECT_EQ(FT_NOFILE, ft_coordinator_start("127.0.0.1:0", options.key.data(), text, &another));
    for (int i = 0; i < 2; i++) {
        close(taken.back());
        taken.pop_back();
    }
    // a member opens the two, so the coordinator has none
    Member after(options);
    EXPECT_EQ(FT_TIMEOUT, after.accepted(0.5).status);
    EXPECT_EQ(FT_OK, before.view().status) << "those who are there are served";
    for (int fd : taken)
        close(fd);
    setrlimit(RLIMIT_NOFILE, &limit);
    EXPECT_EQ(FT_OK, after.accepted().status);
}

TEST_F(CoordPortTest, ItStopsAtAnyTime)
{
    for (int round = 0; round < 10; round++) {
        Coordinator coordinator;
        Options options;
        options.at = {coordinator.at};
        Members members = members_of(options, round);
        for (const auto &member : members) {
            EXPECT_EQ(FT_OK, round % 2 ? member->accepted().status : FT_OK);
        }
        coordinator.stop();
    }
}

} // namespace
