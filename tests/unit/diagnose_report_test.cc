/*
 * Property: the page, the trace, the metrics and the JSON are well-formed whatever is in a
 * snapshot; ranks in the JSON are those of the job; the page of 32,768 ranks has at most 16 MB and
 * names the culprit; in a trace of tens of thousands of operations that overlap, slices of a track
 * lie apart or in each other. Method: jobs that are written down, and rubbish from a printed seed;
 * jansson reads the trace and the JSON. A snapshot that goes to another host as bytes is judged
 * alike there, and damaged bytes do no harm.
 */
#include "diagnose_builder.h"

#include <algorithm>
#include <climits>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <random>
#include <regex>

#ifdef FT_HAVE_JANSSON
#include <jansson.h>
#endif

extern "C" {
#include "telemetry/telemetry.h"
#include "tools/diagnose.h"
}

namespace
{

using namespace diagnose;

std::string read_and_remove(const std::string &path)
{
    std::ifstream in(path, std::ios::binary);
    std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    unlink(path.c_str());
    return text;
}

/* A job with operations and paths. */
class Drawn : public Job
{
  public:
    using Job::Job;
    std::vector<ft_snap_op> ops;
    std::vector<ft_snap_path> paths;

    ft_snapshot snapshot()
    {
        ft_snapshot s = {};
        s.now_ns = NOW;
        s.real_ns = 1790000000u * SECOND;
        s.engines = engines.data();
        s.members = members.data();
        s.links = links.data();
        s.seats = seats.data();
        s.ops = ops.data();
        s.paths = paths.data();
        s.nengines = (int)engines.size();
        s.nmembers = (int)members.size();
        s.nlinks = (int)links.size();
        s.nseats = (int)seats.size();
        s.nops = (int)ops.size();
        s.npaths = (int)paths.size();
        return s;
    }
    std::string file(int (*write)(const ft_snapshot *, const report *, const char *),
                     const report &r)
    {
        char name[] = "/tmp/ftccl-report-XXXXXX";
        int fd = mkstemp(name);
        ft_snapshot s = snapshot();
        close(fd);
        EXPECT_EQ(write(&s, &r, name), FT_OK) << ft_fail_text();
        return read_and_remove(name);
    }
    /* What the analysis says. */
    report judged()
    {
        diagnose();
        report r = {};
        r.verdicts = verdicts.data();
        r.found = (int)verdicts.size();
        r.engines = (int)engines.size();
        r.after_s = 5;
        r.real_ns = 1790000000u * SECOND;
        return r;
    }
};

/* ---- what must be so ------------------------------------------------------------------------- */

/* Tags are closed in their order; attributes are quoted; there are no control characters. */
void expect_page(const std::string &page)
{
    static const std::regex tag("<(/?)([a-zA-Z!][a-zA-Z0-9]*)((?: [a-zA-Z-]+=\"[^\"<>]*\"| html)*)"
                                "(/?)>");
    std::vector<std::string> open;
    for (size_t at = 0; (at = page.find('<', at)) != std::string::npos; at++) {
        std::smatch match;
        std::string part = page.substr(at, page.find('>', at) + 1 - at);
        ASSERT_TRUE(std::regex_match(part, match, tag)) << part;
        std::string name = match[2];
        bool alone = match[4] == "/" || name == "meta" || name[0] == '!';
        if (match[1] == "/") {
            ASSERT_FALSE(open.empty()) << part;
            ASSERT_EQ(open.back(), name) << "at " << at;
            open.pop_back();
        } else if (!alone) {
            open.push_back(name);
        }
        ASSERT_NE(name, "script");
    }
    ASSERT_TRUE(open.empty()) << open.back();
    for (char c : page)
        ASSERT_TRUE((c >= ' ' && c <= '~') || c == '\n') << (int)c;
}

void expect_metrics(const std::string &metrics)
{
    static const std::regex line(
        "#.*|[a-z0-9_]+(\\{([a-z0-9_]+=\"([^\"\\\\]|\\\\[\"\\\\])*\",?)+\\})? "
        "[-+0-9.e]+(inf|nan)?");
    std::istringstream in(metrics);
    std::set<std::string> series;
    for (std::string text; std::getline(in, text);) {
        ASSERT_TRUE(std::regex_match(text, line)) << text;
        ASSERT_LT(text.size(), 1000u);
    }
}

#ifdef FT_HAVE_JANSSON
int64_t nanoseconds(const json_t *event, const char *key)
{
    const json_t *value = json_object_get(event, key);
    EXPECT_TRUE(json_is_number(value)) << key;
    return (int64_t)std::llround(json_number_value(value) * 1000);
}

/* Returns the number of slices. */
size_t expect_trace(const std::string &trace)
{
    json_error_t error;
    json_t *all = json_loadb(trace.data(), trace.size(), JSON_REJECT_DUPLICATES, &error);
    EXPECT_NE(all, nullptr) << error.text << " at " << error.position;
    std::map<std::pair<json_int_t, json_int_t>, std::vector<std::pair<int64_t, int64_t>>> tracks;
    size_t i, slices = 0;
    json_t *event;
    json_array_foreach(json_object_get(all, "traceEvents"), i, event)
    {
        std::string phase = json_string_value(json_object_get(event, "ph"));
        if (phase == "M")
            continue;
        int64_t begin = nanoseconds(event, "ts");
        EXPECT_GE(begin, 0);
        if (phase != "X")
            continue;
        slices++;
        int64_t end = begin + nanoseconds(event, "dur");
        EXPECT_GE(end, begin);
        tracks[{json_integer_value(json_object_get(event, "pid")),
                json_integer_value(json_object_get(event, "tid"))}]
            .push_back({begin, -end});
    }
    for (auto &[track, times] : tracks) {
        std::vector<int64_t> ends;
        std::sort(times.begin(), times.end());
        for (auto [begin, minus] : times) {
            while (!ends.empty() && ends.back() <= begin)
                ends.pop_back();
            EXPECT_TRUE(ends.empty() || -minus <= ends.back())
                << "track " << track.second << ": " << begin << " to " << -minus;
            ends.push_back(-minus);
        }
    }
    json_decref(all);
    return slices;
}
#endif

/* ---- large jobs ------------------------------------------------------------------------------ */

std::vector<int> line(int n, int step, int first)
{
    std::vector<int> all;
    for (int i = 0; i < n; i++)
        all.push_back(first + i * step);
    return all;
}

/* Four communicators for each rank; in the world all wait for one, and many are stopped, gone or
 * have left only their place in the roster. */
TEST(Report, ThePageOf32768RanksIsBounded)
{
    const int n = 32768, culprit = 12345;
    Drawn job(n);
    job.comm(1, "world", line(n, 1, 0));
    for (int i = 0; i < n / 8; i++)
        job.comm(uint64_t(1000000 + i), "<tensor>", line(8, 1, 8 * i));
    for (int i = 0; i < 512; i++)
        job.comm(uint64_t(2000000 + i), "data", line(64, 512, i));
    for (int i = 0; i < 512; i++)
        job.comm(uint64_t(3000000 + i), "pipeline", line(64, 1, 64 * i));
    for (int r = 0; r < n; r++) {
        if (r != culprit)
            job.waits(1, r, r % 3 ? culprit : (r + 1) % n, 30);
        job.link(1, r, (r + 1) % n, 5, 5);
        for (int k = 0; k < 4; k++)
            job.ops.push_back({r, -1, uint64_t(k), sig_of(FT_ALLREDUCE), false, true, ago(40 - k),
                               ago(39.5 - k), k == 3 ? 0 : ago(39 - k)});
    }
    report r = job.judged();
    auto start = std::chrono::steady_clock::now();
    std::string page = job.file(write_page, r);
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    printf("%zu bytes in %.2f s\n", page.size(), took.count());
    EXPECT_LE(page.size(), size_t(16) << 20);
    EXPECT_NE(page.find("<h1>rank 12345 "), std::string::npos) << page.substr(0, 6000);
    EXPECT_NE(page.find("&#9654; rank 12345<"), std::string::npos);
    EXPECT_EQ(page.find("<tensor>"), std::string::npos);
}

TEST(Report, OperationsThatOverlapAreOnTracksOfTheirOwn)
{
    std::mt19937_64 random(7);
    Drawn job(8);
    job.comm(1, "world", line(8, 1, 0));
    job.comm(2, "\"\\", line(4, 2, 0));
    for (int i = 0; i < 60000; i++) {
        int member = (int)(random() % 12);
        uint64_t called = NOW - random() % (20 * SECOND), started = called + random() % 1000000,
                 ended = started + random() % 100000;
        bool message = random() % 2;
        job.ops.push_back({member, (int)(random() % 8), (uint64_t)i,
                           sig_of(message ? FT_SEND : FT_ALLREDUCE), message && random() % 2, true,
                           called, started, random() % 1000 ? ended : 0});
    }
    std::string trace = job.file(write_trace, job.judged());
#ifdef FT_HAVE_JANSSON
    EXPECT_GE(expect_trace(trace), 60000u);
    EXPECT_NE(trace.find("\"left_out\":\"0\""), std::string::npos);
#else
    EXPECT_FALSE(trace.empty());
    GTEST_SKIP() << "built without jansson";
#endif
}

/* ---- JSON ------------------------------------------------------------------------------------ */

std::string json_of(const ft_snapshot *s, ft_verdict *verdicts, int n,
                    const char *trouble = nullptr)
{
    ft_report r = {};
    r.snapshot = s;
    r.verdicts = verdicts;
    r.found = n;
    r.trouble = trouble;
    ft_text text = {nullptr, 0, 0, 16 << 20, false};
    ft_report_json(&text, nullptr, &r);
    std::string all = text.at ? text.at : "";
    EXPECT_FALSE(text.broken);
    ft_text_free(&text);
    return all;
}

bool has(const std::string &text, const std::string &part)
{
    return text.find(part) != std::string::npos;
}

const uint64_t WORLD = 1, TP = 2;

/* Eight ranks in an order of their own, and two of them in a smaller communicator. */
Drawn nested_job()
{
    Drawn job(8);
    job.comm(TP, "tp", {6, 1});
    job.comm(WORLD, "world", {3, 2, 1, 0, 4, 5, 6, 7});
    job.waits(TP, 0, 1);
    return job;
}

TEST(Json, RanksAreThoseOfTheLargestCommunicator)
{
    const std::string place = "\"rank\":2,\"host\":",
                      found = "\"found_in\":{\"comm\":\"0000000000000002\",\"rank\":1}";
    Drawn job = nested_job();
    job.diagnose();
    ft_snapshot s = job.snapshot();
    std::string text = json_of(&s, job.verdicts.data(), job.found);
    EXPECT_TRUE(has(text, place) && has(text, found)) << text;
    EXPECT_EQ(text.rfind("{\"version\":2,\"kind\":\"noncomm_hang\",\"confidence\":0.9,", 0), 0u)
        << text;
    EXPECT_TRUE(has(text, "\"rank\":2,\"field\":\"called\",\"value\":5}")) << text;
    job = nested_job(); /* rosters tell it of a rank without a file, alone on its host: no id */
    job.lose(TP, 1);
    job.lose(WORLD, 2);
    job.diagnose();
    s = job.snapshot();
    text = json_of(&s, job.verdicts.data(), job.found);
    EXPECT_TRUE(has(text, "\"kind\":\"unknown\"") && has(text, "\"culprits\":[]")) << text;
    EXPECT_TRUE(has(text, "\"rank\":2,\"pid\":99") && has(text, found)) << text;
}

TEST(Json, EveryRankAndLinkIsFoundInTheWorld)
{
    const char *given = getenv("FT_SEED");
    uint64_t seed = given ? strtoull(given, nullptr, 0) : std::random_device{}();
    SCOPED_TRACE("replay: FT_SEED=" + std::to_string(seed) +
                 " tests/unit/diagnose_report_test --gtest_filter=Json.Every*");
    std::mt19937_64 random(seed);
    for (int round = 0; round < 50; round++) {
        int n = 3 + (int)(random() % 30);
        std::vector<int> world((size_t)n), rank_in_world((size_t)n);
        for (int i = 0; i < n; i++)
            world[(size_t)i] = i;
        std::shuffle(world.begin(), world.end(), random);
        for (int i = 0; i < n; i++)
            rank_in_world[(size_t)world[(size_t)i]] = i;
        std::vector<int> some(world.begin(),
                              world.begin() + 2 + (int)(random() % (uint64_t)(n - 2)));
        std::shuffle(some.begin(), some.end(), random);
        Drawn job(n);
        job.comm(TP, "tp", some);
        job.comm(WORLD, "world", world);
        ft_verdict v = {};
        size_t rank = random() % some.size(), peer = random() % some.size();
        v.kind = FT_VERDICT_COMM_HANG_LINK;
        v.nculprits = 1;
        v.culprits[0] = {};
        v.culprits[0].ctx = TP;
        v.culprits[0].rank = (int)rank;
        v.culprits[0].peer = round % 2 ? (int)peer : -1;
        v.culprits[0].engine = some[rank];
        ft_snapshot s = job.snapshot();
        ft_verdicts_place(&s, &v, 1);
        EXPECT_EQ(v.culprits[0].world, WORLD) << n << " ranks";
        EXPECT_EQ(v.culprits[0].world_rank, rank_in_world[(size_t)some[rank]]);
        EXPECT_EQ(v.culprits[0].world_peer, round % 2 ? rank_in_world[(size_t)some[peer]] : -1);
    }
}

TEST(Json, SaysThatAllIsWellOrThatItCannotTell)
{
    Drawn job(2);
    job.comm(WORLD, "world", {0, 1});
    ft_snapshot s = job.snapshot();
    std::string text = json_of(&s, nullptr, 0);
    EXPECT_EQ(text.rfind("{\"version\":2,\"kind\":\"healthy\",\"confidence\":1.0,", 0), 0u) << text;
    text = json_of(nullptr, nullptr, 0, "no files");
    EXPECT_EQ(text.rfind("{\"version\":2,\"kind\":\"unknown\",\"confidence\":0.0,", 0), 0u) << text;
    EXPECT_TRUE(has(text, "\"trouble\":\"no files\"")) << text;
}

/* ---- rubbish --------------------------------------------------------------------------------- */

struct Rubbish {
    std::mt19937_64 source;
    int number(int most)
    {
        const int odd[] = {-1, -2, INT_MIN, INT_MAX, most + 1};
        return source() % 10 ? (int)(source() % (uint64_t)(most + 1)) : odd[source() % 5];
    }
    uint64_t time()
    {
        const uint64_t odd[] = {0, 1, UINT64_MAX, NOW + SECOND, NOW};
        return source() % 5 ? NOW - source() % (30 * SECOND) : odd[source() % 5];
    }
    uint64_t sig()
    {
        return source() % 4 ? sig_of((enum ft_kind)(source() % FT_KINDS), source() % 5000)
                            : source();
    }
    template <size_t N> void text(char (&to)[N])
    {
        const char *some[] = {"", "<script>x</script>", "\"'&><\\", "a\nb\tc", "\xff\x01", "]]>--"};
        snprintf(to, N, "%s", some[source() % 6]);
    }
};

void fill_engines(Drawn &job, Rubbish &any)
{
    for (auto &e : job.engines) {
        any.text(e.hostname);
        any.text(e.program);
        any.text(e.doing);
        e.state = (enum ft_process_state)(any.source() % 4);
        e.id = any.source() % 9 ? e.id : 1000000;
    }
}

ft_snap_member any_member(Rubbish &any, int engines)
{
    ft_snap_member m = {};
    m.ctx = any.source() % 4;
    m.engine = engines ? (int)(any.source() % (uint64_t)engines) : -1;
    m.rank = any.number(5);
    m.nranks = any.source() % 5 ? 6 : any.number(100);
    any.text(m.name);
    m.open = any.source() % 8;
    m.called = m.kind_called[FT_ALLREDUCE] = any.source() % 9;
    m.last.called_ns = any.time();
    m.last.sig = any.sig();
    m.wait.peer = any.number(5);
    m.running_sig = any.source() % 3 ? any.sig() : 0;
    m.running_since_ns = any.time();
    m.progress_ns = any.time();
    return m;
}

void add_link(Drawn &job, Rubbish &any)
{
    int n = (int)job.engines.size();
    ft_snap_link link = Job::end_of(any.number(n), Job::id(any.number(8) & 15), any.source() % 2,
                                    any.source());
    link.bytes = any.source() >> any.source() % 64;
    link.wait_ns = any.source() >> any.source() % 64;
    any.text(link.transport);
    job.links.push_back(link);
    ft_snap_path path = {};
    path.engine = any.number(n);
    path.peer = link.peer;
    path.bytes = any.source() >> any.source() % 64;
    path.network_ns = any.source() >> any.source() % 64;
    job.paths.push_back(path);
}

void fill(Drawn &job, Rubbish &any)
{
    fill_engines(job, any);
    for (uint64_t i = any.source() % 20; i > 0; i--)
        job.members.push_back(any_member(any, (int)job.engines.size()));
    for (uint64_t i = any.source() % 40; i > 0; i--)
        job.ops.push_back({any.number((int)job.members.size()), any.number(7), any.source() % 9,
                           any.sig(), any.source() % 2 == 0, any.source() % 2 == 0, any.time(),
                           any.time(), any.time()});
    for (uint64_t i = any.source() % 20; i > 0; i--)
        add_link(job, any);
    for (uint64_t i = any.source() % 9; i > 0; i--)
        job.seats.push_back({any.source() % 5, any.number(6), Job::id(any.number(12) & 15), 7, 0,
                             FT_NEWS_NONE, false, any.number(4)});
}

/* Verdicts of which the analysis would never think, too. */
std::vector<ft_verdict> judge(Rubbish &any)
{
    std::vector<ft_verdict> verdicts(any.source() % 4);
    for (ft_verdict &v : verdicts) {
        v.kind = (enum ft_verdict_kind)(any.source() % FT_VERDICTS);
        v.ctx = any.source() % 4;
        v.nculprits = (int)(any.source() % 40);
        v.since_ns = any.time();
        any.text(v.sentence);
        v.nchain = (int)(any.source() % FT_CHAIN);
        for (int i = 0; i < v.nchain; i++)
            any.text(v.chain[i]);
        for (ft_culprit &c : v.culprits)
            c = {any.source() % 4,
                 any.number(5),
                 any.number(5),
                 any.number(9),
                 0,
                 any.number(9),
                 0,
                 0,
                 0};
    }
    return verdicts;
}

TEST(Report, AnySnapshotGivesWellFormedFiles)
{
    const char *given = getenv("FT_SEED");
    uint64_t first = given ? strtoull(given, nullptr, 0) : std::random_device{}();
    for (uint64_t seed = first; seed < first + 300 && !testing::Test::HasFatalFailure(); seed++) {
        SCOPED_TRACE("replay: FT_SEED=" + std::to_string(seed) +
                     " tests/unit/diagnose_report_test --gtest_filter=*AnySnapshot*");
        Rubbish any = {std::mt19937_64(seed)};
        Drawn job((int)(any.source() % (seed % 10 ? 9 : 200)));
        fill(job, any);
        std::vector<ft_verdict> verdicts = judge(any);
        report r = {};
        r.verdicts = verdicts.data();
        r.found = (int)verdicts.size();
        r.after_s = 5;
        r.real_ns = any.time();
        any.text(r.trouble);
        expect_page(job.file(write_page, r));
        expect_metrics(job.file(write_metrics, r));
        ft_snapshot s = job.snapshot();
        ft_verdicts_place(&s, verdicts.data(), (int)verdicts.size());
        std::string json = json_of(&s, verdicts.data(), (int)verdicts.size());
        std::string trace = job.file(write_trace, r);
#ifdef FT_HAVE_JANSSON
        expect_trace(trace);
        json_t *read = json_loads(json.c_str(), 0, nullptr);
        EXPECT_NE(read, nullptr) << json;
        json_decref(read);
#endif
    }
}

/* ---- bytes for another host ------------------------------------------------------------------ */

std::vector<unsigned char> packed(const ft_snapshot &s)
{
    unsigned char *bytes = nullptr;
    size_t n = 0;
    EXPECT_EQ(ft_snapshot_pack(&s, &bytes, &n), FT_OK);
    std::vector<unsigned char> all(bytes, bytes + n);
    free(bytes);
    return all;
}

/* The clock of the other host is far away, and what it tells is the same. */
TEST(Pack, AnotherHostJudgesAlike)
{
    Drawn job = nested_job();
    job.links.push_back(Job::end_of(6, Job::id(1), true, 9));
    job.seats.push_back({WORLD, 5, Job::id(5), 7, 99, FT_NEWS_DEAD, false, 2});
    for (int i = 0; i < 100; i++)
        job.ops.push_back(
            {3, -1, (uint64_t)i, sig_of(FT_ALLREDUCE), false, true, ago(9), ago(9), ago(8)});
    job.diagnose();
    std::vector<unsigned char> bytes = packed(job.snapshot());
    const uint64_t there = 77 * SECOND;
    ft_snapshot *other = nullptr;
    ASSERT_EQ(ft_snapshot_unpack(bytes.data(), bytes.size(), there, &other), FT_OK);
    std::vector<ft_verdict> verdicts(4);
    ASSERT_EQ(ft_diagnose(other, PATIENCE, verdicts.data(), 4), job.found);
    EXPECT_STREQ(verdicts[0].sentence, job.verdicts[0].sentence);
    EXPECT_EQ(verdicts[0].since_ns, job.verdicts[0].since_ns);
    EXPECT_EQ(other->nops, 64);
    EXPECT_EQ(other->ops[63].seq, 99u);
    EXPECT_EQ(there - other->ops[0].ended_ns, 8 * SECOND);
    EXPECT_EQ(other->nseats, 1);
    EXPECT_EQ(other->nlinks, 1);
    ft_snapshot_free(other);
}

/* A host that has just booted tells of a validation to one that has not; that one tells others. */
TEST(Pack, ValidationsAreAsOldThereAsHere)
{
    const uint64_t here = 20 * SECOND, there = 9000 * SECOND;
    ft_snap_engine engine = {};
    ft_snap_validation validation = {};
    validation.is.state = FT_VALIDATION_DONE;
    validation.is.held_ns = here - 7 * SECOND;
    validation.is.start_ns = here - 6 * SECOND;
    validation.is.end_ns = here - 5 * SECOND;
    ft_snapshot s = {};
    s.engines = &engine;
    s.validations = &validation;
    s.nengines = s.nvalidations = 1;
    s.now_ns = here;
    std::vector<unsigned char> bytes = packed(s);
    ft_snapshot *first = nullptr, *second = nullptr;
    ASSERT_EQ(ft_snapshot_unpack(bytes.data(), bytes.size(), there, &first), FT_OK);
    bytes = packed(*first);
    ft_snapshot_free(first);
    ASSERT_EQ(ft_snapshot_unpack(bytes.data(), bytes.size(), here, &second), FT_OK);
    ASSERT_EQ(second->nvalidations, 1);
    EXPECT_EQ(second->validations[0].is.held_ns, here - 7 * SECOND);
    EXPECT_EQ(second->validations[0].is.start_ns, here - 6 * SECOND);
    EXPECT_EQ(second->validations[0].is.end_ns, here - 5 * SECOND);
    ft_snapshot_free(second);
}

TEST(Pack, DamagedBytesAreRefusedOrHarmless)
{
    const char *given = getenv("FT_SEED");
    uint64_t first = given ? strtoull(given, nullptr, 0) : std::random_device{}();
    int refused = 0, taken = 0;
    for (uint64_t seed = first; seed < first + 300; seed++) {
        SCOPED_TRACE("replay: FT_SEED=" + std::to_string(seed) +
                     " tests/unit/diagnose_report_test --gtest_filter=Pack.Damaged*");
        Rubbish any = {std::mt19937_64(seed)};
        Drawn job = nested_job();
        for (int i = 0; i < 9; i++)
            add_link(job, any);
        job.links.erase(std::remove_if(job.links.begin(), job.links.end(),
                                       [](auto &l) { return l.engine < 0 || l.engine > 7; }),
                        job.links.end());
        std::vector<unsigned char> bytes = packed(job.snapshot());
        for (uint64_t i = any.source() % 5; i > 0; i--)
            bytes[any.source() % bytes.size()] = (unsigned char)any.source();
        if (any.source() % 4 == 0)
            bytes.resize(any.source() % bytes.size());
        ft_snapshot *other = nullptr;
        int rc = ft_snapshot_unpack(bytes.data(), bytes.size(), NOW, &other);
        (rc == FT_OK ? taken : refused)++;
        if (rc != FT_OK) {
            EXPECT_EQ(rc, FT_PROTOCOL);
            continue;
        }
        std::vector<ft_verdict> verdicts(4);
        int found = ft_diagnose(other, PATIENCE, verdicts.data(), 4);
        json_of(other, verdicts.data(), std::max(0, std::min(found, 4)));
        ft_snapshot_free(other);
    }
    EXPECT_GT(refused, 30);
    EXPECT_GT(taken, 30);
}

} // namespace
