/* One job of the campaign: worker processes, what they have said, and what they leave behind. */
#ifndef FT_TESTS_CAMPAIGN_JOB_H
#define FT_TESTS_CAMPAIGN_JOB_H

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "tests/campaign/campaign.h"
#include "tests/campaign/net.h"

namespace campaign
{

using Wids = std::set<int>;

enum class Place { Shm, Tcp, Hosts, Namespaces }; /* Hosts: several by FTCCL_HOSTID only */

struct JobOptions {
    uint64_t seed = 0;
    Place place = Place::Shm;
    int nranks = 2, hosts = 1;
    int op_timeout_ms = 20000, init_timeout_ms = 6000;
    bool delays = false;      /* FTCCL_FAULT */
    size_t ballast_bytes = 0; /* of the one rank that is large; 0: none */
    int ballast_wid = 0;
};

/* What became of a process, as far as the driver has read. */
struct Proc {
    int wid = -1, host = 0, out = -1;
    pid_t pid = -1;
    bool killed = false, stopped = false, reaped = false;
    int status = 0;
    std::string buffer;
    uint64_t gen = 0; /* of the last M */
    std::vector<int> members;
    int64_t met_ns = 0, error_ns = 0, said_ns = 0; /* last M, first E since the event, last line */
    std::string error_call, why, sentence;         /* why: of X; "end" for Z */
    std::map<uint64_t, int> grown;                 /* serial -> code */
    bool live() const
    {
        return !killed && !reaped && why.empty();
    }
};

class Job
{
  public:
    Job(const JobOptions &options, const Net &net);
    ~Job();
    Job(const Job &) = delete;
    /* workers of a new job (id "") or joiners */
    void start(int joiners, const std::string &id, int first_rank);
    /* reads what they say and reaps the dead */
    void pump(int timeout_ms);
    bool wait(double seconds, const std::function<bool()> &done); /* false: it took longer */
    void control(Control kind, int count);
    void signal(int wid, int number);
    void reset(); /* forgets errors: an event begins */
    Proc &at(int wid)
    {
        return *procs_[static_cast<size_t>(wid)];
    }
    int started() const
    {
        return static_cast<int>(procs_.size());
    }
    Wids live() const;
    /* All of them are in one communicator of exactly these, newer than that generation, and have
     * computed in it. */
    bool together(const Wids &group, uint64_t newer_than);
    bool computing(const Wids &group); /* all have ended two more calls since reset() */
    uint64_t gen() const;              /* the highest */
    void check_agreed(uint64_t gen);   /* when all that took part in its shrink have told */
    void fail(const std::string &text);
    void check_leftovers();     /* of processes that ended */
    std::string report() const; /* who is where, for a failure */

    const JobOptions options;
    std::vector<std::string> failures;
    uint64_t serial = 0;
    uint64_t id_serial = 0; /* of the last G */
    int id_nranks = 0;
    std::string id;
    Page *page = nullptr;

  private:
    void spawn(const WorkerOptions &worker, int host);
    void line(Proc &proc, const std::string &text);
    void decided(const Proc &proc, std::istream &words);
    const Net &net_;
    std::vector<std::unique_ptr<Proc>> procs_;
    std::map<int, uint32_t> rounds_;
    /* by generation: the first that was told, and by whom */
    std::map<uint64_t, std::string> decisions_, groups_;
    /* last agreed operation, least number that ended somewhere */
    std::map<uint64_t, uint64_t> agreed_, done_;
    int memory_ = -1;
};

} // namespace campaign

#endif
