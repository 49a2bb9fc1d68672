/*
 * Property: ftccl-diagnose says of a job with a fault exactly which fault it is and which rank or
 * link has it, and of a job without one that it is healthy; it never names another rank. Method:
 * the fault, 2 to 64 processes, the place, the call, the algorithm and the size are drawn from a
 * seed; the fault is made and the tool is asked until it says something.
 *
 * FT_DIAGNOSE_SEED: of all draws. FT_DIAGNOSE_EVENT: only this event. FT_DIAGNOSE_KIND: only this
 * kind of fault. FT_DIAGNOSE_PATIENT=1: for a busy machine. FT_DIAGNOSE_EVENTS and
 * FT_DIAGNOSE_SECONDS: the test ends after so many, whichever comes first. FT_DIAGNOSE_JOBS: events
 * at the same time. FT_DIAGNOSE_RESULTS: a file for the table. FT_DIAGNOSE_VERBOSE: with the
 * telemetry of ranks of which something else was said.
 */
#include "tests/common/sanitizer.h"
#include "tests/proc/diagnose_faults.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <regex>
#include <sstream>

#ifdef FT_HAVE_JANSSON
#include <jansson.h>

namespace faults
{
namespace
{

/* ---- what the tool says ---------------------------------------------------------------------- */

struct Verdict {
    std::string kind, sentence;
    std::set<std::pair<int, int>> who;
    std::set<std::string> comms;
    size_t named = 0; /* more may be named than are listed */
};

struct Said {
    int status = -1;
    std::string text, trouble;
    std::vector<Verdict> verdicts;
};

std::string text_at(json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

int number_at(json_t *object, const char *key)
{
    json_t *number = json_object_get(object, key);
    return number ? static_cast<int>(json_integer_value(number)) : -1;
}

/* Ranks are those of the whole job, which is the largest communicator. */
void read_named(json_t *list, Verdict *v)
{
    size_t i;
    json_t *one;
    json_array_foreach(list, i, one)
    {
        json_t *found_in = json_object_get(one, "found_in");
        v->who.insert({number_at(one, "rank"), number_at(one, "peer")});
        v->comms.insert(text_at(found_in ? found_in : one, "comm"));
    }
}

Verdict read_verdict(json_t *from)
{
    Verdict v{text_at(from, "kind"), text_at(from, "sentence"), {}, {}, 0};
    read_named(json_object_get(from, "culprits"), &v);
    read_named(json_object_get(from, "candidates"), &v);
    v.named = std::max(v.who.size(), static_cast<size_t>(json_integer_value(
                                         json_object_get(from, "culprits_count"))));
    return v;
}

Said ask(const std::string &options)
{
    Said said;
    said.text = proc::output_of("./tools/ftccl-diagnose --json " + options, &said.status);
    json_t *all = json_loads(said.text.c_str(), 0, nullptr), *one;
    size_t i;
    json_array_foreach(json_object_get(all, "verdicts"), i, one)
        said.verdicts.push_back(read_verdict(one));
    said.trouble = text_at(all, "trouble");
    json_decref(all);
    return said;
}

/* ---- judgement ------------------------------------------------------------------------------- */

enum Mark { EXACT, CANDIDATE, WRONG, CANNOT_TELL, MARKS };
const char *const mark_names[] = {"exact", "candidate", "wrong", "cannot tell"};

bool is_kind(const Want &want, const std::string &kind)
{
    return ("|" + want.kind + "|").find("|" + kind + "|") != std::string::npos;
}

/* A link that broke has no direction: both ends have noticed it. */
bool is_same(const Want &want, const Verdict &v)
{
    if (v.named > v.who.size())
        return v.named == want.who.size() &&
               std::includes(want.who.begin(), want.who.end(), v.who.begin(), v.who.end());
    if (want.who == v.who || want.who.size() != 1 || v.who.size() != 1)
        return want.who == v.who;
    auto [rank, peer] = *want.who.begin();
    return v.sentence.rfind("the link between", 0) == 0 && peer >= 0 &&
           *v.who.begin() == std::make_pair(peer, rank);
}

bool fits(const Want &want, const Verdict &v)
{
    return is_kind(want, v.kind) && (want.who.empty() || is_same(want, v)) &&
           (want.comms == 0 || want.comms == v.comms.size()) &&
           std::regex_search(v.sentence, std::regex(want.sentence));
}

/* Some of the links of a path. */
bool names_part(const Want &want, const Verdict &v)
{
    return is_kind(want, v.kind) && want.who.size() > 1 && want.who.begin()->second >= 0 &&
           !v.who.empty() &&
           std::includes(want.who.begin(), want.who.end(), v.who.begin(), v.who.end());
}

bool names_right(const Plan &plan, const Said &said)
{
    for (const Verdict &v : said.verdicts)
        for (const Want &want : plan.want)
            if ((v.who.size() <= 3 &&
                 std::includes(v.who.begin(), v.who.end(), want.who.begin(), want.who.end())) ||
                names_part(want, v))
                return true;
    return false;
}

Mark judge(const Plan &plan, const Said &said)
{
    if (plan.torn)
        return said.status == 2 && said.verdicts.empty() ? EXACT : WRONG;
    size_t hits = 0;
    bool unknown = said.verdicts.empty();
    for (const Want &want : plan.want)
        hits += std::any_of(said.verdicts.begin(), said.verdicts.end(),
                            [&](const Verdict &v) { return fits(want, v); });
    for (const Verdict &v : said.verdicts)
        unknown |= v.kind == "unknown";
    if (hits == plan.want.size() && said.verdicts.size() == hits && said.trouble.empty())
        return EXACT;
    if (said.verdicts.size() <= 3 && (hits > 0 || names_right(plan, said)))
        return CANDIDATE;
    return unknown ? CANNOT_TELL : WRONG;
}

/* ---- asking ---------------------------------------------------------------------------------- */

std::string options_of(const Job &job)
{
    return "--pid " + std::to_string(job.at(job.witness()).pid()) + " --after " +
           std::to_string(job.plan.after_s);
}

/* The first answer other than healthy; a healthy job is asked for its time. */
Said first_answer(const Job &job)
{
    const double threshold = job.struck + job.plan.after_s,
                 end = job.plan.want.empty() ? proc::now() + job.plan.watch_s : threshold + 20;
    Said said;
    if (!job.plan.want.empty() && !job.plan.is_slow())
        usleep(static_cast<useconds_t>(1e6 * std::max(0.0, threshold - proc::now())));
    do {
        said = ask(options_of(job));
        /* of two faults the second one may be younger */
        bool early = job.plan.want.size() > said.verdicts.size() && proc::now() < threshold + 1;
        if (said.status != 0 && !early)
            break;
        usleep(job.plan.want.empty() ? 500000 : 30000);
    } while (proc::now() < end);
    return said;
}

/* Copies the files of the job and spoils each of the copies. */
Said ask_of_spoilt(const Job &job, Random &random)
{
    char dir[] = "/tmp/ftccl-spoilt-XXXXXX";
    if (!mkdtemp(dir))
        return {};
    for (int r = 0; r < job.plan.n; r++)
        for (const std::string &name : proc::shm_of(job.at(r).pid())) {
            std::ifstream in("/dev/shm/" + name, std::ios::binary);
            std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
            if (name.rfind("ftccl-", 0) != 0 || bytes.size() < 4096)
                continue;
            if (random() % 2)
                bytes.resize(random() % bytes.size()); /* torn */
            else
                bytes[8 + random() % 40] ^= static_cast<char>(1 + random() % 255);
            std::ofstream(std::string(dir) + "/" + name, std::ios::binary)
                .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        }
    Said said = ask("--dir " + std::string(dir));
    if (system(("rm -r " + std::string(dir)).c_str()) != 0)
        said.status = 128;
    return said;
}

/* ---- the draw -------------------------------------------------------------------------------- */

int any_of(Random &random, int n)
{
    return static_cast<int>(random() % static_cast<unsigned>(n));
}

void draw_place(Plan &p, Random &random)
{
    int place = any_of(random, 10);
    p.place = place < 5 ? Place::Shm : place < 8 ? Place::Tcp : Place::Hosts;
    if (p.place == Place::Hosts)
        p.hosts = 2 + any_of(random, std::min(3, p.n - 1));
}

void draw_call(Plan &p, Random &random)
{
    static const char *const calls[] = {"AllReduce", "AllReduce", "AllReduce",     "Broadcast",
                                        "Reduce",    "AllGather", "ReduceScatter", "AlltoAll"};
    static const char *const algos[] = {"", "", "allreduce:ring", "allreduce:tree", "allreduce:rd"};
    static const size_t counts[] = {1, 100, 5000, 100000, 1000000};
    p.call = calls[random() % 8];
    p.algo = algos[random() % 5];
    p.count = counts[random() % 5];
    if (p.n > 8)
        p.count = std::min<size_t>(p.count, p.n > 16 ? 5000 : 100000);
    if (random() % 4 == 0)
        p.words["overlap"] = "1";
}

/* The tool's patience at least: a rank that gets no core for longer looks like a fault. */
double least_s = 1;

Plan draw(uint64_t seed, int only, bool namespaces)
{
    static const int sizes[] = {2, 3, 3, 4, 4, 4, 5, 6, 7, 8, 8, 12, 16};
    static const int large[] = {24, 32, 64};
    Random random(seed);
    Plan p;
    p.seed = seed;
    p.kind = any_of(random, static_cast<int>(kinds().size()));
    for (size_t k = 0; k < kinds().size(); k++)
        if (kinds()[k].number == only &&
            (kinds()[static_cast<size_t>(p.kind)].number != only || seed % 2))
            p.kind = static_cast<int>(k); /* one of two with the number */
    p.n = random() % 32 ? sizes[random() % (sizeof sizes / sizeof *sizes)] : large[random() % 3];
    p.victim = any_of(random, p.n);
    p.peer = (p.victim + 1 + any_of(random, p.n - 1)) % p.n;
    p.after_s = random() % 12 ? least_s + 0.5 * any_of(random, 3) : 5;
    p.wait_ms = any_of(random, 200);
    p.step = 4 + any_of(random, 20);
    draw_place(p, random);
    draw_call(p, random);
    const Kind &kind = kinds()[static_cast<size_t>(p.kind)];
    if (kind.needs_net && !namespaces)
        p.skip = "there are no network namespaces";
    else
        kind.plan(p, random);
    if (p.actors.empty() && !p.act.empty())
        p.actors = {p.victim};
    return p;
}

std::string describe(const Plan &p)
{
    static const char *const places[] = {"shm", "tcp", "hosts", "namespaces"};
    std::ostringstream out;
    out << kinds()[static_cast<size_t>(p.kind)].number << " ("
        << kinds()[static_cast<size_t>(p.kind)].name << "), victim " << p.victim << ", peer "
        << p.peer << " of " << p.n << ", " << places[static_cast<int>(p.place)] << " " << p.hosts
        << ", " << p.call << " of " << p.count << " floats " << p.algo << ", step " << p.step
        << ", after " << p.after_s << " s";
    if (p.harm.delay_us > 0)
        out << ", delay of " << p.harm.delay_us << " us";
    for (const auto &pair : p.words)
        out << ", " << pair.first << "=" << pair.second;
    for (const auto &pair : p.env)
        out << ", " << pair.first << "=" << pair.second;
    return out.str();
}

/* ---- the campaign ---------------------------------------------------------------------------- */

struct Tally {
    std::mutex lock;
    std::map<int, std::array<size_t, MARKS>> marks; /* by kind */
    std::map<int, std::vector<double>> late_s;      /* from the threshold to the verdict */
    std::map<int, std::string> skipped;
    size_t failed_starts = 0;
};

struct Settings {
    uint64_t seed, only, events;
    int kind;
    double end;
    const campaign::Net *net;
};
std::mutex net_lock;

std::string words_of(const Said &said)
{
    std::string text;
    for (const Verdict &v : said.verdicts)
        text += "  " + v.kind + ": " + v.sentence + "\n";
    return text + (said.trouble.empty() ? "" : "  trouble: " + said.trouble + "\n") +
           (said.status == 0               ? "  healthy\n"
            : said.text.rfind('{', 0) == 0 ? ""
                                           : said.text);
}

std::string telemetry_of(const Job &job)
{
    std::string text;
    int status;
    for (int pid : job.pids())
        text += proc::output_of("./tools/ftccl-info --pid " + std::to_string(pid), &status);
    return text;
}

void count(Tally &tally, const Job &job, const Said &said, Mark mark, double late_s,
           const std::string &replay)
{
    std::lock_guard<std::mutex> held(tally.lock);
    tally.marks[job.plan.kind][mark]++;
    if (mark == EXACT && !job.plan.want.empty() && !job.plan.torn && !job.plan.is_slow())
        tally.late_s[job.plan.kind].push_back(late_s);
    printf("%s: %s, %.2f s after the threshold; %s\n", mark_names[mark], describe(job.plan).c_str(),
           late_s, replay.c_str());
    if (mark != EXACT && getenv("FT_DIAGNOSE_VERBOSE") != nullptr)
        printf("%s%s", said.text.c_str(), telemetry_of(job).c_str());
    if (mark != EXACT)
        printf("%s%s", words_of(said).c_str(), job.last_words().c_str());
    if (mark == WRONG)
        ADD_FAILURE() << describe(job.plan) << "\n" << words_of(said) << "  " << replay;
    fflush(stdout);
}

void play(const Settings &settings, uint64_t number, Tally &tally)
{
    Plan plan = draw(settings.seed * 1000003 + number, settings.kind, settings.net != nullptr);
    std::unique_lock<std::mutex> held(net_lock, std::defer_lock);
    if (plan.place == Place::Namespaces)
        held.lock();
    std::string replay = "again: FT_DIAGNOSE_SEED=" + std::to_string(settings.seed) +
                         " FT_DIAGNOSE_EVENT=" + std::to_string(number) +
                         (least_s > 1 ? " FT_DIAGNOSE_PATIENT=1" : "") +
                         (settings.kind ? " FT_DIAGNOSE_KIND=" + std::to_string(settings.kind)
                                        : "") +
                         " tests/proc/diagnose_faults_test";
    Random random(plan.seed + 1);
    Said said;
    if (plan.skip.empty()) {
        Job job(plan, settings.net);
        bool started = job.start();
        if (started && plan.skip.empty()) {
            said = plan.torn ? ask_of_spoilt(job, random) : first_answer(job);
            double late_s = proc::now() - job.struck - plan.after_s;
            count(tally, job, said, judge(plan, said), late_s, replay);
        } else if (!started) {
            std::lock_guard<std::mutex> lock(tally.lock);
            tally.failed_starts++;
            ADD_FAILURE() << "the job did not start: " << describe(plan) << "\n" << replay;
        }
        if (plan.heal)
            plan.heal(job);
    }
    std::lock_guard<std::mutex> lock(tally.lock);
    if (!plan.skip.empty())
        tally.skipped[plan.kind] = plan.skip;
}

std::string three(std::vector<double> values)
{
    if (values.empty())
        return "       -       -       -";
    std::sort(values.begin(), values.end());
    char text[64];
    auto at = [&](double share) {
        return values[static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())) -
                                          1)];
    };
    snprintf(text, sizeof text, "%8.2f%8.2f%8.2f", at(0.5), at(0.99), values.back());
    return text;
}

