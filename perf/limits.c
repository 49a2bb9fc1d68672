/*
 * What the machine can do without any library: copies, additions and bytes over a loopback connection, each by P processes at
 * once. perf/compare compiles and runs it beside the others.
 * usage: limits PROCESSES BYTES. Prints "name value" lines; GB/s of destination written, summed over the processes; the
 * latency is half a round trip of 8 bytes between two processes.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 7
#define ROUND_TRIPS 5000
#define SHIP_BYTES (256u << 20)
#define PIECE_BYTES (1u << 20)

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void copy(float *dst, const float *a, const float *b, size_t n)
{
    (void)b;
    memcpy(dst, a, n * sizeof *dst);
}

static void add(float *restrict dst, const float *restrict a, const float *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++) dst[i] = a[i] + b[i];
}

/* One process: the median time of a pass over its own arrays. */
static double pass_s(void (*run)(float *, const float *, const float *, size_t), size_t bytes)
{
    double took_s[ROUNDS];
    float *a = aligned_alloc(4096, bytes), *b = aligned_alloc(4096, bytes), *dst = aligned_alloc(4096, bytes);
    if (!a || !b || !dst) exit(1);
    memset(a, 1, bytes);
    memset(b, 2, bytes);
    memset(dst, 3, bytes);
    int repeats = (int)((64u << 20) / bytes) + 1;
    for (int i = 0; i < ROUNDS; i++) {
        double begin_s = now_s();
        for (int k = 0; k < repeats; k++) run(dst, a, b, bytes / sizeof *dst);
        took_s[i] = (now_s() - begin_s) / repeats;
        for (int k = i; k > 0 && took_s[k] < took_s[k - 1]; k--) {
            double swap = took_s[k];
            took_s[k] = took_s[k - 1];
            took_s[k - 1] = swap;
        }
    }
    free(a);
    free(b);
    free(dst);
    return took_s[ROUNDS / 2];
}

static void measure(const char *name, void (*run)(float *, const float *, const float *, size_t), int processes, size_t bytes)
{
    double *rates = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), sum = 0;
    if (rates == MAP_FAILED) exit(1);
    for (int i = 0; i < processes; i++)
        if (fork() == 0) {
            rates[i] = (double)bytes / pass_s(run, bytes) / 1e9;
            _exit(0);
        }
    while (wait(NULL) > 0) {}
    for (int i = 0; i < processes; i++) sum += rates[i];
    printf("%s %.3f\n", name, sum);
    fflush(stdout);
    munmap(rates, 4096);
}

static void all_of(int fd, char *buf, size_t len_bytes, int sending)
{
    while (len_bytes > 0) {
        ssize_t n = sending ? send(fd, buf, len_bytes, MSG_NOSIGNAL) : recv(fd, buf, len_bytes, 0);
        if (n <= 0) exit(1);
        len_bytes -= (size_t)n;
    }
}

static void answer(int fd, char *buf)
{
    for (int i = 0; i < ROUND_TRIPS; i++) {
        all_of(fd, buf, 8, 0);
        all_of(fd, buf, 8, 1);
    }
    for (size_t done = 0; done < SHIP_BYTES; done += PIECE_BYTES) all_of(fd, buf, PIECE_BYTES, 0);
    all_of(fd, buf, 1, 1);
}

static void tcp(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    char *buf = calloc(1, PIECE_BYTES);
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (!buf || bind(listener, (struct sockaddr *)&at, len) || listen(listener, 1) || getsockname(listener, (struct sockaddr *)&at, &len))
        exit(1);
    int child = fork() == 0;
    int fd = child ? socket(AF_INET, SOCK_STREAM, 0) : accept(listener, NULL, NULL);
    if (child && connect(fd, (struct sockaddr *)&at, len)) exit(1);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (child) {
        answer(fd, buf);
        _exit(0);
    }
    double begin_s = now_s();
    for (int i = 0; i < ROUND_TRIPS; i++) {
        all_of(fd, buf, 8, 1);
        all_of(fd, buf, 8, 0);
    }
    printf("tcp_latency_us %.2f\n", (now_s() - begin_s) / ROUND_TRIPS / 2 * 1e6);
    begin_s = now_s();
    for (size_t done = 0; done < SHIP_BYTES; done += PIECE_BYTES) all_of(fd, buf, PIECE_BYTES, 1);
    all_of(fd, buf, 1, 0);
    printf("tcp_gbs %.3f\n", (double)SHIP_BYTES / (now_s() - begin_s) / 1e9);
    wait(NULL);
    free(buf);
}

int main(int argc, char **argv)
{
    int processes = argc == 3 ? atoi(argv[1]) : 0;
    size_t bytes = argc == 3 ? (size_t)atol(argv[2]) / 4096 * 4096 : 0;
    if (processes < 1 || processes > 64 || bytes == 0) return 2;
    measure("copy_gbs", copy, processes, bytes);
    measure("add_gbs", add, processes, bytes);
    tcp();
    return 0;
}
