/*
 * What the ranks of a run do, as threads of one process or as processes: a story, then a fresh
 * communicator. Each rank writes what it met into memory that they share and that outlives them.
 */
#ifndef FT_TESTS_NOMEM_STORY_H
#define FT_TESTS_NOMEM_STORY_H

#include <ftccl.h>
#include <pthread.h>

#include <functional>
#include <vector>

#include "tests/nomem/fail.h"

namespace nomem
{

enum { RANKS = 3, STEPS = 64 };

/* What happened to one rank. */
struct Outcome {
    /* The first call that failed, with its step and sentence; ftcclSuccess if none failed. */
    ftcclResult_t result;
    char step[32], text[400];
    ftcclResult_t fresh; /* the same for the fresh communicator */
    char fresh_step[32], fresh_text[400];
    double slowest_s, fresh_s;
    char slowest[32];
    char wrong[200]; /* a result that no failure excuses */
};

/* What a process holds at its end. */
struct Held {
    int descriptors, threads, names, leaks;
    char list[1000];
};

struct Board {
    pthread_barrier_t barrier;
    ftcclUniqueId id[4];
    bool has_id[4];
    Outcome rank[RANKS];
    Held held[RANKS];
    long calls[CLASSES];
    char failed_call[400];
};

struct Run {
    const char *name;
    Class which;
    long n; /* 0: none fails */
    bool threads;
    int victim; /* the rank whose process fails; with threads, any rank may */
    Board *readiness;
};

class Rank;
struct Story {
    const char *name;
    const char *env[8]; /* name, value, ... */
    bool armed_init;    /* the init of the first communicator can also fail */
    void (*tell)(Rank &);
};
extern const std::vector<Story> stories;

/* Runs the story as one rank, or as all ranks if they are threads. At the end, records what is
 * held. */
void live(const Run &run, const Story &story, int rank);

} // namespace nomem

#endif