std::string row_of(const std::string &name, const std::array<size_t, MARKS> &marks,
                   const std::vector<double> &late_s)
{
    char text[160];
    size_t all = 0;
    for (size_t n : marks)
        all += n;
    snprintf(text, sizeof text, "%-38s%7zu%7zu%11zu%7zu%13zu%s\n", name.c_str(), all, marks[EXACT],
             marks[CANDIDATE], marks[WRONG], marks[CANNOT_TELL], three(late_s).c_str());
    return text;
}

std::string table(Tally &tally)
{
    std::string text = "                                         events  exact  candidates  wrong"
                       "  cannot tell  seconds: median p99 most\n";
    std::array<size_t, MARKS> sum{};
    std::vector<double> late_s;
    for (size_t k = 0; k < kinds().size(); k++) {
        int kind = static_cast<int>(k);
        const auto &marks = tally.marks[kind];
        for (size_t m = 0; m < MARKS; m++)
            sum[m] += marks[m];
        const auto &late = tally.late_s[kind];
        late_s.insert(late_s.end(), late.begin(), late.end());
        text += row_of(std::to_string(kinds()[k].number) + " " + kinds()[k].name, marks, late);
        if (tally.skipped.count(kind))
            text += "  skipped: " + tally.skipped[kind] + "\n";
    }
    return text + row_of("all", sum, late_s);
}

