// See checker.h. One World is one run of one case.
#include "checker.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <stdexcept>

namespace
{

uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u + (b ^ (b >> 29)) * 0xbf58476d1ce4e5b9u +
                 0x94d049bb133111ebu;
    x ^= x >> 31;
    x *= 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}

Value leaf(int rank, size_t elem)
{
    Value v;
    v.hash = mix((uint64_t)rank + 1, 17);
    v.ranks = 1ull << rank;
    v.elem = (uint32_t)elem;
    v.state = Value::raw;
    return v;
}

struct Message {
    std::vector<Value> values;
    int hops;
    bool lent;
};

// Unconsumed messages, oldest first: never more than the window.
struct Channel {
    std::vector<Message> queue;
};

// A lane of a rank: where it stands in its current step.
struct Lane {
    uint64_t index = 0;
    struct ft_step step;
    unsigned unsent = 0, unforwarded = 0; // bits of send_to, fwd_to
    int lent =
        0; // messages that the receiver reads in this rank's memory: the step waits for their end
    bool loaded = false, received = false, queued = false;
    std::vector<Value> result;
    int hops = 0; // of what this lane has received
};

struct Rank {
    struct ft_view view;
    struct ft_plan plan;
    bool in_place;
    std::vector<Value> in, out,
        tmp; // in place, `in` is empty and IN lies in out (or out's own place in `in`)
    Value *in_at = nullptr, *out_at = nullptr;
    size_t in_elems = 0, out_elems = 0;
    std::vector<Lane> lanes;
};

class World
{
  public:
    explicit World(const Case &of) : c(of), n(of.nranks()), random(of.seed), ranks((size_t)n)
    {
    }
    void run();
    int hops() const;

  private:
    const Case &c;
    int n;
    std::mt19937_64 random;
    std::vector<Rank> ranks;
    std::vector<uint64_t> peer;
    std::vector<Channel> channels;
    std::vector<std::pair<int, int>> ready;
    int nlanes = 0;
    size_t esize = 0;

    [[noreturn]] void fail(int rank, int lane, const std::string &what);
    void open(int rank);
    void place(int rank, size_t in_elems, size_t out_elems, bool in_place);
    Channel &channel(int from, int to, int lane)
    {
        return channels[((size_t)from * n + to) * nlanes + lane];
    }
    bool room(int from, int to, int lane)
    {
        return channel(from, to, lane).queue.size() < (size_t)c.window;
    }
    void wake(int rank, int lane);
    bool advance(int rank, int lane);
    void load(int rank, int lane);
    bool forward(int rank, int lane, unsigned &mask, const int *to,
                 const std::vector<Value> &values, bool lend = false);
    bool can_receive(int rank, int lane);
    void receive(int rank, int lane);
    Value combine(int rank, int lane, const std::vector<Value> &operands);
    std::vector<Value> read(int rank, int lane, struct ft_ref ref, size_t bytes);
    void store(int rank, int lane, struct ft_ref ref, const std::vector<Value> &values);
    Value *cells(int rank, int lane, struct ft_ref ref, size_t bytes);
    void compare();
    Value expected(int rank, size_t i) const;
};

bool reduces(const Case &c)
{
    return ft_kind_reduces(c.coll.kind);
}

void World::fail(int rank, int lane, const std::string &what)
{
    std::ostringstream text;
    text << what << " (rank " << rank;
    if (lane >= 0)
        text << ", lane " << lane << ", step " << ranks[rank].lanes[lane].index;
    text << ")";
    throw std::runtime_error(text.str());
}

