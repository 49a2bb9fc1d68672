/*
 * Properties: of several ftccld with one etcd, one serves members. When it is killed, stopped or
 * cut off from etcd, another one does within two leases, members find it, what they have goes on,
 * and there are never two. Without etcd nobody leads for longer than a lease. Method: real ftccld
 * and etcd, killed, stopped and started again; members through the client that ranks have.
 */
#include "tests/proc/etcd_process.h"
#include "tests/proc/members.h"

namespace
{

constexpr int kLeaseSeconds = 2;

struct Cluster {
    Folder folder;
    std::string key = folder.file("key", kSecret);
    std::vector<std::unique_ptr<Daemon>> all;
    std::vector<std::string> address;
    explicit Cluster(const std::string &url, int n)
    {
        for (int i = 0; i < n; i++) {
            std::vector<int> ports = two_ports();
            address.push_back("127.0.0.1:" + std::to_string(ports[0]));
            all.emplace_back();
            start(i, url);
        }
    }
    void start(int i, const std::string &url)
    {
        all[i] = std::make_unique<Daemon>(
            "ftccld", Words{"--listen", address[i], "--key-file", key, "--store", url,
                            "--advertise", address[i], "--lease", std::to_string(kLeaseSeconds)});
    }
    std::string addresses() const
    {
        std::string list;
        for (const std::string &one : address)
            list += (list.empty() ? "" : ",") + one;
        return list;
    }
    bool leads(int i) const
    {
        return all[i] && all[i]->json().find("\"leads\":true") != std::string::npos;
    }
    /* The number of the one that leads; -1: none does within the time. */
    int leader(double seconds = 60) const
    {
        for (double end = proc::now() + seconds; proc::now() < end; usleep(20000))
            for (size_t i = 0; i < all.size(); i++)
                if (leads(static_cast<int>(i)))
                    return static_cast<int>(i);
        return -1;
    }
    void kill(int i)
    {
        all[i]->child->signal(SIGKILL);
        all[i]->child->wait();
        all[i] = nullptr;
    }
};

TEST(Store, AnotherLeadsAfterADeathAndNothingIsLost)
{
    NEEDS_ETCD();
    Etcd etcd;
    Cluster daemons(etcd.url(), 3);
    Members members = replicas(daemons.addresses(), 3, 2);
    std::vector<View> before = views(members, 1);
    expect_one_view(before, 3);
    for (int death = 0; death < 3; death++) {
        int leader = daemons.leader();
        ASSERT_GE(leader, 0);
        daemons.kill(leader);
        std::vector<View> after = views(members, 2);
        expect_one_view(after, 3);
        for (size_t i = 0; i < after.size(); i++)
            EXPECT_EQ(after[i].rank, before[i].rank) << "roles keep their places";
        EXPECT_GT(after[0].epoch, before[0].epoch);
        before = after;
        daemons.start(leader, etcd.url());
    }
    for (auto &member : members)
        EXPECT_EQ(member->broken(), std::vector<std::string>()) << "nothing that ran was disturbed";
}

/* What etcd has, when it has the text. */
void await_kept(const Etcd &etcd, const std::string &text)
{
    struct etcd *e = nullptr;
    std::string kept;
    ASSERT_EQ(etcd_open(etcd.url().c_str(), 20000, &e), FT_OK) << ft_fail_text();
    for (double end = proc::now() + 30; proc::now() < end; usleep(20000)) {
        char *got = nullptr;
        EXPECT_EQ(etcd_load(e, "groups", &got), FT_OK) << ft_fail_text();
        kept = got ? got : "";
        free(got);
        if (kept.find(text) != std::string::npos)
            break;
    }
    EXPECT_NE(kept.find(text), std::string::npos) << kept;
    etcd_close(e);
}

TEST(Store, AReplicaThatDiesWithTheLeaderIsReplacedByAStandby)
{
    NEEDS_ETCD();
    Etcd etcd;
    Cluster daemons(etcd.url(), 2);
    Options options;
    options.window_ms = 3000;
    Members members = replicas(daemons.addresses(), 3, 1, options);
    Member standby(daemons.addresses(), role_of("job", "", 0, 0), options);
    EXPECT_EQ(standby.accepted(), FT_OK) << standby.why();
    expect_one_view(views(members, 1), 3);
    await_kept(etcd, "\"name\":\"2\"");
    int leader = daemons.leader();
    ASSERT_GE(leader, 0);
    daemons.kill(leader);
    members.pop_back();
    std::future<View> asked = standby.ask(0, 60);
    for (double end = proc::now() + 60; proc::now() < end && !standby.role().replica[0];)
        usleep(20000);
    EXPECT_STREQ(standby.role().replica, "2");
    expect_one_view(views(members, 2), 3);
    View got = asked.get();
    EXPECT_EQ(got.status, FT_OK) << got.why;
    EXPECT_TRUE(got.behind);
}

TEST(Store, AnAgentFindsTheLeaderAndTheNextOne)
{
    NEEDS_ETCD();
    Etcd etcd;
    Cluster daemons(etcd.url(), 2);
    int leader = daemons.leader();
    ASSERT_GE(leader, 0);
    std::string list = daemons.address[1 - leader] + "," + daemons.address[leader];
    Daemon agent("ftccl-agent", {"--key-file", daemons.key, "--coordinator", list, "--dir",
                                 daemons.folder.path, "--stacks", "0"});
    Members members = replicas(agent.address, 2);
    expect_one_view(views(members, 1), 2);
    daemons.kill(leader);
    expect_one_view(views(members, 2), 2);
    EXPECT_TRUE(daemons.all[1 - leader]->json().find("\"leads\":true") != std::string::npos);
    EXPECT_EQ(agent.stop(), 0);
}

TEST(Store, OneThatEndsInOrderIsReplacedAtOnce)
{
    NEEDS_ETCD();
    Etcd etcd;
    Cluster daemons(etcd.url(), 2);
    int leader = daemons.leader();
    ASSERT_GE(leader, 0);
    EXPECT_EQ(daemons.all[leader]->stop(), 0);
    daemons.all[leader] = nullptr;
    EXPECT_EQ(daemons.leader(), 1 - leader);
}

TEST(Store, AStoppedLeaderServesNobodyWhenItGoesOn)
{
    NEEDS_ETCD();
    Etcd etcd;
    Cluster daemons(etcd.url(), 2);
    Members members = replicas(daemons.addresses(), 2, 1, quick());
    expect_one_view(views(members, 1), 2);
    int leader = daemons.leader();
    ASSERT_GE(leader, 0);
    daemons.all[leader]->child->signal(SIGSTOP);
    expect_one_view(views(members, 2), 2);
    daemons.all[1 - leader]->until("\"leads\":true");
    daemons.all[leader]->child->signal(SIGCONT);
    daemons.all[leader]->until(daemons.address[1 - leader] + " leads");
    Member late(daemons.address[leader], role_of("job", "2", 0, 1));
    EXPECT_NE(late.accepted(5), FT_OK);
    EXPECT_NE(late.why().find(daemons.address[1 - leader] + " leads"), std::string::npos)
        << late.why();
    expect_one_view(views(members, 3), 2);
}

TEST(Store, WithoutEtcdMembersGoOnAndAreToldWhyNobodyLeads)
{
    NEEDS_ETCD();
    Etcd etcd;
    Cluster daemons(etcd.url(), 2);
    Members members = replicas(daemons.addresses(), 2);
    std::vector<View> before = views(members, 1);
    expect_one_view(before, 2);
    int leader = daemons.leader();
    etcd.die();
    daemons.all[leader]->until("\"leads\":false");
    View none = members[0]->view(2, 8);
    EXPECT_EQ(none.status, FT_TIMEOUT);
    EXPECT_NE(none.why.find("etcd at " + etcd.address + " cannot be reached"), std::string::npos)
        << none.why;
    ASSERT_TRUE(etcd.start());
    std::vector<View> after = views(members, 2);
    expect_one_view(after, 2);
    EXPECT_GT(after[0].epoch, before[0].epoch);
    for (auto &member : members)
        EXPECT_EQ(member->broken(), std::vector<std::string>());
}

TEST(Store, AFullEtcdIsNamedAndTheLeaderGoesOn)
{
    NEEDS_ETCD();
    Etcd etcd(1 << 20);
    Cluster daemons(etcd.url(), 1);
    Members members = replicas(daemons.addresses(), 2);
    expect_one_view(views(members, 1), 2);
    etcd.fill();
    Member third(daemons.addresses(), role_of("job", "2", 0, 1));
    auto asked = third.ask(2);
    daemons.all[0]->until("\"alive\":3,\"ready\":1,");
    expect_one_view(views(members, 2), 3);
    EXPECT_EQ(asked.get().status, FT_OK);
    daemons.all[0]->until("database space exceeded");
    EXPECT_TRUE(daemons.leads(0));
}

TEST(Store, OptionsAreChecked)
{
    Folder folder;
    std::string key = folder.file("key", kSecret);
    const struct {
        Words options;
        const char *says;
    } bad[] = {
        {{"--store", "etcd://127.0.0.1:1"}, "--store needs --key-file and --advertise"},
        {{"--store", "zookeeper://h:1", "--key-file", key, "--advertise", "h:1"}, "is no store"},
        {{"--lease", "x"}, "--lease: x is not a number of seconds"},
    };
    for (const auto &one : bad) {
        Words words = {"-", "./tools/ftccld", "--listen", "127.0.0.1:0"};
        words.insert(words.end(), one.options.begin(), one.options.end());
        std::string command;
        for (size_t i = 1; i < words.size(); i++)
            command += words[i] + " ";
        FILE *pipe = popen((command + "2>&1").c_str(), "r");
        char text[4096] = "";
        size_t n = fread(text, 1, sizeof text - 1, pipe);
        EXPECT_EQ(WEXITSTATUS(pclose(pipe)), 2) << command;
        EXPECT_NE(std::string(text, n).find(one.says), std::string::npos) << text;
    }
}

} // namespace
