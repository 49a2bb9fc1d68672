/* The command line: nccl-tests' options and defaults. A value out of range is an error, not a
 * default. */
#include "perf.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#ifdef FT_PERF_NCCL
#define MEMORY_DEFAULT API_DEVICE
#define MEMORY_FIRST API_DEVICE
#define MEMORY_NAME "device"
#define MEMORY_CHOICE "device or pinned"
#else
#define MEMORY_DEFAULT API_HOST
#define MEMORY_FIRST API_HOST
#define MEMORY_NAME "host"
#define MEMORY_CHOICE "host, device or pinned"
#endif

/* letter, long name, field, lowest, highest, argument, help */
#define INT_OPTIONS(X)                                                                            \
    X('t', "nthreads", nthreads, 1, 1024, "N", "threads of this process, each with -g ranks (1)") \
    X('g', "ngpus", ngpus, 1, 1024, "N", "ranks of each thread (1)")                              \
    X('n', "iters", iters, 1, INT_MAX, "N", "timed iterations (20)")                              \
    X('m', "agg_iters", agg_iters, 1, INT_MAX, "N",                                               \
      "operations in one group in each iteration (1)")                                            \
    X('w', "warmup_iters", warmup_iters, 0, INT_MAX, "N", "iterations that are not timed (1)")    \
    X('N', "run_cycles", run_cycles, 0, INT_MAX, "N",                                             \
      "times that all sizes are run; 0: for ever (1)")                                            \
    X('p', "parallel_init", parallel_init, 0, 1, "0|1",                                           \
      "threads make their communicators themselves (0)")                                          \
    X('c', "check", check, 0, INT_MAX, "N", "iterations whose results are verified (1)")          \
    X('z', "blocking", blocking, 0, 3, "0..3",                                                    \
      "wait after each iteration: 1 and 3 also for the other ranks (0)")                          \
    X('y', "stream_null", stream_null, 0, 1, "0|1", "use the NULL stream (0)")                    \
    X('T', "timeout", timeout_s, 0, 86400, "SECONDS", "bound of one operation (the library's)")   \
    X('G', "cudagraph", cudagraph, 0, INT_MAX, "N",                                               \
      "launches of a captured CUDA graph; needs a GPU")                                           \
    X('C', "report_cputime", report_cputime, 0, 1, "0|1",                                         \
      "report the time of the calls alone (0)")                                                   \
    X('S', "report_timestamps", report_timestamps, 0, 1, "0|1",                                   \
      "a time at the end of each line (0)")                                                       \
    X('a', "average", average, 0, 3, "0..3",                                                      \
      "time reported: 0 rank 0's, 1 mean, 2 least, 3 longest (1)")                                \
    X('R', "local_register", local_register, 0, 2, "0|1|2",                                       \
      "1: registered buffers of MemAlloc; 2 (symmetric) needs a GPU (0)")                         \
    X('x', "cta_policy", cta_policy, 0, 2, "0|1|2", "passed on; has no effect on host memory")    \
    X('D', "device_implementation", device_impl, 0, INT_MAX, "N",                                 \
      "collective inside a kernel; needs a GPU")                                                  \
    X('V', "device_cta_count", device_ctas, 1, 128, "N", "of -D")                                 \
    X('M', "memory", memory_report, 0, 1, "0|1", "report memory (0)")                             \
    X('P', "paths", path_report, 0, 1, "0|1",                                                     \
      "bytes of each connection to another host, with its way (0)")                               \
    X('u', "unalign", unalign, 0, 65536, "N", "buffers begin that many elements later (0)")       \
    X('I', "per_iter_timing", per_iter, 0, 1, "0|1",                                              \
      "time each iteration, waiting for it as with -z 2 (0)")                                     \
    X('K', "per_iter_skip", per_iter_skip, 0, INT_MAX, "N",                                       \
      "first iterations that -I leaves out of its summary (0)")

