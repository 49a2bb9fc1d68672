/*
 * Properties: of several processes that claim to lead, one does, until its lease has run out; what
 * it keeps is there for the next one, and a former leader cannot overwrite it; each call ends
 * within its time whatever etcd does. Method: a real etcd, killed and started again; servers that
 * answer nonsense, or nothing.
 */
#include <thread>

#include "tests/proc/etcd_process.h"

namespace
{

struct Client {
    struct etcd *e = nullptr;
    explicit Client(const std::string &url, int timeout_ms = 5000)
    {
        EXPECT_EQ(etcd_open(url.c_str(), timeout_ms, &e), FT_OK) << ft_fail_text();
    }
    ~Client()
    {
        etcd_close(e);
    }
    int64_t grant(int64_t ttl_s = 60) const
    {
        int64_t lease = 0;
        EXPECT_EQ(etcd_grant(e, ttl_s, &lease), FT_OK) << ft_fail_text();
        return lease;
    }
    /* The revision; 0: another one leads. */
    int64_t claim(int64_t lease, const char *value) const
    {
        int64_t revision = -1;
        EXPECT_EQ(etcd_claim(e, lease, value, &revision, holder), FT_OK) << ft_fail_text();
        return revision;
    }
    bool save(int64_t revision, const char *text) const
    {
        bool held = false;
        EXPECT_EQ(etcd_save(e, revision, "groups", text, &held), FT_OK) << ft_fail_text();
        return held;
    }
    std::string load() const
    {
        char *text = nullptr;
        EXPECT_EQ(etcd_load(e, "groups", &text), FT_OK) << ft_fail_text();
        std::string all = text ? text : "(none)";
        free(text);
        return all;
    }
    mutable char holder[ETCD_VALUE_BYTES] = "";
};

TEST(Etcd, OneLeadsAndTheNextFindsWhatItKept)
{
    NEEDS_ETCD();
    Etcd etcd;
    Client a(etcd.url()), b(etcd.url());
    int64_t la = a.grant(), lb = b.grant();
    int64_t first = a.claim(la, "a:1");
    EXPECT_GT(first, 0);
    EXPECT_EQ(b.claim(lb, "b:2"), 0);
    EXPECT_STREQ(b.holder, "a:1");
    EXPECT_EQ(a.claim(la, "a:1"), first) << "it did not hear the first answer, and asks again";
    EXPECT_EQ(b.load(), "(none)");
    std::string odd = "{\"name\":\"\xc3\xa4\\u0000 \\\" / +\"}";
    EXPECT_TRUE(a.save(first, odd.c_str()));
    EXPECT_FALSE(b.save(first + 1, "no"));
    EXPECT_EQ(etcd_revoke(a.e, la), FT_OK) << ft_fail_text();
    int64_t second = b.claim(lb, "b:2");
    EXPECT_GT(second, first);
    EXPECT_FALSE(a.save(first, "of the former leader"));
    EXPECT_EQ(b.load(), odd);
    int64_t ttl_s = -1;
    EXPECT_EQ(etcd_keep(a.e, la, &ttl_s), FT_OK);
    EXPECT_EQ(ttl_s, 0);
    EXPECT_EQ(etcd_keep(b.e, lb, &ttl_s), FT_OK);
    EXPECT_EQ(ttl_s, 60);
}

TEST(Etcd, PrefixesAreWorldsOfTheirOwn)
{
    NEEDS_ETCD();
    Etcd etcd;
    Client a(etcd.url() + "/one"), b(etcd.url() + "/two");
    EXPECT_GT(a.claim(a.grant(), "a:1"), 0);
    EXPECT_GT(b.claim(b.grant(), "b:2"), 0);
}

TEST(Etcd, ALeaseThatRunsOutLetsAnotherLead)
{
    NEEDS_ETCD();
    Etcd etcd;
    Client a(etcd.url()), b(etcd.url());
    EXPECT_GT(a.claim(a.grant(1), "a:1"), 0);
    int64_t lb = b.grant(), revision = 0;
    for (double end = proc::now() + 60; revision == 0 && proc::now() < end; usleep(50000))
        revision = b.claim(lb, "b:2");
    EXPECT_GT(revision, 0);
}

TEST(Etcd, ASecondAddressAndARestartAreFound)
{
    NEEDS_ETCD();
    Etcd etcd;
    Client a("etcd://127.0.0.1:1," + etcd.address);
    int64_t lease = a.grant(), revision = a.claim(lease, "a:1");
    EXPECT_TRUE(a.save(revision, "kept"));
    etcd.die();
    int64_t ttl_s = 0;
    EXPECT_EQ(etcd_keep(a.e, lease, &ttl_s), FT_PEER);
    EXPECT_NE(std::string(ft_fail_text()).find("cannot be reached"), std::string::npos)
        << ft_fail_text();
    ASSERT_TRUE(etcd.start());
    EXPECT_EQ(a.load(), "kept");
    EXPECT_EQ(a.claim(lease, "a:1"), revision);
}

TEST(Etcd, AFullOneSaysSo)
{
    NEEDS_ETCD();
    Etcd etcd(1 << 20);
    Client a(etcd.url());
    int64_t revision = a.claim(a.grant(), "a:1");
    std::string large(300000, 'x');
    int status = FT_OK;
    for (int i = 0; i < 100 && status == FT_OK; i++) {
        bool held;
        status = etcd_save(a.e, revision, "groups", large.c_str(), &held);
    }
    EXPECT_EQ(status, FT_PEER);
    EXPECT_NE(std::string(ft_fail_text()).find("space"), std::string::npos) << ft_fail_text();
    EXPECT_EQ(a.load(), large) << "what was there before stays";
}

/* Answers every connection with these bytes; closes: then it ends the connection. */
struct Rubbish {
    int listener;
    std::string address, bytes;
    bool closes;
    std::atomic<bool> stops{false};
    std::thread thread;
    Rubbish(std::string answer, bool then_close) : bytes(std::move(answer)), closes(then_close)
    {
        sockaddr_in at = {};
        socklen_t len = sizeof at;
        at.sin_family = AF_INET;
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr *>(&at), sizeof at), 0);
        EXPECT_EQ(listen(listener, 16), 0);
        getsockname(listener, reinterpret_cast<sockaddr *>(&at), &len);
        address = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
        thread = std::thread([this] { serve(); });
    }
    ~Rubbish()
    {
        stops = true;
        thread.join();
        close(listener);
    }
    void serve()
    {
        std::vector<int> open;
        while (!stops) {
            pollfd ready = {listener, POLLIN, 0};
            if (poll(&ready, 1, 50) <= 0)
                continue;
            int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
            char request[4096];
            if (read(fd, request, sizeof request) > 0)
                (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
            if (closes)
                close(fd);
            else
                open.push_back(fd);
        }
        for (int fd : open)
            close(fd);
    }
};