/* Of what is not told exactly there may be little; what is wrong has failed already. */
void expect_few(Tally &tally)
{
    size_t all = 0, exact = 0;
    for (const auto &marks : tally.marks) {
        exact += marks.second[EXACT];
        for (size_t n : marks.second)
            all += n;
    }
    EXPECT_LE(all - exact, 1 + all / 20) << "of " << all << " events";
}

uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != nullptr ? strtoull(text, nullptr, 0) : otherwise;
}

TEST(Diagnose, NamesTheFaultExactly)
{
    if (is_sanitized())
        GTEST_SKIP() << "not under sanitizers: what takes so long there looks like a fault";
    campaign::Net net;
    uint64_t events = number_of("FT_DIAGNOSE_EVENTS", UINT64_MAX);
    if (number_of("FT_DIAGNOSE_PATIENT", events == UINT64_MAX))
        least_s = 2;
    Settings settings{number_of("FT_DIAGNOSE_SEED", std::random_device{}()),
                      number_of("FT_DIAGNOSE_EVENT", UINT64_MAX),
                      events,
                      static_cast<int>(number_of("FT_DIAGNOSE_KIND", 0)),
                      proc::now() + static_cast<double>(number_of(
                                        "FT_DIAGNOSE_SECONDS", events == UINT64_MAX ? 75 : 86400)),
                      net.missing().empty() ? &net : nullptr};
    printf("FT_DIAGNOSE_SEED=%llu %s\n", static_cast<unsigned long long>(settings.seed),
           net.missing().c_str());
    Tally tally;
    bool one = settings.only != UINT64_MAX;
    std::atomic<uint64_t> next{one ? settings.only : 0};
    if (one)
        least_s = number_of("FT_DIAGNOSE_PATIENT", 0) ? 2 : 1;
    uint64_t last = one ? settings.only + 1 : settings.events;
    proc::in_threads(one ? 1 : static_cast<int>(number_of("FT_DIAGNOSE_JOBS", 2)), [&](int) {
        for (uint64_t n = next++; n < last && proc::now() < settings.end; n = next++)
            play(settings, n, tally);
    });
    std::string text = table(tally);
    printf("%s", text.c_str());
    expect_few(tally);
    if (const char *path = getenv("FT_DIAGNOSE_RESULTS"))
        std::ofstream(path) << "seed " << settings.seed << "\n" << text;
}

} // namespace

