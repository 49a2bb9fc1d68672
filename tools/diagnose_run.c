/*
 * Runs programs in bounded time and with bounded output. Each is in a process group of its own,
 * which ends with it. A program that is late is asked to end (SIGTERM: gdb lets go of the process
 * that it looks at) and then killed.
 */
#include "diagnose_stacks.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GRACE_NS 500000000u /* from SIGTERM to SIGKILL */
#define TURN_MS 10          /* between looks whether a program has ended */
#define MOST_AT_ONCE 4

uint64_t run_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

bool run_find(const char *name, char *path, size_t size)
{
    const char *list = getenv("PATH");
    struct stat st;
    while (list && *list) {
        size_t len = strcspn(list, ":");
        int n = snprintf(path, size, "%.*s/%s", (int)ft_min(len, PATH_MAX), list, name);
        if (*list == '/' && n > 0 && (size_t)n < size && stat(path, &st) == 0 &&
            S_ISREG(st.st_mode) && access(path, X_OK) == 0)
            return true;
        list += len + (list[len] == ':');
    }
    return false;
}

/* ---- the child ------------------------------------------------------------------------------- */

static void close_others(void)
{
#ifdef SYS_close_range
    if (syscall(SYS_close_range, 3u, ~0u, 0u) == 0)
        return;
#endif
    long most = sysconf(_SC_OPEN_MAX);
    for (int fd = 3; fd < (most > 0 ? most : 1024) && fd < 65536; fd++)
        close(fd);
}

static void become(const struct run *run, int out, pid_t parent)
{
    static char path[PATH_MAX + 8];
    const char *list = getenv("PATH");
    snprintf(path, sizeof path, "PATH=%s", list ? list : "/usr/bin:/bin");
    char *env[] = {path, (char *)"LC_ALL=C", (char *)"TERM=dumb", NULL};
    sigset_t none;
    sigemptyset(&none);
    int null = open("/dev/null", O_RDWR);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent || null < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 ||
        dup2(out, 2) < 0)
        _exit(127);
    close_others();
    sigprocmask(SIG_SETMASK, &none, NULL);
    execve(run->argv[0], (char *const *)(uintptr_t)run->argv, env);
    _exit(127);
}

static void start(struct run *run, double each_s)
{
    int fds[2];
    pid_t parent = getpid();
    run->end = RUN_FAILED;
    run->text = calloc(1, RUN_BYTES + 1);
    if (!run->text || pipe2(fds, O_CLOEXEC) != 0)
        return;
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    run->pid = fork();
    if (run->pid == 0)
        become(run, fds[1], parent);
    close(fds[1]);
    run->fd = fds[0];
    if (run->pid < 0) {
        close(run->fd);
        return;
    }
    setpgid(run->pid, run->pid);
    run->end = RUN_RUNS;
    run->late_ns = run_now_ns() + (uint64_t)(each_s * 1e9);
    run->kill_ns = 0;
}

/* ---- its parent ------------------------------------------------------------------------------ */

static void take(struct run *run)
{
    while (run->fd >= 0) {
        ssize_t n = read(run->fd, run->text + run->len, RUN_BYTES - run->len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN && run->len < RUN_BYTES)
            return;
        if (n > 0 && (run->len += (size_t)n) < RUN_BYTES)
            continue;
        close(run->fd); /* at its end, or it has written too much */
        run->fd = -1;
    }
}

/* SIGTERM, later SIGKILL. Returns true when a killed program has not gone for long: it is left. */
static bool press(struct run *run, enum run_end why)
{
    uint64_t now = run_now_ns();
    if (!run->kill_ns) {
        run->kill_ns = now + GRACE_NS;
        run->end = why;
        kill(-run->pid, SIGTERM);
    } else if (now >= run->kill_ns) {
        kill(-run->pid, SIGKILL);
    }
    return now >= run->kill_ns + 2 * GRACE_NS;
}

/* Returns true when the program has ended. */
static bool turn(struct run *run, bool no_more)
{
    siginfo_t info = {0};
    take(run);
    if (waitid(P_PID, (id_t)run->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid) {
        kill(-run->pid, SIGKILL); /* what it has started */
        take(run);
        waitpid(run->pid, &run->status, 0);
    } else if (run->len == RUN_BYTES || no_more || run_now_ns() >= run->late_ns) {
        if (!press(run, run->end != RUN_RUNS    ? run->end
                        : run->len == RUN_BYTES ? RUN_FLOODED
                                                : RUN_LATE))
            return false;
    } else {
        return false;
    }
    if (run->end == RUN_RUNS)
        run->end = run->len == RUN_BYTES ? RUN_FLOODED : RUN_ENDED;
    if (run->fd >= 0)
        close(run->fd);
    run->fd = -1;
    return true;
}

static void wait_a_turn(struct run *const *active, int n)
{
    struct pollfd fds[MOST_AT_ONCE];
    for (int i = 0; i < n; i++)
        fds[i] = (struct pollfd){.fd = active[i]->fd, .events = POLLIN};
    poll(fds, (nfds_t)n, TURN_MS);
}

static bool is_pending(const sigset_t *set)
{
    sigset_t pending;
    sigpending(&pending);
    for (int i = 1; i < 32; i++)
        if (sigismember(set, i) == 1 && sigismember(&pending, i) == 1)
            return true;
    return false;
}

static void finish(struct run *run, run_ended *ended, void *arg)
{
    ended(run, arg);
    free(run->text);
    run->text = NULL;
}

static void run_until(struct run *runs, int n, const struct run_limits *limits, run_ended *ended,
                      void *arg, const sigset_t *ending)
{
    struct run *active[MOST_AT_ONCE];
    int nactive = 0, next = 0;
    for (bool no_more = false; nactive || (next < n && !no_more);) {
        no_more = no_more || run_now_ns() >= limits->end_ns || is_pending(ending);
        while (next < n && nactive < MOST_AT_ONCE && !no_more) {
            struct run *run = &runs[next++];
            start(run, limits->each_s);
            if (run->end == RUN_RUNS)
                active[nactive++] = run;
            else
                finish(run, ended, arg);
        }
        wait_a_turn(active, nactive);
        for (int i = 0; i < nactive; i++)
            if (turn(active[i], no_more)) {
                finish(active[i], ended, arg);
                active[i--] = active[--nactive];
            }
    }
    for (; next < n; next++)
        finish(&runs[next], ended, arg);
}

void run_all(struct run *runs, int n, const struct run_limits *limits, run_ended *ended, void *arg)
{
    sigset_t ending, before;
    sigemptyset(&ending);
    sigaddset(&ending, SIGINT);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &ending, &before);
    run_until(runs, n, limits, ended, arg, &ending);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
