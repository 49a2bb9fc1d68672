/* The options, the table, the timed loop and the check of the programs that measure other
 * libraries: see peer.h. */
#define _GNU_SOURCE
#include "peer.h"

#include "meet.h"

#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_BYTES ((size_t)INT_MAX) /* MPI counts elements by int */
#define PAGE_BYTES 4096              /* largest page */
/* inputs of the check are 0 to VALUES - 1; sums of small integers are exact */
#define VALUES 1021

static const char *const kinds[PEER_KINDS] = {"all_reduce", "all_gather", "reduce_scatter",
                                              "broadcast",  "alltoall",   "reduce"};

const char *peer_kind_name(enum peer_kind kind)
{
    return kinds[kind];
}

/* ---- options --------------------------------------------------------------------------------- */

static int parse_size(const char *text, size_t *bytes)
{
    static const char units[] = "KMG";
    char *end;
    double value = strtod(text, &end);
    const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;
    if (end == text || !(value >= 0) || (*end && (!unit || !*unit || end[1])))
        return 0;
    for (const char *u = units; unit && u <= unit; u++)
        value *= 1024;
    if (value > (double)MOST_BYTES)
        return 0;
    *bytes = (size_t)value;
    return 1;
}

static int parse_long(const char *text, long low, long high, long *out)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < low || value > high)
        return 0;
    *out = value;
    return 1;
}

static int take(struct peer_options *o, int letter)
{
    long value;
    int okay = letter == 'b'   ? parse_size(optarg, &o->min_bytes)
               : letter == 'e' ? parse_size(optarg, &o->max_bytes)
               : letter == 'f' ? parse_long(optarg, 2, 1 << 20, &o->factor)
               : letter == 't' ? parse_long(optarg, 1, 1024, &o->ranks)
               : letter == '?'
                   ? 0
                   : parse_long(optarg, letter == 'n', letter == 'z' ? 3 : INT_MAX, &value);
    if (!okay)
        return 0;
    if (letter == 'n')
        o->iters = (int)value;
    if (letter == 'w')
        o->warmup_iters = (int)value;
    if (letter == 'z')
        o->blocking = (int)value;
    if (letter == 'c')
        o->check = (int)value;
    return 1;
}

int peer_options_parse(struct peer_options *o, int argc, char **argv)
{
    *o = (struct peer_options){.kind = PEER_KINDS,
                               .min_bytes = 32u << 20,
                               .max_bytes = 32u << 20,
                               .iters = 20,
                               .warmup_iters = 1,
                               .check = 1};
    int letter, okay = 1;
    while (okay && (letter = getopt(argc, argv, "b:e:f:n:w:z:c:t:")) != -1)
        okay = take(o, letter);
    for (int kind = 0; okay && optind < argc && kind < PEER_KINDS; kind++)
        if (!strcmp(argv[optind], kinds[kind]))
            o->kind = (enum peer_kind)kind;
    if (okay && o->kind < PEER_KINDS && optind == argc - 1 && o->min_bytes <= o->max_bytes)
        return PEER_OK;
    fprintf(
        stderr,
        "usage: %s COLLECTIVE [OPTION]...\n"
        "COLLECTIVE: all_reduce, all_gather, reduce_scatter, broadcast or alltoall, of floats, out "
        "of place.\n"
        "  -b, -e SIZE  least and largest size of the larger buffer (32M); K, M or G may follow\n"
        "  -f N         sizes are multiplied by N\n"
        "  -n, -w N     timed iterations (20) and ones before them (1)\n"
        "  -z 0..3      1 and 3: all ranks meet after each call, outside the time; 0 and 2: one "
        "call after another (0)\n"
        "  -c 0|1       check the results once (1)\n"
        "  -t N         ranks, where the program starts them itself\n",
        argv[0]);
    return PEER_USAGE;
}

/* ---- shapes and values ----------------------------------------------------------------------- */

static int in_blocks(enum peer_kind kind)
{
    return kind != PEER_ALL_REDUCE && kind != PEER_BROADCAST && kind != PEER_REDUCE;
}

static size_t sent(const struct peer_call *c)
{
    return c->kind == PEER_ALL_GATHER ? c->count : c->total;
}
static size_t received(const struct peer_call *c) /* on ranks that get a result */
{
    return c->kind == PEER_REDUCE_SCATTER ? c->count : c->total;
}

static struct peer_call call_for(const struct peer_library *l, enum peer_kind kind, size_t bytes)
{
    size_t elements = bytes / sizeof(float), nranks = (size_t)l->nranks;
    struct peer_call c = {.kind = kind, .count = elements, .total = elements};
    if (!in_blocks(kind))
        return c;
    /* blocks are multiples of 16 bytes, as in nccl-tests */
    c.count = elements / nranks & ~(size_t)3;
    c.total = c.count * nranks;
    return c;
}

static double bus_factor(enum peer_kind kind, int nranks)
{
    double others = (double)(nranks - 1) / nranks;
    if (kind == PEER_BROADCAST || kind == PEER_REDUCE)
        return 1;
    return kind == PEER_ALL_REDUCE ? 2 * others : others;
}

static float input(int rank, size_t i)
{
    return (float)((i * 7 + (size_t)rank * 13) % VALUES);
}

static float expected(const struct peer_library *l, const struct peer_call *c, size_t i)
{
    size_t mine = (size_t)l->rank * c->count;
    float sum = 0;
    switch (c->kind) {
    case PEER_BROADCAST:
        return input(0, i);
    case PEER_ALL_GATHER:
        return input((int)(i / c->count), i % c->count);
    case PEER_ALLTOALL:
        return input((int)(i / c->count), mine + i % c->count);
    default:
        break;
    }
    for (int rank = 0; rank < l->nranks; rank++)
        sum += input(rank, c->kind == PEER_REDUCE_SCATTER ? mine + i : i);
    return sum;
}

