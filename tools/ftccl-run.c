/*
 * ftccl-run: starts N ranks of a program on this machine, kills or stops some of them at given
 * times, and exits with the first status that is not zero. Standbys are processes like the ranks;
 * here "rank" means both, and the standbys have the last numbers. Its own thread has one poll loop
 * over a signalfd, the pipes of -l and the next planned event; the rendezvous and the coordinator
 * have threads of their own. Every rank leads a process group of its own. A rank that has ended is
 * not reaped until its group has been killed. So a signal to the group can never reach another
 * process that got the same number.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "run.h"
#include "streams.h"

#define LINE_BYTES 8192 /* with -l, longer lines are printed in pieces */
#define RESTARTS_MAX 10
/* ftccl-run stops waiting for a rank that has not ended this long after SIGKILL */
#define FINISH_NS 5000000000ull
/* and for standbys when nobody has had a role for so long, in which one that was started again may
 * have got one */
#define IDLE_NS 30000000000ull
#define LOOK_MS 1000 /* how often it looks then */

struct pipe_end {
    int fd, to;  /* -1: closed; STDOUT_FILENO or STDERR_FILENO */
    bool unread; /* the reader of `to` has gone */
    size_t len_bytes;
    char line[LINE_BYTES];
};

struct rank {
    pid_t pid;
    /* excused: ftccl-run has killed or stopped it, so its status does not count */
    bool started, ended, excused;
    bool stopped;
    int status, restarts;
    struct pipe_end *out, *err; /* with -l */
};

static struct run_options opt;
static struct rank *ranks; /* [nprocesses] */
static int nprocesses;
static struct run_env env;
static cpu_set_t *places; /* per rank, not for standbys; NULL: anywhere */
static uint64_t start_ns;
static int first_status;
static int nforwarded;
/* the output of some rank has no reader, and the rank may have ended for that reason */
static bool unread;
static sigset_t blocked, original;
static struct rlimit nofile;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void signal_rank(const struct rank *r, int sig)
{
    if (r->started)
        kill(-r->pid, sig);
}

/* ---- start ----------------------------------------------------------------------------------- */

/* Runs between fork and exec, so it makes only async-signal-safe calls. */
static void become_rank(int rank, pid_t parent, int out, int err)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    int null = open("/dev/null", O_RDONLY);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0)
        _exit(126);
    if (out >= 0 && (dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0))
        _exit(126);
    if (null > STDERR_FILENO)
        close(null);
    setrlimit(RLIMIT_NOFILE, &nofile);
    signal(SIGPIPE, SIG_DFL);
    if (places && rank < opt.nranks && sched_setaffinity(0, sizeof *places, &places[rank]))
        dprintf(STDERR_FILENO, "ftccl-run: cannot bind rank %d: %s\n", rank, strerror(errno));
    sigprocmask(SIG_SETMASK, &original, NULL);
    execvpe(opt.argv[0], opt.argv, env.vars[rank]);
    int code = errno == ENOENT ? 127 : 126;
    dprintf(STDERR_FILENO, "ftccl-run: cannot run %s: %s\n", opt.argv[0], strerror(errno));
    _exit(code);
}

static struct pipe_end *pipe_open(int *child_end, int to)
{
    int fds[2];
    struct pipe_end *end = malloc(sizeof *end);
    if (!end || pipe2(fds, O_CLOEXEC))
        run_die("cannot make a pipe: %s", strerror(errno));
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    *end = (struct pipe_end){.fd = fds[0], .to = to};
    *child_end = fds[1];
    return end;
}

static void start_rank(int i)
{
    struct rank *r = &ranks[i];
    int out = -1, err = -1;
    if (opt.label) {
        r->out = pipe_open(&out, STDOUT_FILENO);
        r->err = pipe_open(&err, STDERR_FILENO);
    }
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        become_rank(i, parent, out, err);
    if (pid < 0) {
        fprintf(stderr, "ftccl-run: cannot start rank %d: %s\n", i, strerror(errno));
        r->ended = true;
        r->status = 1;
        if (!first_status)
            first_status = 1;
    } else {
        setpgid(pid, pid); /* both parent and child do this, whichever runs first */
        r->pid = pid;
        r->started = true;
    }
    if (opt.label) {
        close(out);
        close(err);
    }
}

