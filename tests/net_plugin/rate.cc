// Measures what transport net costs over the plugin of the tests; it asserts nothing. One thread
// moves both ends, so that the load of the machine counts alike: a bare loop of isend, irecv and
// test with eight receives posted, and a link, in turn. Prints the medians of 31 rounds of
// 128 KiB messages, written in place and sent from other memory, and their ratios to the bare loop.
#include "tests/conform/transport.h"

extern "C" {
#include "transport/net_plugin/plugin.h"
}

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace
{

const size_t len = 131072, head = 64, messages = 400;
const int rounds = 31, window = 8;

double now_s()
{
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "%s: %s\n", what, ft_fail_text());
    exit(1);
}

struct Bare {
    const net_plugin *p = nullptr;
    void *context = nullptr, *listener = nullptr, *tx = nullptr, *rx = nullptr;
    void *tx_registered = nullptr, *rx_registered = nullptr;
    std::vector<char> from = std::vector<char>(window * (len + head), 1), to = from;
    Bare()
    {
        alignas(16) char handle[NET_ABI_HANDLE_BYTES];
        must(net_plugin_get(&p) == FT_OK && net_plugin_open(p, 1, &context) == FT_OK &&
                 net_plugin_listen(p, context, handle, &listener) == FT_OK,
             "plugin");
        while (!tx || !rx) {
            must(tx || net_plugin_connect(p, context, handle, &tx) != FT_LINK, "connect");
            must(rx || net_plugin_accept(p, listener, &rx) != FT_LINK, "accept");
        }
        must(net_plugin_reg(p, tx, from.data(), from.size(), &tx_registered) == FT_OK &&
                 net_plugin_reg(p, rx, to.data(), to.size(), &rx_registered) == FT_OK,
             "regMr");
    }
    // Both sides keep up to `window` requests; the oldest is tested.
    double run()
    {
        void *sent[window], *received[window];
        size_t sends = 0, sends_done = 0, posts = 0, done = 0;
        int n;
        const double start = now_s();
        while (done < messages) {
            while (posts < done + window &&
                   net_plugin_irecv(p, rx, &to[posts % window * (len + head)], len, rx_registered,
                                    &received[posts % window]) == FT_OK)
                posts++;
            while (sends < messages && sends < sends_done + window &&
                   net_plugin_isend(p, tx, &from[sends % window * (len + head)], len, tx_registered,
                                    &sent[sends % window]) == FT_OK)
                sends++;
            while (sends_done < sends && net_plugin_test(p, sent[sends_done % window], &n) == FT_OK)
                sends_done++;
            while (done < posts && net_plugin_test(p, received[done % window], &n) == FT_OK)
                done++;
        }
        while (sends_done < sends)
            sends_done += net_plugin_test(p, sent[sends_done % window], &n) == FT_OK;
        // what is posted stays posted: the next round would lose it
        return (double)(messages * len) / (now_s() - start) / 1e9;
    }
};

struct Linked {
    Engine a, b;
    ft_link *tx, *rx;
    std::vector<char> data = std::vector<char>(len, 1);
    explicit Linked(const Backend &net) : a(net, 1, len), b(net, 2, len)
    {
        must(a.t && b.t && a.ops->bind(a.t, 1) == FT_OK && b.ops->bind(b.t, 1) == FT_OK, "open");
        tx = a.connect(2, b.address());
        must(turn({&a, &b}, [&] { return tx->state == FT_LINK_UP && b.accepted(); }), "link");
        rx = b.accepted();
    }
    bool send(size_t i, bool in_place)
    {
        ft_header h = header_of(1, (unsigned)(i % 4), (uint32_t)i, len);
        ft_send req = {};
        void *slot;
        if (!in_place)
            return tx->ops->send(tx, &h, data.data(), &req) == FT_OK;
        if (tx->ops->reserve(tx, &h, &slot) != FT_OK)
            return false;
        tx->ops->commit(tx, &h, slot);
        return true;
    }
    double run(bool in_place)
    {
        size_t sent = 0, done = 0;
        ft_msg msg;
        const double start = now_s();
        while (done < messages) {
            while (sent < messages && send(sent, in_place))
                sent++;
            a.poll();
            b.poll();
            while (rx->ops->recv(rx, 1, (unsigned)(done % 4), &msg) == FT_OK) {
                rx->ops->release(rx, &msg);
                done++;
            }
        }
        return (double)(messages * len) / (now_s() - start) / 1e9;
    }
};

double median(std::vector<double> v)
{
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

} // namespace

int main()
{
    std::vector<double> bare, placed, sent;
    for (const Backend &backend : all_backends()) {
        if (std::string(backend.name) != "net")
            continue;
        Linked link(backend);
        for (int i = 0; i < rounds; i++) {
            bare.push_back(Bare().run());
            placed.push_back(link.run(true));
            sent.push_back(link.run(false));
        }
    }
    printf("bare isend and irecv %.2f GB/s, net in place %.2f GB/s (%.2f), net sent %.2f GB/s "
           "(%.2f)\n",
           median(bare), median(placed), median(placed) / median(bare), median(sent),
           median(sent) / median(bare));
    return 0;
}