/* Counts wrong elements on all ranks. Afterwards the buffers contain zeros again: a library that
 * works in place would add to them for ever. */
static double check(struct peer_library *l, const struct peer_call *c)
{
    double wrong = 0;
    for (size_t i = 0; i < sent(c); i++)
        c->send[i] = input(l->rank, i);
    for (size_t i = 0; i < received(c); i++)
        c->recv[i] = c->kind == PEER_BROADCAST && l->rank == 0 ? input(0, i) : -1;
    l->meet(l);
    l->run(l, c);
    size_t results = c->kind == PEER_REDUCE && l->rank > 0 ? 0 : received(c);
    for (size_t i = 0; i < results; i++)
        wrong += c->recv[i] != expected(l, c, i);
    memset(c->send, 0, sent(c) * sizeof *c->send);
    memset(c->recv, 0, received(c) * sizeof *c->recv);
    return l->sum(l, wrong);
}

/* ---- time ------------------------------------------------------------------------------------ */

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Measures the seconds of one call; returns the mean over the ranks. */
static double measure(struct peer_library *l, const struct peer_call *c,
                      const struct peer_options *o)
{
    int rendezvous = o->blocking == 1 || o->blocking == 3;
    double calls_s = 0;
    for (int i = 0; i < o->warmup_iters; i++)
        l->run(l, c);
    l->meet(l);
    double begin_s = now_s();
    for (int i = 0; i < o->iters; i++) {
        double from_s = rendezvous ? now_s() : 0;
        l->run(l, c);
        if (!rendezvous)
            continue;
        calls_s += now_s() - from_s;
        if (l->meeting)
            meeting_wait(l->meeting);
        else
            l->meet(l);
    }
    double all_s = rendezvous ? calls_s : now_s() - begin_s;
    return l->sum(l, all_s / o->iters) / l->nranks;
}

static void print_head(const struct peer_library *l, const struct peer_options *o)
{
    printf("# %s %s, %d ranks, iters: %d warmup iters: %d validation: %d\n", l->name,
           kinds[o->kind], l->nranks, o->iters, o->warmup_iters, o->check);
    printf("# %10s  %12s  %8s  %6s  %6s  %9s  %7s  %7s  %6s\n", "size", "count", "type", "redop",
           "root", "time", "algbw", "busbw", "#wrong");
    printf("# %10s  %12s  %8s  %6s  %6s  %9s  %7s  %7s  %6s\n", "(B)", "(elements)", "", "", "",
           "(us)", "(GB/s)", "(GB/s)", "");
}

static void print_line(const struct peer_library *l, const struct peer_call *c, double time_s,
                       double wrong)
{
    int reduces = c->kind == PEER_ALL_REDUCE || c->kind == PEER_REDUCE_SCATTER ||
                  c->kind == PEER_REDUCE;
    int rooted = c->kind == PEER_BROADCAST || c->kind == PEER_REDUCE;
    double bytes = (double)(c->total * sizeof(float)), alg_bw = bytes / 1e9 / time_s;
    char text[32] = "N/A";
    if (wrong >= 0)
        snprintf(text, sizeof text, "%.0f", wrong);
    printf("  %10.0f  %12zu  %8s  %6s  %6d  %9.4f  %7.3f  %7.3f  %6s\n", bytes, c->count, "float",
           reduces ? "sum" : "none", rooted ? 0 : -1, time_s * 1e6, alg_bw,
           alg_bw * bus_factor(c->kind, l->nranks), text);
    fflush(stdout);
}

/* Allocates zeroed memory with pages of its own. Compilers turn malloc() and memset() into
 * calloc(), whose pages are all the system's one zero page until they are written. Reading that
 * page would measure the first-level cache. */
static float *make_buffer(size_t bytes)
{
    char *at = malloc(bytes);
    if (!at)
        return NULL;
    memset(at, 0, bytes);
    for (size_t i = 0; i < bytes; i += PAGE_BYTES)
        *(volatile char *)(at + i) = 0;
    return (float *)at;
}

static int one_size(struct peer_library *l, const struct peer_options *o, size_t bytes)
{
    struct peer_call c = call_for(l, o->kind, bytes);
    size_t room = (c.total + 16) * sizeof(float);
    double wrong = -1;
    int status = PEER_FAILED;
    c.send = make_buffer(room);
    c.recv = make_buffer(room);
    if (c.send && c.recv)
        status = l->prepare ? l->prepare(l, &c) : PEER_OK;
    if (status == PEER_OK) {
        if (o->check)
            wrong = check(l, &c);
        double time_s = measure(l, &c, o);
        if (l->rank == 0)
            print_line(l, &c, time_s, wrong);
        if (wrong > 0)
            status = PEER_FAILED;
    }
    free(c.send);
    free(c.recv);
    return status;
}

int peer_run(struct peer_library *l, const struct peer_options *o)
{
    int status = meeting_join(&l->meeting, l->nranks) == 0 ? PEER_OK : PEER_FAILED;
    if (l->rank == 0)
        print_head(l, o);
    for (size_t bytes = o->min_bytes; bytes <= o->max_bytes && status == PEER_OK;
         bytes *= (size_t)o->factor) {
        status = one_size(l, o, bytes);
        if (o->factor < 2 || bytes == 0)
            break;
    }
    meeting_leave(l->meeting);
    if (status == PEER_LACKS && l->rank == 0)
        fprintf(stderr, "%s has no %s\n", l->name, kinds[o->kind]);
    return status;
}
