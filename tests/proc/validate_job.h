/*
 * A job that is validated while it runs, for the tests of ftccl-diagnose --validate: processes that
 * reduce numbers which depend on all results before. At the end every rank says its last numbers.
 */
#ifndef FT_TESTS_VALIDATE_JOB_H
#define FT_TESTS_VALIDATE_JOB_H

#include <memory>

#include "tests/campaign/net.h"
#include "tests/proc/proc.h"

namespace validate
{

struct Said {
    int status = -1;
    std::string text;
    double seconds = 0;
};
/* Runs ftccl-diagnose in this folder. */
Said diagnose(const std::string &options);

/* Places in a telemetry file (docs/telemetry-format.md). */
constexpr off_t kRequest = 288, kRow = 328, kState = 356;
constexpr size_t kRequestBytes = 40, kRowBytes = 608;
enum { kNone, kWaiting, kMeasuring, kDone, kGivenUp };

/* Kinds: plain: one call after the other. mixed: groups of calls, and messages around the ring,
 * too. two: every other call is of a second communicator. fork: each rank has a child of fork.
 * idle: each rank does something else after its 20th call until it is told to go on. abort: rank 0
 * aborts when it is told to. retry: with that failure policy. */
struct Options {
    size_t count = 3; /* numbers in a call; at least 3 */
    int victim = -1;  /* takes messages late */
    int late_us = 20000;
    std::string kind = "plain";
    const campaign::Net *net = nullptr; /* rank r runs on host r */
    int calls = 0;                      /* ends after so many; 0: when rank 0 is told to */
    int timeout_ms = 60000;             /* of operations */
};

struct Job {
    int n;
    std::vector<std::unique_ptr<proc::Child>> rank;

    Job(int nranks, const std::string &transport, const Options &options = {});
    pid_t pid(int r) const
    {
        return rank[size_t(r)]->pid();
    }
    Said validate(const std::string &seconds = "4", const std::string &more = "") const;
    std::string options_of(const std::string &seconds) const; /* those of validate() */
    std::string file(int r) const;
    /* All that its file says of the latest validation. */
    std::vector<unsigned char> row(int r) const;
    uint64_t context(int r) const; /* of it */
    int state(int r) const;        /* of it */
    bool comes_to(int r, int want) const;
    bool has_ended(int r, double seconds) const; /* its validation, in that time */
    /* Every rank ends with the result that is right for its number of calls. `same`: a job without
     * a validation ends with the same numbers to the last bit. */
    void expect_right(bool same = false);

  private:
    std::string last_line(int r);
    const std::string transport_;
    const Options options_;
};

/* With a sanitizer all takes so long that times say little, and measuring may not end in time. */
bool has_sanitizer();
void expect_measured(const Said &said);

} // namespace validate

#endif
