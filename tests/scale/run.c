/*
 * The processes of one shape: a coordinator and the load.
 */
#include "measure.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PHASE_MS 240000 /* more than any phase takes on a slow machine */

static void die(const char *what)
{
    fprintf(stderr, "scale: %s: %s\n", what, errno ? strerror(errno) : ft_fail_text());
    exit(1);
}

static void make_pipe(int ends[2])
{
    if (pipe2(ends, O_CLOEXEC) != 0)
        die("pipe");
}

static void run_coordinator(const struct shared *shared, int address_out, int stop)
{
    char address[FT_NET_TEXT_BYTES] = "";
    struct ft_coordinator *coordinator;
    if (ft_coordinator_start("127.0.0.1:0", shared->key, address, &coordinator) != FT_OK) {
        fprintf(stderr, "scale: the coordinator does not start: %s\n", ft_fail_text());
        _exit(1);
    }
    if (write(address_out, address, sizeof address) != sizeof address)
        _exit(1);
    char byte;
    while (read(stop, &byte, 1) < 0 && errno == EINTR)
        ;
    ft_coordinator_stop(coordinator);
    _exit(0);
}

static void start_coordinator(struct run *run)
{
    int address_pipe[2], stop[2];
    char address[FT_NET_TEXT_BYTES];
    make_pipe(address_pipe);
    make_pipe(stop);
    run->coordinator = fork();
    if (run->coordinator < 0)
        die("fork");
    if (run->coordinator == 0) {
        close(stop[1]);
        run_coordinator(run->shared, address_pipe[1], stop[0]);
    }
    close(address_pipe[1]);
    close(stop[0]);
    run->stop = stop[1];
    if (read(address_pipe[0], address, sizeof address) != sizeof address ||
        ft_net_resolve(address, &run->shared->at, 1) != 1)
        die("the coordinator has no address");
    close(address_pipe[0]);
    if (clock_getcpuclockid(run->coordinator, &run->clock) != 0)
        die("the coordinator's processor time");
}

static void start_load(struct run *run, uint32_t index)
{
    int commands[2], answers[2];
    make_pipe(commands);
    make_pipe(answers);
    run->load[index] = fork();
    if (run->load[index] < 0)
        die("fork");
    if (run->load[index] == 0) {
        close(commands[1]); /* so that it ends with its parent */
        for (uint32_t i = 0; i < index; i++)
            close(run->commands[i]);
        close(run->stop);
        _exit(load_run(run->shared, index, commands[0], answers[1]));
    }
    close(commands[0]);
    close(answers[1]);
    run->commands[index] = commands[1];
    run->answers[index] = answers[0];
}

struct run run_start(const struct shape *shape)
{
    const uint32_t replicas = shape_replicas(shape);
    const size_t list = replicas * sizeof(uint32_t);
    struct run run = {.shared = NULL};
    run.shared = mmap(NULL, sizeof *run.shared + 2 * list, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (run.shared == MAP_FAILED)
        die("mmap");
    run.shared->shape = *shape;
    run.shared->generation = (uint32_t *)(run.shared + 1);
    run.shared->rank = (atomic_uint *)(run.shared->generation + replicas);
    ft_random_secret(run.shared->key);
    start_coordinator(&run);
    for (uint32_t i = 0; i < shape->loads; i++)
        start_load(&run, i);
    return run;
}

unsigned run_end(struct run *run)
{
    struct shared *shared = run->shared;
    const size_t bytes = sizeof *shared + 2 * shape_replicas(&shared->shape) * sizeof(uint32_t);
    for (uint32_t i = 0; i < run->shared->shape.loads; i++) {
        close(run->commands[i]);
        close(run->answers[i]);
        waitpid(run->load[i], NULL, 0);
    }
    close(run->stop);
    int status = 0;
    waitpid(run->coordinator, &status, 0);
    if (status != 0) {
        fprintf(stderr, "scale: the coordinator ended with status %d\n", status);
        atomic_fetch_add(&shared->faults, 1);
    }
    const unsigned faults = atomic_load(&shared->faults);
    munmap(shared, bytes);
    return faults;
}

double run_cpu_ms(const struct run *run)
{
    struct timespec at;
    if (clock_gettime(run->clock, &at) != 0)
        return 0; /* it has ended */
    return (double)at.tv_sec * 1e3 + (double)at.tv_nsec / 1e6;
}

double run_memory_mib(const struct run *run, const char *name)
{
    char path[64], line[256];
    long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", run->coordinator);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0)
            kib = strtol(line + strlen(name) + 1, NULL, 10);
    if (file)
        fclose(file);
    return (double)kib / 1024;
}

/* ---- phases ---------------------------------------------------------------------------------- */

bool run_phase(struct run *run, enum command command)
{
    struct shared *shared = run->shared;
    const char byte = (char)command;
    atomic_store(&shared->first_ns, 0);
    atomic_store(&shared->sent_ns, 0);
    atomic_store(&shared->last_ns, 0);
    for (int type = 0; type < TYPES; type++) {
        atomic_store(&shared->bytes_in[type], 0);
        atomic_store(&shared->bytes_out[type], 0);
        atomic_store(&shared->messages_in[type], 0);
    }
    for (uint32_t i = 0; i < shared->shape.loads; i++)
        if (write(run->commands[i], &byte, 1) != 1)
            return false;
    for (uint32_t i = 0; i < shared->shape.loads; i++) {
        struct pollfd waits = {.fd = run->answers[i], .events = POLLIN};
        char answer = 0;
        for (int left_ms = PHASE_MS; left_ms > 0 && atomic_load(&shared->faults) == 0;
             left_ms -= 100)
            if (poll(&waits, 1, 100) != 0)
                break;
        if (!(waits.revents & POLLIN) || read(run->answers[i], &answer, 1) != 1) {
            fprintf(stderr, "scale: load %u did not finish '%c'\n", i, command);
            return false;
        }
    }
    return atomic_load(&shared->faults) == 0;
}