// Buffers as NCCL has them, with its places for in-place calls.
void World::open(int rank)
{
    size_t count = c.coll.count, all = count * n;
    bool root = rank == c.coll.root;
    bool wanted = c.in_place == InPlace::all || (c.in_place == InPlace::mixed && (random() & 1));
    switch (c.coll.kind) {
    case FT_ALLREDUCE:
        place(rank, count, count, wanted);
        break;
    case FT_BROADCAST:
        place(rank, root ? count : 0, count, wanted && root);
        break;
    case FT_REDUCE:
        place(rank, count, root ? count : 0, wanted && root);
        break;
    case FT_ALLGATHER:
        place(rank, count, all, wanted);
        break;
    case FT_REDUCESCATTER:
        place(rank, all, count, wanted);
        break;
    case FT_ALLTOALL:
        place(rank, all, all, wanted);
        break;
    case FT_GATHER:
        place(rank, count, root ? all : 0, wanted && root);
        break;
    default:
        place(rank, root ? all : 0, count, wanted && root);
        break;
    }
    Rank &r = ranks[rank];
    for (size_t i = 0; i < r.in_elems; i++)
        r.in_at[i] = leaf(rank, i);
    r.view = {1, n, rank, 1, c.host.data(), peer.data()};
    for (int h : c.host)
        r.view.nhosts = std::max(r.view.nhosts, h + 1);
    struct ft_tuning tuning;
    ft_tuning_default(&tuning);
    tuning.chunk_bytes = c.chunk_bytes;
    tuning.chunks = c.chunks;
    tuning.pulls = c.pulls;
    tuning.peer_lanes = c.peer_lanes;
    if (ft_algo_plan(c.algo, &r.view, &c.coll, &tuning, &r.plan) != 0)
        fail(rank, -1, ft_fail_text());
    if (r.plan.nlanes < 1 || r.plan.nlanes > FT_LANES)
        fail(rank, -1, "number of lanes");
    if (r.plan.tmp_bytes % esize)
        fail(rank, -1, "scratch is no whole number of elements");
    r.tmp.resize(r.plan.tmp_bytes / esize);
    r.lanes.resize((size_t)r.plan.nlanes);
}

void World::place(int rank, size_t in_elems, size_t out_elems, bool in_place)
{
    Rank &r = ranks[rank];
    r.in_place = in_place;
    r.in_elems = in_elems;
    r.out_elems = out_elems;
    r.out.resize(in_place ? std::max(in_elems, out_elems) : out_elems);
    r.in.resize(in_place ? 0 : in_elems);
    r.in_at = in_place ? r.out.data() : r.in.data();
    r.out_at = r.out.data();
    size_t block = rank * c.coll.count;
    if (in_place && in_elems < out_elems)
        r.in_at += block;
    if (in_place && out_elems < in_elems)
        r.out_at += block;
}

void World::run()
{
    esize = ft_type_size(c.coll.type);
    peer.resize(n);
    for (int r = 0; r < n; r++)
        open(r);
    nlanes = ranks[0].plan.nlanes;
    for (int r = 0; r < n; r++)
        if (ranks[r].plan.nlanes != nlanes || ranks[r].plan.nsteps != ranks[0].plan.nsteps)
            fail(r, -1, "lanes or steps differ from rank 0's");
    channels.resize((size_t)n * n * nlanes);
    for (int r = 0; r < n; r++)
        for (int l = 0; l < nlanes; l++)
            wake(r, l);
    while (!ready.empty()) {
        std::swap(ready[random() % ready.size()], ready.back());
        auto [rank, lane] = ready.back();
        ready.pop_back();
        ranks[rank].lanes[lane].queued = false;
        while (advance(rank, lane)) {}
    }
    for (int r = 0; r < n; r++)
        for (int l = 0; l < nlanes; l++)
            if (ranks[r].lanes[l].index < ranks[r].plan.nsteps)
                fail(r, l, "deadlock");
    for (size_t i = 0; i < channels.size(); i++)
        if (!channels[i].queue.empty())
            fail((int)(i / nlanes % n), (int)(i % nlanes), "message is never received");
    compare();
}

int World::hops() const
{
    int most = 0;
    for (const Rank &r : ranks)
        for (const Lane &l : r.lanes)
            most = std::max(most, l.hops);
    return most;
}

void World::wake(int rank, int lane)
{
    Lane &l = ranks[rank].lanes[lane];
    if (l.queued)
        return;
    l.queued = true;
    ready.push_back({rank, lane});
}

