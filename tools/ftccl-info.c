/*
 * ftccl-info: shows this build, what it finds on this machine, the plan of a collective, the
 * telemetry and memory of a process, which may be running, stopped or dead, paths to a host, and
 * how many standbys a job needs.
 * Exit status: 0; 1 if what was asked for does not exist; 2 for a usage error.
 */
#include "info.h"
#include "streams.h"

#include "device/device.h"
#include "path/path.h"
#include "telemetry/telemetry.h"
#include "transport/transport.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPT_MAN = 256,
    OPT_PLAN,
    OPT_SIZE,
    OPT_RANKS,
    OPT_HOSTS,
    OPT_TYPE,
    OPT_RANK,
    OPT_PID,
    OPT_MEMORY,
    OPT_PATHS,
    OPT_FROM,
    OPT_PORTS,
    OPT_STANDBYS
};

struct request {
    bool version, devices, transports, topology, params, man;
    int pid, memory_pid; /* 0: none */
    struct plan_request plan;
    struct paths_request paths;
    struct standbys_request standbys;
};

static const struct option long_options[] = {
    {"version", no_argument, NULL, 'v'},
    {"devices", no_argument, NULL, 'd'},
    {"transports", no_argument, NULL, 't'},
    {"topology", no_argument, NULL, 'T'},
    {"parameters", no_argument, NULL, 'p'},
    {"man", no_argument, NULL, OPT_MAN},
    {"plan", required_argument, NULL, OPT_PLAN},
    {"size", required_argument, NULL, OPT_SIZE},
    {"ranks", required_argument, NULL, OPT_RANKS},
    {"hosts", required_argument, NULL, OPT_HOSTS},
    {"type", required_argument, NULL, OPT_TYPE},
    {"rank", required_argument, NULL, OPT_RANK},
    {"pid", required_argument, NULL, OPT_PID},
    {"memory", required_argument, NULL, OPT_MEMORY},
    {"paths", required_argument, NULL, OPT_PATHS},
    {"from", required_argument, NULL, OPT_FROM},
    {"ports", required_argument, NULL, OPT_PORTS},
    {"standbys", required_argument, NULL, OPT_STANDBYS},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static const char help[] =
    "usage: ftccl-info [OPTION]...\n"
    "Without options: a summary of everything but the parameters that have their defaults.\n"
    "  -v, --version       version, compiler and optional libraries of this build\n"
    "  -d, --devices       devices and instruction sets found\n"
    "  -t, --transports    transports, interfaces and addresses; RDMA devices and providers\n"
    "  -T, --topology      cores, caches, memory nodes, network cards and GPUs\n"
    "  -p, --parameters    every parameter with value, default, range and meaning\n"
    "      --man           with -p: as the body of a manual page\n"
    "      --plan KIND     what a collective (allreduce, allgather, ...) would do:\n"
    "        --size SIZE     bytes of the larger buffer, suffixes K M G (default 1M)\n"
    "        --ranks N       ranks (default 2)\n"
    "        --hosts H       machines that the ranks fill in blocks (default 1)\n"
    "        --type TYPE     element type (default float32)\n"
    "        --rank R        whose first steps are shown (default 0)\n"
    "      --pid N         telemetry of a process: running, stopped or killed\n"
    "      --memory N      what FTCCL takes of memory in process N, which runs\n"
    "      --paths HOST[:PORT]  which way through the network source ports take to a host:\n"
    "        --from ADDR     local address to start from (default: as the kernel chooses)\n"
    "        --ports N       how many source ports are probed (default 64)\n"
    "      --standbys N P  how many standbys N machines need, of which each fails with probability "
    "P\n"
    "                      in the time that it takes to replace one\n"
    "  -h, --help\n";

static int number(const char *option, const char *text, int lowest, int highest)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end || errno || value < lowest || value > highest) {
        fprintf(stderr, "ftccl-info: %s wants a number from %d to %d, not '%s'\n", option, lowest,
                highest, text);
        exit(2);
    }
    return (int)value;
}

