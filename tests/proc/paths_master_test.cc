/*
 * Property: ftccld gives paths so that links carry alike, heeds complaints of several hosts and
 * what an operator takes out, also after a restart, and shows it; ranks that lie, flood it or go
 * cost others nothing. Method: a real ftccld; ranks made by hand, each host an address of the
 * loopback network; ftccl-path.
 */
#include "tests/common/daemon_talk.h"
#include "tests/proc/daemons.h"

extern "C" {
#include "membership/membership.h"
#include "path/master.h"
}

namespace
{

using talk::Bytes;
using talk::Message;
using talk::number;
using talk::operator+;

const std::string kSecret = "the key of ranks in a test\n";

// The master's process, its key and its state.
struct Place {
    Folder folder;
    std::string key = folder.file("key", kSecret);
    std::string state = folder.path + "/state";
    std::unique_ptr<Daemon> master;
    Place()
    {
        fs::create_directories(state);
        start();
    }
    void start(const std::string &limit = "-")
    {
        master = std::make_unique<Daemon>("ftccld", Words{"--key-file", key, "--state", state},
                                          std::map<std::string, std::string>{}, limit);
    }
    void restart()
    {
        master->child->signal(SIGKILL);
        master->child->wait(20);
        start();
    }
    // What ftccl-path says; its status is in the last line.
    std::string path(const std::string &words) const
    {
        return proc::output_of("./tools/ftccl-path -m " + master->address + " -k " + key + " " +
                               words + " 2>&1; echo status $?");
    }
    // A number of /proc/PID/status.
    long memory_kib() const
    {
        std::ifstream file("/proc/" + std::to_string(master->child->pid()) + "/status");
        for (std::string word; file >> word;)
            if (word == "VmRSS:" && file >> word)
                return std::stol(word);
        return -1;
    }
    long descriptors() const
    {
        const fs::directory_iterator list("/proc/" + std::to_string(master->child->pid()) + "/fd");
        return std::distance(begin(list), end(list));
    }
};

Bytes ip(const std::string &text)
{
    Bytes out(16);
    EXPECT_TRUE(ft_paths_parse_ip(text.c_str(), out.data())) << text;
    return out;
}

// A rank on a host of the number: its connection comes from 127.0.0.HOST.
class Rank
{
  public:
    talk::Talk talk;
    std::map<uint64_t, int> way; // that the master gave, by connection
    int unasked = 0;             // ways that came without a question
    std::vector<Bytes> probes;   // that the master wants

