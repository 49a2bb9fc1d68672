/*
 * Measures what the machine can do without any library, with P processes at once, as a reference
 * for the libraries. perf/compare compiles it and runs it in the same run.
 *
 * usage: limits shm|tcp PROCESSES BYTES...
 *
 * Prints lines "name bytes value". GB/s count bytes written by one process (the mean over the
 * processes), for arrays or messages of that size. `bytes` is 0 if a value has no size:
 *   shm:  copy, copy_stream  memcpy, and a loop with non-temporal stores, within own memory
 *         copy_others        the better of the two while process 0 rests, as the root of a
 *                            broadcast does
 *         add, add_stream    the sum of two arrays into a third
 *         pull               the neighbour's array, mapped here, and an own one are summed into a
 *                            third with non-temporal stores: an all-reduce of two processes in
 *                            which no process waits
 *         readv              process_vm_readv() from the neighbour's memory
 *         round_us           every process writes a word for which its neighbour waits
 *   tcp:  ring, chain        every process sends to the next while it receives from the previous
 *                            one; chain: the last does not send to the first
 *         round_us           the same with 8 bytes
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined __AVX512F__ || defined __AVX__
#include <immintrin.h>
#endif

#define PROCESSES_MAX 64
#define ROUNDS 5
#define WORK_BYTES (32u << 20) /* bytes per round of a measurement */
#define WORDS 20000            /* rounds of a latency measurement */
#define ROUND_BYTES 8          /* bytes of a round over TCP */
#define SPINS 2000             /* spins before it yields the core */
/* yields before a process sleeps if there are more processes than cores */
#define YIELDS 32
/* bytes per call over TCP: with more, the data would leave the caches */
#define CALL_BYTES (512u << 10)

/* Shared by all processes. */
struct meeting {
    _Atomic unsigned arrived;
    struct {
        _Atomic unsigned word;
        char pad[60];
    } words[PROCESSES_MAX];
    struct {
        pid_t pid;
        void *memory;
        double result;
    } process[PROCESSES_MAX];
};

static struct meeting *all;
static char *shared; /* shared_room bytes of each process */
static size_t shared_room;
static int me, processes, crowded; /* crowded: more processes than cores */
static int to_next = -1, from_last = -1;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void wait_until(_Atomic unsigned *word, unsigned value)
{
    for (int spins = 0; (int)(atomic_load_explicit(word, memory_order_acquire) - value) < 0;
         spins++)
        if (crowded || spins > SPINS)
            sched_yield();
}

static void meet(void)
{
    static unsigned target;
    target += (unsigned)processes;
    atomic_fetch_add(&all->arrived, 1);
    while ((int)(atomic_load(&all->arrived) - target) < 0)
        sched_yield();
}

