/*
 * Property: the agent of a host carries the members of managed groups there over one connection to
 * the coordinator: they get the same views as without it; who ends or is silent is missed as soon;
 * members survive the end of the agent, and that of the coordinator; and members or coordinators
 * that make no sense cost others nothing. Method: a real ftccl-agent and a real ftccld; clients in
 * threads, and in processes that are stopped and killed; connections made by hand on both sides.
 */
#include <set>

#include "tests/proc/members.h"

namespace
{

using talk::Bytes;
using talk::Message;
using talk::number;
using talk::operator+;

struct Place {
    Folder folder;
    std::string key = folder.file("key", kSecret);
    std::unique_ptr<Daemon> coordinator, agent;
    Place()
    {
        coordinator = start("ftccld", "127.0.0.1:0", {});
        start_agent(coordinator->address);
    }
    explicit Place(const std::string &coordinators)
    {
        start_agent(coordinators);
    }
    std::unique_ptr<Daemon> start(const std::string &program, const std::string &listen,
                                  const Words &more) const
    {
        Words words = {"--listen", listen, "--key-file", key};
        words.insert(words.end(), more.begin(), more.end());
        return std::make_unique<Daemon>(program, words);
    }
    void start_agent(const std::string &coordinators, const std::string &listen = "127.0.0.1:0")
    {
        agent = start("ftccl-agent", listen,
                      {"--coordinator", coordinators, "--dir", folder.path, "--stacks", "0"});
    }
    static void kill(const Daemon &daemon)
    {
        daemon.child->signal(SIGKILL);
        daemon.child->wait(20);
    }
    const std::string &address() const
    {
        return agent->address;
    }
};

void expect_undisturbed(const Members &members)
{
    for (auto &member : members)
        EXPECT_EQ(member->broken(), std::vector<std::string>());
}

TEST(MemberAgent, OneConnectionCarriesAHost)
{
    Place place;
    Members members = replicas(place.address(), 4, 2, quick());
    place.coordinator->until("\"replicas\":4,\"members\":8,\"standbys\":0,\"connections\":1,");
    place.agent->until("\"members\":\\{\"coordinator\":\"" + place.coordinator->address +
                       "\",\"connected\":true,\"trouble\":\"\",\"connections\":8,\"members\":\\[");
    std::vector<View> before = views(members, 1);
    expect_one_view(before, 4);
    for (uint64_t step = 2; step < 20; step++)
        for (const View &view : views(members, step)) {
            EXPECT_EQ(view.epoch, before[0].epoch);
            EXPECT_EQ(view.step, step);
        }
    place.agent->until("ftccl_agent_members 8\n", "/metrics");
    place.agent->until("ftccl_agent_has_coordinator 1\n", "/metrics");
    place.agent->until("<td>job<td>3<td>1 of 2<td>registered<td>", "/status");
    // It does nothing for longer than the coordinator would wait: its agent's heartbeats count.
    usleep(kQuickMs * 2000);
    expect_undisturbed(members);
    place.coordinator->until("\"members\":8,");
    members[7]->close(true);
    place.coordinator->until("\"members\":7,");
    place.agent->until("\"connections\":7,");
    members.clear();
    place.coordinator->until("\"members\":0,\"standbys\":0,\"connections\":0,");
    place.agent->until("\"connected\":false,\"trouble\":\"\",\"connections\":0,");
}

TEST(MemberAgent, GroupsAndStandbysThroughOneAgent)
{
    Place place;
    Members red = replicas(place.address(), 2, 2, {}, "red");
    Members blue = replicas(place.address(), 3, 1, {}, "blue");
    Member standby(place.address(), role_of("red", "", 0, 0));
    EXPECT_EQ(standby.accepted(), FT_OK);
    expect_one_view(views(red, 1), 2);
    expect_one_view(views(blue, 5), 3);
    red[0]->close(false);
    red.erase(red.begin());
    std::future<View> asked = standby.ask(0, 60);
    std::vector<View> got = views(red, 1, true);
    got.push_back(asked.get());
    expect_one_view(got, 2);
    EXPECT_EQ(standby.role().replica, std::string("0"));
    place.agent->until("\"group\":\"red\",\"replica\":\"0\",\"local_rank\":0,\"registered\":true");
    for (const View &view : views(blue, 6))
        EXPECT_TRUE(view.same);
}

TEST(MemberAgent, WhoIsKilledIsMissedAtOnce)
{
    Place place;
    proc::Child child("member", Words{place.address(), "job", "9", "0", "1"});
    EXPECT_EQ(child.line(60), "accepted");
    Members members = replicas(place.address(), 7);
    child.tell("1");
    expect_one_view(views(members, 1), 8);
    EXPECT_NE(child.line(60), "");
    place.coordinator->until("\"members\":8,\"standbys\":0,\"connections\":1,");
    child.signal(SIGKILL);
    place.coordinator->until("\"members\":7,\"standbys\":0,\"connections\":1,");
    expect_one_view(views(members, 1), 7);
    expect_undisturbed(members);
}

// The agent goes on to say that all others are alive.
TEST(MemberAgent, WhoIsSilentIsTold)
{
    Place place;
    proc::Child child("member", Words{place.address(), "job", "9", "0", "1", "quick"});
    EXPECT_EQ(child.line(60), "accepted");
    Members members = replicas(place.address(), 3);
    child.tell("1");
    expect_one_view(views(members, 1), 4);
    EXPECT_NE(child.line(60), "");
    child.signal(SIGSTOP);
    for (auto &member : members) {
        for (double end = proc::now() + 60; member->broken().empty() && proc::now() < end;)
            usleep(10000);
        ASSERT_EQ(member->broken().size(), 1u);
        EXPECT_TRUE(std::regex_search(
            member->broken()[0],
            std::regex("rank 0 of replica 9 has been silent for [1-9][0-9]*\\.[0-9] s")))
            << member->broken()[0];
    }
    expect_one_view(views(members, 1), 3);
    child.signal(SIGCONT);
    place.coordinator->until("\"members\":4,");
    child.tell("1");
    place.coordinator->until("\"alive\":4,\"ready\":1,");
    expect_one_view(views(members, 2), 4);
}

// Members come back to an agent that was started again, with what they hold.
TEST(MemberAgent, TheEndOfTheAgentDisturbsNobody)
{
    Place place;
    Members members = replicas(place.address(), 4, 2);
    const std::vector<View> before = views(members, 1);
    expect_one_view(before, 4);
    for (uint64_t round = 2; round < 4; round++) {
        const std::string address = place.address();
        Place::kill(*place.agent);
        place.coordinator->until("\"members\":0,\"standbys\":0,\"connections\":0,");
        place.start_agent(place.coordinator->address, address);
        place.coordinator->until("\"members\":8,\"standbys\":0,\"connections\":1,");
        const std::vector<View> after = views(members, round);
        expect_one_view(after, 4);
        for (size_t i = 0; i < after.size(); i++)
            EXPECT_EQ(after[i].rank, before[i].rank);
    }
    expect_undisturbed(members);
}

TEST(MemberAgent, TheEndOfTheCoordinatorDisturbsNobody)
{
    Place place;
    Members members = replicas(place.address(), 4, 2);
    std::vector<View> before = views(members, 1);
    expect_one_view(before, 4);
    for (uint64_t round = 2; round < 4; round++) {
        const std::string address = place.coordinator->address;
        Place::kill(*place.coordinator);
        place.coordinator = place.start("ftccld", address, {});
        place.coordinator->until("\"members\":8,\"standbys\":0,\"connections\":1,");
        const std::vector<View> after = views(members, round);
        expect_one_view(after, 4);
        EXPECT_GT(after[0].epoch, before[0].epoch);
        for (size_t i = 0; i < after.size(); i++)
            EXPECT_EQ(after[i].rank, before[i].rank);
        before = after;
    }
    expect_undisturbed(members);
}

// One that does not answer is left as one that has ended.
TEST(MemberAgent, TheNextCoordinatorIsTried)
{
    Place place("127.0.0.1:9,127.0.0.1:9");
    Place::kill(*place.agent);
    auto first = place.start("ftccld", "127.0.0.1:0", {});
    auto second = place.start("ftccld", "127.0.0.1:0", {});
    place.start_agent("127.0.0.1:9," + first->address + "," + second->address);
    Members members = replicas(place.address(), 4, 2, quick());
    const std::vector<View> before = views(members, 1);
    expect_one_view(before, 4);
    first->until("\"members\":8,\"standbys\":0,\"connections\":1,");
    first->child->signal(SIGSTOP);
    second->until("\"members\":8,\"standbys\":0,\"connections\":1,");
    const std::vector<View> after = views(members, 2);
    expect_one_view(after, 4);
    EXPECT_GT(after[0].epoch, before[0].epoch);
    expect_undisturbed(members);
    first->child->signal(SIGCONT);
    first->until("\"members\":0,");
    Place::kill(*second);
    first->until("\"members\":8,\"standbys\":0,\"connections\":1,");
    expect_one_view(views(members, 3), 4);
    expect_undisturbed(members);
}

// Those who know another way take it; the others hear what is wrong, and wait.
TEST(MemberAgent, WithoutACoordinator)
{
    Place place("127.0.0.1:9");
    auto other = place.start("ftccld", "127.0.0.1:0", {});
    Member waits(place.address(), role_of("job", "0", 0, 1));
    Member knows(place.address() + "," + other->address, role_of("job", "1", 0, 1), quick());
    EXPECT_EQ(knows.accepted(60), FT_OK) << knows.why();
    for (int i = 0; i < 20 && waits.why().find("agent") == std::string::npos; i++)
        EXPECT_EQ(waits.accepted(0.3), FT_TIMEOUT); // it may be between two tries
    EXPECT_NE(waits.why().find("the agent of its host has no coordinator: the coordinator "
                               "127.0.0.1:9: "),
              std::string::npos)
        << waits.why();
    EXPECT_NE(waits.why().find("Connection refused"), std::string::npos) << waits.why();
    place.agent->until("\"connected\":false,\"trouble\":\"the coordinator 127.0.0.1:9: ");
    place.agent->until("ftccl_agent_has_coordinator 0\n", "/metrics");
}

// A name that is never found costs a coordinator, and a late one its time. The next one serves.
TEST(MemberAgent, AHangingResolverHoldsUpNothing)
{
    Place place;
    std::map<std::string, std::string> env;
    env["LD_PRELOAD"] = fs::absolute("tests/proc/.libs/libresolver_standin.so");
    env["ASAN_OPTIONS"] = "verify_asan_link_order=0";
    const std::string &real = place.coordinator->address, port = real.substr(real.rfind(':'));
    const auto agent = [&](const std::string &coordinators) {
        return Daemon("ftccl-agent",
                      {"--coordinator", coordinators, "--key-file", place.key, "--dir",
                       place.folder.path, "--stacks", "0"},
                      env);
    };
    const Daemon first = agent("hangs.invalid:1," + real), late = agent("late.invalid" + port),
                 only = agent("hangs.invalid:1");
    Member one(first.address, role_of("job", "0", 0, 1));
    Member two(late.address, role_of("job", "1", 0, 1));
    Member waits(only.address, role_of("job", "2", 0, 1));
    EXPECT_EQ(one.accepted(60), FT_OK) << one.why();
    EXPECT_EQ(two.accepted(60), FT_OK) << two.why();
    only.until("the coordinator hangs.invalid:1: its name has not been found yet");
    EXPECT_EQ(waits.accepted(0.1), FT_TIMEOUT);
}

// Members wait at the agent until its coordinator is there.
TEST(MemberAgent, ACoordinatorThatComesLater)
{
    Place place;
    const std::string address = place.coordinator->address;
    Place::kill(*place.coordinator);
    Members members;
    for (int i = 0; i < 3; i++)
        members.push_back(
            std::make_unique<Member>(place.address(), role_of("job", std::to_string(i), 0, 1)));
    place.agent->until("\"connected\":false,\"trouble\":\"the coordinator");
    place.coordinator = place.start("ftccld", address, {});
    for (auto &member : members)
        EXPECT_EQ(member->accepted(60), FT_OK) << member->why();
    expect_one_view(views(members, 1), 3);
}

// The coordinator has the patience of the most patient member with it.
TEST(MemberAgent, AStopOfTheAgentDisturbsNobody)
{
    Place place;
    Members members = replicas(place.address(), 2);
    const std::vector<View> before = views(members, 1);
    expect_a_stop_costs_no_member(*place.agent);
    expect_undisturbed(members);
    EXPECT_EQ(views(members, 2)[0].epoch, before[0].epoch);
}

// A real job, whose ranks have the secret from the daemons' file. One of them is killed, and then
// the coordinator.
TEST(MemberAgent, AJobTrainsThroughIt)
{
    if (!fs::exists("./examples/replicas"))
        GTEST_SKIP() << "examples/replicas was not built";
    Place place;
    int status = -1;
    std::future<std::string> job = std::async(std::launch::async, [&] {
        return proc::output_of("FTCCL_SECRET_FILE=" + place.key +
                                   " FTCCL_COORDINATOR=" + place.address() +
                                   " timeout 300 ./tools/ftccl-run -n 4 --restart --kill 1@1 "
                                   "examples/replicas --ranks 2 --steps 100 --pause 20 2>&1",
                               &status);
    });
    place.coordinator->until("\"connections\":1,.*\"name\":\"replicas\",\"view\":\\{[^}]*\"step\":"
                             "[1-9][0-9]",
                             "/status?format=json", 120);
    const std::string address = place.coordinator->address;
    Place::kill(*place.coordinator);
    place.coordinator = place.start("ftccld", address, {});
    const std::string said = job.get();
    EXPECT_EQ(status, 0) << said;
    std::map<std::string, std::set<std::string>> digests;
    const std::regex end("end [^ ]+ ([01]) steps 100 [^\n]*digest ([0-9a-f]+)");
    for (std::sregex_iterator at(said.begin(), said.end(), end), none; at != none; ++at)
        digests[(*at)[1]].insert((*at)[2]);
    EXPECT_EQ(digests["0"].size(), 1u) << said;
    EXPECT_EQ(digests["1"].size(), 1u) << said;
}

/* ---- what makes no sense --------------------------------------------------------------------- */

TEST(MemberAgent, MembersThatMakeNoSense)
{
    Place place;
    Members members = replicas(place.address(), 2);
    const std::vector<View> before = views(members, 1);
    const ft_endpoint endpoint = some_endpoint();
    const Bytes good = join_of(role_of("job", "9", 0, 1), 0, endpoint);
    const Bytes ask = number(0, 4) + number(1, 8) + number(1, 8) + number(1, 8) + number(0, 1) +
                      number(0, 4);
    const std::vector<std::pair<unsigned, Bytes>> wrong = {
        {FT_MEMBERS_JOIN, {}},
        {FT_MEMBERS_JOIN, Bytes(good.begin(), good.end() - 1)},
        {FT_MEMBERS_JOIN, join_of(role_of("job", "9", 0, 1), FT_SLOTS_MOST, endpoint)},
        {FT_MEMBERS_ASK, ask}, // it has not joined
        {FT_MEMBERS_ASK, {}},
        {FT_MEMBERS_BEAT, number(0, 4)},
        {FT_MEMBERS_QUIET_BEAT, number(0, 4)},
        {FT_MEMBERS_LEAVE, number(0, 3)},
        {FT_MEMBERS_GONE, number(0, 4)}, // members do not speak for others
        {FT_MEMBERS_GONE, number(1, 4) + number(9, 4)},
        {FT_MEMBERS_JOINED, number(0, 4)},
        {FT_MEMBERS_ALIVE, {}},
        {99, {}},
    };
    for (const auto &[type, bytes] : wrong) {
        Stranger bad(place.address());
        bad.tell(type, bytes);
        EXPECT_TRUE(bad.is_closed()) << type << " of " << bytes.size();
    }
    Stranger other(place.address(), "another key, long enough\n");
    EXPECT_NE(other.status, FT_OK);
    place.coordinator->until("\"members\":2,\"standbys\":0,\"connections\":1,");
    for (const View &view : views(members, 2))
        EXPECT_EQ(view.epoch, before[0].epoch);
}

uint32_t slot_of(const Message &m)
{
    const unsigned char *at = m.bytes.data();
    return get32(&at);
}

// A connection with members that is silent, though it is open; one whose slots are all there are.
TEST(MemberAgent, SlotsAreBoundedAndComeBack)
{
    Place place;
    Members members = replicas(place.address(), 2);
    const std::vector<View> before = views(members, 1);
    for (int round = 0; round < 2; round++) {
        Stranger many(place.address());
        Options options;
        options.suspect_ms = 60000;
        std::vector<Bytes> join;
        fcntl(many.fd, F_SETFL, 0);
        for (uint32_t slot = 0; slot < FT_SLOTS_MOST; slot++) {
            join.push_back(join_of(role_of("flood", std::to_string(slot), 0, 1), slot,
                                   some_endpoint(), options));
            many.tell(FT_MEMBERS_JOIN, join[slot]);
        }
        fcntl(many.fd, F_SETFL, O_NONBLOCK);
        // Slots that were left are free again a little later: who is refused asks again.
        size_t refusals = 0, joined = 0;
        Message m;
        for (double end = proc::now() + 60;
             (joined < FT_SLOTS_MOST - 2 || refusals < 2) && proc::now() < end;) {
            if (!many.hear(m)) {
                usleep(200);
                continue;
            }
            joined += m.type == FT_MEMBERS_JOINED;
            if (m.type == FT_MEMBERS_REFUSED && ++refusals % 2 == 0)
                usleep(1000);
            if (m.type == FT_MEMBERS_REFUSED)
                many.tell(FT_MEMBERS_JOIN, join[slot_of(m)]);
        }
        EXPECT_EQ(joined, size_t{FT_SLOTS_MOST - 2}) << "two slots have the members";
        EXPECT_GE(refusals, 2u);
        place.coordinator->until("\"members\":" + std::to_string(FT_SLOTS_MOST) + ",");
        for (const View &view : views(members, 2))
            EXPECT_EQ(view.epoch, before[0].epoch);
        many.end();
        place.coordinator->until("\"members\":2,");
    }
    Stranger silent(place.address());
    const Bytes join = join_of(role_of("quiet", "0", 0, 1), 5, some_endpoint(), quick());
    silent.tell(FT_MEMBERS_JOIN, join);
    Message joined;
    for (double end = proc::now() + 20; joined.type != FT_MEMBERS_JOINED && proc::now() < end;)
        if (silent.hear(joined) && joined.type == FT_MEMBERS_REFUSED)
            silent.tell(FT_MEMBERS_JOIN, join);
    ASSERT_EQ(joined.type, unsigned{FT_MEMBERS_JOINED});
    EXPECT_EQ(Bytes(joined.bytes.begin(), joined.bytes.begin() + 4), number(5, 4));
    EXPECT_TRUE(silent.is_closed());
    place.coordinator->until("\"members\":2,");
}

// The other end of the agent's way to its coordinator, made by hand.
struct FakeCoordinator {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    std::string address;
    talk::Talk talk;
    FakeCoordinator()
    {
        sockaddr_in at = {};
        socklen_t len = sizeof at;
        at.sin_family = AF_INET;
        inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
        EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr *>(&at), sizeof at), 0);
        EXPECT_EQ(listen(listener, 8), 0);
        EXPECT_EQ(getsockname(listener, reinterpret_cast<sockaddr *>(&at), &len), 0);
        address = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
    }
    ~FakeCoordinator()
    {
        close(listener);
    }
    void accept_agent()
    {
        pollfd ready = {listener, POLLIN, 0};
        ASSERT_EQ(poll(&ready, 1, 30000), 1);
        talk.ended = false;
        talk.start(accept(listener, nullptr, nullptr), false, Key().bytes);
        for (double end = proc::now() + 20; !talk.is_open() && proc::now() < end;)
            usleep(1000);
        ASSERT_TRUE(talk.is_open());
    }
    void tell(unsigned type, const Bytes &bytes) const
    {
        talk.say(type, bytes, FT_MEMBERS_SERVICE);
    }
    // Answers heartbeats until a message of that type comes.
    bool next(unsigned type, Message &out)
    {
        for (double end = proc::now() + 20; proc::now() < end; usleep(1000))
            while (talk.hear(out)) {
                if (out.type == FT_MEMBERS_BEAT)
                    tell(FT_MEMBERS_ALIVE, {});
                if (out.type == type)
                    return true;
            }
        return false;
    }
    bool is_left()
    {
        Message ignored;
        for (double end = proc::now() + 20; !talk.ended && proc::now() < end; usleep(1000))
            while (talk.hear(ignored)) {}
        return talk.ended;
    }
};

