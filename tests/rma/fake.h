// A fabric and side connections in memory, for tests of src/transport/rma. One seed decides when
// every write, event and message comes. Writes are what a NIC does: it reads the sender's memory
// when it sends, and stores at addresses, also half of a write. Ways can be broken and held back.
#ifndef TESTS_RMA_FAKE_H
#define TESTS_RMA_FAKE_H

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "transport/rma/rma.h"
#include "transport/side.h"
}

struct FakeFabric;

struct FakeRegion {
    ft_fabric_region base; // the first field
    ft_fabric_access access;
    bool gone;
};

struct FakeWrite {
    std::vector<ft_fabric_piece> pieces;
    std::string inlined; // what it had when it was given, if `copied`
    bool copied;
    size_t to;
    uint32_t immediate;
    bool asked, delivered, silent;
};

struct FakeWay {
    ft_fabric_way base; // the first field
    uint64_t number, peer;
    FakeFabric *fabric;
    FakeRegion *into;
    bool broken, told, stopping, stopped;
    std::deque<FakeWrite> out;
    unsigned silent; // writes that ended well and were not counted
};

// The network and the clock of one test.
struct FakeNet {
    explicit FakeNet(uint64_t seed);
    ~FakeNet();
    // Something happens, somewhere: a write moves, an event comes, a message arrives.
    void step();
    void break_way(FakeWay *); // from now on nothing goes over it; both sides learn of it at times
    std::vector<FakeWay *> ways_of(uint64_t peer_count = 0);
    unsigned below(unsigned n)
    {
        return (unsigned)(random() % n);
    }

    std::mt19937_64 random;
    uint64_t now_ns = 1000000000;
    unsigned ways = 2;        // of fabrics that are opened
    size_t inline_bytes = 64; // likewise
    unsigned depth = 16;      // most writes on a way; then FT_AGAIN
    bool any_order = true;    // writes of one way overtake each other
    bool unended = false;     // writes from lent memory arrive, but do not end
    bool refuse_opens = false;
    int port_down = -1;          // ways of this port cannot be opened
    std::vector<uint64_t> opens; // when ways were opened, or refused
    bool side_full = false;      // side connections take nothing
    bool side_held = false;      // what they have taken does not move
    int fail_reg = FT_OK;        // what reg returns
    // Called for each write that is stored, before that. It may change the immediate or the bytes.
    std::function<void(FakeWay *from, uint32_t *immediate, std::string *bytes, size_t *to)> spoil;
    std::function<bool(FakeWay *from)> held; // true: its writes do not move now
    std::map<uint64_t, FakeWay *> all;       // by number
    uint64_t next = 1;
    unsigned long delivered = 0, wrong = 0; // wrong: things that the engine must never do
    std::string wrong_text;
    std::vector<FakeFabric *> fabrics;
    void complain(const std::string &);
};
extern FakeNet *fake_net; // the one of the running test

// The transport over it.
extern const ft_transport_ops fake_transport;
// Ends all conversations of an engine as a kill of its process does.
void fake_side_kill(uint64_t engine);
// Forgets all messages between engines, for the next test.
void fake_side_reset();
void fake_side_step(FakeNet &);
// Sends what no honest engine says, as from that engine's newest conversation.
void fake_side_inject(uint64_t from, unsigned kind, const std::string &data);

#endif