static void print_help(const char *program)
{
    printf("Usage: %s [options]\nMeasures and verifies a collective operation, with the options of "
           "nccl-tests:\n",
           program);
    printf("  -%c, --%-22s %s\n", 'b', "minbytes SIZE", "least size; K, M or G may follow (32M)");
    printf("  -%c, --%-22s %s\n", 'e', "maxbytes SIZE", "largest size (32M)");
    printf("  -%c, --%-22s %s\n", 'i', "stepbytes SIZE", "added from size to size (1M)");
    printf("  -%c, --%-22s %s\n", 'f', "stepfactor N", "sizes are multiplied by it instead");
    printf("  -%c, --%-22s %s\n", 'o', "op NAME|all", "sum, prod, min, max, avg or mulsum (sum)");
    printf("  -%c, --%-22s %s\n", 'd', "datatype NAME|all",
           "int8, uint8, ... float, ... f8e5m2 (float)");
    printf("  -%c, --%-22s %s\n", 'r', "root RANK|all", "for operations that have a root (0)");
    printf("  -%c, --%-22s %s\n", 'B', "buffers host|device|pinned",
           "where buffers lie: device and pinned are the GPU's (" MEMORY_NAME ")");
    printf("  -%c, --%-22s %s\n", 'J', "output_file FILE.json", "results as JSON");
#define X(letter, name, field, low, high, arg, help) \
    printf("  -%c, --%-22s %s\n", letter, name " " arg, help);
    INT_OPTIONS(X)
#undef X
    printf("  -%c, --%-22s %s\n", 'h', "help", "this text");
    printf("\nAlone, the program has -t times -g ranks. Started by ftccl-run, mpiexec (MPICH, Open "
           "MPI), srun or torchrun, every\n"
           "process has so many. On one machine the processes find each other by a private file; "
           "across machines set\n"
           "FTCCL_COMM_ID=HOST:PORT (of rank 0's machine) and FTCCL_SECRET for all of them; "
           "torchrun sets the address itself.\n"
           "Status: 0 all right; 1 wrong results or an error; 2 wrong options; 3 an option that "
           "needs a GPU.\n");
}

static int complain(const char *program, const char *option, const char *value, const char *wanted)
{
    fprintf(stderr, "%s: option %s takes %s, not '%s'\n", program, option, wanted, value);
    return PERF_USAGE + 1;
}

/* Returns an enum api_memory, or -1. NCCL works only on memory of the GPU. */
static int find_memory(const char *text)
{
    static const char *const names[] = {
        [API_HOST] = "host", [API_DEVICE] = "device", [API_PINNED] = "pinned"};
    for (int i = MEMORY_FIRST; i <= API_PINNED; i++)
        if (!strcmp(text, names[i]))
            return i;
    return -1;
}

static bool parse_int(const char *text, long low, long high, int *out)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 0);
    if (end == text || *end || errno || value < low || value > high)
        return false;
    *out = (int)value;
    return true;
}

static bool parse_size(const char *text, size_t *out)
{
    static const char units[] = "KMGT";
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || errno || !(value >= 0))
        return false;
    if (*end) {
        const char *unit = strchr(units, *end & ~0x20);
        if (!unit || !*unit)
            return false;
        for (const char *u = units; u <= unit; u++)
            value *= 1024;
        end++;
        if (*end == 'B' || *end == 'b')
            end++;
    }
    if (*end || value > 1e15)
        return false;
    *out = (size_t)value;
    return true;
}

