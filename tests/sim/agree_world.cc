#include "sim/agree_world.h"

#include <algorithm>
#include <cstring>

namespace agree
{

bool Decided::operator==(const Decided &o) const
{
    return status == o.status && kind == o.kind && flags == o.flags && first_op == o.first_op &&
           last_op == o.last_op && nonce == o.nonce && failed == o.failed &&
           excluded == o.excluded && order == o.order && blob == o.blob;
}

std::string Decided::text() const
{
    std::string s = "status " + std::to_string(status) + " kind " + std::to_string(kind) +
                    " failed ";
    for (unsigned char c : failed)
        s += c ? '1' : '0';
    s += " excluded ";
    for (unsigned char c : excluded)
        s += c ? '1' : '0';
    s += " order";
    for (int r : order)
        s += " " + std::to_string(r);
    return s + " nonce " + std::to_string(nonce);
}

std::vector<unsigned char> bytes_of(int n, int rank, const ft_agree_msg &m)
{
    ft_agree_config config{};
    config.nranks = n;
    config.rank = rank;
    config.seed = 99;
    std::vector<unsigned char> out(MESSAGE);
    out.resize(ft_agree_encode(out.data(), &config, &m));
    return out;
}

World::World(uint64_t seed, int nranks)
    : n(nranks), state(seed * 2654435761u + 12345), referee(nranks)
{
    const size_t k = size_t(n);
    cut.assign(k, std::vector<bool>(k));
    machine.assign(k, nullptr);
    entered.assign(k, 0);
    left.assign(k, 0);
    killed.assign(k, 0);
    status.assign(k, FT_AGAIN);
    env.now_ns = clock;
    env.random = draw;
    env.ctx = this;
    ports.resize(k);
    config.resize(k);
    for (int r = 0; r < n; r++) {
        const size_t i = size_t(r);
        ports[i] = {this, r};
        config[i] = ft_agree_config{&env, n, r, 99, MESSAGE, SILENT, ENTER, send, &ports[i]};
        if (ft_agree_open(&config[i], &machine[i]) != FT_OK)
            faults.push_back("ft_agree_open failed");
        const uint64_t first = now + random(10 * MS);
        at(first, [this, r] { tick(r); });
    }
}

World::~World()
{
    for (ft_agree *a : machine)
        ft_agree_close(a);
}

uint64_t World::random(uint64_t below)
{
    state += 0x9e3779b97f4a7c15u;
    uint64_t x = state;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (x ^ (x >> 31)) % below;
}

uint64_t World::clock(ft_env *env)
{
    return static_cast<World *>(env->ctx)->now;
}

void World::draw(ft_env *env, void *buf, size_t len)
{
    for (size_t i = 0; i < len; i++)
        static_cast<unsigned char *>(buf)[i] = static_cast<unsigned char>(
            static_cast<World *>(env->ctx)->random(256));
}

void World::at(uint64_t when, std::function<void()> what)
{
    events.push({when, order++, std::move(what)});
}

void World::referee_says(const Step &s)
{
    if (keep_trace)
        trace.push_back(s);
    const std::string wrong = referee.check(s);
    if (!wrong.empty())
        faults.push_back("at " + std::to_string(now / 1000) + " us rank " + std::to_string(s.rank) +
                         " " + wrong + ": " + s.line());
}

static uint32_t bits(const unsigned char *set, int n)
{
    uint32_t out = 0;
    for (int r = 0; r < n; r++)
        out |= uint32_t(ft_set_has(set, r)) << r;
    return out;
}

Step World::step_of(What what, int rank, int other, const ft_agree_msg *m)
{
    Step s;
    s.what = what;
    s.rank = rank;
    s.other = other;
    if (!m)
        return s;
    s.type = Type(int(m->type));
    s.ballot = m->ballot;
    s.accepted = m->accepted;
    s.value = m->body_kind == FT_BODY_VALUE ? ft_hash64(m->body, m->body_bytes, 1) : 0;
    s.dead = bits(m->dead, n);
    s.fenced = bits(m->fenced, n);
    return s;
}

void World::send(void *arg, int to, const void *data, size_t len)
{
    const Port *port = static_cast<Port *>(arg);
    World *w = port->world;
    const int from = port->rank;
    ft_agree_msg m;
    w->messages++;
    if (len > MESSAGE || to < 0 || to >= w->n || to == from ||
        ft_agree_decode(&w->config[size_t(to)], data, len, &m) != FT_OK) {
        w->faults.push_back("rank " + std::to_string(from) + " sent something that is no message");
        return;
    }
    if (m.type == FT_MSG_DECIDE)
        w->look(from);
    w->referee_says(w->step_of(What::Send, from, to, &m));
    if (w->drop && w->drop(from, to, m))
        return;
    const unsigned char *bytes = static_cast<const unsigned char *>(data);
    const std::vector<unsigned char> copy(bytes, bytes + len);
    for (int times = 1 + (w->random(100) < w->twice); times > 0; times--) {
        if (w->random(100) < w->loss || w->cut[size_t(from)][size_t(to)])
            continue;
        const uint64_t most = w->uneven && w->random(16) == 0 ? 10 * w->delay : w->delay;
        w->at(w->now + 1 + w->random(most), [w, from, to, copy] { w->deliver(from, to, copy); });
    }
}

void World::deliver(int from, int to, const std::vector<unsigned char> &bytes)
{
    ft_agree_msg m;
    if (!alive(to))
        return;
    if (ft_agree_decode(&config[size_t(to)], bytes.data(), bytes.size(), &m) == FT_OK)
        referee_says(step_of(What::Get, to, from, &m));
    ft_agree_receive(machine[size_t(to)], from, bytes.data(), bytes.size());
    look(to);
}

void World::inject(int from, int to, const std::vector<unsigned char> &bytes)
{
    deliver(from, to, bytes);
}

void World::tick(int r)
{
    if (!alive(r))
        return;
    ft_agree_tick(machine[size_t(r)]);
    look(r);
    at(now + 5 * MS + random(5 * MS), [this, r] { tick(r); });
}

// Two that live never decide differently, and as long as less than half of the ranks died, nor do
// the dead. The one exception are lists: a side whose ranks all asked to go on without the others,
// and could not hear them, does so even if those do the same; then nobody that lives counts on one
// that went with the other side.
void World::compare(int r, const Decided &d)
{
    const int dead = int(n - std::count(killed.begin(), killed.end(), 0u));
    for (auto &other : decided) {
        const Decided &o = other.second;
        if (d == o || (killed[size_t(other.first)] && (lists || 2 * dead >= n)))
            continue;
        if (lists &&
            !(d.goes_on(r) && o.goes_on(other.first) && (d.goes_on(other.first) || o.goes_on(r))))
            continue;
        faults.push_back("rank " + std::to_string(r) + " decided " + d.text() + "\n  rank " +
                         std::to_string(other.first) + " " + o.text());
    }
}

void World::look(int r)
{
    const size_t i = size_t(r);
    const int s = ft_agree_state(machine[i]);
    if (entered[i] && !left[i] && s != FT_AGAIN)
        left[i] = now;
    if (entered[i])
        status[i] = s;
    const ft_decision *d = ft_agree_decision(machine[i]);
    if ((d != nullptr) != (s == FT_OK))
        faults.push_back("state and decision differ");
    if (!d || decided.count(r))
        return;
    Decided out;
    out.status = d->status;
    out.kind = d->kind;
    out.flags = d->flags;
    out.first_op = d->first_op;
    out.last_op = d->last_op;
    out.nonce = d->nonce;
    out.failed.assign(d->failed, d->failed + n);
    out.excluded.assign(d->excluded, d->excluded + n);
    out.order.assign(d->order, d->order + d->nsurvivors);
    if (d->blob_bytes > 0)
        out.blob.assign(static_cast<const char *>(d->blob), d->blob_bytes);
    Step step = step_of(What::Decide, r, r, nullptr);
    step.ballot = machine[i]->promised;
    step.accepted = machine[i]->accepted;
    step.value = ft_hash64(machine[i]->value.data, machine[i]->value.len, 1);
    step.dead = bits(machine[i]->dead, n);
    step.fenced = bits(machine[i]->fenced, n);
    referee_says(step);
    compare(r, out);
    decided[r] = out;
}

int World::enter(int r, const Input &in)
{
    if (!alive(r) || entered[size_t(r)])
        return FT_USAGE;
    std::vector<unsigned char> list(static_cast<size_t>(n));
    ft_agree_input input{in.kind,
                         in.flags,
                         in.last_op,
                         in.key,
                         in.exclude.empty() ? nullptr : list.data(),
                         in.blob.data(),
                         uint32_t(in.blob.size())};
    Step s = step_of(What::Enter, r, r, nullptr);
    for (int k : in.exclude) {
        list[size_t(k)] = 1;
        if (in.kind != FT_AGREE_FLAGS)
            s.fenced |= 1u << k;
    }
    lists |= s.fenced != 0;
    referee_says(s);
    entered[size_t(r)] = now;
    const int status_of = ft_agree_enter(machine[size_t(r)], &input);
    if (status_of != FT_OK)
        entered[size_t(r)] = 0;
    look(r);
    return status_of;
}

void World::enter_all(const Input &in)
{
    for (int r = 0; r < n; r++)
        enter(r, in);
}

void World::kill(int r)
{
    if (!alive(r))
        return;
    referee_says(step_of(What::Kill, r, r, nullptr));
    ft_agree_close(machine[size_t(r)]);
    machine[size_t(r)] = nullptr;
    killed[size_t(r)] = now;
}

void World::learn(int r, int about, ft_peer_evidence e)
{
    if (!alive(r) || r == about)
        return;
    if (e == FT_DEAD)
        referee_says(step_of(What::Proof, r, about, nullptr));
    ft_agree_learn(machine[size_t(r)], about, e);
    look(r);
}

void World::prove(int dead, int to)
{
    learn(to, dead, FT_DEAD);
}

void World::learn_all(int about, ft_peer_evidence e)
{
    for (int r = 0; r < n; r++)
        learn(r, about, e);
}

void World::prove_all(int dead)
{
    learn_all(dead, FT_DEAD);
}

void World::partition(unsigned side, bool on)
{
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++)
            if ((side >> a & 1) != (side >> b & 1))
                cut[size_t(a)][size_t(b)] = on;
}

bool World::step(uint64_t until)
{
    if (events.empty() || events.top().when > until)
        return false;
    Event e = events.top();
    events.pop();
    now = std::max(now, e.when);
    e.what();
    return true;
}

void World::run(uint64_t ns)
{
    const uint64_t until = now + ns;
    while (step(until)) {}
    now = until;
}

bool World::settle(uint64_t ns)
{
    const uint64_t until = now + ns;
    for (;;) {
        bool all = true;
        for (size_t r = 0; r < size_t(n); r++)
            all &= !machine[r] || !entered[r] || left[r];
        if (all)
            return true;
        if (!step(until))
            return false;
    }
}

const Decided *World::of(int r) const
{
    auto at = decided.find(r);
    return at == decided.end() ? nullptr : &at->second;
}

std::string World::fault_text() const
{
    std::string s;
    for (auto &f : faults)
        s += f + "\n";
    return s;
}

} // namespace agree
