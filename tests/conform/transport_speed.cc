// Measures a transport between two processes; it asserts nothing. Prints the one-way latency of
// 8-byte messages (half of a round trip, while both sides poll), and the rate of 128 KiB messages
// that the receiver copies out; they are sent from registered memory where that is faster. Usage:
// transport_speed [backend...]; FT_SPEED_PART=0.01 does a hundredth of it, and both sides sleep
// when there is nothing to do in the second measurement. FT_SPEED_BARE=1: payloads lie in 8 chunks
// that nobody writes, and the receiver does not copy them out, as in a bare loop of a network.
#include "tests/conform/transport.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include <poll.h>

namespace
{

const size_t chunk = 131072;

double now_us()
{
    using namespace std::chrono;
    return duration<double, std::micro>(steady_clock::now().time_since_epoch()).count();
}

bool is_bare()
{
    return getenv("FT_SPEED_BARE");
}

double part()
{
    const char *text = getenv("FT_SPEED_PART");
    return text ? strtod(text, nullptr) : 1;
}

struct Side {
    Engine &e;
    ft_link *to, *from;
    bool sleeps = false;
    // What was sent last; it is pending while the network reads the user's memory.
    ft_send sent[8] = {};
    unsigned nsent = 0;

    void turn_once()
    {
        if (e.poll() || !sleeps)
            return;
        if (e.ops->arm(e.t, true)) {
            struct pollfd p = {e.ops->fd(e.t), POLLIN, 0};
            ::poll(&p, 1, 10);
        }
        e.ops->arm(e.t, false);
    }

    void send(const void *data, uint32_t len, unsigned lane, bool in_place)
    {
        ft_header h = header_of(1, lane, 0, len);
        ft_send &req = sent[nsent++ % 8];
        void *slot;
        wait_for(req);
        for (;;) {
            int rc = in_place ? to->ops->reserve(to, &h, &slot) : to->ops->send(to, &h, data, &req);
            if (rc == FT_OK)
                break;
            if (rc != FT_AGAIN)
                exit(3);
            turn_once();
        }
        if (!in_place)
            return;
        if (!is_bare())
            memcpy(slot, data, len);
        to->ops->commit(to, &h, slot);
    }

    void wait_for(const ft_send &req)
    {
        while (req.status == FT_AGAIN)
            turn_once();
    }

    void settle()
    {
        for (const ft_send &req : sent)
            wait_for(req);
    }

    void recv(void *out, unsigned lane)
    {
        ft_msg msg;
        int rc;
        while ((rc = from->ops->recv(from, 1, lane, &msg)) == FT_AGAIN)
            turn_once();
        if (rc != FT_OK)
            exit(4);
        if (out && !is_bare())
            memcpy(out, msg.data, msg.header.len);
        from->ops->release(from, &msg);
    }
};

// As a program does that registers its buffers, where that is faster.
void *reg(Engine &e, std::vector<char> *memory)
{
    void *registered = nullptr;
    if (e.ops->caps.registers && e.ops->reg(e.t, memory->data(), memory->size(), &registered))
        exit(5);
    return registered;
}

int batches()
{
    return part() < 1 ? 5 : 40;
}

void time_of_a_word(Side &s, bool first, const char *name)
{
    char word[8] = {0};
    std::vector<double> lat;
    // A small part times each round trip alone, like ib_write_lat.
    const int all = std::max(2, (int)(2000 * part()));
    const int n = part() < 1 ? 1 : all;
    for (int batch = 0; batch < batches(); batch++)
        for (int done = 0; done < all; done += n) {
            double start = now_us();
            for (int i = 0; i < n; i++) {
                if (first)
                    s.send(word, 8, 0, false);
                s.recv(word, 0);
                if (!first)
                    s.send(word, 8, 0, false);
            }
            lat.push_back((now_us() - start) / n / 2);
        }
    std::sort(lat.begin(), lat.end());
    if (first)
        printf("%s: 8 B one way: median %.3f us, best %.3f us\n", name, lat[lat.size() / 2],
               lat[0]);
}

// A message from the second to the first says that all before it has arrived.
void answer(Side &s, bool first)
{
    char word[8] = {0};
    if (first)
        s.recv(word, 0);
    else
        s.send(word, 8, 0, false);
}

void rate_of_chunks(Side &s, bool first, const char *name, bool in_place, std::vector<char> &from,
                    std::vector<char> &to)
{
    std::vector<double> rate;
    const size_t n = std::max<size_t>(16, (size_t)(256 * part()));
    for (int batch = 0; batch < batches(); batch++) {
        double start = now_us();
        for (size_t i = 0; i < n; i++) {
            size_t at = (batch * n + i) * chunk;
            if (first)
                s.send(&from[at % from.size()], chunk, i % 4, in_place);
            else
                s.recv(&to[at % to.size()], i % 4);
        }
        s.settle();
        answer(s, first);
        rate.push_back((double)(n * chunk) / (now_us() - start) / 1e3);
    }
    std::sort(rate.begin(), rate.end());
    if (first)
        printf("%s: 128 KiB %s: median %.4f GB/s, best %.4f\n", name,
               in_place ? "reserved" : "sent", rate[rate.size() / 2], rate.back());
}

void run(Side &s, bool first, const char *name)
{
    time_of_a_word(s, first, name);
    s.sleeps = part() < 1;
    std::vector<char> from(is_bare() ? 8 * chunk : 64 << 20, 1), to(64 << 20, 2);
    void *registered = reg(s.e, &from);
    rate_of_chunks(s, first, name, false, from, to);
    rate_of_chunks(s, first, name, true, from, to);
    answer(s, !first);
    if (registered)
        s.e.ops->unreg(s.e.t, registered);
}

int side(const Backend &b, bool first,
         const std::function<std::string(const std::string &)> &exchange)
{
    Engine e(b, first ? 1 : 2, chunk);
    if (!e.t || e.ops->bind(e.t, 1))
        return 1;
    ft_link *to = e.connect(first ? 2 : 1, exchange(e.address()));
    if (!to || !turn({&e}, [&] { return to->state == FT_LINK_UP && e.accepted(); }))
        return 2;
    Side s{e, to, e.accepted()};
    run(s, first, b.name);
    return 0;
}

} // namespace

int main(int argc, char **argv)
{
    for (const Backend &b : all_backends()) {
        if (argc > 1 && std::find(argv + 1, argv + argc, std::string(b.name)) == argv + argc)
            continue;
        if (!b.processes)
            continue;
        Child child([&](int in, int out) {
            return side(b, false, [&](const std::string &mine) {
                Child::write_to(out, mine);
                return Child::read_from(in);
            });
        });
        int rc = side(b, true, [&](const std::string &mine) {
            child.write(mine);
            return child.read();
        });
        int other = child.wait();
        if (rc || other)
            printf("%s: failed with %d and %d\n", b.name, rc, other);
    }
    return 0;
}
