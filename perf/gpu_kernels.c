/*
 * Measures the bandwidth of the GPU's kernel by number of blocks, relative to the device's own
 * copy:
 *   gpu_kernels [-b BYTES] [-B BLOCKS,...] [-s SECONDS]
 * It prints CSV. gbps counts bytes read plus bytes written. of_copy is the ratio to the driver's
 * copy within the device, which is measured between the cases. "to host" and "from host" go through
 * pinned stages and the CPU, as messages do. A round trip is one command of 16 bytes, from its post
 * until the engine can see that it is done. A post is the CPU time for one of many commands.
 */
#include "device/device.h"
#include "gpu.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ITERATIONS_MAX 4000

static struct {
    size_t bytes;
    double seconds;
    const char *blocks;
} want = {64 << 20, 0.1, "1,2,3,4,6,8,12,16,24,32,48,64"};

static const struct shape {
    const char *name;
    enum ft_type type;
    int nsrc, ndst;
    struct ft_device_staged far;
} shapes[] = {
    {"copy", FT_UINT8, 1, 1, {0, 0}},
    {"sum of 2", FT_FLOAT32, 2, 1, {0, 0}},
    {"sum of 2 to 2", FT_FLOAT32, 2, 2, {0, 0}},
    {"sum of 2", FT_BFLOAT16, 2, 1, {0, 0}},
    {"sum of 2", FT_FLOAT16, 2, 1, {0, 0}},
    {"sum of 2", FT_FLOAT64, 2, 1, {0, 0}},
    {"sum of 2", FT_INT8, 2, 1, {0, 0}},
    {"sum of 2", FT_FLOAT8E4M3, 2, 1, {0, 0}},
    {"copy to host", FT_UINT8, 1, 1, {0, 1}},
    {"copy from host", FT_UINT8, 1, 1, {1, 0}},
    {"sum with host", FT_FLOAT32, 2, 1, {2, 0}},
};

/* near: two sources, two destinations. far: memory that the GPU cannot access, source and
 * destination. */
static char *near[4], *far[2];
static void *stream;

