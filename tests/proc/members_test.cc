/*
 * Property: ftccld is a coordinator of managed groups: its members get the same views as from one
 * in a process of theirs; when it is killed and started again nothing that runs is disturbed; what
 * it shows is so; and members that make no sense cost others nothing. Method: a real ftccld;
 * clients in threads, and in processes that are stopped and killed; connections made by hand.
 */
#include <cinttypes>

#include "tests/proc/members.h"

namespace
{

using talk::Bytes;
using talk::Message;
using talk::number;
using talk::operator+;

// The coordinator's process and its key.
struct Place {
    Folder folder;
    std::string key = folder.file("key", kSecret);
    std::unique_ptr<Daemon> daemon;
    Place()
    {
        start("127.0.0.1:0");
    }
    void start(const std::string &listen)
    {
        daemon = std::make_unique<Daemon>("ftccld", Words{"--listen", listen, "--key-file", key});
    }
    void kill() const
    {
        daemon->child->signal(SIGKILL);
        daemon->child->wait(20);
    }
    void restart() // at the same place
    {
        const std::string address = daemon->address;
        kill();
        start(address);
        EXPECT_EQ(daemon->address, address);
    }
    const std::string &address() const
    {
        return daemon->address;
    }
    long memory_kib() const
    {
        std::ifstream file("/proc/" + std::to_string(daemon->child->pid()) + "/status");
        for (std::string word; file >> word;)
            if (word == "VmRSS:" && file >> word)
                return std::stol(word);
        return -1;
    }
    long descriptors() const
    {
        const fs::directory_iterator list("/proc/" + std::to_string(daemon->child->pid()) + "/fd");
        return std::distance(begin(list), end(list));
    }
};

TEST(Members, GetViewsAndThePagesSaySo)
{
    Place place;
    Members members = replicas(place.address(), 3, 2);
    Member standby(place.address(), role_of("job", "", 0, 0));
    EXPECT_EQ(standby.accepted(), FT_OK) << standby.why();
    place.daemon->until("\"replicas\":3,\"members\":6,\"standbys\":1,\"connections\":7,");
    place.daemon->until("\"name\":\"job\",\"view\":null,\"alive\":3,\"ready\":0,");
    const std::vector<View> got = views(members, 5);
    expect_one_view(got, 3);
    for (size_t i = 0; i < got.size(); i++) {
        EXPECT_EQ(got[i].rank, got[i - i % 2].rank) << "ranks of a replica have one place";
        EXPECT_EQ(got[i].local_size, 2);
    }
    char term[24];
    snprintf(term, sizeof term, "%016" PRIx64, got[0].term);
    const std::string epoch = std::to_string(got[0].epoch);
    place.daemon->until("\"view\":\\{\"term\":\"" + std::string(term) + "\",\"epoch\":" + epoch +
                        ",\"step\":5,\"replicas\":3,\"age_s\":[0-9.]+\\},\"alive\":3,\"ready\":0,"
                        "\"min_members\":1,\"window_ms\":60000,\"waits\":null,");
    // Two of three are ready: it waits for the third, and says so.
    std::vector<std::future<View>> asked;
    for (size_t i = 0; i < 5; i++)
        asked.push_back(members[i]->ask(6, 60));
    const std::string json = place.daemon->until("\"ready\":2,\"min_members\":1");
    EXPECT_TRUE(std::regex_search(
        json, std::regex("\"waits\":\"2 of 3 replicas that are alive are ready; [^\"]*rank 1 of "
                         "replica 2 has not asked")))
        << json;
    EXPECT_TRUE(
        std::regex_search(json, std::regex("\"name\":\"2\",\"place\":[0-2],\"state\":\"partly "
                                           "ready\",\"ranks\":2,\"alive\":2,\"ready\":1,")))
        << json;
    EXPECT_TRUE(
        std::regex_search(json, std::regex("\"standbys\":\\[\\{\"engine\":\"[0-9a-f]{16}\"")))
        << json;
    for (const char *line :
         {"ftccl_members 6\n", "ftccl_members_connections 7\n", "ftccl_members_views_total 1\n",
          "ftccl_members_replicas_alive\\{group=\"job\"\\} 3\n",
          "ftccl_members_replicas_ready\\{group=\"job\"\\} 2\n",
          "ftccl_members_standbys\\{group=\"job\"\\} 1\n",
          "ftccl_members_view_replicas\\{group=\"job\"\\} 3\n",
          "ftccl_members_view_step\\{group=\"job\"\\} 5\n"})
        place.daemon->until(line, "/metrics");
    place.daemon->until("ftccl_members_view_epoch\\{group=\"job\"\\} " + epoch + "\n", "/metrics");
    place.daemon->until("<p class=\"warn\">the next view: 2 of 3 replicas that are alive",
                        "/status");
    const View last = members[5]->view(6, 60);
    EXPECT_EQ(last.status, FT_OK) << last.why;
    EXPECT_TRUE(last.same) << "nothing has changed, so it is the same view";
    for (auto &each : asked)
        EXPECT_EQ(each.get().epoch, got[0].epoch);
    place.daemon->until("\"epoch\":" + epoch + ",\"step\":6,");
    members[0]->close(true);
    place.daemon->until("\"state\":\"incomplete\",\"ranks\":2,\"alive\":1,");
}

TEST(Members, GroupsKnowNothingOfEachOther)
{
    Place place;
    Members red = replicas(place.address(), 2, 1, {}, "red");
    Members blue = replicas(place.address(), 3, 1, {}, "blue");
    const std::vector<View> one = views(red, 1), other = views(blue, 9);
    expect_one_view(one, 2);
    expect_one_view(other, 3);
    blue.pop_back();
    place.daemon->until("\"name\":\"blue\",\"view\":[^}]*\"step\":9,[^}]*\\},\"alive\":2,");
    for (const View &view : views(red, 2))
        EXPECT_TRUE(view.same);
    expect_one_view(views(blue, 9, true), 2);
}

// Members register again with what they hold; the next view comes after it. Again and again.
TEST(Members, NothingIsLostWhenItIsKilledAndStartedAgain)
{
    Place place;
    Members members = replicas(place.address(), 4, 2);
    std::vector<View> before = views(members, 1);
    expect_one_view(before, 4);
    for (uint64_t round = 2; round < 5; round++) {
        place.restart();
        place.daemon->until("\"members\":8,");
        place.daemon->until("\"view\":\\{\"term\":\"[0-9a-f]{16}\",\"epoch\":" +
                            std::to_string(before[0].epoch) + ",");
        std::vector<View> after = views(members, round);
        expect_one_view(after, 4);
        EXPECT_GT(after[0].epoch, before[0].epoch);
        EXPECT_NE(after[0].term, before[0].term);
        for (size_t i = 0; i < after.size(); i++) {
            EXPECT_EQ(after[i].rank, before[i].rank) << "a place is kept";
            EXPECT_EQ(after[i].step, round);
        }
        before = after;
    }
    for (auto &member : members)
        EXPECT_EQ(member->broken(), std::vector<std::string>());
}

// Those who have asked when it is killed get their view from its successor.
TEST(Members, AsksOutliveTheCoordinator)
{
    Place place;
    Members members = replicas(place.address(), 3);
    expect_one_view(views(members, 1), 3);
    std::vector<std::future<View>> asked;
    asked.push_back(members[0]->ask(2, 120));
    asked.push_back(members[1]->ask(2, 120));
    place.daemon->until("\"ready\":2,");
    place.restart();
    place.daemon->until("\"ready\":2,");
    asked.push_back(members[2]->ask(2, 120));
    std::vector<View> got;
    for (auto &each : asked)
        got.push_back(each.get());
    expect_one_view(got, 3);
}

struct Processes {
    std::vector<std::unique_ptr<proc::Child>> child;
    Processes(const std::string &addresses, int n, bool is_quick)
    {
        for (int i = 0; i < n; i++) {
            Words words = {addresses, "job", std::to_string(i), "0", "1"};
            if (is_quick)
                words.push_back("quick");
            child.push_back(std::make_unique<proc::Child>("member", words));
        }
        for (auto &each : child)
            EXPECT_EQ(each->line(60), "accepted");
    }
};

TEST(Members, AKilledProcessIsMissedAtOnce)
{
    Place place;
    Processes processes(place.address(), 1, false);
    Members members;
    for (int i = 1; i < 4; i++)
        members.push_back(
            std::make_unique<Member>(place.address(), role_of("job", std::to_string(i), 0, 1)));
    for (auto &member : members)
        EXPECT_EQ(member->accepted(), FT_OK);
    processes.child[0]->tell("1");
    expect_one_view(views(members, 1), 4);
    EXPECT_EQ(processes.child[0]->line(60).substr(0, 2), "0 ");
    processes.child[0]->signal(SIGKILL);
    place.daemon->until("\"name\":\"0\",\"place\":[0-3],\"state\":\"incomplete\"");
    expect_one_view(views(members, 1), 3);
    for (auto &member : members)
        EXPECT_EQ(member->broken(), std::vector<std::string>()) << "they find out by their links";
}

// One that is stopped does not answer, and the others would wait for it.
TEST(Members, ASilentProcessEndsTheViewOfTheOthers)
{
    Place place;
    Processes processes(place.address(), 1, true);
    Member member(place.address(), role_of("job", "1", 0, 1));
    EXPECT_EQ(member.accepted(), FT_OK);
    processes.child[0]->tell("1");
    EXPECT_EQ(member.view(1).nranks, 2);
    EXPECT_NE(processes.child[0]->line(60), "");
    processes.child[0]->signal(SIGSTOP);
    for (double end = proc::now() + 60; member.broken().empty() && proc::now() < end;)
        usleep(10000);
    ASSERT_EQ(member.broken().size(), 1u);
    EXPECT_NE(member.broken()[0].find("rank 0 of replica 0 has been silent for"), std::string::npos)
        << member.broken()[0];
    EXPECT_EQ(member.view(1).nranks, 1);
    processes.child[0]->signal(SIGCONT);
    place.daemon->until("\"alive\":2,");
    processes.child[0]->tell("1");
    place.daemon->until("\"alive\":2,\"ready\":1,");
    EXPECT_EQ(member.view(2).nranks, 2);
}

// Whether the kernel probes the connection that this process has to a port (see proc_net_tcp.txt).
bool is_probed(const std::string &port)
{
    char hex[16];
    snprintf(hex, sizeof hex, ":%04X", static_cast<unsigned>(std::stoi(port)));
    std::ifstream table("/proc/net/tcp");
    for (std::string line; std::getline(table, line);) {
        std::stringstream words(line);
        std::string number, local, remote, state, queues, timer;
        words >> number >> local >> remote >> state >> queues >> timer;
        if (state == "01" && local.size() > 5 && local.substr(local.size() - 5) == hex &&
            timer.substr(0, 2) == "02")
            return true;
    }
    return false;
}

// Otherwise the kernel ended it in half a minute, which would be the death of its members.
TEST(Members, OnlySuspectMsTellsWhoIsSilent)
{
    Place place;
    const std::string port = place.address().substr(place.address().rfind(':') + 1);
    Stranger nobody(place.address()); // it has proved the key, and is no member
    for (double end = proc::now() + 20; !is_probed(port) && proc::now() < end;)
        usleep(10000);
    ASSERT_TRUE(is_probed(port)) << "so this can be seen";
    Options patient;
    patient.suspect_ms = 600000;
    nobody.tell(FT_MEMBERS_JOIN, join_of(role_of("job", "0", 0, 1), 0, some_endpoint(), patient));
    place.daemon->until("\"replicas\":1,\"members\":1,");
    EXPECT_FALSE(is_probed(port));
}

// A coordinator that was stopped itself does not take its members for silent.
TEST(Members, AStopOfTheCoordinatorDisturbsNobody)
{
    Place place;
    Members members = replicas(place.address(), 2);
    const std::vector<View> before = views(members, 1);
    expect_a_stop_costs_no_member(*place.daemon);
    for (auto &member : members)
        EXPECT_EQ(member->broken(), std::vector<std::string>());
    EXPECT_EQ(views(members, 2)[0].epoch, before[0].epoch);
}

TEST(Members, AStandbyGetsTheRoleOfTheDead)
{
    Place place;
    Members members = replicas(place.address(), 2, 2);
    Member standby(place.address(), role_of("job", "", 0, 0));
    EXPECT_EQ(standby.accepted(), FT_OK);
    expect_one_view(views(members, 1), 2);
    members[3]->close(false);
    members.pop_back();
    std::future<View> asked = standby.ask(0, 60);
    std::vector<View> got = views(members, 1, true);
    got.push_back(asked.get());
    expect_one_view(got, 2);
    EXPECT_EQ(standby.role().replica, std::string("1"));
    EXPECT_EQ(standby.role().local_rank, 1u);
    EXPECT_TRUE(got.back().behind);
    place.daemon->until("\"standbys\":0,");
}

/* ---- members that make no sense -------------------------------------------------------------- */

TEST(Members, WhoMakesNoSenseIsLeftAlone)
{
    Place place;
    Members members = replicas(place.address(), 2);
    const std::vector<View> before = views(members, 1);
    const ft_endpoint endpoint = some_endpoint();
    const Bytes good = join_of(role_of("job", "9", 0, 1), 0, endpoint);
    std::vector<std::pair<unsigned, Bytes>> wrong = {
        {FT_MEMBERS_JOIN, {}},
        {FT_MEMBERS_JOIN, Bytes(good.begin(), good.end() - 1)},
        {FT_MEMBERS_JOIN, good + Bytes(1)},
        {FT_MEMBERS_JOIN, join_of(role_of("job", "9", 0, 1), FT_SLOTS_MOST, endpoint)},
        {FT_MEMBERS_ASK, number(0, 4)},
        {FT_MEMBERS_ASK, Bytes(4000, 255)},
        {FT_MEMBERS_BEAT, number(0, 4)},
        {FT_MEMBERS_QUIET_BEAT, number(0, 4)},
        {FT_MEMBERS_LEAVE, number(0, 3)},
        {FT_MEMBERS_GONE, number(0, 5)},
        {FT_MEMBERS_VIEW, number(0, 4)},
        {FT_MEMBERS_ALIVE, {}},
        {0, {}},
        {65535, Bytes(100)},
    };
    for (const auto &[type, bytes] : wrong) {
        Stranger bad(place.address());
        bad.tell(type, bytes);
        EXPECT_TRUE(bad.is_closed()) << type << " of " << bytes.size();
    }
    Stranger longer(place.address());
    longer.say_raw(number(UINT32_MAX, 4) + number(3, 2) + number(FT_MEMBERS_JOIN, 2));
    EXPECT_TRUE(longer.is_closed());
    Stranger other(place.address(), "another key, long enough\n");
    EXPECT_NE(other.status, FT_OK);
    Options options;
    options.secret = "another key, long enough\n";
    Member stranger(place.address(), role_of("job", "8", 0, 1), options);
    EXPECT_EQ(stranger.accepted(), FT_AUTH) << stranger.why();
    // What is not there can end as often as it likes.
    Stranger odd(place.address());
    odd.tell(FT_MEMBERS_LEAVE, number(4000, 4));
    odd.tell(FT_MEMBERS_GONE, number(5, 4));
    odd.tell(FT_MEMBERS_GONE, number(UINT32_MAX, 4) + number(9, 4));
    odd.tell(FT_MEMBERS_BEAT, {});
    Message answer;
    EXPECT_TRUE(odd.next(FT_MEMBERS_ALIVE, answer));
    place.daemon->until("\"replicas\":2,\"members\":2,\"standbys\":0,\"connections\":3,");
    for (const View &view : views(members, 2))
        EXPECT_EQ(view.epoch, before[0].epoch);
}

TEST(Members, WhoIsRefusedHearsWhy)
{
    Place place;
    Members members = replicas(place.address(), 1, 2);
    Member taken(place.address(), role_of("job", "0", 1, 2));
    EXPECT_NE(taken.accepted(5), FT_OK);
    EXPECT_NE(taken.why().find("rank 1 of replica 0 is held by another process, last heard"),
              std::string::npos)
        << taken.why();
    Member larger(place.address(), role_of("job", "1", 0, 3));
    EXPECT_EQ(larger.accepted(), FT_USAGE) << larger.why();
    Member ugly(place.address(), role_of("job", "a\nb", 0, 2));
    EXPECT_EQ(ugly.accepted(), FT_USAGE) << ugly.why();
    EXPECT_NE(ugly.why().find("control characters"), std::string::npos) << ugly.why();
    place.daemon->until("\"replicas\":1,\"members\":2,");
}

// A connection with all the slots there are, one that does not read, many that come and go.
TEST(Members, FloodsAreBounded)
{
    Place place;
    Members members = replicas(place.address(), 2);
    const std::vector<View> before = views(members, 1);
    const long memory = place.memory_kib(), descriptors = place.descriptors();
    {
        Stranger many(place.address());
        Options patient; // it sends no heartbeats
        patient.suspect_ms = 600000;
        fcntl(many.fd, F_SETFL, 0);
        for (uint32_t slot = 0; slot < FT_SLOTS_MOST; slot++)
            many.tell(FT_MEMBERS_JOIN, join_of(role_of("flood", std::to_string(slot), 0, 1), slot,
                                               some_endpoint(), patient));
        place.daemon->until("\"members\":" + std::to_string(2 + FT_SLOTS_MOST) + ",",
                            "/status?format=json", 180); // with a sanitizer on a busy machine
        Stranger deaf(place.address());
        fcntl(deaf.fd, F_SETFL, 0);
        const timeval limit = {2, 0};
        setsockopt(deaf.fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        const Bytes beat = number(0, 4) + number(3, 2) + number(FT_MEMBERS_BEAT, 2);
        Bytes thousand;
        for (int i = 0; i < 1000; i++)
            thousand = thousand + beat;
        bool reads = true;
        for (int i = 0; i < 4000 && reads; i++) {
            reads = deaf.say_raw(thousand);
            if (i % 1000 == 0) {
                for (const View &view : views(members, 2))
                    EXPECT_EQ(view.epoch, before[0].epoch);
            }
        }
        EXPECT_LT(place.memory_kib() - memory, 200 << 10);
    }
    place.daemon->until("\"replicas\":2,\"members\":2,\"standbys\":0,\"connections\":2,");
    for (int i = 0; i < 50; i++)
        Stranger(place.address())
            .tell(FT_MEMBERS_JOIN, join_of(role_of("job", "7", 0, 1), 0, some_endpoint()));
    place.daemon->until("\"members\":2,\"standbys\":0,\"connections\":2,");
    for (double end = proc::now() + 20; place.descriptors() > descriptors && proc::now() < end;)
        usleep(10000);
    EXPECT_LE(place.descriptors(), descriptors);
    for (const View &view : views(members, 3))
        EXPECT_EQ(view.epoch, before[0].epoch);
    EXPECT_EQ(place.daemon->stop(), 0);
}

// A job that starts: all come in the same moment. Nobody is sent away, and there is one view.
TEST(Members, ACrowd)
{
    constexpr int kMembers = 400;
    Place place;
    Members members;
    Options options;
    options.min_members = kMembers;
    for (int i = 0; i < kMembers; i++)
        members.push_back(std::make_unique<Member>(
            place.address(), role_of("job", std::to_string(i), 0, 1), options));
    for (auto &member : members)
        EXPECT_EQ(member->accepted(120), FT_OK) << member->why();
    expect_one_view(views(members, 1), kMembers);
    expect_one_view(views(members, 2), kMembers);
    place.daemon->until("\"connections\":" + std::to_string(kMembers) + ",\"views\":1,");
}

// A browser sees groups whose names are hostile as text.
TEST(Members, ThePageInABrowser)
{
    Place place;
    const std::string hostile = "<b onclick=\"x\">&amp;'\\";
    Members members = replicas(place.address(), 3, 2, {}, hostile);
    Member standby(place.address(), role_of(hostile, "", 0, 0));
    EXPECT_EQ(standby.accepted(), FT_OK);
    expect_one_view(views(members, 77), 3);
    standby.close(true);
    members[3]->close(false);
    std::future<View> asked = members[0]->ask(78, 120);
    place.daemon->until("\"name\":\"0\",\"place\":[0-2],\"state\":\"partly ready\"");
    int status;
    const char *top = getenv("top_srcdir");
    const std::string said = proc::output_of("python3 " + std::string(top ? top : "..") +
                                                 "/tests/proc/members_page.py " + place.address() +
                                                 " '<b onclick=\"x\">&amp;'\"'\"'\\'",
                                             &status);
    std::vector<std::future<View>> rest;
    for (size_t i : {1, 4, 5})
        rest.push_back(members[i]->ask(78, 60));
    EXPECT_EQ(asked.get().nranks, 2);
    if (status == 77 || status == 127)
        GTEST_SKIP() << "there is no " << (status == 77 ? "Chromium" : "python3");
    EXPECT_EQ(status, 0) << said;
}

} // namespace
