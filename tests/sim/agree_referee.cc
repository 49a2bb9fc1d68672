#include "sim/agree_referee.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

namespace agree
{

std::string Step::line() const
{
    char text[200];
    snprintf(text, sizeof text, "%d %d %d %d %" PRIu64 " %" PRIu64 " %" PRIx64 " %x %x", int(what),
             int(type), rank, other, ballot, accepted, value, dead, fenced);
    return text;
}

bool Step::parse(const std::string &line, Step *out)
{
    int w, t;
    Step s;
    if (sscanf(line.c_str(), "%d %d %d %d %" SCNu64 " %" SCNu64 " %" SCNx64 " %x %x", &w, &t,
               &s.rank, &s.other, &s.ballot, &s.accepted, &s.value, &s.dead, &s.fenced) != 9)
        return false;
    s.what = What(w);
    s.type = Type(t);
    *out = s;
    return true;
}

static int leader_of(uint64_t ballot)
{
    return int(ballot & 0xfffff);
}

// Half the ranks with rank 0, more than half, or all that the leader does not hold for gone, each
// of which said the same.
bool Referee::quorum(uint32_t in, const std::vector<uint32_t> &gone, uint32_t leader_gone,
                     int leader) const
{
    const int count = __builtin_popcount(in);
    if (2 * count > n || (2 * count == n && (in & 1)))
        return true;
    for (int r = 0; r < n; r++) {
        if (leader_gone >> r & 1)
            continue;
        if (!(in >> r & 1))
            return false;
        if (r != leader && (leader_gone & ~gone[size_t(r)]))
            return false;
    }
    return true;
}

std::string Referee::prepares(Rank &r, const Step &s)
{
    if (leader_of(s.ballot) != s.rank)
        return "prepares a ballot of another rank";
    if (!r.lead.count(s.ballot)) {
        if (s.ballot <= r.promised)
            return "starts a ballot below the one it promised";
        r.promised = s.ballot;
        Lead &l = r.lead[s.ballot];
        l.promised = 1u << s.rank;
        l.gone_promise.resize(size_t(n));
        l.gone_accept.resize(size_t(n));
        l.best = r.accepted;
        l.best_value = r.value;
    }
    return s.ballot == r.promised ? "" : "goes on with a ballot after promising a higher one";
}

std::string Referee::promises(Rank &r, const Step &s)
{
    if (s.ballot < r.promised)
        return "promises less than before";
    if (s.ballot != r.promised && s.ballot != r.asked)
        return "promises a ballot that nobody asked it for";
    if (s.accepted != r.accepted || (r.accepted && s.value != r.value))
        return "hides what it accepted";
    r.promised = s.ballot;
    return "";
}

std::string Referee::proposes(Rank &r, const Step &s)
{
    auto at = r.lead.find(s.ballot);
    if (leader_of(s.ballot) != s.rank)
        return "proposes in another rank's ballot";
    if (at == r.lead.end() || r.promised != s.ballot)
        return "proposes in a ballot that it did not prepare or that is over";
    Lead &l = at->second;
    if (l.value == 0) {
        if (!quorum(l.promised, l.gone_promise, r.gone(), s.rank))
            return "proposes without a quorum of promises";
        if (l.best && l.best_value != s.value)
            return "proposes another value than the one accepted in the highest ballot";
        l.value = s.value;
        l.accepted = 1u << s.rank;
        r.accepted = s.ballot;
        r.value = s.value;
    }
    return l.value == s.value ? "" : "proposes two values in one ballot";
}

std::string Referee::accepts(Rank &r, const Step &s)
{
    auto at = r.told.find(s.ballot);
    if (at == r.told.end())
        return "accepts what nobody proposed to it";
    if (s.ballot < r.promised)
        return "accepts in a ballot below the one it promised";
    r.promised = r.accepted = s.ballot;
    r.value = at->second;
    return "";
}

std::string Referee::sends(Rank &r, const Step &s)
{
    if (r.decided && s.type != Type::Decide)
        return "sends something else after it decided";
    if (s.dead & ~r.dead)
        return "calls a rank dead without having the proof";
    if (s.fenced & ~r.fenced & ~r.list)
        return "fences a rank that is not on its list";
    r.fenced |= s.fenced;
    switch (s.type) {
    case Type::Prepare:
        return prepares(r, s);
    case Type::Promise:
        return promises(r, s);
    case Type::Accept:
        return proposes(r, s);
    case Type::Accepted:
        return accepts(r, s);
    case Type::Refuse:
        return s.ballot == r.promised ? "" : "refuses with a ballot that it did not promise";
    case Type::Decide:
        return r.decided == s.value && s.value ? "" : "tells a decision that it does not have";
    default:
        return "";
    }
}

void Referee::gets(Rank &r, const Step &s)
{
    if (r.gone() >> s.other & 1)
        return; // not heard: whoever uses it all the same is caught later
    r.dead |= s.dead & ~(1u << s.rank) & ~(1u << s.other);
    auto lead = r.lead.find(s.ballot);
    if (s.type == Type::Prepare)
        r.asked = std::max(r.asked, s.ballot);
    if (s.type == Type::Accept)
        r.told[s.ballot] = s.value;
    if (s.type == Type::Decide)
        r.decisions.push_back(s.value);
    if (lead == r.lead.end())
        return;
    Lead &l = lead->second;
    if (s.type == Type::Promise) {
        l.promised |= 1u << s.other;
        l.gone_promise[size_t(s.other)] |= s.dead | s.fenced;
        if (s.accepted > l.best) {
            l.best = s.accepted;
            l.best_value = s.value;
        }
    } else if (s.type == Type::Accepted) {
        l.accepted |= 1u << s.other;
        l.gone_accept[size_t(s.other)] |= s.dead | s.fenced;
    }
}

std::string Referee::decides(Rank &r, const Step &s)
{
    if (r.decided)
        return r.decided == s.value ? "" : "decides twice";
    r.decided = s.value;
    for (uint64_t v : r.decisions)
        if (v == s.value)
            return "";
    for (auto &l : r.lead)
        if (l.second.value == s.value && r.promised == l.first &&
            quorum(l.second.accepted, l.second.gone_accept, r.gone(), s.rank))
            return "";
    if (__builtin_popcount(r.gone() | r.list) < n - 1)
        return "decides without a quorum and without being told";
    const auto own = r.lead.find(r.promised); // alone: there is nobody to send anything to
    const uint64_t best = own != r.lead.end() && own->second.best ? own->second.best_value
                          : r.accepted                            ? r.value
                                                                  : 0;
    return best == 0 || best == s.value ? "" : "decides another value than the one it accepted";
}

std::string Referee::check(const Step &s)
{
    Rank &r = ranks[size_t(s.rank)];
    checked++;
    if (s.what == What::Kill)
        r.killed = true;
    else if (r.killed)
        return "moves after its death";
    if (s.what == What::Enter)
        r.list = s.fenced;
    if (s.what == What::Proof) {
        if (!ranks[size_t(s.other)].killed)
            return "gets a proof that is none";
        r.dead |= 1u << s.other;
    }
    if (s.what == What::Get)
        gets(r, s);
    if (s.what == What::Send)
        return sends(r, s);
    if (s.what == What::Decide)
        return decides(r, s);
    return "";
}

} // namespace agree
