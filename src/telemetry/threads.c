/*
 * What /proc tells of a process of this host: where it sleeps, which of its threads are stopped,
 * and what its children do. Processes may end while they are looked at; what cannot be read is left
 * out.
 */
#include "saved.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS_SEEN 4096
#define CHILDREN_SEEN 64

static bool is_stopped(char letter)
{
    return letter == 'T' || letter == 't';
}

/* Reads a short file below /proc; "": it cannot be read. */
static void read_text(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, size - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
}

/* What the main thread does: "sleeps in hrtimer_nanosleep". */
static void describe(int pid, char letter, char *text, size_t size)
{
    char path[64], where[64];
    const char *verb = is_stopped(letter) ? "is stopped in"
                       : letter == 'D'    ? "sleeps uninterruptibly in"
                                          : "sleeps in";
    snprintf(path, sizeof path, "/proc/%d/wchan", pid);
    read_text(path, where, sizeof where);
    bool known = *where && strcmp(where, "0") != 0;
    if (letter == 'R')
        snprintf(text, size, "runs");
    else
        snprintf(text, size, "%s %s", verb, known ? where : "the kernel");
}

/* ---- threads --------------------------------------------------------------------------------- */

/* The library cannot go on without its own threads and the main one. */
static bool is_needed(int pid, int tid)
{
    char path[64], name[32];
    snprintf(path, sizeof path, "/proc/%d/task/%d/comm", pid, tid);
    read_text(path, name, sizeof name);
    return tid == pid || strncmp(name, "ftccl-", 6) == 0;
}

/* Returns a thread that is stopped, and rather one that the library needs; 0: none. *runs: others
 * run. */
static int find_stopped(int pid, bool *runs, bool *needed)
{
    char path[64], letter;
    uint64_t start;
    int found = 0, seen = 0;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *list = opendir(path);
    *runs = *needed = false;
    for (struct dirent *entry; list && (entry = readdir(list)) && seen++ < THREADS_SEEN;) {
        int tid = atoi(entry->d_name);
        if (tid <= 0 || !ft_tm_thread_state(pid, tid, &letter, &start))
            continue;
        *runs |= !is_stopped(letter);
        if (is_stopped(letter) && !*needed) {
            found = tid;
            *needed = is_needed(pid, tid);
        }
    }
    if (list)
        closedir(list);
    return found;
}

/* ---- children -------------------------------------------------------------------------------- */

/* A child of the main thread, and rather one that is stopped; 0: none. */
static int find_child(int pid, char *letter)
{
    char path[64], text[16 * CHILDREN_SEEN], *at = text;
    uint64_t start;
    int found = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, pid);
    read_text(path, text, sizeof text);
    for (int child; (child = (int)strtol(at, &at, 10)) > 0;) {
        char one;
        if (!ft_tm_process(child, &one, &start) || (found && !is_stopped(one)))
            continue;
        found = child;
        *letter = one;
    }
    return found;
}

/* Tells of a child for which the process may wait: one that is stopped, or any if it waits for a
 * child. */
static void describe_child(int pid, struct ft_tm_seen *seen)
{
    char path[64], name[32], what[64], letter = '?';
    size_t at = strlen(seen->doing);
    int child = find_child(pid, &letter);
    if (!child || (!is_stopped(letter) && !strstr(seen->doing, "do_wait")))
        return;
    snprintf(path, sizeof path, "/proc/%d/comm", child);
    read_text(path, name, sizeof name);
    describe(child, letter, what, sizeof what);
    snprintf(seen->doing + at, sizeof seen->doing - at, "; process %d (%.15s), its child, %s",
             child, name, is_stopped(letter) ? "is stopped" : what);
}

/* ---- a process ------------------------------------------------------------------------------- */

void ft_process_look(int pid, char letter, struct ft_tm_seen *seen)
{
    bool runs, needed;
    if (seen->state != FT_PROCESS_RUNS)
        return;
    int stopped = find_stopped(pid, &runs, &needed);
    if (stopped && !runs)
        seen->state = FT_PROCESS_STOPPED;
    else if (stopped && needed)
        seen->state = FT_PROCESS_FROZEN;
    if (seen->state == FT_PROCESS_FROZEN) {
        snprintf(seen->doing, sizeof seen->doing, "has stopped thread %d, others run", stopped);
        return;
    }
    describe(pid, letter, seen->doing, sizeof seen->doing);
    describe_child(pid, seen);
}
