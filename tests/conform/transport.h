// The conformance suite of transports: it tests what src/transport/transport.h promises for every
// backend. A backend joins with a row of backends[] in transport.cc. The programs
// transport_*_test.cc run everything over every row.
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
    bool processes;   // it works between processes
    const char *gaps; // known gaps: names of tests that are skipped until the gap is closed
    bool looks;       // no descriptor reports its messages: they are found every look_ns
};

extern const Backend backends[];
std::vector<Backend> all_backends();
std::string backend_name(const testing::TestParamInfo<Backend> &);

// The transport of one engine, with its events in the order in which they came.
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
    bool poll(); // One turn. True: something moved.
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
    bool looks;      // see Backend
    int idle_ms = 0; // time slept since it last moved
    std::vector<ft_link *> accepts;
    std::vector<std::pair<ft_link *, int>> events;
};

// Turns the engines until the condition holds. False: bound_ms of the real clock passed before.
bool turn(std::vector<Engine *> engines, const std::function<bool()> &condition,
          int bound_ms = 5000);
uint64_t now_ms();

ft_header header_of(uint64_t ctx, unsigned lane, uint32_t seq, uint32_t len);
std::string payload(uint32_t seq, size_t len_bytes); // the payload of message seq

// Two engines with one link from a to b, and context 1 bound on both.
class TransportTest : public testing::TestWithParam<Backend>
{
  protected:
    void SetUp() override;
    void TearDown() override;
    void open(size_t chunk_bytes = 65536);
    bool link(); // connects a to b
    // Sends one message of context ctx. Returns FT_OK, FT_AGAIN or FT_LINK. The request must
    // complete at once or within some turns.
    int send(ft_link *, uint64_t ctx, unsigned lane, uint32_t seq, size_t len_bytes);
    // Takes and checks message seq of a channel. Returns false, with a failure, if it does not come
    // within the bound.
    bool expect(uint64_t ctx, unsigned lane, uint32_t seq, size_t len_bytes);
    bool take(ft_link *, uint64_t ctx, unsigned lane, ft_msg *, int bound_ms = 5000);

    std::unique_ptr<Engine> a, b;
    // the sending side on a, and the receiving side on b, of the same link
    ft_link *ab = nullptr, *ba = nullptr;
    int fds_before = 0;
};

// A child process that runs a function, with a pipe in each direction.
class Child
{
  public:
    explicit Child(const std::function<int(int in, int out)> &body);
    ~Child();
    std::string read(); // reads one record: a length byte, then the bytes; "" at the end
    void write(const std::string &);
    void kill_hard();
    bool is_stopped(); // Waits until the child has stopped itself.
    void go_on();
    int wait(); // exit status, or -signal
    static std::string read_from(int fd);
    static void write_to(int fd, const std::string &);

  private:
    int pid = -1, in = -1, out = -1;
};

#endif