    Rank(const Place &place, int host, uint64_t job, const std::string &secret = kSecret)
    {
        Folder folder;
        const std::string file = folder.file("key", secret), &at = place.master->address;
        unsigned char bytes[FT_SECRET_BYTES], key[FT_SECRET_BYTES];
        EXPECT_EQ(ft_secret_of_file("key", file.c_str(), bytes), FT_OK);
        ft_auth_derive(key, bytes, "daemons", 0);
        sockaddr_in from = {}, to = {};
        from.sin_family = to.sin_family = AF_INET;
        inet_pton(AF_INET, ("127.0.0." + std::to_string(host)).c_str(), &from.sin_addr);
        inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
        to.sin_port = htons(static_cast<uint16_t>(std::stoi(at.substr(at.rfind(':') + 1))));
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr *>(&from), sizeof from), 0);
        EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr *>(&to), sizeof to), 0);
        talk.start(fd, true, key);
        for (double end = proc::now() + 20; !talk.is_open() && talk.status == FT_AGAIN;) {
            usleep(1000);
            if (proc::now() > end)
                break;
        }
        if (talk.is_open())
            talk.say(FT_PATHS_HELLO, number(job, 8) + number(static_cast<uint64_t>(host), 4));
    }
    // The ways to a host over spines 1 to 4: from leaf to leaf, by interfaces of routers.
    void tell_ways(uint32_t pair, int from_leaf, int to_leaf) const
    {
        Bytes all = number(pair, 4) + ip("10.0.0.1") + ip("10.0.0.2") + number(9, 2) +
                    number(3, 1) + number(4, 2);
        for (int spine = 1; spine <= 4; spine++)
            all = all + ip("172.16." + std::to_string(from_leaf) + ".200") +
                  ip(up(from_leaf, spine)) + ip(down(spine, to_leaf));
        talk.say(FT_PATHS_WAYS, all);
    }
    static std::string up(int leaf, int spine) // the link from a leaf to a spine
    {
        return "172.17." + std::to_string(leaf) + "." + std::to_string(spine);
    }
    static std::string down(int spine, int leaf)
    {
        return "172.18." + std::to_string(leaf) + "." + std::to_string(spine);
    }
    int take(uint32_t pair, uint64_t connection, int held = -1)
    {
        way.erase(connection);
        unasked--;
        ask(pair, connection, held);
        EXPECT_TRUE(eventually([&] { return way.count(connection) > 0; }));
        return way.count(connection) > 0 ? way[connection] : -2;
    }
    void ask(uint32_t pair, uint64_t connection, int held) const
    {
        talk.say(FT_PATHS_TAKE, number(pair, 4) + number(connection, 8) +
                                    number(static_cast<uint64_t>(held + 1), 2));
    }
    void complain(uint32_t pair, int bad) const
    {
        talk.say(FT_PATHS_BAD, number(pair, 4) + number(static_cast<uint64_t>(bad), 2));
    }
    void hear()
    {
        for (Message m; talk.hear(m);) {
            ASSERT_EQ(m.service, 2u);
            if (m.type == FT_PATHS_PROBE) {
                probes.push_back(m.bytes);
                continue;
            }
            ASSERT_EQ(m.type, unsigned{FT_PATHS_WAY});
            const unsigned char *at = m.bytes.data() + 4;
            const uint64_t connection = get64(&at);
            way[connection] = get16(&at) - 1;
            unasked++;
        }
    }
    bool eventually(const std::function<bool()> &done, double seconds = 20)
    {
        for (double end = proc::now() + seconds; proc::now() < end; usleep(1000)) {
            hear();
            if (done())
                return true;
        }
        return false;
    }
    bool is_closed()
    {
        return eventually([&] { return talk.ended || talk.status < 0; });
    }
};

// The link of the JSON text as a pattern.
std::string link(const std::string &to, const std::string &state, int connections)
{
    return "\\{\"from\":\"any\",\"to\":\"" + to + "\",\"state\":\"" + state +
           "\",\"connections\":" + std::to_string(connections) + ",";
}

TEST(PathsMaster, LinksCarryAlikeAndThePagesSaySo)
{
    Place place;
    Rank a(place, 1, 0xaaaa), b(place, 2, 0xbbbb);
    a.tell_ways(1, 1, 2);
    b.tell_ways(9, 1, 3);
    std::map<int, int> on;
    for (uint64_t c = 0; c < 2; c++) {
        on[a.take(1, c)]++;
        on[b.take(9, c)]++;
    }
    EXPECT_EQ(on, (std::map<int, int>{{0, 1}, {1, 1}, {2, 1}, {3, 1}}));
    for (int spine = 1; spine <= 4; spine++) {
        place.master->until(link(Rank::up(1, spine), "good", 1));
        place.master->until("ftccl_link_connections\\{from=\"any\",to=\"" + Rank::up(1, spine) +
                                "\",state=\"good\"\\} 1\n",
                            "/metrics");
    }
    const std::string json = place.master->json();
    for (const char *part : {"\"ranks\":2,", "\"job\":\"000000000000aaaa\",\"rank\":1,",
                             "\"from\":\"10.0.0.1\",\"to\":\"10.0.0.2\""})
        EXPECT_NE(json.find(part), std::string::npos) << part << json;
    place.master->until("<td>" + Rank::up(1, 2) + "<td>good<td>1<td>", "/status");
    const std::string shown = place.path("show");
    EXPECT_TRUE(std::regex_search(
        shown, std::regex("any +" + Rank::up(1, 2) + " +good +1 +000000000000(aaaa|bbbb) \\(1\\)")))
        << shown;
    a.talk.end();
    place.master->until("\"ranks\":1,");
    const std::string rest = place.master->json();
    int all = 0;
    for (int spine = 1; spine <= 4; spine++)
        all += std::regex_search(rest, std::regex(link(Rank::up(1, spine), "good", 1)));
    EXPECT_EQ(all, 2) << rest;
}

