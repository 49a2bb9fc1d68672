/*
 * Properties: many members of managed membership register with one coordinator, and all get the
 * same views with the right lists: the first one, the same one again, and one in which other
 * processes have a replica. What that costs is measured: time, the coordinator's processor time and
 * memory, bytes. Method: a coordinator in a process of its own, and load processes that speak the
 * protocol for many members over loopback, eight on a connection, as the agent of a host does.
 *
 * scale [--members N,N...] [--local RANKS OF A REPLICA,...] [--slots MEMBERS OF A CONNECTION]
 *       [--endpoint BYTES] [--loads PROCESSES] [--rounds N] [--held] [--burst]
 *       [--most-gb OF A FIRST VIEW] [--spread MS]
 * --burst: all connect at once. --held: members hold a view of an earlier coordinator, as after its
 * restart. Where a first view would be longer than --most-gb, that is assumed.
 * --spread: a round of heartbeats does not come as fast as it can, but in so much time.
 */
#include "measure.h"

#include <getopt.h>
#include <stdlib.h>
#include <sys/resource.h>

#define SHAPES_MOST 16
#define ROUNDS_MOST 64
#define ENTRY_BYTES 8 /* of a view, beside the endpoint */
#define ENDPOINT_LEAST 80

static double ms(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) / 1e6 : 0;
}

static double per_member(const struct run *run, atomic_uint_fast64_t *bytes)
{
    return (double)atomic_load(bytes) / run->shared->shape.members;
}

static bool join(struct run *run, struct measured *out)
{
    struct shared *shared = run->shared;
    const double before = run_cpu_ms(run);
    if (!run_phase(run, COMMAND_JOIN))
        return false;
    out->join_s = ms(atomic_load(&shared->first_ns), atomic_load(&shared->last_ns)) / 1e3;
    out->join_cpu_s = (run_cpu_ms(run) - before) / 1e3;
    out->join_out = per_member(run, &shared->bytes_out[FT_MEMBERS_JOIN]);
    out->join_in = per_member(run, &shared->bytes_in[FT_MEMBERS_JOINED]);
    out->again = atomic_load(&shared->again);
    return true;
}

/* A view for all. */
static bool ask(struct run *run, enum round kind, struct view_times *times, struct measured *out)
{
    struct shared *shared = run->shared;
    const double before = run_cpu_ms(run);
    shared->changes = kind != ROUND_SAME;
    shared->old_epoch = atomic_load(&shared->epoch);
    atomic_store(&shared->term, 0);
    atomic_store(&shared->epoch, 0);
    for (uint32_t r = 0; r < shape_replicas(&shared->shape); r++)
        atomic_store(&shared->rank[r], 0);
    if (!run_phase(run, COMMAND_ASK))
        return false;
    const uint64_t end = atomic_load(&shared->last_ns);
    *times = (struct view_times){ms(atomic_load(&shared->first_ns), end),
                                 ms(atomic_load(&shared->sent_ns), end), run_cpu_ms(run) - before};
    out->view_in[kind] = per_member(run, &shared->bytes_in[FT_MEMBERS_VIEW]);
    out->ask_out = per_member(run, &shared->bytes_out[FT_MEMBERS_ASK]);
    return run_phase(run, COMMAND_CHECK);
}

/* Other processes take a replica, which differs from round to round. */
static bool replace(struct run *run, uint32_t round, double *rejoin_ms)
{
    struct shared *shared = run->shared;
    shared->replaced = (round * 7919 + 1) % shape_replicas(&shared->shape);
    if (!run_phase(run, COMMAND_DROP))
        return false;
    shared->generation[shared->replaced]++;
    if (!run_phase(run, COMMAND_JOIN))
        return false;
    *rejoin_ms = ms(atomic_load(&shared->first_ns), atomic_load(&shared->last_ns));
    return true;
}

static bool beat(struct run *run, double *took_ms, double *took_cpu_ms)
{
    const double before = run_cpu_ms(run);
    if (!run_phase(run, COMMAND_BEAT))
        return false;
    *took_cpu_ms = run_cpu_ms(run) - before;
    *took_ms = ms(atomic_load(&run->shared->first_ns), atomic_load(&run->shared->last_ns));
    return true;
}

