/*
 * Property: whatever breaks during whatever call, the remaining ranks learn it in bounded time,
 * agree on who remains, compute exact sums again, and leak nothing. Ranks that were left out end.
 * Method: jobs of 2 to 16 processes on one host and across network namespaces, and events in them,
 * all drawn from a seed.
 *
 * campaign [--seed N] [--events N] [--seconds N] [--job N] [--large BYTES] [--list] ends after that
 * many events or seconds, whichever comes first. --job repeats one job of a seed. --list prints
 * each event. Each kind of event counts as one test.
 */
#include <getopt.h>
#include <signal.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "tests/campaign/events.h"

using namespace campaign;

namespace
{

struct Settings {
    uint64_t seed = 0;
    size_t events = SIZE_MAX, seconds = SIZE_MAX, large_bytes = size_t{1} << 30;
    int64_t job = -1;
    bool list = false;
};

struct Campaign {
    Settings settings;
    Net net;
    std::vector<Outcome> outcomes;
    size_t failed[KIND_COUNT] = {};
    size_t jobs = 0, failures = 0;
};

volatile sig_atomic_t interrupted;

size_t memory_available()
{
    std::ifstream info("/proc/meminfo");
    size_t kib = 0;
    for (std::string word; info >> word;)
        if (word == "MemAvailable:" && info >> kib)
            break;
    return kib * 1024;
}

JobOptions draw(const Campaign &campaign, Random &random)
{
    static const int sizes[] = {2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 8, 8, 10, 12, 16};
    JobOptions options;
    options.seed = random();
    options.nranks = sizes[random() % (sizeof sizes / sizeof *sizes)];
    int place = static_cast<int>(random() % 10);
    options.place = place < 3   ? Place::Shm
                    : place < 5 ? Place::Tcp
                    : place < 7 ? Place::Hosts
                                : Place::Namespaces;
    if (options.place == Place::Namespaces && !campaign.net.missing().empty())
        options.place = Place::Hosts;
    if (options.place >= Place::Hosts)
        options.hosts = 2 + static_cast<int>(random() % (Net::HOSTS - 1));
    if (random() % 4 == 0)
        options.op_timeout_ms = 1500;
    options.delays = random() % 8 == 0;
    return options;
}

Kind draw_event(const Job &job, Random &random)
{
    static const Kind often[] = {KIND_Kill,       KIND_Kill,    KIND_Kill,        KIND_Kill,
                                 KIND_KillTwo,    KIND_KillTwo, KIND_KillThree,   KIND_KillGrow,
                                 KIND_KillJoiner, KIND_Stop,    KIND_StopKill,    KIND_Pause,
                                 KIND_Cut,        KIND_Half,    KIND_CutKill,     KIND_Flap,
                                 KIND_Slow,       KIND_Grow,    KIND_KillMajority};
    for (int i = 0; i < 200; i++) {
        Kind kind = often[random() % (sizeof often / sizeof *often)];
        if (kind == KIND_KillMajority && random() % 4)
            continue; /* it ends the job */
        if (suits(job, kind))
            return kind;
    }
    return KIND_Grow;
}

/* The events of one job; leaves what went wrong in job.failures. */
void run_job(Campaign &campaign, Job &job, Random &random)
{
    std::vector<Outcome> &outcomes = campaign.outcomes;
    size_t events = 2 + random() % 12;
    if (!run_init(job, !job.options.ballast_bytes && random() % 5 == 0, random, outcomes))
        return;
    if (job.options.ballast_bytes &&
        !run_event(job, campaign.net, KIND_KillLarge, random, outcomes))
        return;
    for (size_t i = 0; i < events && !interrupted; i++) {
        Kind kind = draw_event(job, random);
        if (job.live().size() < 2 ||
            (static_cast<int>(job.live().size()) < job.options.nranks && random() % 2))
            kind = KIND_Grow;
        if (!run_event(job, campaign.net, kind, random, outcomes))
            return;
    }
    if (!interrupted)
        run_end(job, random() % 2, random, outcomes);
}

const char *place_name(Place place)
{
    switch (place) {
    case Place::Shm:
        return "shm";
    case Place::Tcp:
        return "tcp";
    case Place::Hosts:
        return "hosts";
    default:
        return "namespaces";
    }
}

void print_outcome(uint64_t job, const JobOptions &options, const Outcome &outcome)
{
    printf("job %llu, %s, %d ranks at first: %s during %s, %zu go on, detected in %.1f ms, back in "
           "%.1f ms\n",
           static_cast<unsigned long long>(job), place_name(options.place), options.nranks,
           kind_names[outcome.kind], outcome.call >= 0 ? call_names[outcome.call] : "none",
           outcome.survivors, outcome.detected_ms, outcome.back_ms);
}

bool is_large(const Campaign &campaign, uint64_t number)
{
    return campaign.settings.large_bytes > 0 && number % 40 == 3;
}

void next_job(Campaign &campaign)
{
    uint64_t number = campaign.settings.job >= 0 ? static_cast<uint64_t>(campaign.settings.job)
                                                 : campaign.jobs;
    Random random(mix(campaign.settings.seed * 1000003 + number));
    JobOptions options = draw(campaign, random);
    if (is_large(campaign, number)) {
        options.nranks = std::max(options.nranks, 3);
        options.ballast_bytes = campaign.settings.large_bytes;
        options.ballast_wid = static_cast<int>(random() % static_cast<uint64_t>(options.nranks));
        options.place = Place::Tcp, options.hosts = 1;
        if (random() % 2)
            options.place = Place::Shm;
    }
    campaign.jobs++;
    Job job(options, campaign.net);
    size_t before = campaign.outcomes.size();
    run_job(campaign, job, random);
    if (job.failures.empty())
        job.wait(5, [&] {
            for (int wid = 0; wid < job.started(); wid++)
                if (!job.at(wid).live() && !job.at(wid).reaped)
                    return false;
            return true;
        });
    if (job.failures.empty() && job.live().empty())
        job.check_leftovers();
    for (int host = 0; host < Net::HOSTS && options.place == Place::Namespaces; host++)
        campaign.net.heal(host);
    for (size_t i = before; i < campaign.outcomes.size() && campaign.settings.list; i++)
        print_outcome(number, options, campaign.outcomes[i]);
    if (job.failures.empty())
        return;
    Kind kind = campaign.outcomes.size() > before ? campaign.outcomes.back().kind : KIND_KillInit;
    campaign.failed[kind]++;
    campaign.failures++;
    printf("FAILED: %s, %s, call %s, %d ranks at first, %d hosts%s\n", kind_names[kind],
           place_name(options.place),
           campaign.outcomes.size() > before && campaign.outcomes.back().call >= 0
               ? call_names[campaign.outcomes.back().call]
               : "none",
           options.nranks, options.hosts, options.delays ? ", delays" : "");
    for (const std::string &failure : job.failures)
        printf("    %s\n", failure.c_str());
    printf("%s    replay: tests/campaign/campaign --seed %llu --job %llu\n", job.report().c_str(),
           static_cast<unsigned long long>(campaign.settings.seed),
           static_cast<unsigned long long>(number));
    fflush(stdout);
}

/* ---- the tables ------------------------------------------------------------------------------ */

std::string three(std::vector<double> values)
{
    if (values.empty())
        return "         -         -         -";
    std::sort(values.begin(), values.end());
    char text[64];
    auto at = [&](double share) {
        return values[static_cast<size_t>(std::ceil(share * static_cast<double>(values.size()))) -
                      1];
    };
    snprintf(text, sizeof text, "%10.1f%10.1f%10.1f", at(0.5), at(0.99), values.back());
    return text;
}

void print_row(const char *name, const std::vector<const Outcome *> &row, size_t failures)
{
    std::vector<double> detected, back;
    for (const Outcome *outcome : row) {
        if (outcome->detected_ms >= 0)
            detected.push_back(outcome->detected_ms);
        if (outcome->back_ms >= 0)
            back.push_back(outcome->back_ms);
    }
    printf("%-36s%7zu%s%s%9zu\n", name, row.size(), three(detected).c_str(), three(back).c_str(),
           failures);
}

void print_calls(const Campaign &campaign)
{
    size_t counts[CALL_COUNT] = {};
    for (const Outcome &outcome : campaign.outcomes)
        if (outcome.call >= 0 && outcome.call < CALL_COUNT)
            counts[outcome.call]++;
    printf("during:");
    for (int call = 0; call < CALL_COUNT; call++)
        printf(" %s %zu", call_names[call], counts[call]);
    printf("\n");
}

/* Each kind of event is a test. */
int print_tables(const Campaign &campaign, double seconds)
{
    size_t passed = 0, failed = 0, skipped = 0;
    printf("%-36s%7s%30s%30s%9s\n%-36s%7s%10s%10s%10s%10s%10s%10s\n", "event", "number",
           "detected in, ms", "back to work in, ms", "failures", "", "", "median", "p99", "max",
           "median", "p99", "max");
    std::vector<const Outcome *> all;
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        std::vector<const Outcome *> row;
        for (const Outcome &outcome : campaign.outcomes)
            if (outcome.kind == kind)
                row.push_back(&outcome), all.push_back(&outcome);
        print_row(kind_names[kind], row, campaign.failed[kind]);
        bool links = kind == KIND_Cut || kind == KIND_Half || kind == KIND_CutKill ||
                     kind == KIND_Flap || kind == KIND_Slow;
        if (row.empty() && !campaign.failed[kind])
            printf("  skipped: %s\n", links && !campaign.net.missing().empty()
                                          ? campaign.net.missing().c_str()
                                          : "not drawn in this time");
        (campaign.failed[kind] ? failed : row.empty() ? skipped : passed)++;
    }
    print_row("all", all, campaign.failures);
    print_calls(campaign);
    printf("%zu events in %zu jobs, %.0f s, seed %llu\n", campaign.outcomes.size(), campaign.jobs,
           seconds, static_cast<unsigned long long>(campaign.settings.seed));
    printf("%zu passed, %zu failed, %zu skipped\n", passed, failed, skipped);
    const char *folder = getenv("FT_RESULTS"), *name = getenv("FT_TEST_NAME");
    if (folder && name)
        std::ofstream(std::string(folder) + "/" + name + ".count")
            << passed << ' ' << failed << ' ' << skipped << '\n';
    return failed ? 1 : 0;
}

