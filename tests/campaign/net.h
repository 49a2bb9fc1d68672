/* Hosts of the campaign as network namespaces: each has one link to a bridge, which can be cut,
 * half or whole, or made slow. */
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
    }                                 /* why there are none; "": there are */
    std::string path(int host) const; /* to setns() into */
    void cut(int host) const;
    void half(int host, bool inbound) const; /* packets of one direction are lost */
    void slow(int host) const;               /* 4 Mbit/s */
    void part(int from, int to) const;       /* packets from one to the other are lost */
    void join(int from, int to) const;
    void heal(int host) const;

  private:
    std::string name(const std::string &part) const;
    std::string port(int host) const;
    bool run(const std::string &command) const;
    const std::string prefix_; /* the driver's process: asked in children too */
    std::string missing_;
};

} // namespace campaign

#endif