static double idle(const struct run *run)
{
    const struct timespec second = {.tv_sec = 1};
    const double before = run_cpu_ms(run);
    nanosleep(&second, NULL);
    return run_cpu_ms(run) - before;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

struct column {
    double values[ROUNDS_MOST];
};

static void median_view(struct column column[3], uint32_t rounds, struct view_times *out)
{
    out->from_first_ms = median(column[0].values, rounds);
    out->from_last_ms = median(column[1].values, rounds);
    out->cpu_ms = median(column[2].values, rounds);
}

static bool ask_rounds(struct run *run, enum round kind, struct measured *out)
{
    const uint32_t rounds = run->shared->shape.rounds;
    struct column column[4];
    for (uint32_t i = 0; i < rounds; i++) {
        struct view_times times;
        if (kind == ROUND_CHANGED && !replace(run, i, &column[3].values[i]))
            return false;
        if (!ask(run, kind, &times, out))
            return false;
        column[0].values[i] = times.from_first_ms;
        column[1].values[i] = times.from_last_ms;
        column[2].values[i] = times.cpu_ms;
    }
    median_view(column, rounds, &out->view[kind]);
    if (kind == ROUND_CHANGED)
        out->rejoin_ms = median(column[3].values, rounds);
    return true;
}

static bool beat_rounds(struct run *run, enum beats kind, struct measured *out)
{
    static const uint32_t asks[BEATS] = {[BEATS_USUAL] = 3, [BEATS_ANSWERED] = 1};
    const uint32_t rounds = run->shared->shape.rounds;
    struct column took, cpu;
    run->shared->asks = asks[kind];
    for (uint32_t i = 0; i < rounds; i++) {
        run->shared->round = i;
        if (!beat(run, &took.values[i], &cpu.values[i]))
            return false;
    }
    out->beat_ms[kind] = median(took.values, rounds);
    out->beat_cpu_ms[kind] = median(cpu.values, rounds);
    out->beat_out = per_member(run, &run->shared->bytes_out[FT_MEMBERS_BEAT]);
    out->beat_in = per_member(run, &run->shared->bytes_in[FT_MEMBERS_ALIVE]);
    return true;
}

static bool beat_all_rounds(struct run *run, struct measured *out)
{
    return beat_rounds(run, BEATS_ANSWERED, out) && beat_rounds(run, BEATS_QUIET, out) &&
           beat_rounds(run, BEATS_USUAL, out);
}

static bool measure(struct run *run, struct measured *out)
{
    *out = (struct measured){.shape = run->shared->shape};
    if (!join(run, out) || !beat_all_rounds(run, out))
        return false;
    out->idle_cpu_ms = idle(run);
    if (!ask(run, ROUND_FIRST, &out->view[ROUND_FIRST], out))
        return false;
    out->first_gb = out->view_in[ROUND_FIRST] * run->shared->shape.members / 1e9;
    if (!ask_rounds(run, ROUND_SAME, out) || !ask_rounds(run, ROUND_CHANGED, out))
        return false;
    out->rss_mib = run_memory_mib(run, "VmRSS:");
    out->peak_mib = run_memory_mib(run, "VmHWM:");
    return true;
}

/* ---- options --------------------------------------------------------------------------------- */

struct list {
    uint32_t value[SHAPES_MOST];
    int count;
};
struct options {
    struct list members, local, slots, endpoint, loads, rounds, spread; /* from slots on one each */
    double most_gb;
    bool held, burst;
};

static bool read_list(const char *text, uint32_t most, struct list *out)
{
    out->count = 0;
    for (char *end; *text; text = *end ? end + 1 : end) {
        const unsigned long value = strtoul(text, &end, 10);
        if (end == text || (*end && *end != ',') || value == 0 || value > most ||
            out->count == SHAPES_MOST)
            return false;
        out->value[out->count++] = (uint32_t)value;
    }
    return out->count > 0;
}

static bool read_options(int argc, char **argv, struct options *o)
{
    static const struct option known[] = {{"members", required_argument, NULL, 'm'},
                                          {"local", required_argument, NULL, 'l'},
                                          {"slots", required_argument, NULL, 's'},
                                          {"endpoint", required_argument, NULL, 'e'},
                                          {"loads", required_argument, NULL, 'p'},
                                          {"rounds", required_argument, NULL, 'r'},
                                          {"spread", required_argument, NULL, 'w'},
                                          {"most-gb", required_argument, NULL, 'g'},
                                          {"held", no_argument, NULL, 'h'},
                                          {"burst", no_argument, NULL, 'b'},
                                          {NULL, 0, NULL, 0}};
    bool good = true;
    for (int c; good && (c = getopt_long(argc, argv, "", known, NULL)) != -1;)
        switch (c) {
        case 'm':
            good = read_list(optarg, 1 << 20, &o->members);
            break;
        case 'l':
            good = read_list(optarg, FT_LOCAL_MOST, &o->local);
            break;
        case 's':
            good = read_list(optarg, FT_SLOTS_MOST, &o->slots);
            break;
        case 'e':
            good = read_list(optarg, FT_ENDPOINT_BYTES, &o->endpoint) &&
                   o->endpoint.value[0] >= ENDPOINT_LEAST;
            break;
        case 'p':
            good = read_list(optarg, LOADS_MOST, &o->loads);
            break;
        case 'r':
            good = read_list(optarg, ROUNDS_MOST, &o->rounds);
            break;
        case 'w':
            good = read_list(optarg, 900, &o->spread);
            break;
        case 'g':
            o->most_gb = strtod(optarg, NULL);
            break;
        case 'h':
            o->held = true;
            break;
        case 'b':
            o->burst = true;
            break;
        default:
            good = false;
        }
    return good && optind == argc;
}

static double first_view_gb(const struct shape *shape)
{
    const double entries = shape_replicas(shape) + shape->local;
    return shape->members * entries * (shape->endpoint_bytes + ENTRY_BYTES) / 1e9;
}

/* A connection has members of one replica only, so that a replica can be replaced. */
static bool make_shape(const struct options *o, int m, int l, struct shape *out)
{
    *out = (struct shape){.members = o->members.value[m],
                          .local = o->local.value[l],
                          .slots = o->slots.value[0],
                          .endpoint_bytes = o->endpoint.value[0],
                          .loads = o->loads.value[0],
                          .rounds = o->rounds.value[0],
                          .burst = o->burst,
                          .spread_ms = o->spread.value[0]};
    out->held = o->held || first_view_gb(out) > o->most_gb;
    return out->members % out->local == 0 && out->local % out->slots == 0;
}

static bool measure_shape(const struct shape *shape, struct measured *out)
{
    struct run run = run_start(shape);
    const bool good = measure(&run, out);
    const unsigned faults = run_end(&run);
    if (good)
        report_line(out);
    if (!good || faults)
        fprintf(stderr, "scale: %u members in replicas of %u: %u faults\n", shape->members,
                shape->local, faults);
    return good && faults == 0;
}

/* The coordinator of the largest shapes has more connections than the usual limit. */
static void raise_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv)
{
    struct options o = {.members = {{1024, 8192, 32768}, 3},
                        .local = {{8}, 1},
                        .slots = {{8}, 1},
                        .endpoint = {{200}, 1},
                        .loads = {{1}, 1},
                        .rounds = {{7}, 1},
                        .most_gb = 30};
    if (!read_options(argc, argv, &o)) {
        fprintf(stderr,
                "usage: scale [--members N,...] [--local N,...] [--slots N] [--endpoint N] "
                "[--loads N] [--rounds N] [--held] [--burst] [--most-gb N] [--spread MS]\n");
        return 2;
    }
    static struct measured measured[SHAPES_MOST * SHAPES_MOST];
    int count = 0;
    bool good = true;
    raise_limit();
    report_head();
    for (int l = 0; good && l < o.local.count; l++)
        for (int m = 0; good && m < o.members.count; m++) {
            struct shape shape;
            if (make_shape(&o, m, l, &shape))
                good = measure_shape(&shape, &measured[count++]);
            else
                fprintf(stderr,
                        "scale: %u members in replicas of %u on connections of %u: "
                        "left out\n",
                        shape.members, shape.local, shape.slots);
        }
    if (good)
        report_bytes(measured, count);
    return good ? 0 : 1;
}