std::string answer_of(const std::string &body)
{
    return "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body;
}

TEST(Etcd, NonsenseIsRefused)
{
    const std::string answers[] = {"",
                                   "\n",
                                   "HTTP/1.1 200 OK\r\n\r\n",
                                   answer_of("[]"),
                                   answer_of("{\"ID\":"),
                                   answer_of("{}"),
                                   answer_of("{\"ID\":{}}"),
                                   "HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n",
                                   "HTTP/1.1 404 No\r\nContent-Length: 13\r\n\r\n{\"error\":\"x\"}",
                                   answer_of(std::string(6 << 20, '['))};
    for (const std::string &answer : answers) {
        Rubbish server(answer, true);
        Client a("etcd://" + server.address, 20000);
        int64_t lease = 0;
        int status = etcd_grant(a.e, 5, &lease);
        EXPECT_TRUE(status == FT_PEER || status == FT_PROTOCOL)
            << status << " for " << answer.substr(0, 80);
        EXPECT_NE(std::string(ft_fail_text()), "");
    }
    Rubbish server(answer_of("{\"succeeded\":7,\"responses\":[{\"response_range\":{\"kvs\":"
                             "[{\"value\":\"!\",\"lease\":\"x\"},3]}}]}"),
                   true);
    Client a("etcd://" + server.address, 20000);
    EXPECT_EQ(a.claim(5, "a:1"), 0);
    EXPECT_STREQ(a.holder, "");
    EXPECT_FALSE(a.save(1, "x"));
    EXPECT_EQ(a.load(), "(none)");
}

TEST(Etcd, SilenceEndsInTimeAndWhenItIsStopped)
{
    Rubbish server("", false);
    Client a("etcd://" + server.address, 300), b("etcd://" + server.address, 600000);
    int64_t lease = 0;
    EXPECT_EQ(etcd_grant(a.e, 5, &lease), FT_PEER);
    std::thread stopper([&b] {
        usleep(100000);
        etcd_stop(b.e);
    });
    EXPECT_EQ(etcd_grant(b.e, 5, &lease), FT_PEER);
    stopper.join();
}

TEST(Etcd, UrlsAreChecked)
{
    const char *bad[] = {"",
                         "http://127.0.0.1:1",
                         "etcd://",
                         "etcd://host",
                         "etcd://:5",
                         "etcd://host:",
                         "etcd://host:5x",
                         "etcd://host:5,",
                         "etcd://h:1,h:2,h:3,h:4,h:5,h:6,h:7,h:8,h:9"};
    for (const char *url : bad) {
        struct etcd *e = nullptr;
        EXPECT_EQ(etcd_open(url, 1000, &e), FT_INVAL) << url;
        EXPECT_NE(std::string(ft_fail_text()).find("is no store"), std::string::npos);
    }
}

} // namespace
