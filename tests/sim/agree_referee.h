// The rules of an agreement, written a second time and independent of src/: what
// tests/model/agree.pml says about acceptors and leaders. They are checked for every step of a
// simulated world. Sets of ranks are bits. A step is one line of a trace.
#ifndef AGREE_REFEREE_H
#define AGREE_REFEREE_H

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace agree
{

enum class What { Enter, Proof, Kill, Send, Get, Decide };
enum class Type {
    None,
    Enter,
    Prepare,
    Promise,
    Accept,
    Accepted,
    Refuse,
    Decide
}; // of the message, for Send and Get

// Enter: `fenced` is the list. Proof: `rank` learns that `other` is dead. Send: to `other`; Get:
// from it. Values are hashes. Decide: `ballot` is what the rank has promised, `accepted` is where
// the value was decided, and the sets are the rank's own.
struct Step {
    What what = What::Send;
    Type type = Type::None;
    int rank = 0, other = 0;
    uint64_t ballot = 0, accepted = 0, value = 0;
    uint32_t dead = 0, fenced = 0;
    std::string line() const;
    static bool parse(const std::string &line, Step *out);
};

class Referee
{
  public:
    explicit Referee(int nranks) : n(nranks), ranks(size_t(nranks))
    {
    }
    std::string check(const Step &step); // "": a legal step; else the rule that it breaks
    uint64_t checked = 0;

  private:
    struct Lead { // what the leader of a ballot has heard
        uint32_t promised = 0, accepted = 0;
        std::vector<uint32_t> gone_promise, gone_accept;
        uint64_t best = 0, best_value = 0, value = 0;
    };
    struct Rank {
        uint64_t promised = 0, accepted = 0, value = 0, decided = 0;
        uint32_t dead = 0, fenced = 0, list = 0;
        uint64_t asked = 0;                // the highest ballot for which it got a PREPARE
        std::map<uint64_t, uint64_t> told; // ACCEPT messages that it got: ballot and value
        std::vector<uint64_t> decisions;   // of DECIDE messages that it got
        std::map<uint64_t, Lead> lead;
        bool killed = false;
        uint32_t gone() const
        {
            return dead | fenced;
        }
    };
    std::string sends(Rank &r, const Step &s);
    std::string prepares(Rank &r, const Step &s);
    std::string promises(Rank &r, const Step &s);
    std::string proposes(Rank &r, const Step &s);
    std::string accepts(Rank &r, const Step &s);
    std::string decides(Rank &r, const Step &s);
    void gets(Rank &r, const Step &s);
    bool quorum(uint32_t in, const std::vector<uint32_t> &gone, uint32_t leader_gone,
                int leader) const;

    int n;
    std::vector<Rank> ranks;
};

} // namespace agree

#endif
