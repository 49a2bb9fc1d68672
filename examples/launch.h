/*
 * What an example needs from whoever started it: its place, a clock, and a way for new ranks to
 * find the others. Here that is ftccl-run's environment, and files in a folder that all ranks see
 * and that is empty at first: a newcomer touches `want` until it can take the `offer` that the
 * ranks at work write. A real job has its launcher or its store for this.
 */
#ifndef FT_EXAMPLES_LAUNCH_H
#define FT_EXAMPLES_LAUNCH_H

#include <ftccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct launch {
    int rank, size, restarts;
    ftcclUniqueId id; /* of the first communicator */
    double start;     /* of ftccl-run, on launch_clock() */
};
/* of the communicator with the newcomer, which is its last rank */
struct offer {
    ftcclUniqueId id;
    int nranks;
};

static char meeting_want[4096], meeting_offered[4096], meeting_own[4096];

static double launch_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* 0, or -1: not started by ftccl-run. */
static int launch_read(struct launch *launch, const char *folder)
{
    const char *rank = getenv("RANK"), *size = getenv("WORLD_SIZE"),
               *hex = getenv("FTCCL_UNIQUE_ID");
    const char *restarts = getenv("FTCCL_RESTART"), *start = getenv("FTCCL_RUN_START");
    if (!rank || !size || !hex || !restarts || !start)
        return -1;
    *launch = (struct launch){.rank = atoi(rank),
                              .size = atoi(size),
                              .restarts = atoi(restarts),
                              .start = atof(start) * 1e-9};
    for (size_t i = 0; i < sizeof launch->id; i++)
        if (sscanf(hex + 2 * i, "%2hhx", (unsigned char *)&launch->id.internal[i]) != 1)
            return -1;
    snprintf(meeting_want, sizeof meeting_want, "%s/want", folder);
    snprintf(meeting_offered, sizeof meeting_offered, "%s/offer", folder);
    snprintf(meeting_own, sizeof meeting_own, "%s/%d", folder, (int)getpid());
    return 0;
}

static int meeting_wanted(void)
{
    return access(meeting_want, F_OK) == 0;
}

/* The offer appears as a whole. 0, or -1: it could not be written. */
static int meeting_offer(const struct offer *offer)
{
    unlink(meeting_want);
    FILE *file = fopen(meeting_own, "wb");
    int failed = !file || fwrite(offer, sizeof *offer, 1, file) != 1;
    if (file)
        failed |= fclose(file) != 0;
    return failed || rename(meeting_own, meeting_offered) != 0 ? -1 : 0;
}

/* 0: *offer was taken, by nobody else. 1: there is none yet; ask again. -1: the folder cannot be
 * used. */
static int meeting_take(struct offer *offer)
{
    FILE *file;
    if (rename(meeting_offered, meeting_own) != 0) {
        if (!(file = fopen(meeting_want, "ab")) || fclose(file) != 0)
            return -1;
        usleep(1000);
        return 1;
    }
    unlink(meeting_want);
    if (!(file = fopen(meeting_own, "rb")))
        return -1;
    int failed = fread(offer, sizeof *offer, 1, file) != 1;
    fclose(file);
    unlink(meeting_own);
    return failed ? -1 : 0;
}

#endif
