/*
 * What /proc tells of processes and their threads. Processes may end while they are looked at; what
 * cannot be read is left out. Nothing here waits for the process: its memory, of which reading may
 * wait for a lock, is not looked at.
 */
#include "diagnose_stacks.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define THREADS_KEPT 64
#define THREADS_SEEN 4096

/* Reads a short file below /proc; "": it cannot be read. */
static void read_text(char *text, size_t size, const char *fmt, ...) FT_PRINTF(3, 4);
static void read_text(char *text, size_t size, const char *fmt, ...)
{
    char path[64];
    va_list args;
    va_start(args, fmt);
    vsnprintf(path, sizeof path, fmt, args);
    va_end(args);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, size - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
}

/* Copies a word without what is no plain text. */
static void copy_word(char *to, size_t size, const char *from, const char *end_at)
{
    snprintf(to, size, "%.*s", (int)ft_min(strcspn(from, end_at), size - 1), from);
    for (; *to; to++)
        if (*to < ' ' || *to > '~')
            *to = '?';
}

/* Behind the name in a stat file, which may have any characters; NULL: it is no stat file. */
static const char *behind_name(const char *stat)
{
    const char *end = strrchr(stat, ')');
    return end && end[1] == ' ' && end[2] ? end + 2 : NULL;
}

uint64_t proc_start(int pid, char *state)
{
    char text[512];
    read_text(text, sizeof text, "/proc/%d/stat", pid);
    const char *at = behind_name(text);
    if (!at)
        return 0;
    *state = *at;
    for (int i = 3; i < 22 && at; i++) {
        at = strchr(at, ' ');
        at = at ? at + 1 : NULL;
    }
    return at ? strtoull(at, NULL, 10) : 0;
}

/* ---- system calls ---------------------------------------------------------------------------- */

/* Those in which threads wait, and what their first argument is. */
enum first_argument { ANYTHING, DESCRIPTOR, PROCESS };
static const struct {
    long number;
    const char *name;
    enum first_argument first;
} calls[] = {
    {SYS_read, "read", DESCRIPTOR},
    {SYS_write, "write", DESCRIPTOR},
    {SYS_readv, "readv", DESCRIPTOR},
    {SYS_writev, "writev", DESCRIPTOR},
    {SYS_pread64, "pread64", DESCRIPTOR},
    {SYS_pwrite64, "pwrite64", DESCRIPTOR},
    {SYS_recvfrom, "recvfrom", DESCRIPTOR},
    {SYS_recvmsg, "recvmsg", DESCRIPTOR},
    {SYS_sendto, "sendto", DESCRIPTOR},
    {SYS_sendmsg, "sendmsg", DESCRIPTOR},
    {SYS_accept, "accept", DESCRIPTOR},
    {SYS_accept4, "accept4", DESCRIPTOR},
    {SYS_connect, "connect", DESCRIPTOR},
    {SYS_fsync, "fsync", DESCRIPTOR},
    {SYS_fdatasync, "fdatasync", DESCRIPTOR},
    {SYS_flock, "flock", DESCRIPTOR},
    {SYS_fcntl, "fcntl", DESCRIPTOR},
    {SYS_ioctl, "ioctl", DESCRIPTOR},
    {SYS_getdents64, "getdents64", DESCRIPTOR},
    {SYS_epoll_pwait, "epoll_pwait", ANYTHING},
    {SYS_ppoll, "ppoll", ANYTHING},
    {SYS_pselect6, "pselect6", ANYTHING},
    {SYS_futex, "futex", ANYTHING},
    {SYS_nanosleep, "nanosleep", ANYTHING},
    {SYS_clock_nanosleep, "clock_nanosleep", ANYTHING},
    {SYS_wait4, "wait4", PROCESS},
    {SYS_waitid, "waitid", ANYTHING},
    {SYS_sched_yield, "sched_yield", ANYTHING},
    {SYS_tgkill, "tgkill", ANYTHING},
    {SYS_openat, "openat", ANYTHING},
    {SYS_close, "close", ANYTHING},
    {SYS_rt_sigtimedwait, "rt_sigtimedwait", ANYTHING},
    {SYS_rt_sigsuspend, "rt_sigsuspend", ANYTHING},
    {SYS_io_getevents, "io_getevents", ANYTHING},
    {SYS_restart_syscall, "restart_syscall", ANYTHING},
    {SYS_munmap, "munmap", ANYTHING},
    {SYS_mmap, "mmap", ANYTHING},
#ifdef SYS_epoll_wait
    {SYS_epoll_wait, "epoll_wait", ANYTHING},
    {SYS_poll, "poll", ANYTHING},
    {SYS_select, "select", ANYTHING},
    {SYS_pause, "pause", ANYTHING},
#endif
};

/* "read of /tmp/fifo" */
static void add_descriptor(int pid, unsigned long number, char *call, size_t size)
{
    char path[64], name[PATH_MAX];
    if (number > INT_MAX)
        return;
    snprintf(path, sizeof path, "/proc/%d/fd/%lu", pid, number);
    ssize_t n = readlink(path, name, sizeof name - 1);
    name[n > 0 ? n : 0] = '\0';
    if (n > 0) {
        size_t at = strlen(call);
        snprintf(call + at, size - at, " of ");
        copy_word(call + at + 4, size - at - 4, name, "\n");
    }
}

