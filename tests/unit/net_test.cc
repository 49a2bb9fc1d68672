// Property: addresses are chosen as FTCCL_SOCKET_IFNAME and FTCCL_SOCKET_FAMILY say, loopback last.
// A choice that leaves nothing is refused with a sentence that says what there is. Sockets of the
// chosen addresses connect over IPv4 and IPv6. Method: the choice is made from a recorded machine;
// connections use this machine's loopback.
#include <gtest/gtest.h>
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <cstring>
#include <string>
#include <vector>
extern "C" {
#include "transport/transport.h"
}

static ft_net_address address(const char *name, const char *ip, bool up = true,
                              bool loopback = false, uint32_t scope = 0)
{
    ft_net_address a = {};
    a.family = strchr(ip, ':') ? AF_INET6 : AF_INET;
    EXPECT_EQ(1, inet_pton(a.family, ip, a.ip));
    a.up = up;
    a.loopback = loopback;
    a.scope = scope;
    snprintf(a.name, sizeof a.name, "%s", name);
    return a;
}

static const std::vector<ft_net_address> machine = {
    address("lo", "127.0.0.1", true, true),
    address("docker0", "172.17.0.1"),
    address("eth0", "10.0.0.1"),
    address("eth1", "10.1.0.1", false),
    address("eth10", "10.2.0.1"),
    address("ib0", "10.3.0.1"),
    address("lo", "::1", true, true),
    address("eth0", "fe80::1", true, false, 4),
    address("eth0", "fd00::1"),
};

static std::string choose(const char *order, const char *family = "", int capacity = 16)
{
    ft_net_address out[16];
    int n = ft_net_choose(machine.data(), (int)machine.size(), order, family, out, capacity);
    if (n < 0)
        return ft_status_text(n);
    std::string all;
    for (int i = 0; i < n; i++)
        all += (i ? " " : "") + std::string(out[i].name) + (out[i].family == AF_INET6 ? "/6" : "");
    return all;
}

TEST(Choose, InfinibandFirstThenOrdinaryThenGuestsThenLinkLocalThenLoopback)
{
    EXPECT_EQ("ib0 eth0 eth10 eth0/6 docker0 eth0/6 lo lo/6", choose(""));
    EXPECT_EQ("ib0 eth0", choose("", "", 2));
}

TEST(Choose, PrefixesExactNamesAndExclusions)
{
    EXPECT_EQ("eth0 eth10 eth0/6 eth0/6", choose("eth"));
    EXPECT_EQ("eth0 eth0/6 ib0 eth0/6", choose("eth0,ib"));
    EXPECT_EQ("eth10", choose("=eth10"));
    EXPECT_EQ("eth10", choose("eth1")) << "eth1 is down";
    EXPECT_EQ(ft_status_text(FT_INVAL), choose("=eth1"));
    EXPECT_EQ("ib0 docker0 lo lo/6", choose("^eth"));
    EXPECT_EQ("eth10 docker0 lo lo/6", choose("^=eth0,ib0"));
    EXPECT_EQ("lo lo/6", choose("lo"));
}

TEST(Choose, OfManyAddressesTheLastIsFound)
{
    std::vector<ft_net_address> many(1000, address("veth", "10.9.0.1"));
    many.push_back(address("eth0", "10.0.0.1"));
    ft_net_address out[16];
    ASSERT_EQ(1, ft_net_choose(many.data(), (int)many.size(), "=eth0", "", out, 16))
        << ft_fail_text();
    EXPECT_STREQ("eth0", out[0].name);
}

TEST(Choose, Families)
{
    EXPECT_EQ("eth0/6 eth0/6 lo/6", choose("", "AF_INET6"));
    EXPECT_EQ("eth0 eth10", choose("eth", "AF_INET"));
    EXPECT_EQ(ft_status_text(FT_INVAL), choose("", "INET"));
    EXPECT_EQ(ft_status_text(FT_INVAL), choose("ib", "AF_INET6"));
}