/* ---- a job ----------------------------------------------------------------------------------- */

Job::Job(Plan &plan_, const campaign::Net *net_) : plan(plan_), net(net_)
{
}

/* The files of killed ranks would stay for a while, and disturb other tests. */
Job::~Job()
{
    std::vector<pid_t> pids;
    for (auto &rank : ranks_) {
        pids.push_back(rank.second->pid());
        rank.second->signal(SIGKILL);
    }
    ranks_.clear();
    for (pid_t pid : pids)
        for (const std::string &name : proc::shm_of(pid))
            unlink(("/dev/shm/" + name).c_str());
}

Words Job::words_of(int rank) const
{
    Words words = plan.words;
    words["n"] = std::to_string(plan.n);
    words["rank"] = std::to_string(rank);
    words["count"] = std::to_string(plan.count);
    words["call"] = plan.call;
    words["step"] = std::to_string(plan.step);
    words["compute"] = std::to_string(plan.compute_us);
    words["act"] = plan.actors.count(rank) ? plan.act : "";
    if (words.count("sender") && words["sender"] == std::to_string(rank))
        words["act"] = "send";
    if (plan.place == Place::Namespaces)
        words["ns"] = net->path(plan.host(rank));
    words["makes_id"] = ranks_.empty() ? "1" : "0";
    return words;
}