static void name_call(int pid, const char *text, char *call, size_t size)
{
    char *end;
    long number = strtol(text, &end, 10);
    unsigned long first = strtoul(end, NULL, 16);
    *call = '\0';
    if (end == text || number < 0) /* "running", or it cannot be read */
        return;
    snprintf(call, size, "system call %ld", number);
    for (size_t i = 0; i < FT_ARRAY_LEN(calls); i++) {
        if (calls[i].number != number)
            continue;
        snprintf(call, size, "%s", calls[i].name);
        if (calls[i].first == DESCRIPTOR)
            add_descriptor(pid, first, call, size);
        else if (calls[i].first == PROCESS && (int)first > 0)
            snprintf(call, size, "%s for process %d", calls[i].name, (int)first);
    }
}

/* ---- threads --------------------------------------------------------------------------------- */

/* "pipe_read < vfs_read < ksys_read", of lines like "[<0>] pipe_read+0x17f/0x230". */
static void read_kernel(int pid, int tid, char *out, size_t size)
{
    char text[1024], word[64];
    read_text(text, sizeof text, "/proc/%d/task/%d/stack", pid, tid);
    *out = '\0';
    for (const char *at = strstr(text, "] "); at; at = strstr(at, "] ")) {
        at += 2;
        copy_word(word, sizeof word, at, "+ \n");
        size_t used = strlen(out);
        if (used + strlen(word) + 4 > size)
            return;
        snprintf(out + used, size - used, "%s%s", used ? " < " : "", word);
    }
}

bool proc_look_at_thread(int pid, int tid, struct ft_stack_thread *t)
{
    char text[512];
    *t = (struct ft_stack_thread){.tid = tid, .state = '?'};
    read_text(text, sizeof text, "/proc/%d/task/%d/stat", pid, tid);
    const char *state = behind_name(text);
    if (!state)
        return false;
    t->state = isalpha((unsigned char)*state) ? *state : '?';
    read_text(text, sizeof text, "/proc/%d/task/%d/comm", pid, tid);
    copy_word(t->name, sizeof t->name, text, "\n");
    read_text(text, sizeof text, "/proc/%d/task/%d/wchan", pid, tid);
    copy_word(t->where, sizeof t->where, strcmp(text, "0") == 0 ? "" : text, "\n");
    read_text(text, sizeof text, "/proc/%d/task/%d/syscall", pid, tid);
    name_call(pid, text, t->call, sizeof t->call);
    read_kernel(pid, tid, t->kernel, sizeof t->kernel);
    return true;
}

/* Adds a thread, the main one at the front. False: no memory. */
static bool add_thread(struct ft_stack_process *p, int tid)
{
    struct ft_stack_thread thread;
    if (!proc_look_at_thread(p->pid, tid, &thread))
        return true;
    if (p->nthreads == THREADS_KEPT) {
        p->threads_left_out++;
        return true;
    }
    struct ft_stack_thread *grown = realloc(p->threads, (size_t)(p->nthreads + 1) * sizeof *grown);
    if (!grown)
        return false;
    p->threads = grown;
    grown[p->nthreads++] = thread;
    return true;
}

bool proc_look(struct ft_stack_process *p)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", p->pid);
    DIR *list = opendir(path);
    bool good = list && add_thread(p, p->pid) && p->nthreads;
    int seen = 0;
    for (struct dirent *entry; good && (entry = readdir(list)) && seen < THREADS_SEEN; seen++) {
        int tid = atoi(entry->d_name);
        if (tid > 0 && tid != p->pid)
            good = add_thread(p, tid);
    }
    if (list)
        closedir(list);
    if (!good)
        return false;
    p->state = p->threads[0].state;
    memcpy(p->name, p->threads[0].name, sizeof p->name);
    return true;
}

int proc_tracer(int pid)
{
    char path[64], text[1024];
    int tracer = 0;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *list = opendir(path);
    struct dirent *entry;
    for (int seen = 0; list && !tracer && (entry = readdir(list)) && seen < THREADS_SEEN; seen++) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        read_text(text, sizeof text, "/proc/%d/task/%.12s/status", pid, entry->d_name);
        const char *at = strstr(text, "\nTracerPid:");
        tracer = at ? atoi(at + 11) : 0;
    }
    if (list)
        closedir(list);
    return tracer;
}

/* ---- processes ------------------------------------------------------------------------------- */

static int add_children(int pid, const char *tid, int *children, int n, int capacity)
{
    char text[4096], *at = text;
    read_text(text, sizeof text, "/proc/%d/task/%.12s/children", pid, tid);
    for (int child; n < capacity && (child = (int)strtol(at, &at, 10)) > 0;)
        children[n++] = child;
    return n;
}

int proc_children(int pid, int *children, int capacity)
{
    char path[64];
    int n = 0, seen = 0;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *list = opendir(path);
    for (struct dirent *entry; list && (entry = readdir(list)) && seen < THREADS_SEEN; seen++)
        if (isdigit((unsigned char)entry->d_name[0]))
            n = add_children(pid, entry->d_name, children, n, capacity);
    if (list)
        closedir(list);
    return n;
}

bool proc_is_python(int pid)
{
    char path[64], exe[PATH_MAX];
    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    ssize_t n = readlink(path, exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = '\0';
    const char *name = strrchr(exe, '/');
    return name && strncmp(name + 1, "python", 6) == 0;
}