/* Prints the mean of a value over the processes that have one; the first process prints it. */
static double report(const char *name, size_t bytes, double mine)
{
    double sum = 0;
    int n = 0;
    all->process[me].result = mine;
    meet();
    for (int i = 0; i < processes; i++)
        if (all->process[i].result > 0) {
            sum += all->process[i].result;
            n++;
        }
    if (me == 0 && name && n > 0) {
        printf("%s %zu %.6g\n", name, bytes, sum / n);
        fflush(stdout);
    }
    meet();
    return n > 0 ? sum / n : 0;
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- memory ---------------------------------------------------------------------------------- */

struct arrays {
    float *dst, *a, *b;
    size_t bytes;
};

static void copy(const struct arrays *x)
{
    memcpy(x->dst, x->a, x->bytes);
}

static void add(const struct arrays *x)
{
    float *restrict dst = x->dst, *restrict a = x->a, *restrict b = x->b;
    size_t n = x->bytes / sizeof *dst;
    for (size_t i = 0; i < n; i++)
        dst[i] = a[i] + b[i];
}

#if defined __AVX512F__
#define STREAM(expression512, expression256) _mm512_stream_ps(dst + i, expression512)
#define STEP 16
#elif defined __AVX__
#define STREAM(expression512, expression256) _mm256_stream_ps(dst + i, expression256)
#define STEP 8
#endif

#ifdef STEP
static void copy_stream(const struct arrays *x)
{
    float *dst = x->dst, *a = x->a;
    for (size_t i = 0, n = x->bytes / sizeof *dst; i + STEP <= n; i += STEP)
        STREAM(_mm512_load_ps(a + i), _mm256_load_ps(a + i));
    _mm_sfence();
}

static void add_stream(const struct arrays *x)
{
    float *dst = x->dst, *a = x->a, *b = x->b;
    for (size_t i = 0, n = x->bytes / sizeof *dst; i + STEP <= n; i += STEP)
        STREAM(_mm512_add_ps(_mm512_load_ps(a + i), _mm512_load_ps(b + i)),
               _mm256_add_ps(_mm256_load_ps(a + i), _mm256_load_ps(b + i)));
    _mm_sfence();
}
#endif

#ifdef STEP
/* x's first array is the neighbour's. Only with two processes the result is the complete sum. */
static void pull(const struct arrays *x)
{
    add_stream(x);
}
#endif

static int refused;

static void readv_neighbour(const struct arrays *x)
{
    int peer = (me + 1) % processes;
    for (size_t done = 0; done < x->bytes && !refused;) {
        struct iovec mine = {(char *)x->dst + done, x->bytes - done};
        struct iovec theirs = {(char *)all->process[peer].memory + done, x->bytes - done};
        ssize_t n = process_vm_readv(all->process[peer].pid, &mine, 1, &theirs, 1, 0);
        if (n <= 0)
            refused = 1;
        else
            done += (size_t)n;
    }
}

/* GB/s of this process; 0 if it rests or must not run. */
static double rate(void (*run)(const struct arrays *), const struct arrays *x, int rests)
{
    double took_s[ROUNDS];
    int repeats = (int)(WORK_BYTES / x->bytes) + 1;
    meet();
    for (int i = 0; i < ROUNDS && !rests; i++) {
        double begin_s = now_s();
        for (int k = 0; k < repeats; k++)
            run(x);
        took_s[i] = (now_s() - begin_s) / repeats;
    }
    meet();
    if (rests || refused)
        return 0;
    qsort(took_s, ROUNDS, sizeof *took_s, compare_double);
    return (double)x->bytes / took_s[ROUNDS / 2] / 1e9;
}

static float *array(size_t bytes, int value)
{
    float *memory = aligned_alloc(4096, bytes);
    if (!memory)
        exit(1);
    memset(memory, value, bytes);
    return memory;
}

/* Uses memory that all processes map, as memory from ftcclMemAlloc() is; it was made before the
 * first fork. */
static void pull_neighbours(const struct arrays *own, size_t room)
{
#ifdef STEP
    struct arrays x = *own;
    char *mine = shared + (size_t)me * shared_room;
    memset(mine, 1, room);
    x.a = (float *)(void *)(shared + (size_t)((me + 1) % processes) * shared_room);
    x.b = (float *)(void *)mine;
    meet();
    report("pull", own->bytes, rate(pull, &x, 0));
    meet();
#else
    (void)own, (void)room;
#endif
}

static void memory(size_t bytes)
{
    size_t room = (bytes + 4095) / 4096 * 4096;
    struct arrays x = {array(room, 3), array(room, 1), array(room, 2), bytes < 64 ? 64 : bytes};
    all->process[me].pid = getpid();
    all->process[me].memory = x.a;
    meet();
    report("copy", bytes, rate(copy, &x, 0));
    double others = report(NULL, bytes, rate(copy, &x, me == 0));
    report("add", bytes, rate(add, &x, 0));
#ifdef STEP
    report("copy_stream", bytes, rate(copy_stream, &x, 0));
    report("add_stream", bytes, rate(add_stream, &x, 0));
    double streamed = report(NULL, bytes, rate(copy_stream, &x, me == 0));
    if (streamed > others)
        others = streamed;
#endif
    report("copy_others", bytes, others);
    pull_neighbours(&x, room);
    report("readv", bytes, rate(readv_neighbour, &x, 0));
    free(x.a);
    free(x.b);
    free(x.dst);
}

static void words(void)
{
    _Atomic unsigned *mine = &all->words[me].word,
                     *last = &all->words[(me + processes - 1) % processes].word;
    meet();
    double begin_s = now_s();
    for (unsigned k = 1; k <= WORDS; k++) {
        atomic_store_explicit(mine, k, memory_order_release);
        wait_until(last, k);
    }
    report("round_us", 0, (now_s() - begin_s) / WORDS * 1e6);
}

/* ---- TCP ------------------------------------------------------------------------------------- */

static char *piece;
static size_t piece_bytes;

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Sends and receives so many bytes at the same time; a process without a connection does nothing.
 * It polls for a while before it sleeps, because this measures a limit. */
static void exchange(int out, int in, size_t bytes)
{
    size_t sent = out < 0 ? bytes : 0, got = in < 0 ? bytes : 0;
    for (int looks = 0; sent < bytes || got < bytes; looks++) {
        ssize_t n = sent < bytes ? send(out, piece + sent % piece_bytes, bytes - sent,
                                        MSG_NOSIGNAL | MSG_DONTWAIT)
                                 : 0;
        if (n > 0)
            sent += (size_t)n;
        ssize_t m = got < bytes ? recv(in, piece + got % piece_bytes, bytes - got, MSG_DONTWAIT)
                                : 0;
        if (m > 0)
            got += (size_t)m;
        if (n > 0 || m > 0)
            looks = 0;
        if (crowded && looks > 0)
            sched_yield();
        if (looks < (crowded ? YIELDS : SPINS))
            continue;
        struct pollfd fds[2] = {{.fd = sent < bytes ? out : -1, .events = POLLOUT},
                                {.fd = got < bytes ? in : -1, .events = POLLIN}};
        if (poll(fds, 2, 10000) <= 0 || (got < bytes && m == 0))
            exit(1);
    }
}

static double exchanges_s(int out, int in, size_t bytes, int repeats)
{
    meet();
    double begin_s = now_s();
    for (int i = 0; i < repeats; i++)
        for (size_t at = 0; at < bytes; at += CALL_BYTES)
            exchange(out, in, least(bytes - at, CALL_BYTES));
    return (now_s() - begin_s) / repeats;
}

static void stream(size_t bytes)
{
    int repeats = (int)(WORK_BYTES / bytes) + 1, last = me == processes - 1;
    if (repeats > 5000)
        repeats = 5000;
    piece_bytes = bytes;
    piece = malloc(bytes);
    if (!piece)
        exit(1);
    memset(piece, 1, bytes); /* write it, because pages of zeros are all the same page */
    double ring_s = exchanges_s(to_next, from_last, bytes, repeats);
    if (bytes == ROUND_BYTES)
        report("round_us", 0, ring_s * 1e6);
    else {
        report("ring", bytes, (double)bytes / ring_s / 1e9);
        report("chain", bytes,
               (double)bytes /
                   exchanges_s(last ? -1 : to_next, me == 0 ? -1 : from_last, bytes, repeats) /
                   1e9);
    }
    free(piece);
}

/* Every process connects to the listener of the next one. */
static void connect_ring(const int *listeners)
{
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    int one = 1;
    to_next = socket(AF_INET, SOCK_STREAM, 0);
    if (getsockname(listeners[(me + 1) % processes], (struct sockaddr *)&at, &len) ||
        connect(to_next, (struct sockaddr *)&at, len) ||
        (from_last = accept(listeners[me], NULL, NULL)) < 0)
        exit(1);
    setsockopt(to_next, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    /* other algorithms limit the rate even within one machine */
    setsockopt(to_next, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

static int listen_anywhere(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 4))
        exit(1);
    return fd;
}

/* ---- processes ------------------------------------------------------------------------------- */

static void one_process(int over_tcp, const int *listeners, char **sizes)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* the neighbour may read this memory */
    if (over_tcp) {
        connect_ring(listeners);
        stream(ROUND_BYTES);
    } else
        words();
    for (; *sizes; sizes++)
        if (over_tcp)
            stream((size_t)atol(*sizes));
        else
            memory((size_t)atol(*sizes));
}

int main(int argc, char **argv)
{
    int over_tcp = argc > 1 && !strcmp(argv[1], "tcp"), listeners[PROCESSES_MAX], status,
        failed = 0;
    processes = argc > 2 ? atoi(argv[2]) : 0;
    if (argc < 4 || processes < 2 || processes > PROCESSES_MAX ||
        (!over_tcp && strcmp(argv[1], "shm")))
        return 2;
    for (int i = 3; i < argc; i++)
        if (atol(argv[i]) < 1)
            return 2;
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return 1;
    crowded = processes > sysconf(_SC_NPROCESSORS_ONLN);
    for (int i = 3; !over_tcp && i < argc; i++)
        if ((size_t)atol(argv[i]) > shared_room)
            shared_room = (size_t)atol(argv[i]);
    shared_room = (shared_room + 4095) / 4096 * 4096;
    if (shared_room) {
        shared = mmap(NULL, shared_room * (size_t)processes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (shared == MAP_FAILED)
            return 1;
    }
    for (int i = 0; over_tcp && i < processes; i++)
        listeners[i] = listen_anywhere();
    pid_t pids[PROCESSES_MAX];
    for (me = 0; me < processes; me++)
        if ((pids[me] = fork()) == 0) {
            one_process(over_tcp, listeners, argv + 3);
            exit(0);
        }
    while (wait(&status) > 0) {
        /* the other processes would wait for it */
        for (int i = 0; status && !failed && i < processes; i++)
            kill(pids[i], SIGKILL);
        failed |= status != 0;
    }
    return failed;
}