TEST(PathsMaster, ConnectionsKeepTheirWaysAfterARestart)
{
    Place place;
    for (int round = 0; round < 2; round++) {
        Rank a(place, 1, 1);
        a.tell_ways(1, 1, 2);
        for (uint64_t c = 0; c < 3; c++)
            EXPECT_EQ(a.take(1, c, 2), 2); // worse than it could be, but held
        EXPECT_NE(a.take(1, 7, 4000), -1) << "there is no such way";
        place.restart();
        EXPECT_TRUE(a.is_closed());
    }
}

TEST(PathsMaster, ComplaintsOfTwoHostsCountForAll)
{
    Place place;
    Rank a(place, 1, 1), b(place, 2, 1), same(place, 1, 1);
    a.tell_ways(1, 1, 2);
    same.tell_ways(1, 1, 3);
    b.tell_ways(1, 1, 4);
    for (uint64_t c = 0; c < 4; c++) {
        a.take(1, c);
        b.take(1, c);
    }
    a.complain(1, 2);
    EXPECT_TRUE(a.eventually([&] { return a.unasked > 0; }));
    for (auto &use : a.way)
        EXPECT_NE(use.second, 2);
    same.complain(1, 2);
    place.master->until("\"to\":\"" + Rank::up(1, 3) + "\",\"state\":\"doubted\"");
    b.hear();
    EXPECT_EQ(b.unasked, 0);
    Rank other(place, 3, 2);
    other.tell_ways(1, 1, 5);
    other.complain(1, 2);
    place.master->until(link(Rank::up(1, 3), "bad", 0));
    EXPECT_TRUE(b.eventually([&] { return b.unasked > 0; }));
    for (auto &use : b.way)
        EXPECT_NE(use.second, 2);
    EXPECT_NE(place.path("").find("bad"), std::string::npos);
}

TEST(PathsMaster, WhatIsOutStaysOut)
{
    Place place;
    const std::string there = Rank::up(1, 3);
    {
        Rank a(place, 1, 1);
        a.tell_ways(1, 1, 2);
        for (uint64_t c = 0; c < 8; c++)
            a.take(1, c);
        EXPECT_EQ(place.path("out any " + there), "status 0\n");
        EXPECT_TRUE(a.eventually([&] { return a.unasked == 2; }));
        for (auto &use : a.way)
            EXPECT_NE(use.second, 2);
    }
    place.restart();
    Rank a(place, 1, 1);
    a.tell_ways(1, 1, 2);
    for (uint64_t c = 0; c < 8; c++)
        EXPECT_NE(a.take(1, c, 2), 2);
    place.master->until(link(there, "out", 0));
    EXPECT_EQ(place.path("in any " + there), "status 0\n");
    EXPECT_TRUE(a.eventually([&] { return a.unasked == 2; })) << "it is used again";
    EXPECT_NE(place.path("in any " + there).find("is not out\nstatus 1\n"), std::string::npos);
    EXPECT_TRUE(fs::exists(place.state + "/paths-out"));
    EXPECT_EQ(fs::file_size(place.state + "/paths-out"), 0u);
}

TEST(PathsMaster, TheToolSaysWhatIsWrong)
{
    Place place;
    for (auto [words, says, status] : {std::tuple{"out any", "wants two addresses", 2},
                                       {"out any any", "only FROM", 2},
                                       {"out x 10.0.0.1", "no address: x", 2},
                                       {"leave", "does not know leave", 2},
                                       {"-m 127.0.0.1:1", "cannot connect", 1},
                                       {"-k /nowhere", "/nowhere", 2},
                                       {"--nothing", "unrecognized option", 2}}) {
        const std::string said = place.path(words);
        EXPECT_NE(said.find(says), std::string::npos) << words << ": " << said;
        EXPECT_NE(said.find("status " + std::to_string(status)), std::string::npos) << said;
    }
    place.folder.file("key", "another key, long enough\n");
    EXPECT_NE(place.path("").find("status 1"), std::string::npos);
}