// One phase of one step; false if the lane has to wait or is done.
bool World::advance(int rank, int lane)
{
    Rank &r = ranks[rank];
    Lane &l = r.lanes[lane];
    if (l.index >= r.plan.nsteps)
        return false;
    if (!l.loaded)
        load(rank, lane);
    bool lend = (l.step.flags & FT_STEP_MEETS) &&
                (c.seed % 2 || random() % 2); // what is not in the right memory is copied
    if (l.unsent && !forward(rank, lane, l.unsent, l.step.send_to,
                             read(rank, lane, l.step.send, l.step.send_bytes), lend))
        return false;
    if (!l.received) {
        if (!can_receive(rank, lane))
            return false;
        receive(rank, lane);
    }
    if (l.unforwarded && !forward(rank, lane, l.unforwarded, l.step.fwd_to, l.result))
        return false;
    if (l.lent)
        return false;
    l.loaded = false;
    l.index++;
    return true;
}

void World::load(int rank, int lane)
{
    Lane &l = ranks[rank].lanes[lane];
    struct ft_step &s = l.step;
    ft_plan_step(&ranks[rank].plan, lane, l.index, &s);
    if (s.nsend > FT_STEP_PEERS || s.nrecv > FT_STEP_PEERS || s.nfwd > FT_STEP_PEERS)
        fail(rank, lane, "too many peers");
    const struct ft_plan &plan = ranks[rank].plan;
    bool is_long = plan.pulled || (c.nranks() == 2 && c.pulls && ft_kind_reduces(plan.coll.kind));
    size_t longest = is_long ? c.chunk_bytes * (size_t)c.chunks : c.chunk_bytes;
    if ((s.nsend && s.send_bytes > longest) || ((s.nrecv || s.nfwd) && s.len_bytes > longest))
        fail(rank, lane, "message longer than a chunk");
    if ((s.nsend > 0) != (s.send_bytes > 0))
        fail(rank, lane, "send without bytes or peers");
    if ((s.nrecv || s.nfwd || s.src.buf || s.dst.buf) != (s.len_bytes > 0))
        fail(rank, lane, "empty exchange");
    if (s.src_at < 0 || s.src_at > s.nrecv)
        fail(rank, lane, "operand out of order");
    if (s.len_bytes && !s.nrecv && !s.src.buf)
        fail(rank, lane, "result without operands");
    if (s.len_bytes && !s.nfwd && !s.dst.buf)
        fail(rank, lane, "result without use");
    if (s.send_bytes % esize || s.len_bytes % esize)
        fail(rank, lane, "length is no whole number of elements");
    auto peers = [&](int k, const int *to) {
        for (int i = 0; i < k; i++)
            if (to[i] < 0 || to[i] >= n || to[i] == rank)
                fail(rank, lane, "peer out of range");
    };
    peers(s.nsend, s.send_to);
    peers(s.nrecv, s.recv_from);
    peers(s.nfwd, s.fwd_to);
    l.unsent = (1u << s.nsend) - 1;
    l.unforwarded = (1u << s.nfwd) - 1;
    l.loaded = true;
    l.received = s.len_bytes == 0;
}

// Puts `values` into every channel of `mask` that has room; true when all have got them.
bool World::forward(int rank, int lane, unsigned &mask, const int *to,
                    const std::vector<Value> &values, bool lend)
{
    for (int i = 0; i < FT_STEP_PEERS; i++) {
        if (!(mask & 1u << i) || !room(rank, to[i], lane))
            continue;
        channel(rank, to[i], lane)
            .queue.push_back({values, ranks[rank].lanes[lane].hops + 1, lend});
        if (lend)
            ranks[rank].lanes[lane].lent++;
        mask &= ~(1u << i);
        wake(to[i], lane);
    }
    return mask == 0;
}

bool World::can_receive(int rank, int lane)
{
    const struct ft_step &s = ranks[rank].lanes[lane].step;
    for (int i = 0; i < s.nrecv; i++)
        if (channel(s.recv_from[i], rank, lane).queue.empty())
            return false;
    for (int i = 0; i < s.nfwd && !c.hand; i++)
        if (!room(rank, s.fwd_to[i], lane))
            return false;
    return true;
}

