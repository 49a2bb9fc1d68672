/* A network path that delays or loses packets, for kernels without netem. What one namespace
 * sends to an address goes into a TUN device; a thread takes the packets there and gives them,
 * later, to a TUN device of another namespace. Segments that the kernel would cut only at the end
 * stay in one packet, unless packets are to be lost: then each is lost for itself. */
#ifndef FT_TESTS_CAMPAIGN_RELAY_H
#define FT_TESTS_CAMPAIGN_RELAY_H

#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace campaign
{

class Relay
{
  public:
    struct Harm {
        int delay_us = 0, loss_ppm = 0;
        uint64_t seed = 0;
    };
    /* Namespaces as files for setns(). Both devices get the name, and go with the object. */
    Relay(const std::string &from, const std::string &to, const std::string &device, Harm harm);
    ~Relay();
    Relay(const Relay &) = delete;
    bool works() const /* false: no TUN devices can be made */
    {
        return in_ >= 0 && out_ >= 0 && stop_ >= 0;
    }

  private:
    struct Packet {
        double due;
        std::vector<char> bytes;
    };
    static constexpr size_t MOST = 4096; /* packets that wait; further ones are lost */
    const Harm harm_;
    int in_ = -1, out_ = -1, stop_ = -1;
    std::mt19937_64 random_;
    std::deque<Packet> waiting_;
    std::thread thread_;
    int open_device(const std::string &ns, const std::string &device) const;
    void run();
    void take();
    void give();
};

} // namespace campaign

#endif
