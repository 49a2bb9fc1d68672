/*
 * Measures the host device's kernels against memcpy:
 *   kernels [MIB [ROUNDS]] (default: 64 MiB per operand, 15 rounds)
 * Every round runs every case once, so that other load on the machine affects all cases alike. The
 * table has medians of GB/s (bytes read plus bytes written by the program, 1e9, per second of CPU
 * time, so that time of other programs does not count), and their ratio to memcpy's of the same
 * run. `loop` is the simplest loop that reads two float32 arrays and writes their sum with
 * non-temporal stores: the limit for sums of two arrays.
 */
#include "device/host/host.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define MAX_CASES 256
#define MAX_ROUNDS 101

struct bench {
    char name[64];
    const struct ft_host_isa *isa; /* NULL: memcpy or the plain loop */
    bool loop;
    struct ft_reduce pass;
    size_t moved_bytes;
    double gbs[MAX_ROUNDS];
};

static struct bench cases[MAX_CASES];
static int ncases;
static float *buf[4]; /* two sources, two destinations */

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void plain_sum(float *out, const float *a, const float *b, size_t count)
{
#if defined(__x86_64__)
    for (size_t i = 0; i + 16 <= count; i += 16)
        for (size_t j = i; j < i + 16; j += 4)
            _mm_stream_ps(out + j, _mm_add_ps(_mm_load_ps(a + j), _mm_load_ps(b + j)));
    _mm_sfence();
#else
    for (size_t i = 0; i < count; i++)
        out[i] = a[i] + b[i];
#endif
}

static void bench_run(struct bench *b, int round)
{
    size_t len = b->pass.count * ft_type_size(b->pass.type),
           repeat = ft_max(1, ((size_t)16 << 20) / len);
    double start = now_s();
    for (size_t i = 0; i < repeat; i++) {
        if (b->isa)
            ft_host_reduce(b->isa, &b->pass);
        else if (b->loop)
            plain_sum(buf[2], buf[0], buf[1], b->pass.count);
        else
            memcpy(buf[2], buf[0], len);
        __asm__ volatile("" ::: "memory");
    }
    b->gbs[round] = (double)(repeat * b->moved_bytes) / (now_s() - start) / 1e9;
}

static struct bench *bench_add(const char *name, enum ft_type type, size_t len_bytes, int nsrc,
                               int ndst)
{
    struct bench *b = &cases[ncases++];
    snprintf(b->name, sizeof b->name, "%s", name);
    b->pass = (struct ft_reduce){
        .type = type, .count = len_bytes / ft_type_size(type), .nsrc = nsrc, .ndst = ndst};
    for (int k = 0; k < nsrc; k++)
        b->pass.src[k] = buf[k];
    for (int d = 0; d < ndst; d++)
        b->pass.dst[d] = buf[2 + d];
    b->moved_bytes = len_bytes * (size_t)(nsrc + ndst);
    return b;
}

static void add_isa(const struct ft_host_isa *isa, size_t len_bytes)
{
    static const struct {
        enum ft_type type;
        enum ft_red red;
        int nsrc, ndst;
        bool streaming;
    } shapes[] = {{FT_UINT8, FT_SUM, 1, 1, false},     {FT_UINT8, FT_SUM, 1, 1, true},
                  {FT_UINT8, FT_SUM, 1, 2, true},      {FT_FLOAT32, FT_SUM, 2, 1, false},
                  {FT_FLOAT32, FT_SUM, 2, 1, true},    {FT_FLOAT32, FT_SUM, 2, 2, true},
                  {FT_FLOAT32, FT_MAX, 2, 1, true},    {FT_FLOAT64, FT_SUM, 2, 1, true},
                  {FT_BFLOAT16, FT_SUM, 2, 1, false},  {FT_BFLOAT16, FT_SUM, 2, 1, true},
                  {FT_FLOAT16, FT_SUM, 2, 1, false},   {FT_FLOAT16, FT_SUM, 2, 1, true},
                  {FT_BFLOAT16, FT_MAX, 2, 1, true},   {FT_INT32, FT_SUM, 2, 1, true},
                  {FT_INT8, FT_SUM, 2, 1, true},       {FT_INT64, FT_MAX, 2, 1, true},
                  {FT_FLOAT8E4M3, FT_SUM, 2, 1, true}, {FT_FLOAT8E5M2, FT_SUM, 2, 1, true}};
    for (size_t i = 0; i < FT_ARRAY_LEN(shapes) && ncases < MAX_CASES; i++) {
        char name[64];
        bool copy = shapes[i].nsrc == 1;
        snprintf(name, sizeof name, "%-6s %-8s %-4s %d->%d%s", isa->name,
                 copy ? "any" : ft_type_name(shapes[i].type),
                 copy ? "copy" : ft_red_name(shapes[i].red), shapes[i].nsrc, shapes[i].ndst,
                 shapes[i].streaming ? " streaming" : "");
        struct bench *b = bench_add(name, shapes[i].type, len_bytes, shapes[i].nsrc,
                                    shapes[i].ndst);
        b->isa = isa;
        b->pass.op.red = shapes[i].red;
        b->pass.streaming = shapes[i].streaming ? ~0u : 0;
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    return values[n / 2];
}

int main(int argc, char **argv)
{
    double mib = argc > 1 ? atof(argv[1]) : 64;
    int rounds = argc > 2 ? atoi(argv[2]) : 15;
    size_t len_bytes = (size_t)(mib * (1 << 20)) / FT_CACHE_LINE * FT_CACHE_LINE;
    struct ft_device *device;
    if (!len_bytes || rounds < 1 || rounds > MAX_ROUNDS || ft_device_open(&device) != FT_OK)
        return 2;
    for (int i = 0; i < 4; i++) {
        void *mem;
        /* The buffers are an odd number of cache lines apart, so that loads and stores do not
         * collide in the low address bits. */
        if (device->ops->alloc(device, len_bytes + 4096, &mem) != FT_OK)
            return 2;
        buf[i] = (float *)(void *)((char *)mem + i * 17 * FT_CACHE_LINE);
        for (size_t j = 0; j < len_bytes / sizeof(float); j++)
            buf[i][j] = (float)(j % 1000) + 1.5f;
    }
    bench_add("memcpy", FT_FLOAT32, len_bytes, 1, 1);
    bench_add("loop   float32  sum  2->1 streaming", FT_FLOAT32, len_bytes, 2, 1)->loop = true;
    for (const struct ft_host_isa *const *isa = ft_host_isas; *isa; isa++)
        if ((*isa)->usable())
            add_isa(*isa, len_bytes);
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < ncases; i++)
            bench_run(&cases[i], round);
    double copy = median(cases[0].gbs, rounds);
    printf("%g MiB an operand, medians of %d interleaved rounds\n%-44s %8s %9s\n", mib, rounds,
           "case", "GB/s", "memcpy=1");
    for (int i = 0; i < ncases; i++) {
        double gbs = median(cases[i].gbs, rounds);
        printf("%-44s %8.2f %9.2f\n", cases[i].name, gbs, gbs / copy);
    }
    ft_device_close(device);
    return 0;
}
