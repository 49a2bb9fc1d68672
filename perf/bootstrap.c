/*
 * How all processes get the unique id. With ftccl-run: from FTCCL_UNIQUE_ID, if it is the library's
 * own. Across machines: every process makes it from FTCCL_COMM_ID and the secret. On one machine:
 * rank 0 writes it to a private file that is named after the launcher's process, the ancestor of
 * all ranks. The file contains its writer's process number and start time, so that a file of a dead
 * job is detected.
 */
#include "perf.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define WAIT_S 60
#define HEX_BYTES (2 * CCL_UNIQUE_ID_BYTES)

static char path[PATH_MAX]; /* the file that rank 0 wrote, to be removed; "" if none */

static void to_hex(const CCL(UniqueId) * id, char hex[HEX_BYTES + 1])
{
    for (int i = 0; i < CCL_UNIQUE_ID_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", (unsigned)(unsigned char)id->internal[i]);
}

static int from_hex(const char *hex, CCL(UniqueId) * id)
{
    if (strlen(hex) != HEX_BYTES || strspn(hex, "0123456789abcdefABCDEF") != HEX_BYTES)
        return -1;
    for (int i = 0; i < CCL_UNIQUE_ID_BYTES; i++) {
        char byte[3] = {hex[2 * i], hex[2 * i + 1], 0};
        id->internal[i] = (char)strtoul(byte, NULL, 16);
    }
    return 0;
}

static int make(CCL(UniqueId) * id)
{
    CCL(Result_t) result = CCL(GetUniqueId)(id);
    if (result == CCL(Success))
        return 0;
    fprintf(stderr, "cannot make a unique id: %s: %s\n", CCL(GetErrorString)(result),
            CCL(GetLastError)(NULL));
    return -1;
}

/* ---- processes ------------------------------------------------------------------------------- */

struct process {
    int pid, parent;
    unsigned long long start;
    char name[32];
};

static int process_read(int pid, struct process *p)
{
    char file[64], text[1024];
    snprintf(file, sizeof file, "/proc/%d/stat", pid);
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return -1;
    text[n] = '\0';
    char *open_paren = strchr(text, '('), *close_paren = strrchr(text, ')');
    if (!open_paren || !close_paren)
        return -1;
    *close_paren = '\0';
    snprintf(p->name, sizeof p->name, "%s", open_paren + 1);
    p->pid = pid;
    /* Field 4 is the parent, 22 the start time; the first after the name is 3. */
    return sscanf(close_paren + 2,
                  "%*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                  &p->parent, &p->start) == 2
               ? 0
               : -1;
}

/* Finds a known launcher among our ancestors (a shell may be in between), or else uses our
 * parent. */
static int launcher_find(struct process *p)
{
    static const char *const names[] = {"hydra_pmi_proxy", "slurmstepd", "orted",  "prted",
                                        "mpirun",          "mpiexec",    "orterun"};
    int pid = getppid();
    for (int depth = 0; depth < 16 && pid > 1 && process_read(pid, p) == 0;
         depth++, pid = p->parent)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (!strncmp(p->name, names[i], strlen(names[i])))
                return 0; /* "mpirun.openmpi" too */
    return process_read(getppid(), p);
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Makes a directory that only this user can access. */
static int directory(char *dir, size_t len)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    struct stat st;
    if (runtime && *runtime == '/' && !access(runtime, W_OK))
        snprintf(dir, len, "%s/ftccl", runtime);
    else
        snprintf(dir, len, "/tmp/ftccl-%u", (unsigned)getuid());
    if (mkdir(dir, 0700) && errno != EEXIST) {
        fprintf(stderr, "cannot make %s: %s\n", dir, strerror(errno));
        return -1;
    }
    if (lstat(dir, &st) || !S_ISDIR(st.st_mode) || st.st_uid != getuid() || (st.st_mode & 077)) {
        fprintf(stderr, "%s is not a directory of this user alone (mode 0700)\n", dir);
        return -1;
    }
    return 0;
}

static int write_file(const char *name, const CCL(UniqueId) * id)
{
    char hex[HEX_BYTES + 1], temp[PATH_MAX + 16];
    struct process self;
    if (process_read(getpid(), &self))
        return -1;
    to_hex(id, hex);
    snprintf(temp, sizeof temp, "%s.%d", name, getpid());
    unlink(temp); /* a file of a dead process that had our number */
    int fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && dprintf(fd, "%d %llu %s\n", self.pid, self.start, hex) > 0;
    if (fd >= 0 && close(fd))
        ok = false;
    if (ok && !rename(temp, name)) {
        snprintf(path, sizeof path, "%s", name);
        return 0;
    }
    fprintf(stderr, "cannot write %s: %s\n", temp, strerror(errno));
    unlink(temp);
    return -1;
}

/* Returns 0 if it was read, and 1 if it does not exist or belongs to a job that is gone. */
static int read_file(const char *name, CCL(UniqueId) * id)
{
    char text[HEX_BYTES + 64], hex[HEX_BYTES + 1];
    struct process writer;
    struct stat st;
    int pid;
    unsigned long long start;
    int fd = open(name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return 1;
    ssize_t n = fstat(fd, &st) || st.st_uid != getuid() || (st.st_mode & 077)
                    ? -1
                    : read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 1;
    text[n] = '\0';
    _Static_assert(HEX_BYTES == 256, "the width below");
    if (sscanf(text, "%d %llu %256s", &pid, &start, hex) != 3 || from_hex(hex, id))
        return 1;
    return process_read(pid, &writer) == 0 && writer.start == start ? 0 : 1;
}

static int by_file(const struct perf_launch *l, CCL(UniqueId) * id)
{
    char dir[PATH_MAX / 2], name[PATH_MAX];
    struct process launcher;
    if (directory(dir, sizeof dir) || launcher_find(&launcher))
        return -1;
    snprintf(name, sizeof name, "%s/%d-%llu", dir, launcher.pid, launcher.start);
    if (l->proc == 0)
        return make(id) || write_file(name, id) ? -1 : 0;
    for (int tries = 0; tries < WAIT_S * 100; tries++) {
        if (read_file(name, id) == 0)
            return 0;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    fprintf(stderr, "rank 0 left no unique id in %s within %d s\n", name, WAIT_S);
    return -1;
}

/* ---- the three methods ----------------------------------------------------------------------- */

/* torchrun's store uses MASTER_PORT; this uses another port that is derived from it. */
static bool torchrun_address(const struct perf_launch *l)
{
    const char *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    if (strcmp(l->how, "torchrun") || !host || !port || l->local_procs == l->nprocs)
        return false;
    if (!getenv("FTCCL_SECRET") && !getenv("FTCCL_SECRET_FILE"))
        return false;
    int p = atoi(port);
    if (p <= 0 || p > 65535)
        return false;
    char address[512];
    snprintf(address, sizeof address, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host,
             p > 60000 ? p - 1713 : p + 1713);
    return setenv("FTCCL_COMM_ID", address, 1) == 0;
}

int perf_bootstrap_id(const struct perf_launch *l, CCL(UniqueId) * id)
{
    const char *hex = getenv("FTCCL_UNIQUE_ID");
    if (l->nprocs == 1)
        return make(id);
    if (CCL_TAKES_RUNS_ID && !strcmp(l->how, "ftccl-run")) {
        if (!from_hex(hex, id))
            return 0;
        fprintf(stderr, "FTCCL_UNIQUE_ID is not an id in hex\n");
        return -1;
    }
    if (getenv("FTCCL_COMM_ID") || getenv("NCCL_COMM_ID") || torchrun_address(l))
        return make(id);
    if (l->local_procs && l->local_procs != l->nprocs) {
        fprintf(stderr,
                "%s started ranks on several machines: set FTCCL_COMM_ID=HOST:PORT and "
                "FTCCL_SECRET for all of them\n",
                l->how);
        return -1;
    }
    return by_file(l, id);
}

void perf_bootstrap_done(void)
{
    if (*path)
        unlink(path);
    *path = '\0';
}
