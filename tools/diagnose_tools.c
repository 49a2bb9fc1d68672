/*
 * Asks py-spy, eu-stack or gdb for the stacks of processes. py-spy only reads memory. The other two
 * stop a process while they look at it, so they are not tried on one that is stopped, traced, or
 * asleep where nothing can wake it: they would wait, and leave it stopped when they are killed.
 */
#include "diagnose_stacks.h"

#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define TOOLS 3
#define PID ((const char *)-1) /* stands for the number of the process */

static const struct tool {
    enum ft_stack_source source;
    bool only_reads; /* and reads only Python */
    const char *arguments[RUN_ARGUMENTS];
} tools[TOOLS] = {
    {FT_STACK_PYSPY, true, {"dump", "--nonblocking", "--pid", PID}},
    {FT_STACK_EUSTACK, false, {"-m", "-n", "64", "-p", PID}},
    {FT_STACK_GDB,
     false,
     {"-batch", "-nx", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off", "-iex",
      "set width 0", "-iex", "set print frame-arguments none", "-p", PID, "-ex",
      "info sharedlibrary", "-ex", "thread apply all -ascending backtrace 64"}},
};

/* A process, and the tool that is asked for it. */
struct target {
    struct ft_stack_process *process;
    int tool; /* TOOLS: none is left */
    char pid[16];
    uint64_t start;
};

struct asking {
    struct ft_stacks *stacks;
    struct target *targets;
    struct run *runs;
    int *of_run; /* targets of runs */
    char path[TOOLS][PATH_MAX];
    bool installed[TOOLS];
    double each_s;
};

static const char *name_of(int tool)
{
    return ft_stack_source_name(tools[tool].source);
}

/* ---- which tool ------------------------------------------------------------------------------ */

/* Why a tool that stops the process must not; false: it may. */
static bool must_not_stop(const struct ft_stack_process *p, char *why, size_t size)
{
    int tracer = proc_tracer(p->pid);
    for (int i = 0; i < p->nthreads; i++) {
        char state = p->threads[i].state;
        if (state == 'T')
            snprintf(why, size, "thread %d is stopped", p->threads[i].tid);
        else if (state == 't' || tracer)
            snprintf(why, size, "process %d traces it", tracer);
        else if (state == 'D' || state == 'Z' || state == 'X')
            snprintf(why, size, "thread %d is in state %c", p->threads[i].tid, state);
        else
            continue;
        return true;
    }
    return false;
}

/* The next tool behind `tool` that fits; TOOLS: none, and `trouble` says why, unless a tool has
 * been tried. */
static int next_tool(const struct asking *a, struct ft_stack_process *p, int tool)
{
    char why[96];
    bool any = false;
    while (++tool < TOOLS) {
        if (tools[tool].only_reads && !proc_is_python(p->pid))
            continue;
        any |= a->installed[tool];
        if (!a->installed[tool])
            continue;
        if (tools[tool].only_reads || !must_not_stop(p, why, sizeof why))
            return tool;
        snprintf(p->trouble, sizeof p->trouble, "%s was not asked: %s", name_of(tool), why);
        return TOOLS;
    }
    if (!any && !p->trouble[0])
        snprintf(p->trouble, sizeof p->trouble, "no tool for it is installed: %s",
                 proc_is_python(p->pid) ? "py-spy, eu-stack, gdb" : "eu-stack, gdb");
    return TOOLS;
}

/* ---- what came of it ------------------------------------------------------------------------- */

/* A process that a tool has stopped, and not let go of because it was killed or has crashed, goes
 * on. It did not stand still before. */
static void let_go(const struct target *t)
{
    struct timespec pause = {.tv_nsec = 5000000};
    char state = '?';
    for (int i = 0; i < 20; i++) {
        if (proc_start(t->process->pid, &state) != t->start)
            return;
        if (state == 'T') {
            kill(t->process->pid, SIGCONT);
            return;
        }
        nanosleep(&pause, NULL);
    }
}

