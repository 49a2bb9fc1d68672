/*
 * A loop of all-reduces that outlives its ranks. Started by a launcher that sets RANK and WORLD_SIZE:
 *
 *     ftccl-run -n 4 --kill 2@1 survive DIRECTORY SECONDS
 *
 * When a rank dies, the others get a recoverable error, abort the communicator, make a new one among themselves and repeat
 * the step that was lost. They meet through files in DIRECTORY (empty, shared by all ranks): rank 0 collects who is left and
 * hands out a new unique id, so the job does not survive the death of rank 0; ftcclCommAbort and ftcclCommInitRank are all
 * that it uses. Leaves DIRECTORY/done.0.0 behind when rank 0 finished.
 */
#include <errno.h>
#include <ftccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define COUNT ((size_t)1 << 18)
#define MAX_RANKS 64
#define MEET_MS 200     /* rank 0 goes on when nobody new came for so long */
#define PATIENCE_MS 10000

/* What rank 0 hands out for one round: the ranks of the new communicator are positions in `member`. */
struct meeting {
    ftcclUniqueId id;
    int count;
    int member[MAX_RANKS];
};

static const char *directory;
static int me;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pause_ms(long ms)
{
    struct timespec t = {0, ms * 1000000L};
    nanosleep(&t, NULL);
}

/* A file appears with all of its content, or not at all. */
static int publish(const char *name, int round, int rank, const void *data, size_t len_bytes)
{
    char path[4096], temporary[4200];
    snprintf(path, sizeof path, "%s/%s.%d.%d", directory, name, round, rank);
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    FILE *file = fopen(temporary, "wb");
    if (file == NULL) return -1;
    size_t written = fwrite(data, 1, len_bytes, file);
    if (fclose(file) != 0 || written != len_bytes) return -1;
    return rename(temporary, path);
}

static int fetch(const char *name, int round, int rank, void *data, size_t len_bytes)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.%d.%d", directory, name, round, rank);
    FILE *file = fopen(path, "rb");
    if (file == NULL) return -1;
    size_t got = fread(data, 1, len_bytes, file);
    fclose(file);
    return got == len_bytes ? 0 : -1;
}

/* Rank 0: waits until all `expected` ranks of the last round came, or nobody new for MEET_MS; then gives out the id. */
static int gather_members(int round, const struct meeting *last, struct meeting *next)
{
    double newest = now();
    int come = 0;
    while (come < last->count && (round == 0 || (now() - newest) * 1e3 < MEET_MS)) {
        int here = 0, byte;
        for (int i = 0; i < last->count; i++) {
            if (fetch("here", round, last->member[i], &byte, sizeof byte) == 0) next->member[here++] = last->member[i];
        }
        if (here > come) newest = now();
        come = next->count = here;
        if (round == 0 && (now() - newest) * 1e3 > PATIENCE_MS) return -1;
        pause_ms(1);
    }
    if (ftcclGetUniqueId(&next->id) != ftcclSuccess) return -1;
    return publish("meeting", round, 0, next, sizeof *next);
}

/* Who is left, and the id of their communicator. */
static int meet(int round, const struct meeting *last, struct meeting *next)
{
    memset(next, 0, sizeof *next);
    if (publish("here", round, me, &me, sizeof me) != 0) return -1;
    if (me == 0) return gather_members(round, last, next);
    double start = now();
    while (fetch("meeting", round, 0, next, sizeof *next) != 0) {
        if ((now() - start) * 1e3 > PATIENCE_MS) return -1;
        pause_ms(1);
    }
    return 0;
}

static ftcclResult_t make_comm(const struct meeting *meeting, ftcclComm_t *comm)
{
    int place = 0;
    while (place < meeting->count && meeting->member[place] != me) place++;
    if (place == meeting->count) return ftcclInvalidUsage; /* came too late for this round */
    return ftcclCommInitRank(comm, meeting->count, meeting->id, place);
}

