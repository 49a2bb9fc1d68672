/*
 * Keeps a snapshot of this host's ranks when an operation was late (FTCCL_DUMP_DIR). Of the ranks
 * of a host that notice it one does it, in a thread of its own: a slow or hanging disk does not
 * stop the engine.
 */
#include "telemetry.h"

#include "format.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_DUMPS 4 /* of a process */

struct dump {
    int rank;
    char path[PATH_MAX];
};

/* The empty directory is the claim: whoever makes it writes. */
static void *write_dump(void *arg)
{
    struct dump *dump = arg;
    if (mkdir(dump->path, 0700) != 0) {
        if (errno == EEXIST)
            FT_LOG(INFO, "telemetry", dump->rank, "another rank keeps the dump %s", dump->path);
        else
            FT_LOG(WARN, "telemetry", dump->rank, "cannot make the dump %s: %s", dump->path,
                   strerror(errno));
    } else if (ft_snapshot_save(FT_TM_DIR, dump->path) != FT_OK) {
        FT_LOG(WARN, "telemetry", dump->rank, "no dump: %s", ft_fail_text());
        rmdir(dump->path);
    } else {
        FT_LOG(WARN, "telemetry", dump->rank,
               "an operation was late: ftccl-diagnose --replay %s tells about the ranks of this "
               "host at that time",
               dump->path);
    }
    free(dump);
    return NULL;
}

/* The user's signal handlers must not run on the thread. */
static int start(struct dump *dump)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, old;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int err = pthread_create(&thread, &attr, write_dump, dump);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return err;
}

void ft_telemetry_dump(const struct ft_telemetry *t, uint64_t ctx, int rank)
{
    static atomic_int dumps;
    char host[65] = "";
    const char *dir = ft_param_str(FT_PARAM_DUMP_DIR);
    if (!t || !*dir || atomic_fetch_add(&dumps, 1) >= MOST_DUMPS)
        return;
    struct dump *dump = malloc(sizeof *dump);
    if (!dump)
        return;
    gethostname(host, sizeof host - 1);
    dump->rank = rank;
    int len = snprintf(dump->path, sizeof dump->path, "%s/ftccl-%s-%016" PRIx64, dir, host, ctx);
    int err = len >= (int)sizeof dump->path ? ENAMETOOLONG : start(dump);
    if (err == 0)
        return;
    FT_LOG(WARN, "telemetry", rank, "no dump in %s: %s", dir, strerror(err));
    free(dump);
}
