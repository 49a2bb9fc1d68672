/*
 * A network with four equal ways: two hosts, a leaf each, four spines, all of them network
 * namespaces. Leaves hash addresses, protocol and ports. Each object makes its own and takes it
 * down.
 */
#ifndef FT_TESTS_ECMP_H
#define FT_TESTS_ECMP_H

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

class Ecmp
{
  public:
    static constexpr int kSpines = 4;

    Ecmp() : prefix_("fte" + std::to_string(getpid()) + "-")
    {
        if (geteuid() != 0) {
            missing_ = "not root";
            return;
        }
        if (!run("ip netns add " + name("h0"))) {
            missing_ = "network namespaces cannot be made (ip netns)";
            return;
        }
        for (const std::string &node : nodes())
            if (node != "h0")
                run("ip netns add " + name(node));
        /* addresses can be used at once */
        for (const std::string &node : nodes()) {
            set(node, "ipv6/conf/default/accept_dad", "0");
            set(node, "ipv6/conf/default/dad_transmits", "0");
        }
        make_links();
        if (!set_up())
            missing_ = "no routers with fib_multipath_hash_policy 3";
        else if (!run_within(10))
            missing_ = "links between network namespaces do not come up";
    }
    ~Ecmp()
    {
        for (const std::string &node : nodes())
            run("ip netns del " + name(node));
    }
    const std::string &missing() const
    {
        return missing_;
    }
    std::string name(const std::string &node) const
    {
        return prefix_ + node;
    }
    static bool run(const std::string &command)
    {
        return system(("(" + command + ") >/dev/null 2>&1").c_str()) == 0;
    }
    static std::vector<std::string> routers()
    {
        return {"l0", "l1", "s0", "s1", "s2", "s3"};
    }
    /* Runs it in a thread in the namespace of a node; its sockets stay there. */
    void in(const std::string &node, const std::function<void()> &what) const
    {
        std::thread([&] {
            int ns = open(("/run/netns/" + name(node)).c_str(), O_RDONLY | O_CLOEXEC);
            if (ns < 0 || setns(ns, CLONE_NEWNET) != 0)
                abort();
            close(ns);
            what();
        }).join();
    }
    void set(const std::string &node, const std::string &key, const std::string &value) const
    {
        in(node, [&] { std::ofstream("/proc/sys/net/" + key) << value; });
    }
    /* The way from leaf 0 to host 1 uses these spines. */
    void use(const std::vector<int> &spines) const
    {
        std::string v4 = "route replace 10.1.0.0/24", v6 = "-6 route replace fd00:1::/64";
        for (int s : spines) {
            v4 += " nexthop via 172.16.0." + std::to_string(2 * s + 1);
            v6 += " nexthop via fd00:16:0:" + std::to_string(s) + "::2";
        }
        run("ip -n " + name("l0") + " " + v4);
        run("ip -n " + name("l0") + " " + v6);
    }
    /* What a spine gets for host 1 goes back to leaf 0, or to leaf 1 as before. */
    void send_back(int spine, bool back) const
    {
        const std::string leaf = back ? "0" : "1", s = std::to_string(spine);
        run("ip -n " + name("s" + s) + " route replace 10.1.0.0/24 via 172.16." + leaf + "." +
            std::to_string(2 * spine));
        run("ip -n " + name("s" + s) + " -6 route replace fd00:1::/64 via fd00:16:" + leaf + ":" +
            s + "::1");
    }
    /* Bytes that leaf 0 has sent to each spine. */
    std::vector<uint64_t> sent() const
    {
        std::vector<uint64_t> bytes(kSpines);
        in("l0", [&] {
            std::ifstream dev("/proc/thread-self/net/dev");
            for (std::string line; std::getline(dev, line);) {
                std::istringstream words(line);
                std::string device;
                uint64_t value = 0;
                words >> device;
                for (int i = 0; i < 9; i++)
                    words >> value;
                if (device[0] == 's')
                    bytes[size_t(device[1] - '0')] = value;
            }
        });
        return bytes;
    }

  private:
    std::string prefix_, missing_;