static double now_s(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(int rc, const char *what)
{
    if (rc == FT_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, ft_status_text(rc), ft_fail_text());
    exit(1);
}

/* ---- the device's own copy ------------------------------------------------------------------- */

static double copies_s(int n)
{
    double start = now_s(CLOCK_MONOTONIC);
    for (int i = 0; i < n; i++)
        gpu_copy_on(stream, near[2], near[0], want.bytes);
    while (!gpu_stream_idle(stream)) {}
    return now_s(CLOCK_MONOTONIC) - start;
}

static int iterations_for(double once_s)
{
    double n = want.seconds / (once_s > 1e-7 ? once_s : 1e-7);
    return n < 1 ? 1 : n > ITERATIONS_MAX ? ITERATIONS_MAX : (int)n;
}

static double copy_gbps(void)
{
    copies_s(1);
    int n = iterations_for(copies_s(1));
    return 2e-9 * (double)want.bytes * n / copies_s(n);
}

/* ---- passes ---------------------------------------------------------------------------------- */

struct bench {
    struct ft_device *device;
    struct ft_device_queue *queue;
    const struct ft_device_queue_ops *ops;
    const char *blocks;
    double copy_gbps;
};

static void wait_idle(const struct bench *b)
{
    while (!b->ops->idle(b->queue))
        if (b->ops->poll(b->queue) < 0)
            exit(1);
}

/* Repeats the same pass. Several passes may write the same destination, because they write the same
 * values. */
static double passes_s(const struct bench *b, const struct ft_reduce *pass,
                       struct ft_device_staged to, int n)
{
    static struct ft_device_req reqs[ITERATIONS_MAX];
    double start = now_s(CLOCK_MONOTONIC);
    for (int i = 0; i < n; i++) {
        int rc = b->ops->reduce(b->queue, pass, to, NULL, &reqs[i]);
        if (rc != FT_AGAIN)
            must(rc, "a pass");
    }
    wait_idle(b);
    double took_s = now_s(CLOCK_MONOTONIC) - start;
    for (int i = 0; i < n; i++)
        must(reqs[i].status, "a pass");
    return took_s;
}

static void bench_shape(const struct bench *b, const struct shape *s)
{
    struct ft_reduce pass = {.type = s->type,
                             .nsrc = s->nsrc,
                             .ndst = s->ndst,
                             .count = want.bytes / ft_type_size(s->type)};
    for (int k = 0; k < s->nsrc; k++)
        pass.src[k] = s->far.src >> k & 1 ? far[0] : near[k];
    for (int d = 0; d < s->ndst; d++)
        pass.dst[d] = s->far.dst >> d & 1 ? far[1] : near[2 + d];
    passes_s(b, &pass, s->far, 1);
    int n = iterations_for(passes_s(b, &pass, s->far, 1));
    double each_s = passes_s(b, &pass, s->far, n) / n,
           gbps = 1e-9 * (double)want.bytes * (s->nsrc + s->ndst) / each_s;
    printf("%s,%s,%s,%zu,%.3f,%.3f,%.4f\n", s->name, s->nsrc == 1 ? "any" : ft_type_name(s->type),
           b->blocks, want.bytes, each_s * 1e6, gbps, gbps / b->copy_gbps);
    fflush(stdout);
}

static void bench_commands(const struct bench *b)
{
    struct ft_reduce pass = {.type = FT_FLOAT32,
                             .nsrc = 2,
                             .ndst = 1,
                             .count = 4,
                             .src = {near[0], near[1]},
                             .dst = {near[2]}};
    double once_s = passes_s(b, &pass, (struct ft_device_staged){0, 0}, 1),
           start = now_s(CLOCK_MONOTONIC);
    int n = iterations_for(once_s);
    for (int i = 0; i < n; i++)
        passes_s(b, &pass, (struct ft_device_staged){0, 0}, 1);
    printf("round trip,float32,%s,16,%.3f,,\n", b->blocks,
           (now_s(CLOCK_MONOTONIC) - start) / n * 1e6);
    static struct ft_device_req reqs[32]; /* fewer than the ring has room for, so no post waits */
    double posts_s = 0;
    int rounds = n / 32 + 1;
    for (int i = 0; i < rounds; i++) {
        double from_s = now_s(CLOCK_THREAD_CPUTIME_ID);
        for (size_t k = 0; k < FT_ARRAY_LEN(reqs); k++)
            b->ops->reduce(b->queue, &pass, (struct ft_device_staged){0, 0}, NULL, &reqs[k]);
        posts_s += now_s(CLOCK_THREAD_CPUTIME_ID) - from_s;
        wait_idle(b);
    }
    printf("post,float32,%s,16,%.3f,,\n", b->blocks,
           posts_s / (rounds * (double)FT_ARRAY_LEN(reqs)) * 1e6);
}

static void bench_blocks(const char *blocks)
{
    struct bench b = {.blocks = blocks, .copy_gbps = copy_gbps()};
    uint64_t run;
    setenv("FTCCL_CUDA_BLOCKS", blocks, 1);
    ft_params_reload();
    must(ft_device_open_gpu(ft_device_gpu_of_thread(), &b.device), "the CUDA device");
    if (!b.device) {
        fprintf(stderr, "this build has no CUDA device\n");
        exit(3);
    }
    b.ops = b.device->ops->queue;
    must(b.ops->open(b.device, UINT64_C(60000000000), &b.queue), "a queue");
    must(b.ops->after(b.queue, &stream, 1, &run), "a run");
    must(b.ops->hold(b.queue, &stream, 1), "a run");
    while (b.ops->reached(b.queue, NULL, run) == FT_AGAIN)
        sched_yield();
    b.ops->begin(b.queue, NULL, run);
    printf("device copy,any,,%zu,%.3f,%.3f,1\n", want.bytes,
           2e-3 * (double)want.bytes / b.copy_gbps, b.copy_gbps);
    for (size_t i = 0; i < FT_ARRAY_LEN(shapes); i++)
        bench_shape(&b, &shapes[i]);
    bench_commands(&b);
    b.ops->signal(b.queue, NULL, run);
    while (!gpu_stream_idle(stream))
        sched_yield();
    b.ops->close(b.queue);
    ft_device_close(b.device);
}

static bool parse(int argc, char **argv)
{
    int option;
    while ((option = getopt(argc, argv, "b:B:s:")) != -1) {
        switch (option) {
        case 'b':
            want.bytes = strtoull(optarg, NULL, 10) / 4096 * 4096;
            break;
        case 'B':
            want.blocks = optarg;
            break;
        case 's':
            want.seconds = atof(optarg);
            break;
        default:
            return false;
        }
    }
    return optind == argc && want.bytes > 0 && want.seconds > 0;
}

int main(int argc, char **argv)
{
    char list[256], *rest;
    if (!parse(argc, argv)) {
        fprintf(stderr, "usage: gpu_kernels [-b BYTES] [-B BLOCKS,...] [-s SECONDS]\n");
        return 2;
    }
    if (gpu_open())
        return 3;
    stream = gpu_stream_create();
    for (int i = 0; i < 2; i++)
        far[i] = calloc(1, want.bytes);
    if (!far[0] || !far[1])
        return 1;
    for (int i = 0; i < 4; i++) {
        near[i] = gpu_alloc(want.bytes, false);
        gpu_copy(near[i], far[0], want.bytes);
    }
    printf("# %s\ncase,type,blocks,bytes,us,gbps,of_copy\n", gpu_name());
    snprintf(list, sizeof list, "%s", want.blocks);
    for (char *blocks = strtok_r(list, ",", &rest); blocks; blocks = strtok_r(NULL, ",", &rest))
        bench_blocks(blocks);
    return 0;
}