static ftcclResult_t reduce(float *data, size_t count, ftcclRedOp_t op, ftcclComm_t comm, ftcclStream_t stream)
{
    ftcclResult_t result = ftcclAllReduce(data, data, count, ftcclFloat, op, comm, stream);
    return result == ftcclSuccess ? ftcclStreamSynchronize(stream) : result;
}

/* All-reduces until every rank has seen the end; element 0 counts the ranks whose time is over. */
static ftcclResult_t work(ftcclComm_t comm, ftcclStream_t stream, float *data, double end, long *step)
{
    int ranks;
    ftcclResult_t result = ftcclCommCount(comm, &ranks);
    /* One rank may have finished the step that another lost: all go on from the earliest. */
    data[0] = (float)*step;
    if (result == ftcclSuccess) result = reduce(data, 1, ftcclMin, comm, stream);
    if (result != ftcclSuccess) return result;
    *step = (long)data[0];
    for (;;) {
        data[0] = now() >= end;
        for (size_t i = 1; i < COUNT; i++) data[i] = 1;
        result = reduce(data, COUNT, ftcclSum, comm, stream);
        if (result != ftcclSuccess) return result;
        if (data[COUNT - 1] != (float)ranks) {
            printf("rank %d: step %ld gave %g instead of %d\n", me, *step, data[COUNT - 1], ranks);
            return ftcclInternalError;
        }
        (*step)++;
        if (data[0] > 0) return ftcclSuccess;
    }
}

static int run(int ranks, double seconds, ftcclStream_t stream, float *data)
{
    struct meeting last = {.count = ranks}, next;
    for (int i = 0; i < ranks; i++) last.member[i] = i;
    double start = now(), lost = 0;
    long step = 0;
    for (int round = 0; round < ranks; round++) {
        ftcclComm_t comm = NULL;
        ftcclResult_t result = ftcclSystemError;
        if (meet(round, &last, &next) == 0) result = make_comm(&next, &comm);
        if (result != ftcclSuccess) {
            printf("rank %d: no communicator in round %d: %s\n", me, round, ftcclGetLastError(NULL));
            return 1;
        }
        if (round > 0) printf("%8.3f s  rank %d: %d ranks again, %.0f ms after the error\n", now() - start, me, next.count, (now() - lost) * 1e3);
        else printf("%8.3f s  rank %d: communicator of %d ranks\n", now() - start, me, next.count);
        double began = now();
        long first = step;
        result = work(comm, stream, data, start + seconds, &step);
        lost = now();
        if (result == ftcclSuccess) {
            printf("%8.3f s  rank %d: done, %ld steps, %.2f ms each\n", now() - start, me, step, (lost - began) * 1e3 / (double)(step - first));
            return ftcclCommDestroy(comm) != ftcclSuccess;
        }
        printf("%8.3f s  rank %d: step %ld: %s: %s\n", now() - start, me, step, ftcclGetErrorString(result), ftcclGetLastError(comm));
        int recoverable = ftcclGetErrorClass(result) == ftcclClassRecoverable;
        ftcclCommAbort(comm);
        if (!recoverable) return 1;
        last = next;
    }
    return 1;
}

int main(int argc, char **argv)
{
    const char *rank = getenv("RANK"), *size = getenv("WORLD_SIZE");
    if (argc != 3 || rank == NULL || size == NULL) {
        fprintf(stderr, "usage: ftccl-run -n RANKS [--kill RANK@SECOND] survive DIRECTORY SECONDS\n");
        return 2;
    }
    directory = argv[1];
    me = atoi(rank);
    int ranks = atoi(size);
    if (ranks < 1 || ranks > MAX_RANKS || me < 0 || me >= ranks) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);

    ftcclStream_t stream;
    float *data = malloc(COUNT * sizeof *data);
    if (data == NULL || ftcclStreamCreate(&stream) != ftcclSuccess) return 1;
    int status = run(ranks, atof(argv[2]), stream, data);
    ftcclStreamDestroy(stream);
    free(data);
    if (status == 0 && me == 0) status = publish("done", 0, 0, &ranks, sizeof ranks) != 0;
    return status;
}