/* Applies one option. Returns 0, or the exit status plus 1. */
static int take(struct perf_options *o, int letter, const char *program)
{
    int factor;
    switch (letter) {
#define X(l, name, field, low, high, arg, help)        \
    case l:                                            \
        return parse_int(optarg, low, high, &o->field) \
                   ? 0                                 \
                   : complain(program, "--" name, optarg, #low " to " #high);
        INT_OPTIONS(X)
#undef X
    case 'b':
        return parse_size(optarg, &o->min_bytes)
                   ? 0
                   : complain(program, "--minbytes", optarg, "a size");
    case 'e':
        return parse_size(optarg, &o->max_bytes)
                   ? 0
                   : complain(program, "--maxbytes", optarg, "a size");
    case 'i':
        return parse_size(optarg, &o->step_bytes)
                   ? 0
                   : complain(program, "--stepbytes", optarg, "a size");
    case 'f':
        if (!parse_int(optarg, 1, 1 << 20, &factor))
            return complain(program, "--stepfactor", optarg, "a number from 1");
        o->step_factor = factor;
        return 0;
    case 'o':
        o->op = perf_op_find(optarg);
        return o->op != -2
                   ? 0
                   : complain(program, "--op", optarg, "sum, prod, min, max, avg, mulsum or all");
    case 'd':
        o->type = perf_type_find(optarg);
        return o->type != -2 ? 0
                             : complain(program, "--datatype", optarg, "a type like float or all");
    case 'r':
        if (!strcmp(optarg, "all"))
            o->root = PERF_ALL;
        else if (!parse_int(optarg, -1, INT_MAX, &o->root))
            return complain(program, "--root", optarg, "a rank or all");
        return 0;
    case 'B':
        o->memory = find_memory(optarg);
        return o->memory >= 0 ? 0 : complain(program, "--buffers", optarg, MEMORY_CHOICE);
    case 'J':
        o->output_file = optarg;
        return 0;
    case 'h':
        print_help(program);
        return PERF_OK + 1;
    default:
        return PERF_USAGE + 1; /* getopt has printed a message */
    }
}

static int check(struct perf_options *o, const char *program)
{
    const char *needs_gpu = o->cudagraph             ? "-G (CUDA graphs)"
                            : o->device_impl         ? "-D (collectives inside a kernel)"
                            : o->local_register == 2 ? "-R 2 (symmetric registration)"
                                                     : NULL;
    if (needs_gpu) {
        fprintf(stderr, "%s: %s needs a GPU; this program measures host memory\n", program,
                needs_gpu);
        return PERF_NOT_HERE + 1;
    }
    if (o->min_bytes > o->max_bytes) {
        fprintf(stderr, "%s: --minbytes %zu is more than --maxbytes %zu\n", program, o->min_bytes,
                o->max_bytes);
        return PERF_USAGE + 1;
    }
    if (o->step_factor <= 1 && !o->step_bytes)
        o->step_bytes = o->max_bytes + 1; /* only one size */
    /* 0 times the factor would stay 0 */
    if (o->step_factor > 1 && !o->min_bytes)
        o->min_bytes = 1;
    if (o->per_iter && o->iters > PERF_REDUCE_MAX) {
        fprintf(stderr, "%s: -I takes at most %d iterations\n", program, PERF_REDUCE_MAX);
        return PERF_USAGE + 1;
    }
    if (o->per_iter_skip >= o->iters || (o->per_iter_skip && !o->per_iter)) {
        fprintf(stderr, "%s: -K must leave an iteration and needs -I 1\n", program);
        return PERF_USAGE + 1;
    }
    /* a host stream has no events, so the end is found by waiting */
    if (o->per_iter && !o->blocking)
        o->blocking = 2;
    size_t len = o->output_file ? strlen(o->output_file) : 0;
    if (o->output_file && (len < 5 || strcmp(o->output_file + len - 5, ".json"))) {
        fprintf(stderr, "%s: --output_file must end in .json\n", program);
        return PERF_USAGE + 1;
    }
    return 0;
}

int perf_options_parse(struct perf_options *o, int argc, char **argv)
{
    static const struct option longs[] = {
#define X(letter, name, field, low, high, arg, help) {name, required_argument, NULL, letter},
        INT_OPTIONS(X)
#undef X
            {"minbytes", required_argument, NULL, 'b'},
        {"maxbytes", required_argument, NULL, 'e'},
        {"stepbytes", required_argument, NULL, 'i'},
        {"stepfactor", required_argument, NULL, 'f'},
        {"op", required_argument, NULL, 'o'},
        {"datatype", required_argument, NULL, 'd'},
        {"root", required_argument, NULL, 'r'},
        {"output_file", required_argument, NULL, 'J'},
        {"buffers", required_argument, NULL, 'B'},
        {"help", no_argument, NULL, 'h'},
        {0}};
    *o = (struct perf_options){.nthreads = 1,
                               .ngpus = 1,
                               .min_bytes = 32u << 20,
                               .max_bytes = 32u << 20,
                               .step_bytes = 1u << 20,
                               .step_factor = 1,
                               .iters = 20,
                               .agg_iters = 1,
                               .warmup_iters = 1,
                               .run_cycles = 1,
                               .check = 1,
                               .op = CCL(Sum),
                               .type = CCL(Float32),
                               .average = 1,
                               .memory = MEMORY_DEFAULT,
                               .cta_policy = -1,
                               .device_ctas = 16};
    const char *slash = strrchr(argv[0], '/'), *program = slash ? slash + 1 : argv[0];
    int letter, status = 0;
    optind = 1;
    while (!status &&
           (letter = getopt_long(
                argc, argv, "t:g:b:e:i:f:n:m:w:N:p:c:o:d:r:z:y:T:G:C:S:J:a:R:x:D:V:M:P:u:I:K:B:h",
                longs, NULL)) != -1)
        status = take(o, letter, program);
    if (!status && optind < argc) {
        fprintf(stderr, "%s: unexpected argument '%s'\n", program, argv[optind]);
        status = PERF_USAGE + 1;
    }
    return status ? status : check(o, program);
}