// It goes on with what makes sense, and says what does not, and what it cannot write.
TEST(PathsMaster, AFileThatMakesNoSenseOrCannotBeWritten)
{
    Place place;
    std::string rubbish = "172.17.1.200 172.17.1.3\nany 172.17.1.4\nany any thing\n10.0.0 1\n\n";
    rubbish += std::string(100000, 'x') + "\n" + std::string("\0\1\2 \377\n", 6) + "any 10.0.0.9";
    std::ofstream(place.state + "/paths-out") << rubbish;
    place.restart();
    place.master->until("\"trouble\":\"[1-9][0-9]* lines of [^\"]*paths-out make no sense\"");
    Rank a(place, 1, 1);
    a.tell_ways(1, 1, 2);
    for (uint64_t c = 0; c < 8; c++)
        EXPECT_NE(a.take(1, c), 3);
    EXPECT_EQ(place.path("out any 10.0.0.8"), "status 0\n");
    std::ifstream file(place.state + "/paths-out");
    std::string kept((std::istreambuf_iterator<char>(file)), {});
    EXPECT_EQ(kept, "172.17.1.200 172.17.1.3\nany 172.17.1.4\nany 10.0.0.9\nany 10.0.0.8\n");
    fs::create_directory(place.state + "/paths-out.new"); // so it cannot be written
    const std::string said = place.path("out any 10.0.0.7");
    EXPECT_NE(said.find("this is so until ftccld ends: "), std::string::npos) << said;
    EXPECT_NE(said.find("status 1"), std::string::npos) << said;
    place.master->until("\"trouble\":\"[^\"]*cannot be written: Is a directory\"");
    fs::remove(place.state + "/paths-out");
    fs::create_directory(place.state + "/paths-out");
    place.restart();
    place.master->until("\"trouble\":\"[^\"]*cannot be read\"");
}

TEST(PathsMaster, RanksThatMakeNoSense)
{
    Place place;
    Rank good(place, 1, 1);
    good.tell_ways(1, 1, 2);
    const Bytes pair = number(5, 4), hosts = ip("10.0.0.1") + ip("10.0.0.2");
    auto ways = [&](uint64_t nhops, uint64_t nways, size_t bytes) {
        return pair + hosts + number(9, 2) + number(nhops, 1) + number(nways, 2) + Bytes(bytes);
    };
    const std::vector<std::pair<unsigned, Bytes>> wrong = {
        {FT_PATHS_HELLO, number(1, 8) + number(1, 4)}, // twice
        {FT_PATHS_WAYS, ways(3, 4, 3 * 4 * 16 - 1)},
        {FT_PATHS_WAYS, ways(3, 0, 0)},
        {FT_PATHS_WAYS, ways(0, 4, 0)},
        {FT_PATHS_WAYS, ways(17, 1, 17 * 16)},
        {FT_PATHS_WAYS, ways(1, 300, 300 * 16)},
        {FT_PATHS_WAYS, pair},
        {FT_PATHS_TAKE, pair + number(1, 8) + number(0, 2)}, // no such pair
        {FT_PATHS_TAKE, pair},
        {FT_PATHS_BAD, pair},
        {FT_PATHS_RELEASE, pair},
        {FT_PATHS_DROP, {}},
        {FT_PATHS_OUT, pair},
        {FT_PATHS_WAY, pair},
        {99, {}},
    };
    for (const auto &[type, bytes] : wrong) {
        Rank bad(place, 2, 2);
        bad.talk.say(type, bytes);
        EXPECT_TRUE(bad.is_closed()) << type << " of " << bytes.size();
    }
    Rank longer(place, 2, 2);
    longer.talk.say_raw(number(UINT32_MAX, 4) + number(2, 2) + number(FT_PATHS_WAYS, 2));
    EXPECT_TRUE(longer.is_closed());
    Rank stranger(place, 2, 2, "another key, long enough\n");
    EXPECT_NE(stranger.talk.status, FT_OK);
    // Of what is gone or is not there, nothing comes.
    Rank odd(place, 2, 2);
    odd.tell_ways(1, 1, 2);
    odd.complain(1, 65535);
    odd.complain(8, 1);
    odd.talk.say(FT_PATHS_RELEASE, number(1, 4) + number(4, 8));
    odd.talk.say(FT_PATHS_DROP, number(8, 4));
    odd.talk.say(FT_PATHS_KEEP, {});
    EXPECT_NE(odd.take(1, 1, 65534), -2);
    EXPECT_NE(good.take(1, 1), -2);
}

