#include "stacks.h"

#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES 13
#define LEFT_OUT_MOST 65536

/* ---- writing --------------------------------------------------------------------------------- */

struct writer {
    unsigned char *at;
    size_t len, room;
    bool broken;
};

static void put(struct writer *w, const void *bytes, size_t n)
{
    if (w->len + n > w->room) {
        size_t room = 2 * (w->len + n);
        unsigned char *grown = w->broken ? NULL : realloc(w->at, room);
        w->broken = !grown;
        if (w->broken)
            return;
        w->at = grown;
        w->room = room;
    }
    memcpy(w->at + w->len, bytes, n);
    w->len += n;
}

static void put_number(struct writer *w, uint64_t number, int bytes)
{
    unsigned char little[8];
    for (int i = 0; i < bytes; i++)
        little[i] = (unsigned char)(number >> (8 * i));
    put(w, little, (size_t)bytes);
}

static void put_string(struct writer *w, const char *text, size_t most)
{
    size_t len = strnlen(text, most);
    put_number(w, len, 2);
    put(w, text, len);
}

/* An unknown stack has no source. */
static void put_stack(struct writer *w, const struct ft_stack *stack)
{
    bool known = stack->shown && stack->normal;
    put_number(w, known ? (uint64_t)stack->source : FT_STACK_NONE, 1);
    if (!known)
        return;
    put_string(w, stack->shown, STACKS_LINES_MOST);
    put_string(w, stack->normal, STACKS_LINES_MOST);
}

static bool is_chosen(const struct ft_stack_process *p, int thread, int tid)
{
    return thread < STACKS_THREADS_MOST - 1 || p->threads[thread].tid == tid;
}

static void put_threads(struct writer *w, const struct ft_stack_process *p, int tid)
{
    int n = 0;
    for (int i = 0; i < p->nthreads; i++)
        n += is_chosen(p, i, tid);
    put_number(w, (uint64_t)(p->nthreads - n + p->threads_left_out), 4);
    put_number(w, (uint64_t)n, 1);
    for (int i = 0; i < p->nthreads; i++) {
        const struct ft_stack_thread *t = &p->threads[i];
        if (!is_chosen(p, i, tid))
            continue;
        put_number(w, (uint64_t)t->tid, 4);
        put_number(w, (uint64_t)t->state, 1);
        put_string(w, t->name, sizeof t->name - 1);
        put_string(w, t->where, sizeof t->where - 1);
        put_string(w, t->call, sizeof t->call - 1);
        put_string(w, t->kernel, sizeof t->kernel - 1);
    }
}

static void put_process(struct writer *w, const struct ft_stack_process *p, int tid)
{
    put_number(w, (uint64_t)p->pid, 4);
    put_number(w, (uint64_t)p->parent, 4);
    put_number(w, (uint64_t)p->state, 1);
    put_string(w, p->name, sizeof p->name - 1);
    put_string(w, p->trouble, sizeof p->trouble - 1);
    put_threads(w, p, tid);
    put_stack(w, &p->stack);
}

/* Its process first. Children of a process with several ranks go with the first of them. */
static void put_processes(struct writer *w, const struct ft_stacks *s, int rank)
{
    const struct ft_stack_rank *r = &s->ranks[rank];
    int children = 0, left_out = 0;
    for (int i = 0; i < s->nprocesses; i++)
        children += s->processes[i].parent && s->processes[i].rank == rank;
    if (children > STACKS_PROCESSES_MOST - 1) {
        left_out = children - (STACKS_PROCESSES_MOST - 1);
        children = STACKS_PROCESSES_MOST - 1;
    }
    put_number(w, (uint64_t)left_out, 4);
    put_number(w, (uint64_t)children + 1, 1);
    put_process(w, &s->processes[r->process], r->tid);
    for (int i = 0; i < s->nprocesses && children > 0; i++)
        if (s->processes[i].parent && s->processes[i].rank == rank) {
            put_process(w, &s->processes[i], 0);
            children--;
        }
}

