/*
 * Reads the file `processes` of a saved snapshot. It comes from outside: every line must be one of
 * those that save.c writes, and their number and length are bounded.
 *
 *     ftccl-processes 1
 *     process ftccl-1000-4711-0 stopped is stopped in do_signal_stop
 *     time NANOSECONDS-OF-CLOCK_MONOTONIC NANOSECONDS-SINCE-1970
 *     unreadable NUMBER-OF-FILES
 *     end NUMBER-OF-PROCESSES
 */
#include "saved.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE_BYTES 256

struct reading {
    struct ft_tm_moment *out;
    bool timed, ended;
};

/* ---- lines ----------------------------------------------------------------------------------- */

static const char *const state_names[] = {[FT_PROCESS_UNKNOWN] = "unknown",
                                          [FT_PROCESS_RUNS] = "runs",
                                          [FT_PROCESS_STOPPED] = "stopped",
                                          [FT_PROCESS_GONE] = "gone",
                                          [FT_PROCESS_FROZEN] = "frozen"};

const char *ft_tm_state_name(enum ft_process_state state)
{
    return state_names[state];
}

static bool take_state(const char *word, enum ft_process_state *out)
{
    for (size_t i = 0; i < FT_ARRAY_LEN(state_names); i++)
        if (!strcmp(word, state_names[i])) {
            *out = (enum ft_process_state)i;
            return true;
        }
    return false;
}

static int add_process(struct ft_tm_moment *m, const struct ft_tm_saved *saved)
{
    if (m->nprocesses == FT_TM_MOST_SAVED)
        return ft_fail(FT_INVAL, "more than %d processes", FT_TM_MOST_SAVED);
    if (m->nprocesses == m->capacity) {
        int capacity = m->capacity ? 2 * m->capacity : 64;
        void *grown = realloc(m->process, (size_t)capacity * sizeof *m->process);
        if (!grown)
            return ft_fail(FT_NOMEM, "no memory for %d processes", capacity);
        m->process = grown;
        m->capacity = capacity;
    }
    m->process[m->nprocesses++] = *saved;
    return FT_OK;
}

static int take_process(struct ft_tm_moment *m, const char *line)
{
    struct ft_tm_saved saved = {.name = ""};
    struct ft_tm_name parts;
    char state[16];
    int at = 0;
    bool good = sscanf(line, "process %47s %15s %n", saved.name, state, &at) == 2 && at > 0 &&
                ft_tm_name_parse(saved.name, &parts) && take_state(state, &saved.seen.state);
    if (!good || strlen(line + at) >= sizeof saved.seen.doing)
        return ft_fail(FT_INVAL, "not a process");
    snprintf(saved.seen.doing, sizeof saved.seen.doing, "%.95s", line + at);
    return add_process(m, &saved);
}

static int take_line(struct reading *r, const char *line)
{
    struct ft_tm_moment *m = r->out;
    int processes;
    if (r->ended)
        return ft_fail(FT_INVAL, "more after the end");
    if (!strncmp(line, "process ", 8))
        return take_process(m, line);
    if (sscanf(line, "time %20" SCNu64 " %20" SCNu64, &m->now_ns, &m->real_ns) == 2)
        r->timed = true;
    else if (sscanf(line, "end %9d", &processes) == 1 && processes == m->nprocesses)
        r->ended = true;
    else if (sscanf(line, "unreadable %9d", &m->unreadable) != 1 || m->unreadable < 0)
        return ft_fail(FT_INVAL, "not understood");
    return FT_OK;
}

/* Cuts the newline off. False: the line is too long, has none, or is not plain text. */
static bool is_line(char *line)
{
    size_t len = strcspn(line, "\n");
    if (line[len] != '\n')
        return false;
    line[len] = '\0';
    for (const char *p = line; *p; p++)
        if (!isprint((unsigned char)*p) || (unsigned char)*p > 126)
            return false;
    return true;
}

/* ---- the file -------------------------------------------------------------------------------- */

static int read_lines(struct reading *r, FILE *in)
{
    char line[LINE_BYTES];
    if (!fgets(line, sizeof line, in) || strcmp(line, "ftccl-processes 1\n") != 0)
        return ft_fail(FT_INVAL, "not a list of processes of this version");
    for (int n = 2; fgets(line, sizeof line, in); n++) {
        int status = is_line(line) ? take_line(r, line) : ft_fail(FT_INVAL, "not a line of text");
        if (status != FT_OK) {
            char why[64];
            snprintf(why, sizeof why, "%.60s", ft_fail_text());
            return ft_fail(status, "line %d: %s", n, why);
        }
    }
    return r->timed && r->ended ? FT_OK : ft_fail(FT_INVAL, "it is cut off");
}

static int by_name(const void *a, const void *b)
{
    const struct ft_tm_saved *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int sort(struct ft_tm_moment *m)
{
    if (m->nprocesses > 0)
        qsort(m->process, (size_t)m->nprocesses, sizeof *m->process, by_name);
    for (int i = 1; i < m->nprocesses; i++)
        if (by_name(&m->process[i - 1], &m->process[i]) == 0)
            return ft_fail(FT_INVAL, "%s is there twice", m->process[i].name);
    return FT_OK;
}

static FILE *open_plain(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    bool regular = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    FILE *in = regular ? fdopen(fd, "r") : NULL;
    if (!in && fd >= 0) {
        close(fd);
        errno = regular ? errno : EINVAL;
    }
    return in;
}

int ft_tm_moment_read(const char *dir, struct ft_tm_moment *out)
{
    char path[PATH_MAX];
    struct reading r = {.out = out};
    *out = (struct ft_tm_moment){0};
    if (snprintf(path, sizeof path, "%s/" FT_TM_PROCESSES, dir) >= (int)sizeof path)
        return ft_fail(FT_INVAL, "the path of the saved snapshot is too long");
    FILE *in = open_plain(path);
    if (!in)
        return ft_fail(FT_INVAL, "no saved snapshot is in %.200s: " FT_TM_PROCESSES ": %s", dir,
                       strerror(errno));
    int status = read_lines(&r, in);
    fclose(in);
    if (status == FT_OK)
        status = sort(out);
    if (status == FT_OK)
        return FT_OK;
    char why[96];
    snprintf(why, sizeof why, "%.90s", ft_fail_text());
    return ft_fail(status, "%.200s: %s", path, why);
}