// What one asks for, and does not read, is bounded; others get their answers meanwhile.
TEST(PathsMaster, Floods)
{
    Place place;
    Rank good(place, 1, 1), many(place, 2, 2);
    good.tell_ways(1, 1, 2);
    good.take(1, 0);
    const long before = place.memory_kib();
    for (uint32_t pair = 0; pair < FT_PATHS_PAIRS; pair++)
        many.tell_ways(pair, 1, 2);
    for (uint64_t c = 0; c < FT_PATHS_CONNECTIONS; c++)
        many.take(0, c, 1);
    many.ask(0, 1000, 1); // gets no answer
    EXPECT_NE(many.take(1, 0), -2);
    EXPECT_EQ(many.way.count(1000), 0u);
    many.tell_ways(FT_PATHS_PAIRS, 1, 2);
    EXPECT_TRUE(many.is_closed());
    Rank deaf(place, 3, 3);
    deaf.tell_ways(1, 1, 2);
    fcntl(deaf.talk.fd, F_SETFL, 0);
    const timeval limit = {1, 0};
    setsockopt(deaf.talk.fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    const Bytes one = number(14, 4) + number(2, 2) + number(FT_PATHS_TAKE, 2) + number(1, 4) +
                      number(1, 8) + number(0, 2);
    Bytes thousand;
    for (int i = 0; i < 1000; i++)
        thousand = thousand + one;
    bool left = false;
    for (int i = 0; i < 3000 && !left; i++) {
        left = !deaf.talk.say_raw(thousand);
        EXPECT_TRUE(i % 100 != 0 || good.take(1, 1 + static_cast<uint64_t>(i / 100)) != -2);
    }
    EXPECT_TRUE(left) << "it is not served any more";
    EXPECT_LT(place.memory_kib() - before, 100 << 10);
    EXPECT_NE(good.take(1, 50), -2);
}

// Three leaves and four spines; leaf 1 has no link to spine 2. The two ends of a cable have
// neighbouring addresses.
std::string end_of(int leaf, int spine, bool at_spine)
{
    return "172.19." + std::to_string(leaf) + "." + std::to_string(2 * spine + at_spine);
}

void tell_network(const Rank &rank)
{
    uint32_t pair = 100;
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++) {
            Bytes hops;
            int ways = 0;
            for (int s = 0; s < 4 && from != to; s++) {
                if (s == 2 && (from == 1 || to == 1))
                    continue;
                hops = hops + ip("172.16." + std::to_string(from) + ".200") +
                       ip(end_of(from, s, true)) + ip(end_of(to, s, false));
                ways++;
            }
            if (ways > 0)
                rank.talk.say(FT_PATHS_WAYS,
                              number(pair++, 4) + ip("10.0.0." + std::to_string(from)) +
                                  ip("10.0.0." + std::to_string(to)) + number(9, 2) + number(3, 1) +
                                  number(static_cast<uint64_t>(ways), 2) + hops);
        }
}

TEST(PathsMaster, TheMapShowsRoutersLinksAndWhatIsMissing)
{
    Place place;
    Rank a(place, 1, 0xaaaa);
    tell_network(a);
    EXPECT_EQ(place.path("out any " + end_of(2, 0, true)), "status 0\n");
    a.take(100, 1);
    place.master->until("\"missing\":\\[\\{\"from_router\":\"leaf 1\",\"to_router\":\"spine 2\"\\},"
                        "\\{\"from_router\":\"spine 2\",\"to_router\":\"leaf 1\"\\}\\]");
    place.master->until("ftccl_paths_links_missing 2\n", "/metrics");
    const std::string json = place.master->json();
    for (const char *part :
         {"\\{\"name\":\"leaf 2\",\"layer\":0,\"address\":\"172.16.2.200\"\\}",
          "\\{\"name\":\"spine 3\",\"layer\":1,\"address\":\"172.19.0.7\"\\}",
          "\\{\"address\":\"10.0.0.2\",\"router\":\"leaf 2\"\\}",
          "\"to\":\"172.19.2.3\",[^}]*\"from_router\":\"leaf 2\",\"to_router\":\"spine 1\""})
        EXPECT_TRUE(std::regex_search(json, std::regex(part))) << part << "\n" << json;
    int status;
    const char *top = getenv("top_srcdir");
    const std::string said = proc::output_of("python3 " + std::string(top ? top : "..") +
                                                 "/tests/proc/paths_page.py " +
                                                 place.master->address,
                                             &status);
    if (status == 77 || status == 127)
        GTEST_SKIP() << "there is no " << (status == 77 ? "Chromium" : "python3");
    EXPECT_EQ(status, 0) << said;
}

