/*
 * Telemetry files as files: creates and removes this process's files, and removes files of
 * processes that are gone. A killed rank leaves its file for the reader. The next rank on this
 * machine that opens a file marks it, and a later one removes it.
 */
#include "writer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define GRACE_S 60
#define KEEP_DEAD 32 /* bounds the space that crashed jobs occupy: 29 MiB */
#define NAME_TRIES 4096

bool ft_tm_name_parse(const char *name, struct ft_tm_name *out)
{
    int end = 0;
    if (strlen(name) > 48)
        return false;
    if (sscanf(name, "ftccl-%9u-%9d-%9u%n", &out->uid, &out->pid, &out->n, &end) != 3)
        return false;
    char again[64];
    snprintf(again, sizeof again, "ftccl-%u-%d-%u", out->uid, out->pid, out->n);
    /* this comparison refuses signs, spaces and leading zeros */
    return !strcmp(again, name) && out->pid > 0;
}

static bool read_stat(const char *path, char *state, uint64_t *start)
{
    char text[1024];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t len = read(fd, text, sizeof text - 1);
    close(fd);
    if (len <= 0)
        return false;
    text[len] = '\0';
    char *p = strrchr(text, ')'); /* the program's name may contain any character */
    if (!p || p[1] != ' ' || !p[2])
        return false;
    *state = p[2];
    p += 2;
    for (int field = 3; field < 22; field++) {
        p = strchr(p, ' ');
        if (!p)
            return false;
        p++;
    }
    *start = strtoull(p, NULL, 10);
    return true;
}

bool ft_tm_process(int pid, char *state, uint64_t *start)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    return read_stat(path, state, start);
}

bool ft_tm_thread_state(int pid, int tid, char *state, uint64_t *start)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, tid);
    return read_stat(path, state, start);
}

uint64_t ft_tm_pid_ns(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

uint64_t ft_tm_real_ns(void)
{
    struct timespec real;
    clock_gettime(CLOCK_REALTIME, &real);
    return (uint64_t)real.tv_sec * 1000000000u + (uint64_t)real.tv_nsec;
}

/* ---- removing old files ---------------------------------------------------------------------- */

/* Returns true if the owner is certainly gone. A file of another pid namespace (a container that
 * shares /dev/shm) cannot be judged from here. All versions have the owner at the same place. A
 * file without a header belongs to a process that died while it created the file, or that creates
 * it now. */
static bool owner_gone(int fd, int pid)
{
    struct ft_tm_header header;
    char state = '?';
    uint64_t start = 0;
    bool runs = ft_tm_process(pid, &state, &start);
    bool whole = pread(fd, &header, sizeof header, 0) == (ssize_t)sizeof header &&
                 !memcmp(header.magic, FT_TM_MAGIC, 8);
    if (!whole)
        return !runs && kill(pid, 0) < 0 && errno == ESRCH;
    uint64_t ns = ft_tm_pid_ns();
    if (ns == 0 || header.pid_ns != ns)
        return false;
    if (!runs)
        return kill(pid, 0) < 0 && errno == ESRCH;
    return state == 'Z' || state == 'X' || start != header.pid_start;
}

/* Marks the file of a dead process, or removes it. Returns 1 if it was removed. */
static int clean_one(int dir, const char *name, int pid, int grace_s, int *dead)
{
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return 0;
    struct stat st;
    int removed = 0;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
        owner_gone(fd, pid)) {
        bool marked = (st.st_mode & 0200) == 0;
        if (!marked) {
            futimens(fd, NULL);
            fchmod(fd, 0400);
        }
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        bool old = marked && now.tv_sec - st.st_mtim.tv_sec >= grace_s;
        if (old || grace_s <= 0 || ++*dead > KEEP_DEAD)
            removed = unlinkat(dir, name, 0) == 0;
    }
    close(fd);
    return removed;
}

int ft_tm_clean(const char *dir, int grace_s)
{
    DIR *list = opendir(dir);
    if (!list)
        return 0;
    int removed = 0, dead = 0;
    for (struct dirent *entry; (entry = readdir(list));) {
        struct ft_tm_name name;
        if (ft_tm_name_parse(entry->d_name, &name) && name.uid == geteuid())
            removed += clean_one(dirfd(list), entry->d_name, name.pid, grace_s, &dead);
    }
    closedir(list);
    return removed;
}

/* ---- creating a file ------------------------------------------------------------------------- */