TEST(MemberAgent, SlotsArePassedOnAndOldAnswersAreNot)
{
    FakeCoordinator fake;
    Place place(fake.address);
    Stranger a(place.address()), b(place.address());
    const ft_role role = role_of("job", "0", 0, 1);
    a.tell(FT_MEMBERS_JOIN, join_of(role, 3, some_endpoint()));
    b.tell(FT_MEMBERS_JOIN, join_of(role, 3, some_endpoint()));
    fake.accept_agent();
    Message first, second, got;
    ASSERT_TRUE(fake.next(FT_MEMBERS_JOIN, first));
    ASSERT_TRUE(fake.next(FT_MEMBERS_JOIN, second));
    EXPECT_NE(slot_of(first), slot_of(second));
    for (const Message &m : {first, second}) {
        Bytes whose(join_of(role, 3, some_endpoint()));
        EXPECT_EQ(m.bytes.size(), whose.size());
        fake.tell(FT_MEMBERS_WAITS, number(slot_of(m), 4) + Bytes{'x'});
    }
    for (Stranger *each : {&a, &b}) {
        ASSERT_TRUE(each->next(FT_MEMBERS_WAITS, got));
        EXPECT_EQ(got.bytes, number(3, 4) + Bytes{'x'});
    }
    // It leaves, and another comes: what is said of the old slot reaches nobody.
    a.tell(FT_MEMBERS_LEAVE, number(3, 4));
    ASSERT_TRUE(fake.next(FT_MEMBERS_LEAVE, got));
    EXPECT_TRUE(slot_of(got) == slot_of(first) || slot_of(got) == slot_of(second));
    const uint32_t left = slot_of(got);
    a.tell(FT_MEMBERS_JOIN, join_of(role, 4, some_endpoint()));
    ASSERT_TRUE(fake.next(FT_MEMBERS_JOIN, got));
    EXPECT_NE(slot_of(got), left);
    fake.tell(FT_MEMBERS_WAITS, number(left, 4) + Bytes{'y'});
    fake.tell(FT_MEMBERS_WAITS, number(slot_of(got), 4) + Bytes{'z'});
    Message told;
    ASSERT_TRUE(a.next(FT_MEMBERS_WAITS, told));
    EXPECT_EQ(told.bytes, number(4, 4) + Bytes{'z'});
    b.end();
    ASSERT_TRUE(fake.next(FT_MEMBERS_GONE, got));
    EXPECT_EQ(got.bytes.size(), 4u) << "it has ended";
}

