/*
 * See events.h. The rule of quorum says what must happen. An exit is proven if another rank of the
 * same host that may share memory with it survives. If several faults overlap, the ranks may also
 * handle them one after another; both results are right.
 */
#include "tests/campaign/events.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace campaign
{

#define X(name, text) text,
const char *const kind_names[] = {CAMPAIGN_EVENTS(X)};
#undef X

namespace
{

constexpr double SUSPECT_S = 3; /* a silent host is known by then */
/* for a machine with more ranks than cores, and others on it */
const double SLACK_S = 10 * slowdown();

uint64_t below(Random &random, size_t n)
{
    return random() % n;
}

std::vector<int> order_of(Job &job)
{
    return job.at(*job.live().begin()).members;
}

std::vector<int> pick(Job &job, Random &random, size_t count)
{
    std::vector<int> members = order_of(job);
    std::shuffle(members.begin(), members.end(), random);
    members.resize(std::min(count, members.size()));
    return members;
}

Wids without(const Wids &all, const std::vector<int> &some)
{
    Wids left = all;
    for (int wid : some)
        left.erase(wid);
    return left;
}

/* May the rest of a group go on when these are gone? docs/membership.md: more than half of all,
 * half with rank 0, or all but the proven dead. `silent`: those of the gone of whom there is never
 * a proof. */
bool has_quorum(Job &job, const std::vector<int> &order, const Wids &rest, const Wids &silent)
{
    bool all = true;
    for (int wid : order) {
        bool proven = !silent.count(wid) && std::any_of(rest.begin(), rest.end(), [&](int other) {
            return job.at(other).host == job.at(wid).host;
        });
        all = all && (rest.count(wid) || proven);
    }
    return all || 2 * rest.size() > order.size() ||
           (2 * rest.size() == order.size() && rest.count(order[0]));
}

/* Everybody of them has left with a reason. */
bool have_left(Job &job, const Wids &wids)
{
    return std::all_of(wids.begin(), wids.end(), [&](int wid) { return job.at(wid).reaped; });
}

/* Waits until the victim is in a call that is drawn here, then a moment more. */
int await_moment(Job &job, int victim, Random &random)
{
    auto wanted = static_cast<uint32_t>(below(random, RANDOM_CALLS));
    int64_t end = now_ns() + 300000000;
    while (job.page->call[victim].load(std::memory_order_relaxed) != wanted && now_ns() < end)
        job.pump(0);
    int64_t until = now_ns() + static_cast<int64_t>(below(random, 4) * below(random, 500000));
    while (now_ns() < until)
        continue;
    return static_cast<int>(job.page->call[victim].load());
}

struct Times {
    int64_t start = 0;
    uint64_t gen = 0;
};

Times begin(Job &job)
{
    job.reset();
    return {now_ns(), job.gen()};
}

void measure(Job &job, const Wids &group, const Times &times, Outcome &outcome)
{
    outcome.survivors = group.size();
    for (int wid : group) {
        Proc &proc = job.at(wid);
        if (proc.error_ns > times.start)
            outcome.detected_ms = std::max(outcome.detected_ms,
                                           1e-6 * static_cast<double>(proc.error_ns - times.start));
        if (proc.gen > times.gen)
            outcome.back_ms = std::max(outcome.back_ms,
                                       1e-6 * static_cast<double>(proc.met_ns - times.start));
    }
}

/* Waits for one of the right ends: `group` goes on together; or, where that is right too, all have
 * left without quorum. */
bool settle(Job &job, const Wids &group, bool may_go_on, bool may_leave, double seconds,
            const Times &times, Outcome &outcome)
{
    bool together = false;
    bool ended = job.wait(seconds, [&] {
        together = may_go_on && !group.empty() && job.together(group, times.gen) &&
                   job.computing(group);
        return together || (may_leave && have_left(job, group));
    });
    measure(job, group, times, outcome);
    if (!ended && job.failures.empty()) {
        std::string who;
        for (int wid : group)
            who += " " + std::to_string(wid);
        job.fail("after " + std::to_string(seconds) + " s not settled; should " +
                 (may_go_on ? "go on:" : "leave:") + who);
    }
    if (ended && !together)
        for (int wid : group)
            if (job.at(wid).why != "noquorum" && job.at(wid).why != "fenced")
                job.fail("worker " + std::to_string(wid) + " left: " + job.at(wid).why +
                         job.at(wid).sentence);
    return ended && together;
}

/* Those that were left out alive learn it and end. */
void expect_left_out(Job &job, const Wids &wids, double seconds)
{
    if (!job.wait(seconds, [&] { return have_left(job, wids); }) && job.failures.empty())
        return job.fail("who was left out does not learn it in " + std::to_string(seconds) + " s");
    for (int wid : wids) {
        const Proc &proc = job.at(wid);
        if (!proc.killed && proc.why != "fenced" && proc.why != "noquorum")
            job.fail("worker " + std::to_string(wid) + " was left out but left as: " + proc.why +
                     proc.sentence);
    }
}

/* ---- processes ------------------------------------------------------------------------------- */

bool kill_some(Job &job, std::vector<int> victims, Random &random, Outcome &outcome)
{
    std::vector<int> order = order_of(job);
    Wids all = job.live(), rest = without(all, victims);
    bool once = has_quorum(job, order, rest, {}), stepwise = true;
    Wids left = all;
    for (int victim : victims) {
        std::vector<int> now;
        for (int wid : order)
            if (left.count(wid))
                now.push_back(wid);
        left.erase(victim);
        stepwise = stepwise && has_quorum(job, now, left, {});
    }
    outcome.call = await_moment(job, victims[0], random);
    Times times = begin(job);
    bool several = victims.size() > 1, apart = several && random() % 2;
    for (int victim : victims) {
        if (apart && victim != victims[0]) { /* while the others shrink, perhaps */
            usleep(static_cast<useconds_t>(below(random, 6000)));
            outcome.call = static_cast<int>(job.page->call[victim].load());
        }
        job.signal(victim, SIGKILL);
    }
    bool on = settle(job, rest, once || (several && stepwise), !once || (several && !stepwise),
                     SUSPECT_S + SLACK_S, times, outcome);
    if (on && !several)
        job.check_agreed(times.gen);
    return on;
}

std::vector<int> safe_victims(Job &job, Random &random, size_t count)
{
    for (int attempt = 0; attempt < 20; attempt++) {
        std::vector<int> victims = pick(job, random, count);
        if (has_quorum(job, order_of(job), without(job.live(), victims), {}))
            return victims;
    }
    return pick(job, random, 1);
}

/* Once it has grown. */
bool kill_large(Job &job, Random &random, Outcome &outcome)
{
    const Proc &proc = job.at(job.options.ballast_wid);
    size_t page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    bool grown = job.wait(120, [&] {
        size_t all = 0, resident = 0;
        std::ifstream("/proc/" + std::to_string(proc.pid) + "/statm") >> all >> resident;
        return resident * page_bytes >= job.options.ballast_bytes;
    });
    if (!grown && job.failures.empty())
        job.fail("the large process does not grow to its size");
    return grown && kill_some(job, {job.options.ballast_wid}, random, outcome);
}

bool kill_majority(Job &job, Random &random, Outcome &outcome)
{
    int stays = job.at(order_of(job)[below(random, order_of(job).size())]).host;
    std::vector<int> victims;
    for (int wid : order_of(job))
        if (job.at(wid).host != stays)
            victims.push_back(wid);
    if (victims.empty())
        victims = pick(job, random, 1); /* all that are left are on one host */
    return kill_some(job, victims, random, outcome);
}

/* One is stopped, and another one killed, if there is to be; later it goes on and must learn that
 * it is fenced. */
bool stop_one(Job &job, bool with_kill, Random &random, Outcome &outcome)
{
    std::vector<int> victims = pick(job, random, with_kill ? 2 : 1);
    for (int i = 0;
         i < 20 && !has_quorum(job, order_of(job), without(job.live(), victims), {victims[0]}); i++)
        victims = pick(job, random, victims.size());
    Wids rest = without(job.live(), victims);
    bool quorum = has_quorum(job, order_of(job), rest, {victims[0]});
    outcome.call = await_moment(job, victims[0], random);
    bool in_operation = outcome.call != CALL_Agree && outcome.call != CALL_ShrinkList &&
                        outcome.call != CALL_Idle;
    Times times = begin(job);
    job.signal(victims[0], SIGSTOP);
    if (with_kill)
        job.signal(victims[1], SIGKILL);
    double bound = 1e-3 * job.options.op_timeout_ms + SUSPECT_S + SLACK_S;
    bool on = settle(job, rest, quorum || with_kill, !quorum || with_kill, bound, times, outcome);
    if (on && !with_kill && in_operation && outcome.detected_ms < 0.5 * job.options.op_timeout_ms)
        job.fail("a stopped rank was taken for dead after " + std::to_string(outcome.detected_ms) +
                 " ms, before the deadline");
    job.signal(victims[0], SIGCONT);
    if (on)
        expect_left_out(job, {victims[0]}, bound + SUSPECT_S);
    return on;
}

bool pause_one(Job &job, Random &random, Outcome &outcome)
{
    int victim = pick(job, random, 1)[0];
    Wids all = job.live();
    outcome.call = await_moment(job, victim, random);
    uint64_t gen = job.gen();
    job.signal(victim, SIGSTOP);
    usleep(static_cast<useconds_t>(50000 + below(random, 400000)));
    Times times = begin(job);
    job.signal(victim, SIGCONT);
    bool on = job.wait(SLACK_S, [&] { return job.computing(all); });
    if (!on && job.failures.empty())
        job.fail("no progress after a pause");
    if (on && job.gen() != gen)
        job.fail("a pause broke the communicator");
    outcome.survivors = all.size();
    outcome.back_ms = 1e-6 * static_cast<double>(now_ns() - times.start);
    return on;
}

/* ---- links ----------------------------------------------------------------------------------- */

int a_host(Job &job, Random &random)
{
    return job.at(pick(job, random, 1)[0]).host;
}

bool cut_link(Job &job, Net &net, Kind kind, Random &random, Outcome &outcome)
{
    int host = a_host(job, random);
    Wids inside, outside, all = job.live();
    std::vector<int> order = order_of(job);
    for (int wid : order)
        (job.at(wid).host == host ? inside : outside).insert(wid);
    if (outside.empty())
        return true; /* one host has all */
    bool inside_on = has_quorum(job, order, inside, outside),
         outside_on = has_quorum(job, order, outside, inside);
    Wids on = inside_on ? inside : outside, off = inside_on ? outside : inside;
    outcome.call = await_moment(job, *on.begin(), random);
    Times times = begin(job);
    if (kind == KIND_Half)
        net.half(host, random() % 2);
    else
        net.cut(host);
    int victim = -1;
    if (kind == KIND_CutKill && on.size() > 1) {
        victim = *std::next(on.begin(), static_cast<long>(below(random, on.size())));
        job.signal(victim, SIGKILL);
        on.erase(victim);
    }
    bool sure = victim < 0 && (inside_on || outside_on);
    double bound = 2 * SUSPECT_S + 1e-3 * job.options.init_timeout_ms + SLACK_S;
    bool going = settle(job, on, victim >= 0 || sure, !sure, bound, times, outcome);
    if (!going && job.failures.empty() && have_left(job, on)) {
        net.heal(host);
        expect_left_out(job, off, bound);
        return false;
    }
    net.heal(host);
    if (going)
        expect_left_out(job, off, bound);
    return going;
}

/* For a moment. Over verbs, one of two cables is unplugged. */
void harm_link(const Job &job, const Net &net, Kind kind, int host, Random &random)
{
    std::string cable = job.options.network != "verbs" ? "" : host % 2 ? "cable2" : "cable0";
    if (!cable.empty())
        net.unplug(cable);
    else if (kind == KIND_Slow)
        net.slow(host);
    else
        net.cut(host);
    usleep(static_cast<useconds_t>(kind == KIND_Slow ? 1000000 : 50000 + below(random, 250000)));
    if (!cable.empty())
        net.plug(cable);
    else
        net.heal(host);
}

/* Something that no rank may be lost by. */
bool trouble_link(Job &job, Net &net, Kind kind, Random &random, Outcome &outcome)
{
    int host = a_host(job, random);
    Wids all = job.live();
    uint64_t gen = job.gen();
    outcome.call = await_moment(job, *all.begin(), random);
    harm_link(job, net, kind, host, random);
    Times times = begin(job);
    bool on = job.wait(SLACK_S, [&] { return job.computing(all); });
    if (!on && job.failures.empty())
        job.fail("no progress after trouble on a link");
    if (on && job.gen() != gen)
        job.fail("trouble on a link broke the communicator");
    outcome.survivors = all.size();
    outcome.back_ms = 1e-6 * static_cast<double>(now_ns() - times.start);
    return on;
}

/* ---- grow ------------------------------------------------------------------------------------ */

bool grow_begins(Job &job, int count)
{
    job.control(CONTROL_GROW, count);
    if (job.wait(SLACK_S, [&] { return job.id_serial == job.serial; }))
        return true;
    if (job.failures.empty())
        job.fail("nobody begins to grow");
    return false;
}

bool grow(Job &job, Random &random, Outcome &outcome)
{
    int count = 1 + static_cast<int>(below(random, 2));
    Wids all = job.live();
    Times times = begin(job);
    if (!grow_begins(job, count))
        return false;
    for (int i = 0; i < count; i++)
        all.insert(job.started() + i);
    job.start(count, job.id, job.id_nranks);
    outcome.call = CALL_Grow;
    return settle(job, all, true, false, 1e-3 * job.options.init_timeout_ms + SLACK_S, times,
                  outcome);
}

/* A rank or a joiner dies during a grow. The ranks go on without it; the joiners belong to them or
 * have left. */
bool kill_in_grow(Job &job, bool joiner, Random &random, Outcome &outcome)
{
    int count = 1 + static_cast<int>(below(random, 2));
    std::vector<int> victims = joiner ? std::vector<int>{} : safe_victims(job, random, 1);
    Wids old = without(job.live(), victims), joiners;
    if (!grow_begins(job, count))
        return false;
    for (int i = 0; i < count; i++)
        joiners.insert(job.started() + i);
    job.start(count, job.id, job.id_nranks);
    if (joiner)
        victims.push_back(*joiners.begin());
    int64_t until = now_ns() + static_cast<int64_t>(below(random, 8) * below(random, 10000000));
    while (now_ns() < until)
        job.pump(0);
    outcome.call = static_cast<int>(job.page->call[victims[0]].load());
    Times times = begin(job);
    job.signal(victims[0], SIGKILL);
    joiners.erase(victims[0]);
    uint64_t serial = job.serial;
    Wids grown = old;
    grown.insert(joiners.begin(), joiners.end());
    bool ended = job.wait(2e-3 * job.options.init_timeout_ms + SUSPECT_S + SLACK_S, [&] {
        bool told = std::all_of(old.begin(), old.end(), [&](int wid) {
            return job.at(wid).grown.count(serial) || job.at(wid).gen > times.gen;
        });
        if (!told || !job.computing(old))
            return false;
        if (job.together(grown, 0))
            return true;
        return job.together(old, 0) && have_left(job, joiners);
    });
    measure(job, old, times, outcome);
    if (!ended && job.failures.empty())
        job.fail("a grow with a death does not settle");
    for (int wid : joiners)
        if (ended && job.at(wid).reaped && job.at(wid).why != "join")
            job.fail("a joiner left as: " + job.at(wid).why + job.at(wid).sentence);
    return ended;
}

bool run(Job &job, Net &net, Kind kind, Random &random, Outcome &outcome)
{
    switch (kind) {
    case KIND_Kill:
        return kill_some(job, pick(job, random, 1), random, outcome);
    case KIND_KillTwo:
        return kill_some(job, safe_victims(job, random, 2), random, outcome);
    case KIND_KillThree:
        return kill_some(job, safe_victims(job, random, 3), random, outcome);
    case KIND_KillLarge:
        return kill_large(job, random, outcome);
    case KIND_KillMajority:
        return kill_majority(job, random, outcome);
    case KIND_KillGrow:
        return kill_in_grow(job, false, random, outcome);
    case KIND_KillJoiner:
        return kill_in_grow(job, true, random, outcome);
    case KIND_Stop:
        return stop_one(job, false, random, outcome);
    case KIND_StopKill:
        return stop_one(job, true, random, outcome);
    case KIND_Pause:
        return pause_one(job, random, outcome);
    case KIND_Cut:
    case KIND_Half:
    case KIND_CutKill:
        return cut_link(job, net, kind, random, outcome);
    case KIND_Flap:
    case KIND_Slow:
        return trouble_link(job, net, kind, random, outcome);
    default:
        return grow(job, random, outcome);
    }
}

} // namespace

/* n ranks live; deadline: a stopped one is not waited for long. */
static bool link_suits(const Job &job, Kind kind, size_t n, bool deadline)
{
    bool cables = job.options.network == "verbs" && kind == KIND_Flap;
    if (job.options.place != Place::Namespaces && !cables)
        return false;
    if (kind == KIND_Flap || kind == KIND_Slow) /* the deadline would be right to pass */
        return n >= 2 && !deadline;
    return n >= 3;
}

bool suits(const Job &job, Kind kind)
{
    size_t n = job.live().size();
    bool deadline = job.options.op_timeout_ms < 5000 * slowdown();
    switch (kind) {
    case KIND_Kill:
        return n >= 2;
    case KIND_KillTwo:
    case KIND_StopKill:
        return n >= 4 && (kind == KIND_KillTwo || deadline);
    case KIND_KillThree:
        return n >= 6;
    case KIND_KillMajority:
        return n >= 3 && job.options.hosts > 1;
    case KIND_Stop:
        return n >= 3 && deadline;
    case KIND_Pause:
        return n >= 2;
    case KIND_KillGrow:
        return n >= 2 && n < 15;
    case KIND_KillJoiner:
    case KIND_Grow:
        return n < 15;
    case KIND_Cut:
    case KIND_Half:
    case KIND_CutKill:
    case KIND_Flap:
    case KIND_Slow:
        return link_suits(job, kind, n, deadline);
    default:
        return false; /* the job's own: large, init, finalize */
    }
}

bool run_event(Job &job, Net &net, Kind kind, Random &random, std::vector<Outcome> &outcomes)
{
    Outcome outcome;
    outcome.kind = kind;
    bool on = run(job, net, kind, random, outcome);
    outcomes.push_back(outcome);
    return on && job.failures.empty();
}

bool run_init(Job &job, bool with_kill, Random &random, std::vector<Outcome> &outcomes)
{
    Outcome outcome;
    outcome.kind = KIND_KillInit;
    job.start(job.options.nranks, "", 0);
    Wids all;
    for (int wid = 0; wid < job.started(); wid++)
        all.insert(wid);
    double bound = 1e-3 * job.options.init_timeout_ms + SUSPECT_S + SLACK_S;
    if (!with_kill) {
        bool met = job.wait(bound + 10, [&] { return job.together(all, 0); });
        if (!met && job.failures.empty())
            job.fail("init does not end");
        return met;
    }
    int victim = static_cast<int>(below(random, all.size()));
    int64_t until = now_ns() + static_cast<int64_t>(below(random, 8) * below(random, 5000000));
    while (now_ns() < until)
        job.pump(0);
    outcome.call = static_cast<int>(job.page->call[victim].load());
    Times times = begin(job);
    job.signal(victim, SIGKILL);
    all.erase(victim);
    bool ended = job.wait(bound, [&] {
        return have_left(job, all) || (job.together(all, 0) && job.computing(all));
    });
    if (!ended && job.failures.empty())
        job.fail("a death in init is not noticed");
    measure(job, all, times, outcome);
    outcome.detected_ms = std::max(outcome.detected_ms, -1.0);
    for (int wid : all) {
        const Proc &proc = job.at(wid);
        if (!proc.reaped)
            continue;
        outcome.detected_ms = std::max(outcome.detected_ms,
                                       1e-6 * static_cast<double>(proc.said_ns - times.start));
        if (proc.why != "init" && proc.why != "noquorum")
            job.fail("worker " + std::to_string(wid) + " left init as: " + proc.why +
                     proc.sentence);
    }
    outcomes.push_back(outcome);
    return ended && !have_left(job, all);
}

void run_end(Job &job, bool with_kill, Random &random, std::vector<Outcome> &outcomes)
{
    Wids all = job.live();
    Outcome outcome;
    outcome.kind = KIND_KillFinalize;
    std::vector<int> victims;
    if (with_kill)
        victims = pick(job, random, 1);
    Times times = begin(job);
    job.control(CONTROL_STOP, 0);
    if (with_kill) {
        int64_t end = now_ns() + 1000000000;
        while (job.page->call[victims[0]].load() != CALL_Finalize && now_ns() < end)
            job.pump(0);
        int64_t until = now_ns() + static_cast<int64_t>(below(random, 4) * below(random, 300000));
        while (now_ns() < until)
            continue;
        outcome.call = static_cast<int>(job.page->call[victims[0]].load());
        times = begin(job);
        job.signal(victims[0], SIGKILL);
    }
    Wids rest = without(all, victims);
    bool ended = job.wait(1e-3 * job.options.init_timeout_ms + SUSPECT_S + SLACK_S,
                          [&] { return have_left(job, all); });
    if (!ended && job.failures.empty())
        job.fail("not everybody ends");
    for (int wid : rest)
        if (ended && job.at(wid).why != "end" && !(with_kill && job.at(wid).why == "noquorum"))
            job.fail("worker " + std::to_string(wid) + " did not end in order: " + job.at(wid).why +
                     job.at(wid).sentence);
    outcome.survivors = rest.size();
    for (int wid : rest)
        outcome.detected_ms = std::max(
            outcome.detected_ms, 1e-6 * static_cast<double>(job.at(wid).said_ns - times.start));
    if (with_kill)
        outcomes.push_back(outcome);
}

} // namespace campaign