/* ---- output of -l ---------------------------------------------------------------------------- */

/* Returns 0 or an errno. */
static int put(int to, const char *data, size_t len_bytes)
{
    while (len_bytes > 0) {
        ssize_t n = write(to, data, len_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            struct pollfd p = {.fd = to, .events = POLLOUT};
            poll(&p, 1, -1);
            continue;
        }
        if (n < 0)
            return errno;
        data += n;
        len_bytes -= (size_t)n;
    }
    return 0;
}

/* If the reader has gone, the rank's pipe is closed: its next write ends it, as a write to the real
 * stdout would. If the disk is full, the ranks go on. */
static void cannot_write(struct pipe_end *end, int err)
{
    static bool told;
    end->unread = err == EPIPE;
    unread |= end->unread;
    if (!end->unread && !told)
        fprintf(stderr, "ftccl-run: cannot write what the ranks print: %s\n", strerror(err));
    told |= !end->unread;
    if (!first_status)
        first_status = end->unread ? 128 + SIGPIPE : 1;
}

static void put_line(int rank, struct pipe_end *end, size_t len_bytes)
{
    char labelled[LINE_BYTES + 32];
    if (end->unread)
        return;
    int n = snprintf(labelled, sizeof labelled, "[%d] ", rank);
    memcpy(labelled + n, end->line, len_bytes);
    labelled[(size_t)n + len_bytes] = '\n';
    int err = put(end->to, labelled, (size_t)n + len_bytes + 1);
    if (err)
        cannot_write(end, err);
}

static void pipe_close(int rank, struct pipe_end *end)
{
    if (end->len_bytes > 0)
        put_line(rank, end, end->len_bytes);
    end->len_bytes = 0;
    close(end->fd);
    end->fd = -1;
}

/* Prints the complete lines that have arrived. Closes the pipe at end of file. */
static void pipe_read(int rank, struct pipe_end *end)
{
    while (end->fd >= 0) {
        ssize_t n = read(end->fd, end->line + end->len_bytes, sizeof end->line - end->len_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            pipe_close(rank, end);
            return;
        }
        end->len_bytes += (size_t)n;
        char *newline;
        while ((newline = memchr(end->line, '\n', end->len_bytes))) {
            size_t len = (size_t)(newline - end->line);
            put_line(rank, end, len);
            end->len_bytes -= len + 1;
            memmove(end->line, newline + 1, end->len_bytes);
        }
        if (end->len_bytes == sizeof end->line) {
            put_line(rank, end, end->len_bytes);
            end->len_bytes = 0;
        }
        if (end->unread)
            pipe_close(rank, end);
    }
}

static void free_pipes(int rank)
{
    struct rank *r = &ranks[rank];
    struct pipe_end *ends[2] = {r->out, r->err};
    for (int i = 0; i < 2; i++) {
        if (!ends[i])
            continue;
        pipe_read(rank, ends[i]);
        if (ends[i]->fd >= 0)
            pipe_close(rank, ends[i]);
        free(ends[i]);
    }
    r->out = r->err = NULL;
}

/* ---- events ---------------------------------------------------------------------------------- */

/* Kills the rank's group, and then reaps the rank, whose process entry kept the group's number in
 * use. */
static void reap(int i)
{
    struct rank *r = &ranks[i];
    if (!r->started)
        return;
    signal_rank(r, SIGKILL);
    waitpid(r->pid, NULL, 0);
    r->started = false;
    free_pipes(i);
}