// With all slots in use: one that was left waits for an answer to a later heartbeat.
TEST(MemberAgent, ALeftSlotIsNotUsedAtOnce)
{
    FakeCoordinator fake;
    Place place(fake.address);
    Stranger many(place.address()), other(place.address());
    Options options;
    options.suspect_ms = 60000;
    const auto join = [&](uint32_t slot) {
        return join_of(role_of("job", "0", 0, 1), slot, some_endpoint(), options);
    };
    fcntl(many.fd, F_SETFL, 0);
    for (uint32_t slot = 1; slot < FT_SLOTS_MOST; slot++)
        many.tell(FT_MEMBERS_JOIN, join(slot));
    fcntl(many.fd, F_SETFL, O_NONBLOCK);
    other.tell(FT_MEMBERS_JOIN, join_of(role_of("job", "1", 0, 1), 0, some_endpoint(), quick()));
    fake.accept_agent();
    Message m;
    int beats = 0;
    const auto hear_until = [&](unsigned type, int times) {
        for (double end = proc::now() + 30; times > 0 && proc::now() < end; usleep(500)) {
            other.tell(FT_MEMBERS_BEAT, {}); // so that it is not taken for silent
            while (times > 0 && fake.talk.hear(m)) {
                beats += m.type == FT_MEMBERS_BEAT;
                times -= m.type == type;
            }
        }
        return times == 0;
    };
    ASSERT_TRUE(hear_until(FT_MEMBERS_JOIN, FT_SLOTS_MOST));
    many.tell(FT_MEMBERS_LEAVE, number(7, 4));
    ASSERT_TRUE(hear_until(FT_MEMBERS_LEAVE, 1));
    const uint32_t left = slot_of(m);
    for (; beats > 0; beats--)
        fake.tell(FT_MEMBERS_ALIVE, {});
    many.tell(FT_MEMBERS_JOIN, join(7));
    ASSERT_TRUE(many.next(FT_MEMBERS_REFUSED, m));
    ASSERT_TRUE(hear_until(FT_MEMBERS_BEAT, 1));
    for (; beats > 0; beats--)
        fake.tell(FT_MEMBERS_ALIVE, {});
    m.type = 0;
    for (double end = proc::now() + 30; m.type != FT_MEMBERS_JOIN && proc::now() < end;) {
        many.tell(FT_MEMBERS_JOIN, join(7)); // the agent may not have heard the answer yet
        usleep(1000);
        while (m.type != FT_MEMBERS_JOIN && fake.talk.hear(m)) {}
    }
    ASSERT_EQ(m.type, unsigned{FT_MEMBERS_JOIN});
    EXPECT_EQ(slot_of(m), left);
}