TEST(Choose, RefusalNamesWhatWasAskedAndWhatThereIs)
{
    EXPECT_EQ(ft_status_text(FT_INVAL), choose("wlan7"));
    std::string said = ft_fail_text();
    EXPECT_NE(std::string::npos, said.find("wlan7")) << said;
    EXPECT_NE(std::string::npos, said.find("eth10")) << said;
    EXPECT_NE(std::string::npos, said.find("eth1 (IPv4, down)")) << said;
    EXPECT_EQ(FT_INVAL, ft_net_choose(nullptr, 0, "", "", nullptr, 0));
}

static void converse(int family)
{
    ft_net_address own[2] = {address("lo", family == AF_INET ? "127.0.0.1" : "::1", true, true),
                             address("x", "192.0.2.1")};
    int listener = -1, client = -1, server = -1, before = ft_fd_count();
    int status = ft_net_listen(own, family == AF_INET ? 1 : 2, family, 0, &listener);
    if (status != FT_OK && family == AF_INET6)
        GTEST_SKIP() << "no IPv6 here: " << ft_fail_text();
    ASSERT_EQ(FT_OK, status) << ft_fail_text();
    EXPECT_NE(0, own[0].port);
    EXPECT_EQ(FT_AGAIN, ft_net_accept(listener, &server));
    ASSERT_EQ(FT_OK, ft_net_connect(&own[0], nullptr, &client)) << ft_fail_text();
    pollfd p[2] = {{client, POLLOUT, 0}, {listener, POLLIN, 0}};
    ASSERT_EQ(1, poll(&p[0], 1, 5000));
    EXPECT_EQ(FT_OK, ft_net_connected(client)) << ft_fail_text();
    ASSERT_EQ(1, poll(&p[1], 1, 5000));
    ASSERT_EQ(FT_OK, ft_net_accept(listener, &server));
    EXPECT_EQ(before + 3, ft_fd_count());
    ft_fd_close(&listener), ft_fd_close(&client), ft_fd_close(&server);
    // nobody listens there any more
    status = ft_net_connect(&own[0], nullptr, &client);
    if (status == FT_OK) {
        p[0].fd = client;
        ASSERT_EQ(1, poll(&p[0], 1, 5000));
        status = ft_net_connected(client);
        ft_fd_close(&client);
    }
    EXPECT_EQ(FT_LINK, status);
    EXPECT_EQ(before, ft_fd_count());
}

TEST(Sockets, ConnectOverIPv4)
{
    converse(AF_INET);
}
TEST(Sockets, ConnectOverIPv6)
{
    converse(AF_INET6);
}

TEST(Sockets, SourceAddressIsBoundOrRefused)
{
    ft_net_address own = address("lo", "127.0.0.1", true, true);
    int listener = -1, client = -1;
    ASSERT_EQ(FT_OK, ft_net_listen(&own, 1, AF_INET, 0, &listener));
    setenv("FTCCL_SOCKET_SOURCE", "127.0.0.5", 1), ft_params_reload();
    ASSERT_EQ(FT_OK, ft_net_connect(&own, nullptr, &client)) << ft_fail_text();
    sockaddr_in sin = {};
    socklen_t len = sizeof sin;
    getsockname(client, (sockaddr *)&sin, &len);
    EXPECT_STREQ("127.0.0.5", inet_ntoa(sin.sin_addr));
    ft_fd_close(&client);
    for (const char *bad : {"192.0.2.77", "eth0", "1.2.3"}) {
        setenv("FTCCL_SOCKET_SOURCE", bad, 1), ft_params_reload();
        EXPECT_EQ(FT_INVAL, ft_net_connect(&own, nullptr, &client)) << bad;
        EXPECT_NE(nullptr, strstr(ft_fail_text(), bad)) << ft_fail_text();
    }
    unsetenv("FTCCL_SOCKET_SOURCE"), ft_params_reload();
    ft_fd_close(&listener);
}