/* The last line that the tool has written. */
static void add_last_line(char *to, size_t size, char *text)
{
    size_t len = strlen(text), at = strlen(to);
    while (len && (text[len - 1] == '\n' || text[len - 1] == ' '))
        text[--len] = '\0';
    const char *line = strrchr(text, '\n') ? strrchr(text, '\n') + 1 : text;
    snprintf(to + at, size - at, "%s%.80s", *line ? ": " : "", line);
    for (char *c = to + at; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
}

static void tell_trouble(const struct asking *a, const struct target *t, const struct run *run)
{
    char *to = t->process->trouble;
    size_t size = sizeof t->process->trouble;
    const char *name = name_of(t->tool);
    if (run->end == RUN_WAITS)
        snprintf(to, size, "there was no time for %s", name);
    else if (run->end == RUN_LATE)
        snprintf(to, size, "%s did not end within %g s", name, a->each_s);
    else if (run->end == RUN_FLOODED)
        snprintf(to, size, "%s wrote more than %d bytes", name, RUN_BYTES);
    else if (run->end == RUN_FAILED || !WIFEXITED(run->status))
        snprintf(to, size, "%s %s", name, run->end == RUN_FAILED ? "did not start" : "crashed");
    else
        snprintf(to, size, "%s ended with status %d and told no stack", name,
                 WEXITSTATUS(run->status));
    if (run->end == RUN_ENDED)
        add_last_line(to, size, run->text);
}

/* Returns true if the text has the stack of a rank's thread, or of the child. */
static bool take_stacks(const struct asking *a, const struct target *t, const char *text)
{
    struct ft_stacks *s = a->stacks;
    struct ft_stack_process *p = t->process;
    enum ft_stack_source source = tools[t->tool].source;
    bool any = false;
    if (p->parent)
        return ft_stack_read(&p->stack, source, text, p->pid, p->pid) == FT_OK;
    for (int i = 0; i < s->nranks; i++)
        if (&s->processes[s->ranks[i].process] == p && !s->ranks[i].tool.shown)
            any |= ft_stack_read(&s->ranks[i].tool, source, text, p->pid, s->ranks[i].tid) == FT_OK;
    return any;
}

static void finish_run(struct run *run, void *arg)
{
    struct asking *a = arg;
    struct target *t = &a->targets[a->of_run[run - a->runs]];
    int tool = t->tool;
    bool good = run->text && take_stacks(a, t, run->text);
    bool ended = run->end == RUN_ENDED && WIFEXITED(run->status);
    t->tool = TOOLS;
    if (good) {
        t->process->trouble[0] = '\0';
    } else {
        t->tool = tool;
        tell_trouble(a, t, run);
        t->tool = run->end == RUN_LATE || run->end == RUN_WAITS ? TOOLS
                                                                : next_tool(a, t->process, tool);
    }
    if (!tools[tool].only_reads && !ended && run->end != RUN_WAITS)
        let_go(t);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static void write_arguments(const struct asking *a, const struct target *t, struct run *run)
{
    const struct tool *tool = &tools[t->tool];
    *run = (struct run){.fd = -1};
    run->argv[0] = a->path[t->tool];
    for (int i = 0; tool->arguments[i]; i++)
        run->argv[i + 1] = tool->arguments[i] == PID ? t->pid : tool->arguments[i];
}

/* Every process that a tool is left for. Returns their number. */
static int ask_once(struct asking *a, int ntargets, uint64_t end_ns)
{
    int n = 0;
    for (int i = 0; i < ntargets; i++)
        if (a->targets[i].tool < TOOLS) {
            a->of_run[n] = i;
            write_arguments(a, &a->targets[i], &a->runs[n++]);
        }
    struct run_limits limits = {.each_s = a->each_s, .end_ns = end_ns};
    run_all(a->runs, n, &limits, finish_run, a);
    return n;
}

/* Ranks first. */
static int find_targets(struct asking *a)
{
    struct ft_stacks *s = a->stacks;
    int n = 0;
    for (int children = 0; children < 2; children++)
        for (int i = 0; i < s->nprocesses; i++) {
            struct ft_stack_process *p = &s->processes[i];
            char state;
            if (!p->parent != !children || !p->nthreads)
                continue;
            struct target *t = &a->targets[n++];
            *t = (struct target){.process = p, .start = proc_start(p->pid, &state)};
            snprintf(t->pid, sizeof t->pid, "%d", p->pid);
            t->tool = next_tool(a, p, -1);
        }
    return n;
}

void tools_ask(struct ft_stacks *s, double each_s)
{
    size_t room = (size_t)s->nprocesses + 1;
    struct asking *a = calloc(1, sizeof *a);
    uint64_t end_ns = run_now_ns() + (uint64_t)(4e9 * each_s);
    if (!a)
        return;
    *a = (struct asking){.stacks = s, .each_s = each_s};
    a->targets = calloc(room, sizeof *a->targets);
    a->runs = calloc(room, sizeof *a->runs);
    a->of_run = calloc(room, sizeof *a->of_run);
    for (int i = 0; i < TOOLS; i++)
        a->installed[i] = run_find(name_of(i), a->path[i], sizeof a->path[i]);
    int n = a->targets && a->runs && a->of_run ? find_targets(a) : 0;
    for (int round = 0; round < TOOLS && ask_once(a, n, end_ns); round++) {}
    free(a->targets);
    free(a->runs);
    free(a->of_run);
    free(a);
}
