/* The events of the campaign: what breaks, who should go on, and how long it took. */
#ifndef FT_TESTS_CAMPAIGN_EVENTS_H
#define FT_TESTS_CAMPAIGN_EVENTS_H

#include "tests/campaign/job.h"

namespace campaign
{

#define CAMPAIGN_EVENTS(X)                               \
    X(Kill, "SIGKILL of one")                            \
    X(KillTwo, "SIGKILL of two at once")                 \
    X(KillThree, "SIGKILL of three at once")             \
    X(KillLarge, "SIGKILL of a large process")           \
    X(KillInit, "SIGKILL during init")                   \
    X(KillGrow, "SIGKILL of a rank during grow")         \
    X(KillJoiner, "SIGKILL of a joiner during grow")     \
    X(KillFinalize, "SIGKILL during finalize")           \
    X(KillMajority, "SIGKILL of other hosts, no quorum") \
    X(Stop, "SIGSTOP for good")                          \
    X(StopKill, "SIGSTOP of one, SIGKILL of another")    \
    X(Pause, "SIGSTOP for a moment")                     \
    X(Cut, "link of a host cut")                         \
    X(Half, "link of a host half open")                  \
    X(CutKill, "link cut, SIGKILL on the other side")    \
    X(Flap, "link cut for a moment")                     \
    X(Slow, "link slow for a second")                    \
    X(Grow, "grow, nothing broken")

enum Kind {
#define X(name, text) KIND_##name,
    CAMPAIGN_EVENTS(X)
#undef X
        KIND_COUNT
};
extern const char *const kind_names[KIND_COUNT];

struct Outcome {
    Kind kind = KIND_Kill;
    int call = -1;                         /* the call in which a victim was; -1: none */
    double detected_ms = -1, back_ms = -1; /* times of the slowest rank; -1: does not apply */
    size_t survivors = 0;
};

using Random = std::mt19937_64;

/* Runs one event on a job that computes. Appends to the outcomes; job.failures has what went wrong.
 * False: the job is over. */
bool run_event(Job &job, Net &net, Kind kind, Random &random, std::vector<Outcome> &outcomes);
bool suits(const Job &job, Kind kind);
/* From the start until all ranks compute. With KillInit, a rank is killed meanwhile. */
bool run_init(Job &job, bool with_kill, Random &random, std::vector<Outcome> &outcomes);
/* All ranks finalize and end. With KillFinalize, a rank is killed meanwhile. */
void run_end(Job &job, bool with_kill, Random &random, std::vector<Outcome> &outcomes);

} // namespace campaign

#endif