// A source port is taken as given, shared between connections that go elsewhere, and refused for
// two that go to the same place; the socket of a refused one is closed.
static void connect_from_a_port(int family)
{
    ft_net_address own[2] = {address("lo", family == AF_INET ? "127.0.0.1" : "::1", true, true),
                             address("x", "192.0.2.1")};
    ft_net_address other = own[0], source = own[0];
    const int count = family == AF_INET ? 1 : 2;
    int listener[2] = {-1, -1}, client[2] = {-1, -1}, none = -1, before = ft_fd_count();
    int status = ft_net_listen(own, count, family, 0, &listener[0]);
    if (status != FT_OK && family == AF_INET6)
        GTEST_SKIP() << "no IPv6 here: " << ft_fail_text();
    ASSERT_EQ(FT_OK, status) << ft_fail_text();
    ASSERT_EQ(FT_OK, ft_net_listen(&other, 1, family, 0, &listener[1])) << ft_fail_text();

    uint16_t port = 61000;
    while ((status = ft_net_connect_from(&own[0], &source, port, nullptr, &client[0])) == FT_AGAIN)
        port++; // something on this machine has it
    ASSERT_EQ(FT_OK, status) << ft_fail_text();
    ft_net_address at = {};
    EXPECT_EQ(FT_OK, ft_net_source(client[0], &at));
    EXPECT_EQ(port, at.port);
    EXPECT_EQ(0, memcmp(at.ip, source.ip, sizeof at.ip));
    EXPECT_EQ(FT_AGAIN, ft_net_connect_from(&own[0], &source, port, nullptr, &none));
    EXPECT_EQ(FT_OK, ft_net_connect_from(&other, &source, port, nullptr, &client[1]))
        << ft_fail_text();
    EXPECT_EQ(FT_AGAIN, ft_net_connect_from(&own[0], &source, own[0].port, nullptr, &none))
        << "somebody listens there";
    EXPECT_EQ(-1, none);
    EXPECT_EQ(before + 4, ft_fd_count());
    for (int i = 0; i < 2; i++)
        ft_fd_close(&listener[i]), ft_fd_close(&client[i]);
}

TEST(Sockets, ConnectFromAPortOverIPv4)
{
    connect_from_a_port(AF_INET);
}
TEST(Sockets, ConnectFromAPortOverIPv6)
{
    connect_from_a_port(AF_INET6);
}

TEST(Sockets, ConnectFromAnAddressOfAnotherMachineOrFamilyIsRefused)
{
    ft_net_address to = address("lo", "127.0.0.1", true, true),
                   strange = address("x", "192.0.2.77");
    int fd = -1, before = ft_fd_count();
    to.port = 61000;
    EXPECT_EQ(FT_INVAL, ft_net_connect_from(&to, &strange, 61000, nullptr, &fd));
    EXPECT_NE(nullptr, strstr(ft_fail_text(), "192.0.2.77")) << ft_fail_text();
    strange.family = AF_INET6;
    EXPECT_EQ(FT_INVAL, ft_net_connect_from(&to, &strange, 61000, nullptr, &fd));
    EXPECT_EQ(FT_INVAL, ft_net_connect_from(&to, &to, 0, nullptr, &fd));
    EXPECT_EQ(-1, fd);
    EXPECT_EQ(before, ft_fd_count());
}

TEST(Wire, PacksAndRefusesNonsense)
{
    char text[FT_NET_TEXT_BYTES];
    for (ft_net_address a : machine) {
        unsigned char wire[FT_NET_WIRE_BYTES];
        ft_net_address b;
        a.port = 0x1234;
        ft_net_pack(&a, wire);
        ASSERT_EQ(FT_OK, ft_net_unpack(wire, &b));
        std::string was = ft_net_text(&a, text);
        EXPECT_EQ(was, ft_net_text(&b, text));
        wire[0] = 5;
        EXPECT_EQ(FT_PROTOCOL, ft_net_unpack(wire, &b));
    }
}

TEST(Resolve, NumbersNamesAndNonsense)
{
    ft_net_address out[4];
    char text[FT_NET_TEXT_BYTES];
    ASSERT_EQ(1, ft_net_resolve("10.1.2.3:4711", out, 4));
    EXPECT_STREQ("10.1.2.3:4711", ft_net_text(&out[0], text));
    ASSERT_EQ(1, ft_net_resolve("[::1]:80", out, 4));
    EXPECT_STREQ("[::1]:80", ft_net_text(&out[0], text));
    for (const char *bad : {"", ":", "10.1.2.3", "10.1.2.3:", ":80", "10.1.2.3:0", "10.1.2.3:65536",
                            "10.1.2.3:8x", "[]:80", "[:80"})
        EXPECT_EQ(FT_INVAL, ft_net_resolve(bad, out, 4)) << bad;
}