void World::receive(int rank, int lane)
{
    Lane &l = ranks[rank].lanes[lane];
    const struct ft_step &s = l.step;
    size_t elems = s.len_bytes / esize;
    std::vector<std::vector<Value>> operands;
    for (int i = 0; i < s.nrecv; i++) {
        if (s.src.buf && i == s.src_at)
            operands.push_back(read(rank, lane, s.src, s.len_bytes));
        Channel &from = channel(s.recv_from[i], rank, lane);
        if (from.queue.empty())
            fail(rank, lane, "receives twice from one peer in a step");
        operands.push_back(std::move(from.queue.front().values));
        if (from.queue.front().lent)
            ranks[s.recv_from[i]].lanes[lane].lent--;
        l.hops = std::max(l.hops, from.queue.front().hops);
        from.queue.erase(from.queue.begin());
        wake(s.recv_from[i], lane);
        if (operands.back().size() != elems)
            fail(rank, lane, "lengths of send and receive differ");
    }
    if (s.src.buf && s.src_at == s.nrecv)
        operands.push_back(read(rank, lane, s.src, s.len_bytes));
    l.result.resize(elems);
    std::vector<Value> one(operands.size());
    for (size_t e = 0; e < elems; e++) {
        for (size_t k = 0; k < operands.size(); k++)
            one[k] = operands[k][e];
        l.result[e] = combine(rank, lane, one);
    }
    if (s.dst.buf)
        store(rank, lane, s.dst, l.result);
    l.received = true;
}

Value World::combine(int rank, int lane, const std::vector<Value> &operands)
{
    Value v = operands[0];
    for (const Value &operand : operands)
        if (operands.size() > 1 && (!reduces(c) || operand.state != Value::scaled))
            fail(rank, lane, "combines what is unscaled, finished or not to be reduced");
    for (size_t k = 1; k < operands.size(); k++) {
        const Value &o = operands[k];
        if (o.elem != v.elem)
            fail(rank, lane, "combines different elements");
        if (o.ranks & v.ranks)
            fail(rank, lane, "contribution counted twice");
        v.hash = k == 1 ? mix(std::min(v.hash, o.hash), std::max(v.hash, o.hash))
                        : mix(~v.hash, o.hash);
        v.ranks |= o.ranks;
    }
    if (ranks[rank].lanes[lane].step.flags & FT_STEP_FINAL) {
        if (!reduces(c))
            fail(rank, lane, "final in a collective that does not reduce");
        if (v.state != Value::scaled)
            fail(rank, lane, "final twice");
        if (v.ranks != (n == 64 ? ~0ull : (1ull << n) - 1))
            fail(rank, lane, "final before all contributions are in");
        v.state = Value::final;
    }
    return v;
}

Value *World::cells(int rank, int lane, struct ft_ref ref, size_t bytes)
{
    Rank &r = ranks[rank];
    size_t elems = ref.buf == FT_BUF_IN    ? r.in_elems
                   : ref.buf == FT_BUF_OUT ? r.out_elems
                                           : r.tmp.size();
    Value *at = ref.buf == FT_BUF_IN ? r.in_at : ref.buf == FT_BUF_OUT ? r.out_at : r.tmp.data();
    if (ref.off % esize)
        fail(rank, lane, "offset inside an element");
    if (ref.off / esize > elems || bytes / esize > elems - ref.off / esize)
        fail(rank, lane, "outside of the buffer");
    return at + ref.off / esize;
}

std::vector<Value> World::read(int rank, int lane, struct ft_ref ref, size_t bytes)
{
    const Value *at = cells(rank, lane, ref, bytes);
    std::vector<Value> values(at, at + bytes / esize);
    for (size_t i = 0; i < values.size(); i++) {
        Value &v = values[i];
        if (v.state == Value::nothing)
            fail(rank, lane, "reads what was never written");
        if (ref.buf == FT_BUF_IN) {
            Value original = leaf(rank, ref.off / esize + i);
            if (v.hash != original.hash || v.elem != original.elem || v.state != Value::raw)
                fail(rank, lane, "reads IN after it was overwritten");
            if (reduces(c))
                v.state = Value::scaled;
        } else if (v.lane != lane && !(v.lane == -1 && ranks[rank].in_place)) {
            fail(rank, lane, "reads what another lane wrote");
        } else if (reduces(c) && v.state == Value::raw) {
            fail(rank, lane, "reads the input without its scale");
        }
    }
    return values;
}

