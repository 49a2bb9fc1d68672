/*
 * Property: whatever breaks during whatever call, the remaining ranks learn it in bounded time,
 * agree on who remains, compute exact sums again, and leak nothing. Ranks that were left out end.
 * Method: jobs of 2 to 16 processes on one host and across network namespaces, and events in them,
 * all drawn from a seed.
 *
 * campaign [--seed N] [--events N] [--seconds N] [--job N] [--large BYTES] [--over LIST] [--most N]
 * [--brief] [--list] ends after that many events or seconds, whichever comes first. --job repeats
 * one job of a seed. --over names the transports of the network, like ofi,net: each job has one of
 * them, and is otherwise the same. --most limits the ranks of a job. --brief makes jobs on several
 * hosts with one event of each kind that a network tells from another. --list prints each event.
 * Each kind of event counts as one test.
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
#include <sstream>

#include "tests/campaign/events.h"

using namespace campaign;

namespace
{

struct Settings {
    uint64_t seed = 0;
    size_t events = SIZE_MAX, seconds = SIZE_MAX, large_bytes = size_t{1} << 30;
    int64_t job = -1;
    bool list = false, brief = false;
    std::string over = "tcp";
    std::vector<std::string> networks; /* that `over` names */
    int most = 16;                     /* ranks of a job at first */
};

struct Campaign {
    Settings settings;
    Net net;
    std::vector<Outcome> outcomes;
    size_t failed[KIND_COUNT] = {};
    size_t jobs = 0, failures = 0;
    size_t cut_short = 0; /* the last job was, after so many events of all; 0: it was not */
    int64_t start_ns = now_ns();
    double seconds() const
    {
        return 1e-9 * static_cast<double>(now_ns() - start_ns);
    }
    /* It has had enough events or time. */
    bool over() const
    {
        return outcomes.size() >= settings.events ||
               seconds() >= static_cast<double>(settings.seconds);
    }
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
    options.nranks = std::min(sizes[random() % (sizeof sizes / sizeof *sizes)],
                              campaign.settings.most);
    int place = static_cast<int>(random() % 10);
    options.place = place < 3   ? Place::Shm
                    : place < 5 ? Place::Network
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

/* By the job's seed, so that all that is drawn is the same over every network. */
void choose_network(const Campaign &campaign, uint64_t number, JobOptions &options)
{
    const Settings &settings = campaign.settings;
    uint64_t which = mix(options.seed);
    if (settings.brief) { /* by turns with a deadline for stopped ranks, and without one */
        options.place = campaign.net.missing().empty() ? Place::Namespaces : Place::Hosts;
        options.nranks = std::min(5, settings.most);
        options.hosts = Net::HOSTS;
        options.op_timeout_ms = number % 2 ? 20000 : 1500;
    }
    options.network = settings.networks[which % settings.networks.size()];
    options.network_alone = which >> 32 & 1;
    if (options.network == "verbs" && options.place == Place::Namespaces)
        options.place = Place::Hosts; /* the devices are the machine's */
    if (options.network == "tcp")
        return;
    if (options.place == Place::Shm)
        options.place = Place::Network;
    options.op_timeout_ms *= slowdown();
    options.init_timeout_ms *= slowdown();
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

const Kind brief_events[] = {KIND_Kill, KIND_Stop, KIND_Grow, KIND_Flap,
                             KIND_Cut,  KIND_Grow, KIND_Half};

/* KIND_COUNT: none; it does not suit the job. */
Kind next_event(const Campaign &campaign, const Job &job, size_t number, Random &random)
{
    if (campaign.settings.brief)
        return suits(job, brief_events[number]) ? brief_events[number] : KIND_COUNT;
    Kind kind = draw_event(job, random);
    if (job.live().size() < 2 ||
        (static_cast<int>(job.live().size()) < job.options.nranks && random() % 2))
        kind = KIND_Grow;
    return kind;
}

/* The events of one job; leaves what went wrong in job.failures. */
void run_job(Campaign &campaign, Job &job, Random &random)
{
    std::vector<Outcome> &outcomes = campaign.outcomes;
    size_t events = 2 + random() % 12;
    if (campaign.settings.brief)
        events = sizeof brief_events / sizeof *brief_events;
    if (!run_init(job, !job.options.ballast_bytes && random() % 5 == 0, random, outcomes))
        return;
    if (job.options.ballast_bytes &&
        !run_event(job, campaign.net, KIND_KillLarge, random, outcomes))
        return;
    for (size_t i = 0; i < events && !interrupted && !campaign.over(); i++) {
        Kind kind = next_event(campaign, job, i, random);
        if (kind == KIND_COUNT)
            continue;
        if (!run_event(job, campaign.net, kind, random, outcomes))
            return;
    }
    campaign.cut_short = campaign.over() ? outcomes.size() : 0;
    if (!interrupted)
        run_end(job, random() % 2, random, outcomes);
}

const char *place_name(Place place)
{
    switch (place) {
    case Place::Shm:
        return "shm";
    case Place::Network:
        return "one host";
    case Place::Hosts:
        return "hosts";
    default:
        return "namespaces";
    }
}

void print_outcome(uint64_t job, const JobOptions &options, const Outcome &outcome)
{
    printf("job %llu, %s, %s, %d ranks at first: %s during %s, %zu go on, detected in %.1f ms, "
           "back in %.1f ms\n",
           static_cast<unsigned long long>(job), place_name(options.place), options.network.c_str(),
           options.nranks, kind_names[outcome.kind],
           outcome.call >= 0 ? call_names[outcome.call] : "none", outcome.survivors,
           outcome.detected_ms, outcome.back_ms);
}

bool is_large(const Campaign &campaign, uint64_t number)
{
    return campaign.settings.large_bytes > 0 && number % 40 == 3;
}

/* before: the number of outcomes when the job began. */
void print_failure(Campaign &campaign, const Job &job, uint64_t number, size_t before)
{
    Kind kind = campaign.outcomes.size() > before ? campaign.outcomes.back().kind : KIND_KillInit;
    campaign.failed[kind]++;
    campaign.failures++;
    printf("FAILED: %s, %s, %s, call %s, %d ranks at first, %d hosts%s\n", kind_names[kind],
           place_name(job.options.place), job.options.network.c_str(),
           campaign.outcomes.size() > before && campaign.outcomes.back().call >= 0
               ? call_names[campaign.outcomes.back().call]
               : "none",
           job.options.nranks, job.options.hosts, job.options.delays ? ", delays" : "");
    for (const std::string &failure : job.failures)
        printf("    %s\n", failure.c_str());
    std::string limit = campaign.settings.brief ? " --brief" : "";
    if (campaign.cut_short > before)
        limit += " --events " + std::to_string(campaign.cut_short - before);
    printf("%s    replay: tests/campaign/campaign --seed %llu --job %llu --over %s --most %d "
           "--large %zu%s\n",
           job.report().c_str(), static_cast<unsigned long long>(campaign.settings.seed),
           static_cast<unsigned long long>(number), campaign.settings.over.c_str(),
           campaign.settings.most, campaign.settings.large_bytes, limit.c_str());
    fflush(stdout);
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
        options.place = Place::Network, options.hosts = 1;
        if (random() % 2)
            options.place = Place::Shm;
    }
    choose_network(campaign, number, options);
    campaign.jobs++;
    campaign.cut_short = 0;
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
    if (!job.failures.empty())
        print_failure(campaign, job, number, before);
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
        if (campaign.settings.brief && row.empty() && !campaign.failed[kind])
            continue; /* it is not one of a brief campaign's */
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
                    "BYTES] [--over tcp,ofi,net,verbs] [--most N] [--brief] [--list]\n");
    return 2;
}