static void put_rank(struct writer *w, const struct ft_stacks *s, int rank)
{
    const struct ft_stack_rank *r = &s->ranks[rank];
    put_number(w, (uint64_t)r->rank, 4);
    put_number(w, (uint64_t)r->tid, 4);
    put_number(w, r->stopped, 1);
    put_string(w, r->call, sizeof r->call - 1);
    put_stack(w, &r->kernel);
    put_stack(w, &r->tool);
    put_processes(w, s, rank);
}

unsigned char *stacks_encode(uint32_t request, uint64_t engine, const struct ft_stacks *s, int rank,
                             size_t *len)
{
    struct writer w = {0};
    put_number(&w, request, 4);
    put_number(&w, engine, 8);
    put_number(&w, rank >= 0, 1);
    if (rank >= 0)
        put_rank(&w, s, rank);
    if (w.broken) {
        free(w.at);
        return NULL;
    }
    *len = w.len;
    return w.at;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Behind the end there are zeros. */
struct reader {
    const unsigned char *at;
    size_t left;
    bool broken;
};

static uint64_t take_number(struct reader *r, int bytes)
{
    uint64_t number = 0;
    if (r->left < (size_t)bytes) {
        r->broken = true;
        return 0;
    }
    for (int i = 0; i < bytes; i++)
        number |= (uint64_t)r->at[i] << (8 * i);
    r->at += bytes;
    r->left -= (size_t)bytes;
    return number;
}

/* A pid, a number of a rank. */
static int take_int(struct reader *r)
{
    uint64_t number = take_number(r, 4);
    r->broken |= number > INT32_MAX;
    return r->broken ? 0 : (int)number;
}

static char take_letter(struct reader *r)
{
    char c = (char)take_number(r, 1);
    return c > ' ' && c <= '~' ? c : '?';
}

/* Returns its length, which is less than `size`. */
static size_t take_length(struct reader *r, size_t size)
{
    size_t len = take_number(r, 2);
    r->broken |= len >= size || len > r->left;
    return r->broken ? 0 : len;
}

static void take_string(struct reader *r, char *text, size_t size)
{
    size_t len = take_length(r, size);
    memcpy(text, r->at, len);
    text[len] = '\0';
    ft_text_clean(text, size);
    r->at += len;
    r->left -= len;
}

/* NULL: no memory, or no sense. */
static char *take_lines(struct reader *r)
{
    size_t len = take_length(r, STACKS_LINES_MOST + 1);
    char *lines = r->broken ? NULL : strndup((const char *)r->at, len);
    r->broken |= !lines;
    for (char *c = lines; c && *c; c++)
        if (*c != '\n' && (*c < ' ' || *c > '~'))
            *c = '?';
    r->at += len;
    r->left -= len;
    return lines;
}

static void take_stack(struct reader *r, struct ft_stack *out)
{
    uint64_t source = take_number(r, 1);
    *out = (struct ft_stack){0};
    r->broken |= source >= FT_STACK_SOURCE_COUNT;
    if (r->broken || source == FT_STACK_NONE)
        return;
    out->source = (enum ft_stack_source)source;
    out->shown = take_lines(r);
    out->normal = take_lines(r);
}

static void take_threads(struct reader *r, struct ft_stack_process *p)
{
    p->threads_left_out = take_int(r);
    uint64_t n = take_number(r, 1);
    p->threads = n <= STACKS_THREADS_MOST ? calloc(n + 1, sizeof *p->threads) : NULL;
    r->broken |= !p->threads;
    for (uint64_t i = 0; i < n && !r->broken; i++) {
        struct ft_stack_thread *t = &p->threads[p->nthreads++];
        t->tid = take_int(r);
        t->state = take_letter(r);
        take_string(r, t->name, sizeof t->name);
        take_string(r, t->where, sizeof t->where);
        take_string(r, t->call, sizeof t->call);
        take_string(r, t->kernel, sizeof t->kernel);
    }
}

static void take_process(struct reader *r, struct ft_stack_process *p, int rank, bool child)
{
    *p = (struct ft_stack_process){.rank = rank};
    p->pid = take_int(r);
    p->parent = take_int(r);
    r->broken |= (p->parent != 0) != child;
    p->state = take_letter(r);
    take_string(r, p->name, sizeof p->name);
    take_string(r, p->trouble, sizeof p->trouble);
    take_threads(r, p);
    take_stack(r, &p->stack);
}

/* What is taken has its place behind what counts in the lists. Returns the number of processes. */
static int take_rank(struct reader *r, struct ft_stacks *s)
{
    struct ft_stack_rank *rank = &s->ranks[s->nranks];
    *rank = (struct ft_stack_rank){.engine = -1, .process = s->nprocesses, .group = -1};
    rank->rank = take_int(r);
    rank->tid = take_int(r);
    rank->stopped = take_number(r, 1);
    take_string(r, rank->call, sizeof rank->call);
    take_stack(r, &rank->kernel);
    take_stack(r, &rank->tool);
    int left_out = take_int(r);
    r->broken |= left_out > LEFT_OUT_MOST;
    s->left_out += r->broken ? 0 : left_out;
    uint64_t n = take_number(r, 1);
    r->broken |= n == 0 || n > STACKS_PROCESSES_MOST;
    int taken = 0;
    while (!r->broken && (uint64_t)taken < n) {
        take_process(r, &s->processes[s->nprocesses + taken], s->nranks, taken > 0);
        taken++;
    }
    r->broken |= r->left > 0;
    return taken;
}

bool stacks_decode_head(const struct daemon_message *m, uint32_t *request, uint64_t *engine)
{
    struct reader r = {.at = m->bytes, .left = m->len};
    *request = (uint32_t)take_number(&r, 4);
    *engine = take_number(&r, 8);
    return m->len >= HEAD_BYTES;
}

/* ---- what came ------------------------------------------------------------------------------- */

static bool make_room(struct ft_stacks *s)
{
    const size_t processes = (size_t)STACKS_MOST * STACKS_PROCESSES_MOST;
    if (s->ranks)
        return s->nranks < STACKS_MOST;
    s->ranks = calloc(STACKS_MOST, sizeof *s->ranks);
    s->processes = calloc(processes, sizeof *s->processes);
    if (s->ranks && s->processes)
        return true;
    ft_stacks_free(s);
    return false;
}

static void drop_rank(struct ft_stacks *s, int processes)
{
    ft_stack_free(&s->ranks[s->nranks].kernel);
    ft_stack_free(&s->ranks[s->nranks].tool);
    for (int i = s->nprocesses; i < s->nprocesses + processes; i++) {
        ft_stack_free(&s->processes[i].stack);
        free(s->processes[i].threads);
    }
}

bool gathered_add(struct gathered *g, const struct daemon_message *m)
{
    struct ft_stacks *s = &g->stacks;
    struct reader r = {.at = m->bytes, .left = m->len};
    int left_out = s->left_out;
    take_number(&r, 4);
    uint64_t engine = take_number(&r, 8), present = take_number(&r, 1);
    if (r.broken || present != 1)
        return !r.broken && present == 0 && r.left == 0;
    if (!make_room(s))
        return false;
    int processes = take_rank(&r, s);
    if (r.broken) {
        drop_rank(s, processes);
        s->left_out = left_out;
        return false;
    }
    g->engine[s->nranks++] = engine;
    s->nprocesses += processes;
    return true;
}

void gathered_clear(struct gathered *g)
{
    ft_stacks_free(&g->stacks);
}

/* ---- showing --------------------------------------------------------------------------------- */

static int find_engine(const struct ft_snapshot *s, uint64_t id)
{
    for (int i = 0; i < s->nengines; i++)
        if (s->engines[i].id == id)
            return i;
    return -1;
}

void gathered_show(struct gathered *g, struct look *look)
{
    struct ft_stacks *s = &g->stacks;
    look_drop_stacks(look);
    if (s->nranks == 0 || !look->snapshot || look->report.found == 0)
        return;
    for (int i = 0; i < s->nranks; i++)
        s->ranks[i].engine = find_engine(look->snapshot, g->engine[i]);
    free(s->groups);
    free(s->order);
    s->nshared = 0;
    if (ft_stacks_group(s, look->snapshot) != FT_OK)
        return;
    for (int i = 0; i < look->report.found; i++)
        ft_stacks_explain(s, &look->verdicts[i]);
    look->report.stacks = s;
}