static void read_plan_option(struct plan_request *plan, int option)
{
    switch (option) {
    case OPT_PLAN:
        plan->kind = optarg;
        break;
    case OPT_TYPE:
        plan->type = optarg;
        break;
    case OPT_RANKS:
        plan->nranks = number("--ranks", optarg, 1, 1 << 20);
        break;
    case OPT_HOSTS:
        plan->nhosts = number("--hosts", optarg, 1, 1 << 20);
        break;
    case OPT_RANK:
        plan->rank = number("--rank", optarg, 0, (1 << 20) - 1);
        break;
    case OPT_SIZE:
        if (info_size_parse(optarg, &plan->size_bytes))
            break;
        fprintf(stderr, "ftccl-info: --size wants bytes with an optional K, M, G or T, not '%s'\n",
                optarg);
        exit(2);
    default:
        break;
    }
}

static void read_paths_option(struct request *r, int option)
{
    switch (option) {
    case OPT_PATHS:
        r->paths.host = optarg;
        break;
    case OPT_FROM:
        r->paths.from = optarg;
        break;
    case OPT_PORTS:
        r->paths.nports = number("--ports", optarg, 1, FT_PATH_PORTS);
        break;
    default:
        read_plan_option(&r->plan, option);
    }
}

/* The option takes N, and P is the argument that follows. */
static void read_standbys_option(struct standbys_request *standbys, int argc, char **argv)
{
    standbys->nmachines = number("--standbys", optarg, 1, 1000000);
    standbys->probability = optind < argc ? argv[optind++] : NULL;
    if (standbys->probability)
        return;
    fputs("ftccl-info: --standbys wants two numbers, machines and the probability that one fails\n",
          stderr);
    exit(2);
}

static void read_options(int argc, char **argv, struct request *r)
{
    for (int option; (option = getopt_long(argc, argv, "vdtTph", long_options, NULL)) != -1;) {
        switch (option) {
        case 'v':
            r->version = true;
            break;
        case 'd':
            r->devices = true;
            break;
        case 't':
            r->transports = true;
            break;
        case 'T':
            r->topology = true;
            break;
        case 'p':
            r->params = true;
            break;
        case OPT_MAN:
            r->man = true;
            break;
        case OPT_PID:
            r->pid = number("--pid", optarg, 1, INT32_MAX);
            break;
        case OPT_MEMORY:
            r->memory_pid = number("--memory", optarg, 1, INT32_MAX);
            break;
        case OPT_STANDBYS:
            read_standbys_option(&r->standbys, argc, argv);
            break;
        case 'h':
            fputs(help, stdout);
            exit(0);
        case '?':
            fputs("try ftccl-info --help\n", stderr);
            exit(2);
        default:
            read_paths_option(r, option);
        }
    }
    if (optind < argc) {
        fprintf(stderr, "ftccl-info: unexpected argument '%s'; try ftccl-info --help\n",
                argv[optind]);
        exit(2);
    }
}

static void print_transports(void)
{
    puts("transports:");
    ft_transport_describe(stdout);
    info_fabrics(stdout);
}

static void print_devices(void)
{
    puts("devices:");
    ft_device_describe(stdout);
}

static int answer(int status)
{
    if (status == FT_OK)
        return 0;
    fprintf(stderr, "ftccl-info: %s\n", ft_fail_text());
    return status == FT_USAGE ? 2 : 1;
}

static int summary(void)
{
    info_build(stdout);
    print_devices();
    print_transports();
    info_topology(stdout);
    info_params_changed(stdout);
    return 0;
}

/* What can fail: the first failure ends it. */
static int run_requests(const struct request *r)
{
    int status = 0;
    if (r->plan.kind)
        status = answer(info_plan(stdout, &r->plan));
    if (r->pid && !status)
        status = answer(ft_telemetry_print(stdout, r->pid));
    if (r->memory_pid && !status)
        status = answer(info_memory(stdout, r->memory_pid));
    if (r->paths.host && !status)
        status = answer(info_paths(stdout, &r->paths));
    if (r->standbys.nmachines && !status)
        status = answer(info_standbys(stdout, &r->standbys));
    return status;
}

int main(int argc, char **argv)
{
    struct request r = {.plan = {.size_bytes = 1 << 20, .nranks = 2, .nhosts = 1},
                        .paths = {.nports = 64}};
    streams_open("ftccl-info");
    read_options(argc, argv, &r);
    if (argc == 1)
        return summary();
    if (r.version)
        info_build(stdout);
    if (r.devices)
        print_devices();
    if (r.transports)
        print_transports();
    if (r.topology)
        info_topology(stdout);
    if (r.params && r.man)
        info_params_man(stdout);
    else if (r.params)
        ft_params_print(stdout);
    return run_requests(&r);
}