static void rank_ended(int i, const siginfo_t *info)
{
    struct rank *r = &ranks[i];
    bool by_signal = info->si_code != CLD_EXITED;
    if (by_signal && opt.restart && r->restarts < RESTARTS_MAX && !nforwarded && !unread) {
        reap(i);
        r->excused = r->stopped = false;
        run_env_set_restart(&env, i, ++r->restarts);
        start_rank(i);
        return;
    }
    r->ended = true;
    r->status = by_signal ? 128 + info->si_status : info->si_status;
    if (by_signal && !r->excused && !(unread && info->si_status == SIGPIPE))
        fprintf(stderr, "ftccl-run: rank %d was ended by signal %d (%s)\n", i, info->si_status,
                strsignal(info->si_status));
    if (!r->excused && r->status && !first_status)
        first_status = r->status;
}

static void look_for_ended(void)
{
    for (int i = 0; i < nprocesses; i++) {
        siginfo_t info = {0};
        if (ranks[i].ended || !ranks[i].started)
            continue;
        if (waitid(P_PID, (id_t)ranks[i].pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            info.si_pid)
            rank_ended(i, &info);
    }
}

static void take_signals(int sigfd)
{
    struct signalfd_siginfo info;
    while (read(sigfd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            continue;
        int sig = nforwarded++ ? SIGKILL : (int)info.ssi_signo; /* a second signal kills */
        for (int i = 0; i < nprocesses; i++) {
            signal_rank(&ranks[i], sig);
            signal_rank(&ranks[i], SIGCONT);
        }
    }
    look_for_ended();
}

/* Carries out the events that are due. Returns the time of the next event, or 0 if none is
 * planned. */
static uint64_t run_events(void)
{
    uint64_t next_ns = 0;
    look_for_ended(); /* a rank that ended by itself is not excused */
    for (int i = 0; i < opt.nevents; i++) {
        struct run_event *e = &opt.events[i];
        if (e->done)
            continue;
        uint64_t due_ns = start_ns + e->after_ns;
        if (due_ns > now_ns()) {
            if (!next_ns || due_ns < next_ns)
                next_ns = due_ns;
            continue;
        }
        e->done = true;
        struct rank *r = &ranks[e->rank];
        if (r->ended)
            continue;
        r->excused = true;
        fprintf(stderr, "ftccl-run: %.4f s: rank %d %s\n", (double)(now_ns() - start_ns) * 1e-9,
                e->rank, e->sig == SIGSTOP ? "stopped" : "killed");
        if (e->sig == SIGSTOP)
            r->stopped = true;
        signal_rank(r, e->sig);
    }
    return next_ns;
}

/* Every role has been held to the end. */
static bool all_done(void)
{
    int n = 0;
    for (int i = 0; i < nprocesses; i++)
        n += ranks[i].ended && !ranks[i].status;
    return n >= opt.nranks;
}

/* All who run were started as standbys; who among them has a role only the coordinator knows. */
static bool only_standbys(void)
{
    for (int i = 0; i < opt.nranks; i++)
        if (!ranks[i].ended && !ranks[i].stopped && ranks[i].restarts == 0)
            return false;
    return opt.nstandbys > 0;
}

/* The standbys wait for roles that nobody will leave to them: every rank has ended, and not all of
 * them well. */
static bool in_vain(void)
{
    static uint64_t since_ns; /* 0: not yet */
    if (!only_standbys() || run_coordinator_members() != 0) {
        since_ns = 0;
        return false;
    }
    if (!since_ns)
        since_ns = now_ns();
    if (now_ns() - since_ns < IDLE_NS)
        return false;
    fputs("ftccl-run: no rank runs any more, and no standby has got a role\n", stderr);
    if (!first_status)
        first_status = 1;
    return true;
}

/* Number of ranks that still run, without ranks that were stopped for good, which nothing will
 * wake, and without standbys that nobody needs any more. */
static int running(void)
{
    int n = 0;
    if (opt.nstandbys && (all_done() || in_vain()))
        return 0;
    for (int i = 0; i < nprocesses; i++)
        if (!ranks[i].ended && !ranks[i].stopped)
            n++;
    return n;
}

static void turn(struct pollfd *polls, int sigfd, int timeout_ms)
{
    nfds_t n = 0;
    polls[n++] = (struct pollfd){.fd = sigfd, .events = POLLIN};
    for (int i = 0; opt.label && i < nprocesses; i++) {
        polls[n++] = (struct pollfd){.fd = ranks[i].out ? ranks[i].out->fd : -1, .events = POLLIN};
        polls[n++] = (struct pollfd){.fd = ranks[i].err ? ranks[i].err->fd : -1, .events = POLLIN};
    }
    if (poll(polls, n, timeout_ms) < 0 && errno != EINTR)
        run_die("poll: %s", strerror(errno));
    for (nfds_t i = 1; i < n; i += 2) {
        int rank = (int)(i - 1) / 2;
        if (polls[i].revents)
            pipe_read(rank, ranks[rank].out);
        if (polls[i + 1].revents)
            pipe_read(rank, ranks[rank].err);
    }
    take_signals(sigfd); /* last, because a restart changes the pipes */
}

/* Ends stopped ranks and the processes that ranks left in their groups. */
static void finish(void)
{
    for (int i = 0; i < nprocesses; i++)
        signal_rank(&ranks[i], SIGKILL);
    uint64_t end_ns = now_ns() + FINISH_NS;
    for (int i = 0; i < nprocesses; i++) {
        siginfo_t info = {0};
        while (ranks[i].started && !ranks[i].ended && now_ns() < end_ns &&
               waitid(P_PID, (id_t)ranks[i].pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
               !info.si_pid)
            poll(NULL, 0, 1);
        if (ranks[i].ended || info.si_pid)
            reap(i);
        else if (ranks[i].started)
            fprintf(stderr, "ftccl-run: rank %d does not end\n", i);
    }
}

/* Raises the limit of descriptors for the pipes and for the coordinator's connections; ranks get
 * the old limit. */
static void raise_nofile(void)
{
    getrlimit(RLIMIT_NOFILE, &nofile);
    struct rlimit high = {.rlim_cur = nofile.rlim_max, .rlim_max = nofile.rlim_max};
    setrlimit(RLIMIT_NOFILE, &high);
}

int main(int argc, char **argv)
{
    streams_open("ftccl-run");
    run_parse(argc, argv, &opt);
    places = run_bind_plan(&opt);
    if (opt.report)
        run_bind_report(stderr, places, opt.nranks);
    if (!opt.argv[0]) {
        free(places);
        return 0;
    }
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGCHLD);
    sigaddset(&blocked, SIGINT);
    sigaddset(&blocked, SIGTERM);
    sigaddset(&blocked, SIGHUP);
    sigprocmask(SIG_BLOCK, &blocked, &original);
    signal(SIGPIPE, SIG_IGN);
    int sigfd = signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK);
    if (sigfd < 0)
        run_die("signalfd: %s", strerror(errno));
    raise_nofile();
    start_ns = now_ns();
    run_env_make(&env, &opt, start_ns);
    nprocesses = env.nprocesses;
    ranks = calloc((size_t)nprocesses, sizeof *ranks);
    struct pollfd *polls = calloc(1 + 2 * (size_t)nprocesses, sizeof *polls);
    if (!ranks || !polls)
        run_die("out of memory");

    for (int i = 0; i < nprocesses; i++)
        start_rank(i);
    while (running() > 0) {
        uint64_t next_ns = run_events(), now = now_ns();
        uint64_t wait_ms = next_ns > now ? (next_ns - now + 999999) / 1000000 : 0;
        int timeout_ms = next_ns ? (int)(wait_ms < INT_MAX ? wait_ms : INT_MAX) : -1;
        if (only_standbys() && (timeout_ms < 0 || timeout_ms > LOOK_MS))
            timeout_ms = LOOK_MS;
        turn(polls, sigfd, timeout_ms);
    }
    bool replaced = opt.nstandbys && all_done() && !unread;
    finish();
    run_coordinator_stop();
    free(polls);
    free(ranks);
    free(places);
    run_env_free(&env);
    return replaced ? 0 : first_status;
}