static int create_file(const char *dir, char *path, size_t len)
{
    static unsigned next; /* atomic; no number is used twice within the process */
    for (int try = 0; try < NAME_TRIES; try++) {
        unsigned n = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
        snprintf(path, len, "%s/ftccl-%u-%d-%u", dir, (unsigned)geteuid(), (int)getpid(),
                 n % 1000000000u);
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

/* Creates, allocates and maps the file. Returns 0 or an errno. */
static int make_file(struct ft_telemetry *t, const char *dir)
{
    int fd = ft_fd_own(create_file(dir, t->path, sizeof t->path));
    if (fd < 0)
        return errno;
    void *map = NULL;
    int err = fchmod(fd, 0600) < 0 ? errno : 0; /* independent of the umask */
    while (err == 0 && fallocate(fd, 0, 0, (off_t)FT_TM_BYTES) < 0 && (err = errno) == EINTR)
        err = 0;
    if (err == 0 && ft_map_shared(fd, FT_TM_BYTES, &map) != FT_OK)
        err = ENOMEM;
    if (err)
        unlink(t->path);
    ft_fd_close(&fd);
    t->file = map;
    return err;
}

/* Tables that were added later. */
static void write_more_tables(struct ft_tm_header *h)
{
    h->path_offset = offsetof(struct ft_tm_file, path);
    h->path_rows = FT_TM_PATHS;
    h->path_row_bytes = sizeof(struct ft_tm_path);
    h->latency_offset = offsetof(struct ft_tm_file, latency);
    h->latency_rows = FT_TM_LATENCIES;
    h->latency_row_bytes = sizeof(struct ft_tm_latency);
    h->clock_offset = offsetof(struct ft_tm_file, clock);
    h->clock_rows = FT_TM_CLOCKS;
    h->clock_row_bytes = sizeof(struct ft_tm_clock);
    h->thread_offset = offsetof(struct ft_tm_file, thread);
    h->thread_rows = FT_TM_THREADS;
    h->thread_row_bytes = sizeof(struct ft_tm_thread);
    h->conn_offset = offsetof(struct ft_tm_file, conn);
    h->conn_rows = FT_TM_CONNS;
    h->conn_row_bytes = sizeof(struct ft_tm_conn);
}

static void write_layout(struct ft_tm_header *h)
{
    h->version = FT_TM_VERSION;
    h->order = FT_TM_ORDER;
    h->header_bytes = sizeof *h;
    h->file_bytes = FT_TM_BYTES;
    h->comm_offset = offsetof(struct ft_tm_file, comm);
    h->comm_rows = FT_TM_COMMS;
    h->comm_row_bytes = sizeof(struct ft_tm_comm);
    h->op_offset = offsetof(struct ft_tm_file, op);
    h->op_rows = FT_TM_OPS;
    h->op_row_bytes = sizeof(struct ft_tm_op);
    h->link_offset = offsetof(struct ft_tm_file, link);
    h->link_rows = FT_TM_LINKS;
    h->link_row_bytes = sizeof(struct ft_tm_link);
    h->event_offset = offsetof(struct ft_tm_file, event);
    h->event_rows = FT_TM_EVENTS;
    h->event_row_bytes = sizeof(struct ft_tm_event);
    h->seat_offset = offsetof(struct ft_tm_file, seat);
    h->seat_rows = FT_TM_SEATS;
    h->seat_row_bytes = sizeof(struct ft_tm_seat);
    write_more_tables(h);
}

static void write_header(struct ft_telemetry *t, struct ft_env *env, uint64_t engine, uint64_t host)
{
    struct ft_tm_header *h = &t->file->header;
    char state;
    write_layout(h);
    h->pid = (uint32_t)getpid();
    if (!ft_tm_process((int)h->pid, &state, &h->pid_start))
        h->pid_start = 0;
    h->pid_ns = ft_tm_pid_ns();
    h->engine = engine;
    h->host = host;
    h->opened_ns = ft_now_ns(env);
    h->opened_real_ns = ft_tm_real_ns();
    gethostname(h->hostname, sizeof h->hostname - 1);
    strncpy(h->program, program_invocation_short_name, sizeof h->program - 1);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    /* written last: a file that has its magic has a complete header */
    memcpy(h->magic, FT_TM_MAGIC, sizeof h->magic);
}

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ft_telemetry *open_here;

struct ft_telemetry *ft_telemetry_open_in(const char *dir, struct ft_env *env, uint64_t engine,
                                          uint64_t host)
{
    struct ft_telemetry *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    ft_tm_clean(dir, GRACE_S);
    int err = make_file(t, dir);
    if ((err == ENOSPC || err == ENOMEM) && ft_tm_clean(dir, 0) > 0)
        err = make_file(t, dir);
    if (err) {
        FT_LOG(WARN, "telemetry", -1,
               "no records of this rank: cannot make a file of %zu bytes in %s: %s", FT_TM_BYTES,
               dir, strerror(err));
        free(t);
        return NULL;
    }
    t->env = env;
    t->pid = getpid();
    write_header(t, env, engine, host);
    pthread_mutex_lock(&open_lock);
    t->others = open_here;
    open_here = t;
    pthread_mutex_unlock(&open_lock);
    return t;
}

/* A process that exits without closing leaves no file. A process that is killed leaves its file for
 * the reader. */
__attribute__((destructor)) static void unlink_at_exit(void)
{
    /* a child of fork owns none of these files, and the lock has the state that it had at the
     * fork */
    if (ft_forked())
        return;
    pthread_mutex_lock(&open_lock);
    for (struct ft_telemetry *t = open_here; t; t = t->others)
        if (t->pid == getpid())
            unlink(t->path);
    pthread_mutex_unlock(&open_lock);
}

struct ft_telemetry *ft_telemetry_open(struct ft_env *env, uint64_t engine, uint64_t host)
{
    if (!ft_param_int(FT_PARAM_TELEMETRY))
        return NULL;
    return ft_telemetry_open_in(FT_TM_DIR, env, engine, host);
}

const char *ft_telemetry_path(const struct ft_telemetry *t)
{
    return t->path;
}

void ft_telemetry_close(struct ft_telemetry *t)
{
    if (!t)
        return;
    pthread_mutex_lock(&open_lock);
    struct ft_telemetry **at = &open_here;
    while (*at && *at != t)
        at = &(*at)->others;
    if (*at)
        *at = t->others;
    pthread_mutex_unlock(&open_lock);
    if (t->pid == getpid()) { /* a child of fork owns neither the file nor the mapping */
        unlink(t->path);
        ft_unmap(t->file, FT_TM_BYTES);
    }
    free(t);
}