void on_signal(int)
{
    interrupted = 1;
}

int usage()
{
    fprintf(stderr, "usage: campaign [--seed N] [--events N] [--seconds N] [--job N] [--large "
                    "BYTES] [--list]\n");
    return 2;
}

bool parse(int argc, char **argv, Settings &settings)
{
    static const option options[] = {{"seed", 1, nullptr, 's'},    {"events", 1, nullptr, 'e'},
                                     {"seconds", 1, nullptr, 't'}, {"job", 1, nullptr, 'j'},
                                     {"large", 1, nullptr, 'l'},   {"list", 0, nullptr, 'p'},
                                     {nullptr, 0, nullptr, 0}};
    for (int c; (c = getopt_long(argc, argv, "", options, nullptr)) != -1;) {
        size_t value = optarg ? strtoull(optarg, nullptr, 0) : 0;
        if (c == 's')
            settings.seed = value;
        else if (c == 'e')
            settings.events = value;
        else if (c == 't')
            settings.seconds = value;
        else if (c == 'j')
            settings.job = static_cast<int64_t>(value);
        else if (c == 'l')
            settings.large_bytes = value;
        else if (c == 'p')
            settings.list = true;
        else
            return false;
    }
    return optind == argc &&
           (settings.job >= 0 || settings.events != SIZE_MAX || settings.seconds != SIZE_MAX);
}

