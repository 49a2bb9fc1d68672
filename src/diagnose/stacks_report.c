/*
 * What was found in the stacks of a job, as JSON and as evidence for a verdict.
 */
#include "diagnose.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#define CHILDREN_TOLD 4 /* in a verdict */
#define FRAMES_TOLD 8

/* ---- evidence -------------------------------------------------------------------------------- */

static void add(char *line, const char *fmt, ...) FT_PRINTF(2, 3);
static void add(char *line, const char *fmt, ...)
{
    size_t at = strlen(line);
    va_list args;
    va_start(args, fmt);
    vsnprintf(line + at, FT_SENTENCE - at, fmt, args);
    va_end(args);
    for (char *c = line + at; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
}

static char *new_line(struct ft_verdict *v)
{
    if (v->nchain < 0 || v->nchain >= FT_CHAIN)
        return NULL;
    char *line = v->chain[v->nchain++];
    *line = '\0';
    return line;
}

static void add_frames(char *line, const struct ft_stack *stack)
{
    const char *at = stack->shown;
    add(line, ": ");
    for (int i = 0; *at && i < FRAMES_TOLD; i++) {
        size_t len = strcspn(at, "\n");
        add(line, i ? " < %.*s" : "%.*s", (int)ft_min(len, 80), at);
        at += len + (at[len] == '\n');
    }
    add(line, *at ? " < ... (%s)" : " (%s)", ft_stack_source_name(stack->source));
}

static void add_thread(char *line, const struct ft_stack_thread *thread)
{
    add(line, " is in state %c", thread->state);
    if (thread->where[0])
        add(line, " in %s", thread->where);
    if (thread->call[0])
        add(line, ", %s", thread->call);
}

static const struct ft_stack_thread *find_thread(const struct ft_stack_process *p, int tid)
{
    for (int i = 0; i < p->nthreads; i++)
        if (p->threads[i].tid == tid)
            return &p->threads[i];
    return NULL;
}

static void explain_group(const struct ft_stacks *s, int rank, struct ft_verdict *v)
{
    int group = s->ranks[rank].group;
    char *line = group >= 0 && s->groups[group].outlier ? new_line(v) : NULL;
    if (!line)
        return;
    add(line, "rank %d is elsewhere than most: of %d ranks, ", s->ranks[rank].rank,
        s->nranks - s->nunread);
    if (s->groups[group].count == 1)
        add(line, "no other has its stack");
    else
        add(line, "%d have its stack", s->groups[group].count);
}

static void explain_rank(const struct ft_stacks *s, int rank, struct ft_verdict *v)
{
    const struct ft_stack_rank *r = &s->ranks[rank];
    const struct ft_stack_process *p = &s->processes[r->process];
    const struct ft_stack_thread *thread = find_thread(p, r->tid);
    char *line = thread ? new_line(v) : NULL;
    if (line) {
        add(line, "rank %d: thread %d (%.15s)", r->rank, r->tid, thread->name);
        add_thread(line, thread);
    }
    line = r->tool.shown || p->trouble[0] ? new_line(v) : NULL;
    if (line) {
        add(line, "rank %d: its stack", r->rank);
        if (r->tool.shown)
            add_frames(line, &r->tool);
        else
            add(line, " was not read: %s", p->trouble);
    }
    explain_group(s, rank, v);
}

static void explain_children(const struct ft_stacks *s, int rank, struct ft_verdict *v)
{
    int told = 0;
    for (int i = 0; i < s->nprocesses && told < CHILDREN_TOLD; i++) {
        const struct ft_stack_process *p = &s->processes[i];
        if (!p->parent || s->ranks[p->rank].process != s->ranks[rank].process)
            continue;
        char *line = new_line(v);
        if (!line)
            return;
        add(line, "rank %d: its child, process %d (%.15s),", s->ranks[rank].rank, p->pid, p->name);
        if (p->state == 'T' || p->state == 't')
            add(line, " is stopped");
        else if (p->nthreads)
            add_thread(line, p->threads);
        if (p->stack.shown)
            add_frames(line, &p->stack);
        told++;
    }
}

void ft_stacks_explain(const struct ft_stacks *s, struct ft_verdict *v)
{
    for (int i = 0; i < v->nculprits && i < FT_CULPRITS; i++)
        for (int rank = 0; rank < s->nranks; rank++)
            if (v->culprits[i].engine >= 0 && s->ranks[rank].engine == v->culprits[i].engine) {
                explain_rank(s, rank, v);
                explain_children(s, rank, v);
            }
}

struct list {
    struct ft_evidence *at;
    int n, capacity;
};

/* A value that is "" is not known. */
static void add_evidence(struct list *list, const char *source, int rank, const char *field,
                         const char *value)
{
    if (list->n == list->capacity || !*value)
        return;
    struct ft_evidence *e = &list->at[list->n++];
    *e = (struct ft_evidence){.source = source, .rank = rank, .field = field, .number = -1};
    snprintf(e->text, sizeof e->text, "%.*s", (int)sizeof e->text - 1, value);
}

static void add_stack(struct list *list, int rank, const char *field, const struct ft_stack *stack)
{
    char line[FT_SENTENCE] = "";
    if (!stack->shown)
        return;
    add_frames(line, stack);
    add_evidence(list, ft_stack_source_name(stack->source), rank, field, line + strlen(": "));
}

static void add_children(struct list *list, const struct ft_stacks *s,
                         const struct ft_stack_rank *r)
{
    for (int i = 0; i < s->nprocesses; i++) {
        const struct ft_stack_process *p = &s->processes[i];
        char line[FT_SENTENCE] = "";
        if (!p->parent || s->ranks[p->rank].process != r->process)
            continue;
        add(line, "process %d (%.15s)", p->pid, p->name);
        if (p->nthreads)
            add_thread(line, p->threads);
        add_evidence(list, "process", r->rank, "child", line);
        add_stack(list, r->rank, "child_stack", &p->stack);
    }
}

static void add_rank(struct list *list, const struct ft_stacks *s, const struct ft_stack_rank *r)
{
    const struct ft_stack_thread *thread = find_thread(&s->processes[r->process], r->tid);
    if (thread) {
        add_evidence(list, "process", r->rank, "wchan", thread->where);
        add_evidence(list, "process", r->rank, "syscall", thread->call);
    }
    add_stack(list, r->rank, "stack", &r->tool);
    add_children(list, s, r);
}

int ft_stacks_evidence(const struct ft_stacks *s, const struct ft_verdict *v,
                       struct ft_evidence *out, int capacity)
{
    struct list list = {.at = out, .capacity = capacity};
    for (int i = 0; i < v->nculprits && i < FT_CULPRITS; i++)
        for (int rank = 0; rank < s->nranks; rank++)
            if (v->culprits[i].engine >= 0 && s->ranks[rank].engine == v->culprits[i].engine)
                add_rank(&list, s, &s->ranks[rank]);
    return list.n;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_frames(struct ft_text *out, const char *key, const struct ft_stack *stack)
{
    char frame[FT_STACK_FRAME_BYTES];
    ft_json_begin(out, key, '[');
    for (const char *at = stack && stack->shown ? stack->shown : ""; *at;) {
        size_t len = strcspn(at, "\n");
        snprintf(frame, sizeof frame, "%.*s", (int)ft_min(len, sizeof frame - 1), at);
        ft_json_string(out, NULL, frame);
        at += len + (at[len] == '\n');
    }
    ft_json_end(out, ']');
}

static void put_ranks(struct ft_text *out, const struct ft_stacks *s, int group)
{
    const struct ft_stack_group *g = &s->groups[group];
    for (int i = g->first; i < g->first + g->count; i++)
        ft_json_int(out, NULL, s->ranks[s->order[i]].rank);
}

static void put_outliers(struct ft_text *out, const struct ft_stacks *s)
{
    ft_json_begin(out, "outliers", '[');
    for (int i = 0; i < s->ngroups && s->groups[i].outlier; i++)
        put_ranks(out, s, i);
    ft_json_end(out, ']');
}

static void put_groups(struct ft_text *out, const struct ft_stacks *s)
{
    ft_json_begin(out, "groups", '[');
    for (int i = 0; i < s->ngroups; i++) {
        const struct ft_stack *stack = ft_stacks_of(s, s->order[s->groups[i].first]);
        ft_json_begin(out, NULL, '{');
        ft_json_bool(out, "outlier", s->groups[i].outlier);
        ft_json_begin(out, "ranks", '[');
        put_ranks(out, s, i);
        ft_json_end(out, ']');
        ft_json_string(out, "source", ft_stack_source_name(stack->source));
        put_frames(out, "frames", stack);
        ft_json_end(out, '}');
    }
    ft_json_end(out, ']');
}

static void put_shared(struct ft_text *out, const struct ft_stacks *s)
{
    char comm[24];
    ft_json_begin(out, "shared", '[');
    for (int i = 0; i < s->nshared; i++) {
        snprintf(comm, sizeof comm, "%016" PRIx64, s->shared[i].ctx);
        ft_json_begin(out, NULL, '{');
        ft_json_string(out, "comm", comm);
        ft_json_string(out, "name", s->shared[i].name);
        ft_json_int(out, "size", s->shared[i].nranks);
        ft_json_bool(out, "leave_out", i == s->leave_out);
        ft_json_end(out, '}');
    }
    ft_json_end(out, ']');
}

static void put_threads(struct ft_text *out, const struct ft_stack_process *p)
{
    ft_json_begin(out, "threads", '[');
    for (int i = 0; i < p->nthreads; i++) {
        const struct ft_stack_thread *t = &p->threads[i];
        const char state[] = {t->state, '\0'};
        ft_json_begin(out, NULL, '{');
        ft_json_int(out, "tid", t->tid);
        ft_json_string(out, "name", t->name);
        ft_json_string(out, "state", state);
        ft_json_string(out, "wchan", t->where);
        ft_json_string(out, "syscall", t->call);
        ft_json_string(out, "kernel", t->kernel);
        ft_json_end(out, '}');
    }
    ft_json_end(out, ']');
    ft_json_int(out, "threads_left_out", p->threads_left_out);
}

static void put_process(struct ft_text *out, const struct ft_stack *stack,
                        const struct ft_stack_process *p)
{
    ft_json_int(out, "pid", p->pid);
    if (p->parent)
        ft_json_int(out, "parent", p->parent);
    ft_json_string(out, "name", p->name);
    ft_json_bool(out, "stopped", p->state == 'T' || p->state == 't');
    ft_json_string(out, "source",
                   ft_stack_source_name(stack->shown ? stack->source : FT_STACK_NONE));
    put_frames(out, "frames", stack);
    if (p->trouble[0])
        ft_json_string(out, "trouble", p->trouble);
    else
        ft_json_null(out, "trouble");
    put_threads(out, p);
}

static void put_processes(struct ft_text *out, const struct ft_stacks *s)
{
    ft_json_begin(out, "processes", '[');
    for (int i = 0; i < s->nranks; i++) {
        const struct ft_stack_rank *r = &s->ranks[i];
        ft_json_begin(out, NULL, '{');
        ft_json_int(out, "rank", r->rank);
        ft_json_int(out, "group", r->group);
        ft_json_int(out, "tid", r->tid);
        ft_json_string(out, "last_call", r->call);
        put_process(out, &r->tool, &s->processes[r->process]);
        ft_json_end(out, '}');
    }
    for (int i = 0; i < s->nprocesses; i++) {
        const struct ft_stack_process *p = &s->processes[i];
        if (!p->parent)
            continue;
        ft_json_begin(out, NULL, '{');
        ft_json_int(out, "rank", s->ranks[p->rank].rank);
        put_process(out, &p->stack, p);
        ft_json_end(out, '}');
    }
    ft_json_end(out, ']');
}

void ft_stacks_json(struct ft_text *out, const char *key, const struct ft_stacks *s)
{
    ft_json_begin(out, key, '{');
    ft_json_string(out, "found", ft_stacks_found_name(s->found));
    ft_json_string(out, "compared", ft_stack_source_name(s->compared));
    ft_json_int(out, "ranks", s->nranks);
    ft_json_int(out, "unread", s->nunread);
    ft_json_int(out, "left_out", s->left_out);
    put_outliers(out, s);
    put_shared(out, s);
    put_groups(out, s);
    put_processes(out, s);
    ft_json_end(out, '}');
}
