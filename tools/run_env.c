/*
 * Makes the environment of the ranks of ftccl-run. ftccl-run serves the rendezvous itself: it makes
 * the unique id and passes it in hex, so no port has to be guessed. Then it starts the coordinator,
 * whose address all ranks inherit. It sets MASTER_ADDR and MASTER_PORT, which torch needs, unless
 * they are set. It keeps that port bound (without listening), so that no other program gets it.
 */
#include "run.h"

#include <arpa/inet.h>
#include <ftccl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

extern char **environ;

enum {
    RANK,
    WORLD_SIZE,
    LOCAL_RANK,
    LOCAL_WORLD_SIZE,
    UNIQUE_ID,
    RESTART,
    RUN_START,
    STANDBY, /* from here on: not always set */
    MASTER_ADDR,
    MASTER_PORT,
    NAMES
};
static const char *const names[NAMES] = {
    "RANK",          "WORLD_SIZE",      "LOCAL_RANK",    "LOCAL_WORLD_SIZE", "FTCCL_UNIQUE_ID",
    "FTCCL_RESTART", "FTCCL_RUN_START", "FTCCL_STANDBY", "MASTER_ADDR",      "MASTER_PORT"};

static char *assign(const char *name, const char *value)
{
    size_t len = strlen(name) + strlen(value) + 2;
    char *text = malloc(len);
    if (!text)
        run_die("out of memory");
    snprintf(text, len, "%s=%s", name, value);
    return text;
}

static char *assign_int(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    return assign(name, text);
}

static char *copy(const char *var)
{
    char *text = strdup(var);
    if (!text)
        run_die("out of memory");
    return text;
}

/* True if one of the first n variables has the name of var. */
static bool is_set(char *const *vars, size_t n, const char *var)
{
    size_t len = strcspn(var, "=") + 1;
    for (size_t i = 0; i < n; i++)
        if (!strncmp(vars[i], var, len))
            return true;
    return false;
}

static void unique_id_hex(char hex[2 * FTCCL_UNIQUE_ID_BYTES + 1])
{
    ftcclUniqueId id;
    ftcclResult_t result = ftcclGetUniqueId(&id);
    if (result != ftcclSuccess)
        run_die("cannot serve a rendezvous: %s: %s", ftcclGetErrorString(result),
                ftcclGetLastError(NULL));
    for (int i = 0; i < FTCCL_UNIQUE_ID_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", (unsigned)(unsigned char)id.internal[i]);
}

/* Binds a port of the loopback interface that a later listener with SO_REUSEADDR can bind too. 0:
 * none. */
static int hold_port(struct run_env *env)
{
    struct sockaddr_in addr = {.sin_family = AF_INET,
                               .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof addr;
    int one = 1;
    env->port_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (env->port_fd < 0 || setsockopt(env->port_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
        bind(env->port_fd, (struct sockaddr *)&addr, sizeof addr) ||
        getsockname(env->port_fd, (struct sockaddr *)&addr, &len))
        return 0;
    return ntohs(addr.sin_port);
}

/* The variables that differ between processes, or that all of them get from here. */
static void set_own(char **vars, const struct run_options *opt, int rank)
{
    vars[RANK] = assign_int(names[RANK], rank);
    vars[WORLD_SIZE] = assign_int(names[WORLD_SIZE], opt->nranks);
    vars[LOCAL_RANK] = assign_int(names[LOCAL_RANK], rank);
    vars[LOCAL_WORLD_SIZE] = assign_int(names[LOCAL_WORLD_SIZE], opt->nranks);
    vars[RESTART] = assign_int(names[RESTART], 0);
}

void run_env_make(struct run_env *env, const struct run_options *opt, uint64_t start_ns)
{
    char start[24];
    snprintf(start, sizeof start, "%llu", (unsigned long long)start_ns);
    char hex[2 * FTCCL_UNIQUE_ID_BYTES + 1];
    unique_id_hex(hex);
    run_coordinator_start(opt->nstandbys > 0);
    env->nprocesses = opt->nranks + opt->nstandbys;
    env->has_standbys = opt->nstandbys > 0;
    env->port_fd = -1;
    bool master = !getenv("MASTER_ADDR") || !getenv("MASTER_PORT");
    int port = master ? hold_port(env) : 0;
    size_t nvars = 0;
    while (environ[nvars])
        nvars++;
    env->vars = calloc((size_t)env->nprocesses, sizeof *env->vars);
    for (int rank = 0; env->vars && rank < env->nprocesses; rank++) {
        char **vars = env->vars[rank] = calloc(nvars + NAMES + 1, sizeof *vars);
        if (!vars)
            break;
        set_own(vars, opt, rank);
        vars[UNIQUE_ID] = assign(names[UNIQUE_ID], hex);
        vars[RUN_START] = assign(names[RUN_START], start);
        size_t n = STANDBY;
        if (env->has_standbys)
            vars[n++] = assign_int(names[STANDBY], rank >= opt->nranks);
        if (master) {
            vars[n++] = assign(names[MASTER_ADDR], "127.0.0.1");
            vars[n++] = assign_int(names[MASTER_PORT], port);
        }
        size_t nown = n;
        for (size_t i = 0; i < nvars; i++)
            if (!is_set(vars, nown, environ[i]))
                vars[n++] = copy(environ[i]);
    }
    if (!env->vars || !env->vars[env->nprocesses - 1])
        run_die("out of memory");
}

void run_env_set_restart(struct run_env *env, int rank, int count)
{
    char **vars = env->vars[rank];
    free(vars[RESTART]);
    vars[RESTART] = assign_int(names[RESTART], count);
    if (env->has_standbys) {
        free(vars[STANDBY]);
        vars[STANDBY] = assign_int(names[STANDBY], 1);
    }
}

void run_env_free(struct run_env *env)
{
    for (int rank = 0; rank < env->nprocesses; rank++) {
        for (char **var = env->vars[rank]; *var; var++)
            free(*var);
        free(env->vars[rank]);
    }
    free(env->vars);
    if (env->port_fd >= 0)
        close(env->port_fd);
}
