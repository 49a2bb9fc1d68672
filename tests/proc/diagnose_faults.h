/*
 * The fault campaign of ftccl-diagnose: what its parts share. diagnose_kinds.cc has one function
 * for each kind of fault, which says what is broken and what has to be said of it;
 * diagnose_worker.cc is a rank; diagnose_faults_test.cc draws, starts, asks and counts.
 */
#ifndef FT_TESTS_DIAGNOSE_FAULTS_H
#define FT_TESTS_DIAGNOSE_FAULTS_H

#include <memory>
#include <random>
#include <set>

#include "tests/campaign/net.h"
#include "tests/campaign/relay.h"
#include "tests/proc/proc.h"

namespace faults
{

using Random = std::mt19937_64;
using Words = std::map<std::string, std::string>;

/* hosts: named hosts on one machine, so TCP between them. */
enum class Place { Shm, Tcp, Hosts, Namespaces };

/* A verdict that has to come. */
struct Want {
    std::string kind;                  /* or several, with | between them */
    std::set<std::pair<int, int>> who; /* ranks, or links: rank and peer (-1: the rank itself) */
    std::string sentence = {};         /* a pattern that it has to contain */
    size_t comms = 0;                  /* 0, or: the culprits are of so many communicators */
};

class Job;

/* One event. draw() fills it, then the function of its kind. */
struct Plan {
    uint64_t seed = 0;
    int kind = 0;
    int n = 0, victim = 0, peer = 0; /* peer: another rank, for links */
    Place place = Place::Shm;
    int hosts = 1;
    size_t count = 1;
    std::string call, algo;
    double after_s = 1;
    int wait_ms = 0;                     /* until the driver strikes */
    int step = 0;                        /* in which a worker does it */
    int compute_us = 0;                  /* of a step */
    std::string act;                     /* what the actors do in that step; "": nothing */
    std::set<int> actors;                /* {}: the victim */
    std::set<int> absent;                /* ranks that are never started */
    Words env;                           /* of all ranks */
    Words words;                         /* more arguments of the workers */
    void (*strike)(Job &) = nullptr;     /* what the driver does */
    void (*heal)(const Job &) = nullptr; /* before the ranks are killed */
    campaign::Relay::Harm harm;          /* to what the victim's host sends to the peer's */
    bool both_ways = false;              /* and to what that one sends back */
    std::vector<Want> want;              /* {}: the job is healthy */
    double watch_s = 0;                  /* how long a healthy job is asked */
    bool starts = true;                  /* false: the ranks do not get through init */
    bool torn = false;                   /* the files are spoilt */
    std::string skip;                    /* why this kind cannot be tried here */
    bool is_slow() const                 /* the job moves, and is asked until something is said */
    {
        return act == "slow" || words.count("work") > 0;
    }
    int host(int rank) const
    {
        return rank * hosts / n;
    }
    std::set<int> beside_victim() const /* the ranks of its host */
    {
        std::set<int> ranks;
        for (int r = 0; r < n; r++)
            if (host(r) == host(victim))
                ranks.insert(r);
        return ranks;
    }
    Plan &expect(const std::string &verdict, const std::set<int> &ranks,
                 const std::string &sentence = "");
    Plan &expect_victim(const std::string &verdict, const std::string &sentence = "")
    {
        return expect(verdict, {victim}, sentence);
    }
};

/* The processes of an event. */
class Job
{
  public:
    Job(Plan &plan, const campaign::Net *net);
    ~Job();
    Job(const Job &) = delete;
    bool start(); /* false: the job did not start */
    proc::Child &at(int rank) const
    {
        return *ranks_.at(rank);
    }
    bool has(int rank) const
    {
        return ranks_.count(rank) > 0;
    }
    int witness() const;           /* a process of the job that the fault does not hit */
    bool detour(int from, int to); /* from host to host; with the plan's harm */
    std::vector<int> pids() const;
    std::string last_words() const; /* what the ranks have printed since the start */
    Plan &plan;
    const campaign::Net *net;
    double struck = 0; /* when the fault began */
    int tracee = 0;    /* a thread that the driver holds */
    std::vector<pid_t> hogs;

  private:
    std::map<int, std::unique_ptr<proc::Child>> ranks_;
    std::vector<std::unique_ptr<campaign::Relay>> relays_;
    Words words_of(int rank) const;
    void start_rank(int rank);
};

struct Kind {
    int number; /* as in the table of faults */
    const char *name;
    void (*plan)(Plan &, Random &);
    bool needs_net;
};
const std::vector<Kind> &kinds();

/* diagnose_processors.cc */

std::string why_crowded(); /* other programs have the processors; "": they do not */
/* A control group that may use a twentieth of a processor. `missing`: why there is none. */
std::string quota_group(uint64_t seed, std::string *missing);
bool give_quota(const std::string &group, pid_t pid);
void drop_quota(const std::string &group, pid_t pid); /* before the process ends */
/* Binds the victim to one processor, with so many programs that use it, and the others elsewhere.
 * Returns these programs; none: there is one processor only. */
std::vector<pid_t> crowd_processor(const std::vector<int> &pids, pid_t victim, int hogs);
void end_hogs(const std::vector<pid_t> &hogs);

std::string standin_driver(); /* the driver without a GPU; "": it was not built */

} // namespace faults

#endif