// What a coordinator by hand hears of heartbeats, while a member of the agent is not silent.
struct Beats {
    FakeCoordinator &fake;
    Stranger &local;
    Message m;
    int quiet = 0, asked = 0;
    template <class Over> bool count_until(const Over &over)
    {
        for (double end = proc::now() + 60; !over() && proc::now() < end; usleep(1000)) {
            local.tell(FT_MEMBERS_QUIET_BEAT, {});
            while (!over() && fake.talk.hear(m)) {
                quiet += m.type == FT_MEMBERS_QUIET_BEAT;
                asked += m.type == FT_MEMBERS_BEAT;
            }
            if (fake.talk.ended)
                return false;
        }
        return over();
    }
};

// Heartbeats ask for an answer when nothing has come for half the time; while nothing comes each
// one asks, and in the end the coordinator is left. Heartbeats are counted, five of which go into
// that time. An agent that gets no processor counts only a little of it.
TEST(MemberAgent, OnlyAfterSilenceHeartbeatsAskForAnswers)
{
    FakeCoordinator fake;
    Place place(fake.address);
    Stranger local(place.address());
    local.tell(FT_MEMBERS_JOIN, join_of(role_of("job", "0", 0, 1), 0, some_endpoint(), quick()));
    fake.accept_agent();
    Beats beats = {fake, local, {}};
    ASSERT_TRUE(beats.count_until([&] { return beats.asked > 0; }));
    EXPECT_EQ(beats.quiet, 0) << "the first one asks";
    for (int round = 0; round < 3; round++) {
        if (round == 1) // whatever it says is an answer
            fake.tell(FT_MEMBERS_WAITS, number(0, 4) + Bytes{'x'});
        else
            fake.tell(FT_MEMBERS_ALIVE, {});
        beats.quiet = 0; // those that ask may have been sent before the answer came
        ASSERT_TRUE(beats.count_until([&] { return beats.quiet > 0; }));
        beats.asked = 0;
        ASSERT_TRUE(beats.count_until([&] { return beats.asked > 0; }));
        EXPECT_GE(beats.quiet, 2) << "round " << round;
        EXPECT_LE(beats.quiet, 3) << "round " << round;
    }
    beats.quiet = 0;
    EXPECT_FALSE(beats.count_until([] { return false; }));
    EXPECT_TRUE(fake.talk.ended);
    EXPECT_EQ(beats.quiet, 0) << "it asks until it is answered";
    EXPECT_GE(beats.asked, 3) << "there was time for an answer";
    EXPECT_LE(beats.asked, 5) << "it is left in time";
    Message m;
    while (local.hear(m))
        EXPECT_NE(m.type, unsigned{FT_MEMBERS_ALIVE}) << "the member has not asked";
}

