/*
 * One rank of a job in the leaf-spine network: reduces BYTES again and again and checks each
 * result. After a recoverable error it shrinks and goes on.
 *   RANK, WORLD_SIZE, FTCCL_COMM_ID, FTCCL_SECRET in the environment; usage: rank BYTES
 * It reads lines: "mark" is answered by "mark CALLS SECONDS LONGEST_MS" (complete calls, monotonic
 * clock, the longest call since the last mark), after "stop" on rank 0 all end. It prints "ready",
 * "error CLASS SENTENCE", "shrunk RANKS", and at last "end CALLS LONGEST_MS". Status: 0; 1 an error
 * that is not recoverable; 2 bad usage; 3 a wrong result.
 */
#include <ftccl.h>

#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RECOVERIES_MAX 50

static int32_t *data;
static size_t count;
static ftcclComm_t comm;
static int rank, size;
static long calls;
static bool stop; /* rank 0 was told to end */
static double longest_s;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void mark(void)
{
    printf("mark %ld %.6f %.1f\n", calls, now(), longest_s * 1e3);
    longest_s = 0;
}

/* Lines are short, so one that has begun is there as a whole. */
static void read_lines(void)
{
    char text[64];
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    while (!stop && poll(&in, 1, 0) == 1) {
        if (!fgets(text, sizeof text, stdin) || !strcmp(text, "stop\n"))
            stop = true;
        else if (!strcmp(text, "mark\n"))
            mark();
    }
}

static const char *class_of(ftcclResult_t result)
{
    switch (ftcclGetErrorClass(result)) {
    case ftcclClassRecoverable:
        return "recoverable";
    case ftcclClassCaller:
        return "caller";
    default:
        return "fatal";
    }
}

static void print_error(ftcclResult_t result, ftcclComm_t of)
{
    printf("error %s %s: %s\n", class_of(result), ftcclGetErrorString(result),
           ftcclGetLastError(of));
}

/* The last element says on all ranks whether rank 0 was told to end. */
static ftcclResult_t reduce(bool *last)
{
    double begun = now();
    for (size_t i = 0; i + 1 < count; i++)
        data[i] = rank + (int32_t)(i % 1000);
    data[count - 1] = rank == 0 && stop;
    ftcclResult_t result = ftcclAllReduce(data, data, count, ftcclInt32, ftcclSum, comm, NULL);
    if (result == ftcclSuccess)
        result = ftcclStreamSynchronize(NULL);
    if (result != ftcclSuccess)
        return result;
    for (size_t i = 0; i + 1 < count; i++)
        if (data[i] != size * (size - 1) / 2 + size * (int32_t)(i % 1000)) {
            printf("wrong result in call %ld at %zu: %d\n", calls, i, data[i]);
            exit(3);
        }
    if (now() - begun > longest_s)
        longest_s = now() - begun;
    *last = data[count - 1] != 0;
    calls++;
    return ftcclSuccess;
}

static ftcclResult_t shrink(void)
{
    ftcclComm_t rest;
    ftcclResult_t result = ftcclCommShrink(comm, NULL, 0, &rest, NULL, FTCCL_SHRINK_DEFAULT);
    if (result != ftcclSuccess)
        return result;
    ftcclCommDestroy(comm);
    comm = rest;
    ftcclCommUserRank(comm, &rank);
    ftcclCommCount(comm, &size);
    printf("shrunk %d\n", size);
    return ftcclSuccess;
}

static int work(void)
{
    bool last = false;
    for (int recoveries = 0; !last;) {
        read_lines();
        ftcclResult_t result = reduce(&last);
        while (result != ftcclSuccess) {
            print_error(result, comm);
            if (ftcclGetErrorClass(result) != ftcclClassRecoverable ||
                ++recoveries > RECOVERIES_MAX)
                return 1;
            result = shrink();
        }
    }
    printf("end %ld %.1f\n", calls, longest_s * 1e3);
    return ftcclCommDestroy(comm) != ftcclSuccess;
}

int main(int argc, char **argv)
{
    const char *my_rank = getenv("RANK"), *ranks = getenv("WORLD_SIZE");
    ftcclUniqueId id;
    setvbuf(stdout, NULL, _IOLBF, 0);
    setvbuf(stdin, NULL, _IONBF, 0);
    count = argc == 2 ? strtoul(argv[1], NULL, 10) / sizeof *data : 0;
    if (!my_rank || !ranks || count < 2 || !(data = malloc(count * sizeof *data))) {
        fprintf(stderr, "usage: RANK=0 WORLD_SIZE=2 FTCCL_COMM_ID=HOST:PORT rank BYTES\n");
        return 2;
    }
    rank = atoi(my_rank);
    size = atoi(ranks);
    ftcclResult_t result = ftcclGetUniqueId(&id);
    if (result == ftcclSuccess)
        result = ftcclCommInitRank(&comm, size, id, rank);
    if (result != ftcclSuccess) {
        print_error(result, NULL);
        return 1;
    }
    puts("ready");
    int status = work();
    free(data);
    return status;
}
