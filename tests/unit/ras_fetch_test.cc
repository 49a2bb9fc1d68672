/*
 * Property: whoever has the responder's port, ft_ras_fetch() ends in the time that it was given,
 * with a snapshot or a sentence, and keeps nothing. Method: a thread listens there and answers
 * what the test says.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include <gtest/gtest.h>

extern "C" {
#include "ras/internal.h"
}

namespace
{

using Answer = std::function<void(int fd)>;

struct Outcome {
    int status;
    std::string text;
    double seconds;
    bool found;
};

/* Asks a listener that serves one client, which it hears out, like this. */
Outcome fetch(const Answer &answer)
{
    sockaddr_in at = {};
    socklen_t len = sizeof at;
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr *>(&at), sizeof at), 0);
    EXPECT_EQ(listen(listener, 1), 0);
    getsockname(listener, reinterpret_cast<sockaddr *>(&at), &len);
    std::string place = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
    setenv("FTCCL_RAS_ADDR", place.c_str(), 1);
    ft_params_reload();
    std::thread server([&] {
        int fd = accept(listener, nullptr, nullptr);
        char heard[256];
        EXPECT_GT(recv(fd, heard, sizeof heard, 0), 0);
        answer(fd);
        close(fd);
    });
    auto begun = std::chrono::steady_clock::now();
    ft_snapshot *s = nullptr;
    Outcome o{ft_ras_fetch(1, &s), "", 0, false};
    o.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    o.text = o.status == FT_OK ? "" : ft_fail_text();
    o.found = o.status == FT_OK && s->nengines == 1 && s->nvalidations == 1;
    if (s)
        ft_snapshot_free(s);
    server.join();
    close(listener);
    unsetenv("FTCCL_RAS_ADDR");
    ft_params_reload();
    return o;
}

void say(int fd, const std::string &text)
{
    for (size_t at = 0; at < text.size();) {
        ssize_t n = send(fd, text.data() + at, text.size() - at, MSG_NOSIGNAL);
        if (n <= 0)
            return;
        at += static_cast<size_t>(n);
    }
}

/* One process, whose rank was validated with so many links. */
std::string packed(uint16_t nlinks)
{
    ft_snap_engine engine = {};
    ft_snap_validation validation = {};
    validation.is.state = FT_VALIDATION_DONE;
    validation.is.end_ns = 1;
    validation.is.nlinks = nlinks;
    ft_snapshot s = {};
    s.now_ns = 2;
    s.engines = &engine;
    s.validations = &validation;
    s.nengines = s.nvalidations = 1;
    unsigned char *bytes = nullptr;
    size_t len = 0;
    EXPECT_EQ(ft_snapshot_pack(&s, &bytes, &len), FT_OK);
    std::string text(reinterpret_cast<char *>(bytes), len);
    free(bytes);
    return text;
}

std::string framed(const std::string &body, size_t len)
{
    return "SERVER PROTOCOL 2\nOK\nSNAPSHOT " + std::to_string(len) + "\n" + body;
}

TEST(RasFetch, TakesASnapshotInAnyPieces)
{
    std::string all = framed(packed(FT_MEASURED_MOST), packed(FT_MEASURED_MOST).size());
    EXPECT_TRUE(fetch([&](int fd) { say(fd, all); }).found);
    EXPECT_TRUE(fetch([&](int fd) {
                    for (char byte : all.substr(0, 100))
                        say(fd, std::string(1, byte));
                    say(fd, all.substr(100));
                }).found);
    EXPECT_TRUE(fetch([&](int fd) {
                    say(fd, all); /* and does not end */
                    pollfd end = {fd, POLLIN, 0};
                    poll(&end, 1, 10000);
                }).found);
}

TEST(RasFetch, RefusesWhatIsNoAnswer)
{
    std::string good = packed(2), wrong = good;
    wrong[4] ^= 64; /* the version */
    const std::pair<const char *, std::string> answers[] = {
        {"nothing", ""},
        {"garbage", std::string(5000, 'x')},
        {"another version's answer", "SERVER PROTOCOL 2\nOK\nERROR: unknown command\n"},
        {"a length without a number", "SNAPSHOT \n"},
        {"a length without an end", "SNAPSHOT 12"},
        {"a huge length", framed(good, SIZE_MAX)},
        {"less than it says", framed(good.substr(0, good.size() - 1), good.size())},
        {"more than it says", framed(good + "x", good.size())},
        {"bytes of another version", framed(wrong, wrong.size())},
        {"more links than there can be", framed(packed(FT_MEASURED_MOST + 1), good.size())},
    };
    for (const auto &[what, text] : answers) {
        Outcome o = fetch([&t = text](int fd) { say(fd, t); });
        EXPECT_TRUE(o.status == FT_PROTOCOL || o.status == FT_LINK) << what << ": " << o.status;
        EXPECT_NE(o.text, "") << what;
    }
}

/* Sanitizers and busy machines add to the two seconds that it gives. */
TEST(RasFetch, GivesUpInTime)
{
    Outcome silent = fetch([](int fd) {
        pollfd end = {fd, POLLIN, 0};
        poll(&end, 1, 30000);
    });
    EXPECT_EQ(silent.status, FT_LINK) << silent.text;
    EXPECT_LT(silent.seconds, 20);
    Outcome flood = fetch([](int fd) { say(fd, std::string(64 << 20, 'x')); });
    EXPECT_NE(flood.status, FT_OK);
    EXPECT_LT(flood.seconds, 20);
    setenv("FTCCL_RAS_ADDR", "nowhere", 1);
    ft_params_reload();
    ft_snapshot *s = nullptr;
    EXPECT_LT(ft_ras_fetch(1, &s), 0);
    unsetenv("FTCCL_RAS_ADDR");
    ft_params_reload();
}

} // namespace
