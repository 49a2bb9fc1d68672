/* One job of the campaign: its worker processes, what they have said, and what they leave
 * behind. */
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

/* Network: one host, but no shared memory. Hosts: one host, made to look like several by
 * FTCCL_HOSTID. */
enum class Place { Shm, Network, Hosts, Namespaces };

struct JobOptions {
    uint64_t seed = 0;
    Place place = Place::Shm;
    int nranks = 2, hosts = 1;
    int op_timeout_ms = 20000, init_timeout_ms = 6000;
    std::string network = "tcp"; /* the transport of the network */
    bool network_alone = false;  /* also between ranks of one host */
    bool delays = false;         /* uses FTCCL_FAULT */
    size_t ballast_bytes = 0;    /* extra memory of one rank, in bytes; 0: none */
    int ballast_wid = 0;
};

/* What became of a process, as far as the driver has read its lines. */
struct Proc {
    int wid = -1, host = 0, out = -1;
    pid_t pid = -1;
    bool killed = false, stopped = false, reaped = false;
    int status = 0;
    std::string buffer;
    uint64_t gen = 0; /* of its last M line */
    std::vector<int> members;
    /* times of its last M line, of its first E line since the event, and of its last line */
    int64_t met_ns = 0, error_ns = 0, said_ns = 0;
    std::string error_call, error_sentence, why,
        sentence;                  /* why: from its X line; "end" after a Z line */
    std::map<uint64_t, int> grown; /* from serial to code */
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
    /* starts the workers of a new job (id "") or joiners */
    void start(int joiners, const std::string &id, int first_rank);
    /* reads what the processes say, and reaps the dead ones */
    void pump(int timeout_ms);
    bool wait(double seconds, const std::function<bool()> &done); /* False: it took longer. */
    void control(Control kind, int count);
    void signal(int wid, int number);
    void reset(); /* forgets errors, because an event begins */
    Proc &at(int wid)
    {
        return *procs_[static_cast<size_t>(wid)];
    }
    int started() const
    {
        return static_cast<int>(procs_.size());
    }
    Wids live() const;
    /* True: all of them are in one communicator of exactly these ranks, newer than that generation,
     * and have computed in it. */
    bool together(const Wids &group, uint64_t newer_than);
    bool computing(const Wids &group); /* True: all have ended two more calls since reset(). */
    uint64_t gen() const;              /* the highest generation */
    /* to be called when all ranks that took part in the shrink have told */
    void check_agreed(uint64_t gen);
    void fail(const std::string &text);
    void check_leftovers();     /* of processes that ended */
    std::string report() const; /* who is where; printed after a failure */

    const JobOptions options;
    std::vector<std::string> failures;
    uint64_t serial = 0;
    uint64_t id_serial = 0; /* of the last G line */
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
    /* For each generation, what was told first, and by whom. */
    std::map<uint64_t, std::string> decisions_, groups_;
    /* For each generation: the last agreed operation, and the least number that ended on a rank. */
    std::map<uint64_t, uint64_t> agreed_, done_;
    int memory_ = -1;
};

} // namespace campaign

#endif
