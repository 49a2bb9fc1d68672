/* See relay.h. */
#include "tests/campaign/relay.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace campaign
{
namespace
{

double now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

bool enter(const std::string &ns)
{
    int fd = open(ns.c_str(), O_RDONLY | O_CLOEXEC);
    bool entered = fd >= 0 && setns(fd, CLONE_NEWNET) == 0;
    if (fd >= 0)
        close(fd);
    return entered;
}

/* A device of the namespace in which the thread is. */
int make_device(const std::string &device, bool whole)
{
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    ifreq request = {};
    strncpy(request.ifr_name, device.c_str(), IFNAMSIZ - 1);
    request.ifr_flags = static_cast<short>(IFF_TUN | IFF_NO_PI | (whole ? IFF_VNET_HDR : 0));
    bool made = fd >= 0 && ioctl(fd, TUNSETIFF, &request) == 0 &&
                (!whole || ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) == 0);
    if (fd >= 0 && !made)
        close(fd);
    return made ? fd : -1;
}

} // namespace

/* Only the thread that makes the device enters the namespace. */
int Relay::open_device(const std::string &ns, const std::string &device) const
{
    int fd = -1;
    std::thread([&] {
        if (enter(ns))
            fd = make_device(device, harm_.loss_ppm == 0);
    }).join();
    return fd;
}

Relay::Relay(const std::string &from, const std::string &to, const std::string &device, Harm harm)
    : harm_(harm), in_(open_device(from, device)), out_(open_device(to, device)),
      stop_(eventfd(0, EFD_CLOEXEC)), random_(harm.seed)
{
    if (works())
        thread_ = std::thread([this] { run(); });
}

Relay::~Relay()
{
    if (thread_.joinable()) {
        eventfd_write(stop_, 1);
        thread_.join();
    }
    for (int fd : {in_, out_, stop_})
        if (fd >= 0)
            close(fd);
}

void Relay::take()
{
    static thread_local char bytes[70000];
    for (int i = 0; i < 64; i++) { /* then others have waited for long enough */
        ssize_t n = read(in_, bytes, sizeof bytes);
        if (n <= 0)
            return;
        bool lost = random_() % 1000000 < static_cast<uint64_t>(harm_.loss_ppm);
        if (!lost && waiting_.size() < MOST)
            waiting_.push_back({now() + 1e-6 * harm_.delay_us, {bytes, bytes + n}});
    }
}

/* A packet that the other side does not take is lost, as in any network. */
void Relay::give()
{
    for (; !waiting_.empty() && waiting_.front().due <= now(); waiting_.pop_front())
        if (write(out_, waiting_.front().bytes.data(), waiting_.front().bytes.size()) < 0)
            continue;
}

void Relay::run()
{
    prctl(PR_SET_TIMERSLACK, 1000);
    for (;;) {
        pollfd fds[] = {{in_, POLLIN, 0}, {stop_, POLLIN, 0}};
        double left = waiting_.empty() ? 1 : std::max(0.0, waiting_.front().due - now());
        timespec most = {static_cast<time_t>(left), static_cast<long>(1e9 * fmod(left, 1))};
        ppoll(fds, 2, &most, nullptr);
        if (fds[1].revents)
            return;
        take();
        give();
    }
}

} // namespace campaign