void Job::start_rank(int rank)
{
    std::vector<std::string> arguments;
    for (const auto &pair : words_of(rank))
        arguments.push_back(pair.first + "=" + pair.second);
    Words env = plan.env;
    env["FTCCL_TRANSPORTS"] = plan.place == Place::Shm   ? "shm"
                              : plan.place == Place::Tcp ? "tcp"
                                                         : "shm,tcp";
    if (plan.place == Place::Hosts)
        env["FTCCL_HOSTID"] = "host" + std::to_string(plan.host(rank));
    if (!plan.algo.empty())
        env["FTCCL_ALGO"] = plan.algo;
    env["FTCCL_DEBUG"] = "NONE";
    ranks_[rank] = std::make_unique<proc::Child>("faulty", arguments, env);
}

std::vector<int> Job::pids() const
{
    std::vector<int> pids;
    for (const auto &rank : ranks_)
        pids.push_back(rank.second->pid());
    return pids;
}

std::string Job::last_words() const
{
    std::string text;
    for (const auto &rank : ranks_)
        for (std::string line = rank.second->line(0.01); !line.empty();
             line = rank.second->line(0.01))
            text += "    rank " + std::to_string(rank.first) + " said " + line + "\n";
    return text;
}

bool Job::detour(int from, int to)
{
    std::string device = "way" + std::to_string(relays_.size());
    relays_.push_back(
        std::make_unique<campaign::Relay>(net->path(from), net->path(to), device, plan.harm));
    return relays_.back()->works() && net->detour(from, to, device);
}

