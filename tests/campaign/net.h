/* Hosts of the campaign as network namespaces. Each has one link to a bridge, which can be cut in
 * one or both directions, or made slow. */
#ifndef FT_TESTS_CAMPAIGN_NET_H
#define FT_TESTS_CAMPAIGN_NET_H

#include <string>

namespace campaign
{

class Net
{
  public:
    static constexpr int HOSTS = 4;
    Net();
    ~Net();
    Net(const Net &) = delete;
    const std::string &missing() const
    {
        return missing_;
    }                                 /* why there are no namespaces; "": there are */
    std::string path(int host) const; /* for setns() */
    void cut(int host) const;
    void half(int host, bool inbound) const; /* loses the packets of one direction */
    void slow(int host) const;               /* limits the rate to 4 Mbit/s */
    void limit(int host, bool inbound, int mbit) const;
    void limit_link(int from, int to, int mbit) const;
    void part(int from, int to) const; /* loses the packets from one host to the other */
    void join(int from, int to) const;
    /* Sends the packets from one host to the other over a device that both have. */
    bool detour(int from, int to, const std::string &device) const;
    void heal(int host) const;
    /* Cables of the virtual machine of tests/rdma, from the first end. */
    void unplug(const std::string &cable) const;
    void plug(const std::string &cable) const;

  private:
    std::string name(const std::string &part) const;
    std::string port(int host) const;
    bool run(const std::string &command) const;
    const std::string prefix_; /* of the driver's process; children also use it */
    std::string missing_;
};

} // namespace campaign

#endif
