// The conformance suite of transports: what every backend promises in src/transport/transport.h. A
// backend joins by a row of backends[] in transport.cc; the programs transport_*_test.cc run
// everything over every row.
#ifndef CONFORM_TRANSPORT_H
#define CONFORM_TRANSPORT_H

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "transport/transport.h"
}

struct Backend {
    const char *name;
    const ft_transport_ops *ops;
    bool processes;   // works between processes
    const char *gaps; // known ones: names of tests that are skipped, to be closed
};

extern const Backend backends[];
std::vector<Backend> all_backends();
std::string backend_name(const testing::TestParamInfo<Backend> &);

// One engine's transport, with its events as they came.
class Engine
{
  public:
    Engine(const Backend &, uint64_t id, size_t chunk_bytes = 65536, unsigned char key = 1,
           ft_pinned *pinned = nullptr, size_t first_bytes = 0);
    ~Engine()
    {
        close();
    }
    Engine(const Engine &) = delete;
    void close();
    bool poll(); // one turn; true if anything moved
    std::string address();
    ft_link *connect(uint64_t peer, const std::string &address);
    void disconnect(ft_link *);
    bool has(ft_link *link, int what) const;
    ft_link *accepted(size_t i = 0) const
    {
        return i < accepts.size() ? accepts[i] : nullptr;
    }

    ft_transport *t = nullptr;
    const ft_transport_ops *ops;
    uint64_t id;
    std::vector<ft_link *> accepts;
    std::vector<std::pair<ft_link *, int>> events;
};

// Turns the engines until the condition holds; false after `bound_ms` of the real clock.
bool turn(std::vector<Engine *> engines, const std::function<bool()> &condition,
          int bound_ms = 5000);
uint64_t now_ms();

ft_header header_of(uint64_t ctx, unsigned lane, uint32_t seq, uint32_t len);
std::string payload(uint32_t seq, size_t len_bytes); // what message seq carries

// Two engines with one link from a to b and context 1 bound on both.
class TransportTest : public testing::TestWithParam<Backend>
{
  protected:
    void SetUp() override;
    void TearDown() override;
    void open(size_t chunk_bytes = 65536);
    bool link(); // connects a to b
    // One message of context ctx; FT_OK, FT_AGAIN, FT_LINK. The request must complete at once or
    // within turns.
    int send(ft_link *, uint64_t ctx, unsigned lane, uint32_t seq, size_t len_bytes);
    // Takes and checks message seq of a channel; false and a failure if it is not there within the
    // bound.
    bool expect(uint64_t ctx, unsigned lane, uint32_t seq, size_t len_bytes);
    bool take(ft_link *, uint64_t ctx, unsigned lane, ft_msg *, int bound_ms = 5000);

    std::unique_ptr<Engine> a, b;
    ft_link *ab = nullptr, *ba = nullptr; // a's sending side, b's receiving side of the same link
    int fds_before = 0;
};

// A child process that runs a function with a pipe to and from it.
class Child
{
  public:
    explicit Child(const std::function<int(int in, int out)> &body);
    ~Child();
    std::string read(); // one line-like record: length byte, then bytes; "" at the end
    void write(const std::string &);
    void kill_hard();
    int wait(); // exit status, or -signal
    static std::string read_from(int fd);
    static void write_to(int fd, const std::string &);

  private:
    int pid = -1, in = -1, out = -1;
};

#endif