Bytes host(int leaf)
{
    return ip("10.0.0." + std::to_string(leaf));
}

// Four ways between leaves, from the number of hops on.
Bytes hops(int from, int to)
{
    Bytes out = number(3, 1) + number(4, 2);
    for (int s = 0; s < 4; s++)
        out = out + ip("172.16." + std::to_string(from) + ".200") + ip(end_of(from, s, true)) +
              ip(end_of(to, s, false));
    return out;
}

void tell_neighbour(const Rank &rank, int leaf)
{
    const int next = (leaf + 1) % 3;
    rank.talk.say(FT_PATHS_WAYS, number(1, 4) + host(leaf) + host(next) +
                                     number(static_cast<uint64_t>(5000 + next), 2) +
                                     hops(leaf, next));
}

// Ranks of three leaves in a ring: what no connection shows they are asked to probe, once. Leaf 2
// tells what it should, leaf 1 learns nothing, leaf 0 takes its time, and then tells of something
// else first.
TEST(PathsMaster, AsksRanksToProbeWhatNobodyKnows)
{
    Place place;
    std::vector<std::unique_ptr<Rank>> ranks;
    for (int leaf = 0; leaf < 3; leaf++) {
        ranks.push_back(std::make_unique<Rank>(place, 1 + leaf, 7));
        tell_neighbour(*ranks.back(), leaf);
    }
    ranks.push_back(std::make_unique<Rank>(place, 9, 7)); // another one of leaf 0
    tell_neighbour(*ranks.back(), 0);
    for (int leaf : {2, 1, 0}) {
        Rank &rank = *ranks[static_cast<size_t>(leaf)];
        const int other = (leaf + 2) % 3;
        ASSERT_TRUE(rank.eventually([&] { return !rank.probes.empty(); }));
        EXPECT_EQ(rank.probes[0],
                  host(leaf) + host(other) + number(static_cast<uint64_t>(5000 + other), 2));
        for (double end = proc::now() + 6; leaf == 0 && proc::now() < end; usleep(10000))
            for (auto &each : ranks)
                each->hear();
        rank.talk.say(FT_PATHS_PROBED, host(leaf) + host(leaf) + Bytes(3));
        rank.talk.say(FT_PATHS_PROBED,
                      host(leaf) + host(other) + (leaf == 1 ? Bytes(3) : hops(leaf, other)));
    }
    for (size_t i = 0; i < ranks.size(); i++)
        EXPECT_EQ(ranks[i]->probes.size(), i < 3 ? 1u : 0u) << "it is known, or asked for";
    place.master->until(
        "\"name\":\"spine 3\",\"layer\":1,\"address\":\"172.19.0.7\"\\}\\],\"hosts\"");
}

TEST(PathsMaster, AnswersThatNobodyAskedFor)
{
    Place place;
    Rank rank(place, 1, 7);
    rank.talk.say(FT_PATHS_PROBED, host(0) + host(1) + number(2, 1) + number(1, 2) +
                                       ip("172.20.0.1") + ip("172.20.0.2"));
    rank.tell_ways(7, 1, 2);
    EXPECT_EQ(place.master->until(Rank::up(1, 1)).find("172.20.0.2"), std::string::npos);
    for (const Bytes &wrong :
         {Bytes(), Bytes(34), host(0) + host(1) + number(3, 1) + number(4, 2)}) {
        Rank bad(place, 2, 7);
        bad.talk.say(FT_PATHS_PROBED, wrong);
        EXPECT_TRUE(bad.is_closed());
    }
}

TEST(PathsMaster, RanksThatGoLeaveNothing)
{
    Place place;
    Rank good(place, 1, 1);
    good.tell_ways(1, 1, 2);
    good.take(1, 0);
    const long before = place.descriptors();
    for (int i = 0; i < 50; i++) {
        Rank other(place, 2, 2);
        other.tell_ways(1, 1, 2);
        other.take(1, 0);
    }
    place.master->until("\"ranks\":1,");
    EXPECT_TRUE(good.eventually([&] { return place.descriptors() <= before; }));
    EXPECT_EQ(place.master->stop(), 0);
}

} // namespace