    static std::vector<std::string> nodes()
    {
        std::vector<std::string> all = routers();
        all.insert(all.begin(), {"h0", "h1"});
        return all;
    }
    std::string link(const std::string &a, const std::string &on_a, const std::string &b,
                     const std::string &on_b) const
    {
        return "link add " + on_a + " netns " + name(a) + " type veth peer name " + on_b +
               " netns " + name(b) + "\n";
    }
    void batch(const std::string &node, const std::string &lines) const
    {
        run("printf '" + lines + "' | ip " + (node.empty() ? "" : "-n " + name(node)) +
            " -force -batch -");
    }
    void make_links() const
    {
        std::string links;
        for (const char *leaf : {"0", "1"}) {
            std::string l = leaf;
            links += link("h" + l, "eth0", "l" + l, "h0");
            for (int s = 0; s < kSpines; s++)
                links += link("l" + l, "s" + std::to_string(s), "s" + std::to_string(s), "l" + l);
        }
        batch("", links);
    }
    /* The kernel gives a link its queue some time after both ends are up, on a busy machine a
     * second. Until then the link drops what is sent. */
    bool run_within(int seconds) const
    {
        for (int i = 0; i < 100 * seconds; i++, usleep(10000)) {
            bool all = true;
            for (const std::string &node : nodes())
                in(node, [&] { all = all && links_run(); });
            if (all)
                return true;
        }
        return false;
    }
    static bool links_run()
    {
        bool all = true;
        int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        struct if_nameindex *devices = if_nameindex();
        for (auto *at = devices; at && at->if_index; at++) {
            ifreq request = {};
            snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", at->if_name);
            ioctl(fd, SIOCGIFFLAGS, &request);
            const bool up = request.ifr_flags & IFF_UP, runs = request.ifr_flags & IFF_RUNNING;
            all = all && (!up || runs);
        }
        if_freenameindex(devices);
        close(fd);
        return all;
    }
    bool set_up() const
    {
        const std::vector<std::pair<std::string, std::string>> settings = {
            {"ipv4/ip_forward", "1"},
            {"ipv4/icmp_ratelimit", "0"},
            {"ipv4/icmp_msgs_per_sec", "100000"},
            {"ipv4/icmp_msgs_burst", "10000"},
            {"ipv4/icmp_errors_use_inbound_ifaddr", "1"},
            {"ipv4/fib_multipath_hash_policy", "3"},
            {"ipv4/fib_multipath_hash_fields", "55"},
            {"ipv4/conf/all/rp_filter", "0"},
            {"ipv4/conf/default/rp_filter", "0"},
            {"ipv6/conf/all/forwarding", "1"},
            {"ipv6/icmp/ratelimit", "0"},
            {"ipv6/fib_multipath_hash_policy", "3"},
            {"ipv6/fib_multipath_hash_fields", "55"},
        };
        for (const std::string &node : routers())
            for (const auto &setting : settings)
                set(node, setting.first, setting.second);
        for (const std::string l : {"0", "1"})
            set_up_side(l, l == "0" ? "1" : "0");
        std::string policy;
        in("l0", [&] { std::ifstream("/proc/sys/net/ipv4/fib_multipath_hash_policy") >> policy; });
        return policy == "3";
    }
    void set_up_side(const std::string &l, const std::string &other) const
    {
        std::string host = "link set lo up\nlink set eth0 up\naddr add 10." + l +
                           ".0.2/24 dev eth0\naddr add fd00:" + l +
                           "::2/64 dev eth0 nodad\nroute add default via 10." + l +
                           ".0.1\nroute add default via fd00:" + l + "::1\n";
        std::string leaf = "link set h0 up\naddr add 10." + l +
                           ".0.1/24 dev h0\naddr add fd00:" + l + "::1/64 dev h0 nodad\n";
        std::string v4 = "route add 10." + other + ".0.0/24",
                    v6 = "route add fd00:" + other + "::/64";
        for (int i = 0; i < kSpines; i++) {
            std::string s = std::to_string(i), net4 = "172.16." + l + ".",
                        net6 = "fd00:16:" + l + ":" + s + "::", odd = std::to_string(2 * i + 1);
            leaf += "link set s" + s + " up\naddr add " + net4 + std::to_string(2 * i) +
                    "/31 dev s" + s + "\naddr add " + net6 + "1/64 dev s" + s + " nodad\n";
            v4 += " nexthop via " + net4 + odd;
            v6 += " nexthop via " + net6 + "2";
            batch("s" + s, "link set l" + l + " up\naddr add " + net4 + odd + "/31 dev l" + l +
                               "\naddr add " + net6 + "2/64 dev l" + l + " nodad\nroute add 10." +
                               l + ".0.0/24 via " + net4 + std::to_string(2 * i) +
                               "\nroute add fd00:" + l + "::/64 via " + net6 + "1\n");
        }
        /* both ends of each link are up from here on */
        batch("l" + l, leaf + v4 + "\n" + v6 + "\n");
        batch("h" + l, host);
    }
};

#endif