void World::store(int rank, int lane, struct ft_ref ref, const std::vector<Value> &values)
{
    if (ref.buf == FT_BUF_IN)
        fail(rank, lane, "writes IN");
    Value *at = cells(rank, lane, ref, values.size() * esize);
    for (size_t i = 0; i < values.size(); i++) {
        if (at[i].lane >= 0 && at[i].lane != lane)
            fail(rank, lane, "two lanes write the same place");
        at[i] = values[i];
        at[i].lane = (int8_t)lane;
    }
}

// OUT[i] of `rank` after the collective; for reductions the element and the contributions.
Value World::expected(int rank, size_t i) const
{
    size_t count = c.coll.count;
    switch (c.coll.kind) {
    case FT_BROADCAST:
        return leaf(c.coll.root, i);
    case FT_ALLGATHER:
    case FT_GATHER:
        return leaf((int)(i / count), i % count);
    case FT_ALLTOALL:
        return leaf((int)(i / count), rank * count + i % count);
    case FT_SCATTER:
        return leaf(c.coll.root, rank * count + i);
    default:
        return leaf(rank, c.coll.kind == FT_REDUCESCATTER ? rank * count + i : i);
    }
}

void World::compare()
{
    std::map<uint32_t, uint64_t> trees;
    for (int r = 0; r < n; r++) {
        for (size_t i = 0; i < ranks[r].out_elems; i++) {
            const Value &got = ranks[r].out_at[i];
            Value want = expected(r, i);
            std::string where = "OUT element " + std::to_string(i);
            if (got.elem != want.elem || got.state == Value::nothing)
                fail(r, -1, where + " is missing or wrong");
            if (reduces(c)) {
                if (got.state != Value::final)
                    fail(r, -1, where + " is not finished");
                if (trees.insert({got.elem, got.hash}).first->second != got.hash)
                    fail(r, -1, where + " was summed in another order than on another rank");
            } else if (got.hash != want.hash) {
                fail(r, -1, where + " comes from the wrong rank");
            }
        }
    }
}

} // namespace

std::string Case::text() const
{
    static const char *const place[] = {"out of place", "in place", "mixed"};
    std::ostringstream s;
    s << algo->name << " " << ft_kind_name(coll.kind) << " of " << coll.count << " x "
      << ft_type_name(coll.type) << ", " << nranks() << " ranks, root " << coll.root << ", chunk "
      << chunk_bytes << " B x " << chunks
      << (pulls == FT_PULLS_NONE ? ""
          : pulls == FT_PULLS    ? ", pulled"
                                 : ", pulled slowly")
      << (peer_lanes ? ", peer lanes, " : ", ") << place[(int)in_place] << ", window " << window
      << (hand ? " with hand" : " without hand") << ", seed " << seed << ", hosts";
    for (int h : host)
        s << " " << h;
    return s.str();
}

bool applies(const Case &c)
{
    struct ft_tuning tuning;
    ft_tuning_default(&tuning);
    tuning.chunk_bytes = c.chunk_bytes;
    tuning.chunks = c.chunks;
    tuning.pulls = c.pulls;
    tuning.peer_lanes = c.peer_lanes;
    struct ft_view view = {1, c.nranks(), 0, 1, c.host.data(), nullptr};
    for (int h : c.host)
        view.nhosts = std::max(view.nhosts, h + 1);
    return (c.algo->kinds >> c.coll.kind & 1) && c.algo->fits(&view, &c.coll, &tuning);
}

std::string check(const Case &c, int *hops)
{
    try {
        World world(c);
        world.run();
        if (hops)
            *hops = world.hops();
        return "";
    } catch (const std::runtime_error &e) {
        return c.text() + ": " + e.what();
    }
}
