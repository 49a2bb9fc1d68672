/* See net.h. ip(8) makes the namespaces and links. A token bucket that is too small for any packet
 * makes losses and rates. */
#include "tests/campaign/net.h"

#include <unistd.h>

#include <cstdlib>

namespace campaign
{

std::string Net::name(const std::string &part) const
{
    return prefix_ + part;
}
std::string Net::port(int host) const
{
    return "p" + std::to_string(host);
}
std::string Net::path(int host) const
{
    return "/run/netns/" + name("h" + std::to_string(host));
}

bool Net::run(const std::string &command) const
{
    return system((command + " >/dev/null 2>&1").c_str()) == 0;
}

Net::Net() : prefix_("ftc" + std::to_string(getpid()))
{
    std::string hub = name("hub");
    if (geteuid() != 0)
        missing_ = "not root";
    else if (!run("ip netns add " + hub))
        missing_ = "network namespaces cannot be made (ip netns)";
    else if (!run("ip -n " + hub + " link add br0 type bridge") ||
             !run("ip -n " + hub + " link set br0 up"))
        missing_ = "no bridge devices";
    for (int host = 0; host < HOSTS && missing_.empty(); host++) {
        std::string ns = name("h" + std::to_string(host)),
                    address = "10.77.0." + std::to_string(host + 1) + "/24";
        bool made = run("ip netns add " + ns) &&
                    run("ip -n " + ns + " link add eth0 type veth peer name " + port(host) +
                        " netns " + hub) &&
                    run("ip -n " + ns + " addr add " + address + " dev eth0") &&
                    run("ip -n " + ns + " link set lo up") &&
                    run("ip -n " + ns + " link set eth0 up") &&
                    run("ip -n " + hub + " link set " + port(host) + " master br0") &&
                    run("ip -n " + hub + " link set " + port(host) + " up");
        if (!made)
            missing_ = "no veth devices";
    }
    if (missing_.empty() &&
        !run("tc -n " + hub + " qdisc add dev p0 root tbf rate 8kbit burst 60 limit 60"))
        missing_ = "no tc with tbf";
    heal(0);
}

Net::~Net()
{
    for (int host = 0; host < HOSTS; host++)
        run("ip netns del " + name("h" + std::to_string(host)));
    run("ip netns del " + name("hub"));
}

void Net::cut(int host) const
{
    run("ip -n " + name("hub") + " link set " + port(host) + " down");
}

void Net::half(int host, bool inbound) const
{
    std::string where = inbound ? name("hub") + " qdisc replace dev " + port(host)
                                : name("h" + std::to_string(host)) + " qdisc replace dev eth0";
    run("tc -n " + where + " root tbf rate 8kbit burst 60 limit 60");
}

void Net::slow(int host) const
{
    run("tc -n " + name("hub") + " qdisc replace dev " + port(host) +
        " root tbf rate 4mbit burst 100000 limit 300000");
}

void Net::limit(int host, bool inbound, int mbit) const
{
    std::string where = inbound ? name("hub") + " qdisc replace dev " + port(host)
                                : name("h" + std::to_string(host)) + " qdisc replace dev eth0";
    run("tc -n " + where + " root tbf rate " + std::to_string(mbit) +
        "mbit burst 100000 limit 3000000");
}

void Net::limit_link(int from, int to, int mbit) const
{
    std::string tc = "tc -n " + name("h" + std::to_string(from)), eth = " dev eth0 ";
    run(tc + " qdisc replace" + eth + "root handle 1: htb default 10 r2q 1000");
    run(tc + " class add" + eth + "parent 1: classid 1:10 htb rate 20gbit");
    run(tc + " class add" + eth + "parent 1: classid 1:20 htb rate " + std::to_string(mbit) +
        "mbit");
    run(tc + " filter add" + eth + "parent 1: protocol ip prio 1 u32 match ip dst 10.77.0." +
        std::to_string(to + 1) + "/32 flowid 1:20");
}

/* They go to an address of the link that nobody has. */
void Net::part(int from, int to) const
{
    run("ip -n " + name("h" + std::to_string(from)) + " neigh replace 10.77.0." +
        std::to_string(to + 1) + " lladdr 02:00:00:00:00:99 dev eth0 nud permanent");
}

void Net::join(int from, int to) const
{
    run("ip -n " + name("h" + std::to_string(from)) + " neigh del 10.77.0." +
        std::to_string(to + 1) + " dev eth0");
}

bool Net::detour(int from, int to, const std::string &device) const
{
    std::string here = "ip -n " + name("h" + std::to_string(from)),
                there = "ip -n " + name("h" + std::to_string(to)),
                up = " link set " + device + " up";
    return run(there + up) && run(here + up) &&
           run(here + " route add 10.77.0." + std::to_string(to + 1) + "/32 dev " + device);
}

void Net::heal(int host) const
{
    run("ip -n " + name("hub") + " link set " + port(host) + " up");
    run("tc -n " + name("hub") + " qdisc del dev " + port(host) + " root");
    run("tc -n " + name("h" + std::to_string(host)) + " qdisc del dev eth0 root");
}

void Net::unplug(const std::string &cable) const
{
    run("ip link set " + cable + " down");
}

void Net::plug(const std::string &cable) const
{
    run("ip link set " + cable + " up");
}

} // namespace campaign