/* False: it names a transport that this build has not got. */
bool split_networks(Settings &settings)
{
    std::set<std::string> there{"tcp", "net"};
#ifdef FT_HAVE_LIBFABRIC
    there.insert("ofi");
#endif
#ifdef FT_HAVE_VERBS
    there.insert("verbs");
#endif
    std::istringstream words(settings.over);
    for (std::string word; std::getline(words, word, ',');) {
        if (!there.count(word))
            return false;
        settings.networks.push_back(word);
    }
    return !settings.networks.empty();
}

bool parse(int argc, char **argv, Settings &settings)
{
    static const option options[] = {{"seed", 1, nullptr, 's'},    {"events", 1, nullptr, 'e'},
                                     {"seconds", 1, nullptr, 't'}, {"job", 1, nullptr, 'j'},
                                     {"large", 1, nullptr, 'l'},   {"list", 0, nullptr, 'p'},
                                     {"over", 1, nullptr, 'o'},    {"most", 1, nullptr, 'm'},
                                     {"brief", 0, nullptr, 'b'},   {nullptr, 0, nullptr, 0}};
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
        else if (c == 'b')
            settings.brief = true;
        else if (c == 'o')
            settings.over = optarg;
        else if (c == 'm')
            settings.most = std::max(static_cast<int>(value), 2);
        else
            return false;
    }
    return optind == argc && split_networks(settings) &&
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
    campaign.start_ns = now_ns();
    do
        next_job(campaign);
    while (settings.job < 0 && !interrupted && campaign.failures < 20 && !campaign.over());
    return print_tables(campaign, campaign.seconds());
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