// The time shrinks below that for which nothing has come, since nobody has asked: then there is
// time for an answer, too.
TEST(MemberAgent, ACoordinatorThatWasNotAskedIsNotLeft)
{
    FakeCoordinator fake;
    Place place(fake.address);
    Options patient;
    patient.suspect_ms = 60000;
    Stranger local(place.address()), leaves(place.address());
    leaves.tell(FT_MEMBERS_JOIN, join_of(role_of("job", "1", 0, 1), 0, some_endpoint(), patient));
    local.tell(FT_MEMBERS_JOIN, join_of(role_of("job", "0", 0, 1), 0, some_endpoint(), quick()));
    fake.accept_agent();
    Message m;
    ASSERT_TRUE(fake.next(FT_MEMBERS_JOIN, m)); // the first heartbeat is answered
    Beats beats = {fake, local, {}};
    ASSERT_TRUE(beats.count_until([&] { return beats.quiet >= 8; }));
    EXPECT_EQ(beats.asked, 0);
    leaves.end();
    EXPECT_FALSE(beats.count_until([] { return false; }));
    EXPECT_TRUE(fake.talk.ended);
    EXPECT_GE(beats.asked, 3);
}

TEST(MemberAgent, CoordinatorsThatMakeNoSense)
{
    FakeCoordinator fake;
    Place place(fake.address);
    const std::vector<std::pair<unsigned, Bytes>> wrong = {
        {FT_MEMBERS_VIEW, {}},
        {FT_MEMBERS_VIEW, number(FT_SLOTS_MOST, 4)},
        {FT_MEMBERS_ALIVE, number(0, 4)},
        {FT_MEMBERS_JOIN, number(0, 4)},
        {FT_MEMBERS_BEAT, {}},
        {77, number(0, 4)},
    };
    for (const auto &[type, bytes] : wrong) {
        Stranger member(place.address());
        member.tell(FT_MEMBERS_JOIN, join_of(role_of("job", "0", 0, 1), 0, some_endpoint()));
        fake.accept_agent();
        Message join;
        ASSERT_TRUE(fake.next(FT_MEMBERS_JOIN, join));
        fake.tell(FT_MEMBERS_WAITS, number((slot_of(join) + 9) % FT_SLOTS_MOST, 4)); // nobody's
        fake.tell(type, bytes);
        EXPECT_TRUE(fake.is_left()) << type << " of " << bytes.size();
        EXPECT_TRUE(member.is_closed()) << "it registers again";
    }
    // One that says nothing is left, too.
    Stranger member(place.address());
    member.tell(FT_MEMBERS_JOIN, join_of(role_of("job", "0", 0, 1), 0, some_endpoint(), quick()));
    fake.accept_agent();
    EXPECT_TRUE(fake.is_left());
}

TEST(MemberAgent, OptionsThatMakeNoSense)
{
    Folder folder;
    const std::string key = folder.file("key", kSecret);
    auto says = [&](const std::string &program, const std::string &words) {
        return proc::output_of("./tools/" + program + " --listen 127.0.0.1:0 " + words +
                               " 2>&1; echo status $?");
    };
    EXPECT_EQ(says("ftccl-agent", "--coordinator 127.0.0.1:1"),
              "ftccl-agent: --coordinator needs --key-file\nstatus 2\n");
    EXPECT_EQ(says("ftccld", "--coordinator 127.0.0.1:1"),
              "ftccld: there is no option --coordinator\nstatus 2\n");
    std::string nine;
    for (int i = 0; i < 9; i++)
        nine += "127.0.0.1:" + std::to_string(i + 1) + ",";
    EXPECT_NE(says("ftccl-agent", "--key-file " + key + " --coordinator " + nine)
                  .find("--coordinator: more than 8 addresses"),
              std::string::npos);
    EXPECT_NE(says("ftccl-agent", "--key-file " + key + " --coordinator ,").find("is no address"),
              std::string::npos);
}

} // namespace