int drive(int argc, char **argv)
{
    Campaign campaign;
    Settings &settings = campaign.settings;
    const char *text = getenv("FT_SEED");
    settings.seed = text ? strtoull(text, nullptr, 10) : std::random_device{}();
    if (!parse(argc, argv, settings))
        return usage();
    while (settings.large_bytes && settings.large_bytes + (size_t{2} << 30) > memory_available())
        settings.large_bytes /= 2;
    printf("seed %llu, large processes hold %zu MiB, network namespaces: %s\n",
           static_cast<unsigned long long>(settings.seed), settings.large_bytes >> 20,
           campaign.net.missing().empty() ? "yes" : campaign.net.missing().c_str());
    fflush(stdout);
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    signal(SIGPIPE, SIG_IGN);
    int64_t start = now_ns();
    auto seconds = [&] { return 1e-9 * static_cast<double>(now_ns() - start); };
    do
        next_job(campaign);
    while (settings.job < 0 && !interrupted && campaign.failures < 20 &&
           campaign.outcomes.size() < settings.events &&
           seconds() < static_cast<double>(settings.seconds));
    return print_tables(campaign, seconds());
}

int work(char **argv)
{
    WorkerOptions options;
    options.wid = atoi(argv[2]);
    options.nranks = atoi(argv[3]);
    options.rank = atoi(argv[4]);
    options.page = atoi(argv[5]);
    options.join = atoi(argv[6]) != 0;
    options.seed = strtoull(argv[7], nullptr, 10);
    options.ballast_bytes = strtoull(argv[8], nullptr, 10);
    options.id = argv[9];
    return worker_main(options);
}

} // namespace

int main(int argc, char **argv)
{
    return argc == 10 && strcmp(argv[1], "--worker") == 0 ? work(argv) : drive(argc, argv);
}