/* The pid that the tool is asked with. */
int Job::witness() const
{
    std::set<int> hit = plan.place == Place::Namespaces ? plan.beside_victim()
                                                        : std::set<int>{plan.victim};
    for (const auto &rank : ranks_)
        if (hit.count(rank.first) == 0 && (rank.first != plan.peer || plan.n == 2))
            return rank.first;
    return ranks_.begin()->first == plan.victim && ranks_.size() > 1
               ? std::next(ranks_.begin())->first
               : ranks_.begin()->first;
}

bool Job::start()
{
    for (int r = 0; r < plan.n; r++)
        if (!plan.absent.count(r))
            start_rank(r);
    std::string id;
    for (auto &rank : ranks_) {
        if (id.empty())
            id = rank.second->line(60);
        else
            rank.second->tell(id);
    }
    for (auto &rank : ranks_)
        if (id.empty() || rank.second->line(60) != "joins")
            return false;
    struck = proc::now();
    if (!plan.starts)
        return true;
    for (auto &rank : ranks_) {
        std::string line = rank.second->line(60);
        if (line != "running" && line.rfind("failed", 0) != 0)
            return printf("rank %d says %s\n", rank.first, line.c_str()), false;
    }
    struck = proc::now();
    if (!plan.actors.empty() && plan.watch_s == 0 && !plan.is_slow()) {
        std::string line = at(*plan.actors.begin()).line(60);
        struck = line.rfind("fault", 0) == 0 ? std::stod(line.substr(6)) : struck;
    }
    usleep(static_cast<useconds_t>(plan.wait_ms) * 1000);
    if (plan.strike) {
        struck = proc::now();
        plan.strike(*this);
    }
    return true;
}

} // namespace faults

#else

TEST(Diagnose, NamesTheFaultExactly)
{
    GTEST_SKIP() << "built without jansson";
}

#endif
