/*
 * A linear regression with made-up data. Each local rank fits its own target to the same batches,
 * so a replica of several ranks is a model that is divided between them.
 */
#include "replicas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES 16 /* in a batch */
#define RATE 0.02
#define GRID 1048576.0 /* gradients are multiples of its inverse */

size_t state_moments;

/* splitmix64 */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static double input(uint64_t batch, int sample, int feature)
{
    return (double)(mix((batch * SAMPLES + (uint64_t)sample) * FEATURES + (uint64_t)feature) % 7) -
           3;
}

static double target_weight(int local_rank, int feature)
{
    return (double)(mix(~(uint64_t)(local_rank * FEATURES + feature)) % 19) - 9;
}

static double mark(uint64_t batch)
{
    return (double)(mix(batch) >> 32);
}

/* ---- memory for states: freed by one state, used again for the next -------------------------- */

static _Atomic(struct state *) spare[2];

static struct state *state_room(int steps)
{
    struct state *s = NULL;
    for (int i = 0; i < 2 && !s; i++)
        s = atomic_exchange(&spare[i], NULL);
    if (!s)
        s = malloc(offsetof(struct state, step) + state_sent_bytes((uint64_t)steps));
    if (s)
        atomic_init(&s->held, 1);
    return s;
}

bool state_reserve(int steps)
{
    struct state *s[2] = {state_room(steps), state_room(steps)};
    for (int i = 0; i < 2; i++) {
        if (s[i])
            memset(state_sent(s[i]), 0, state_sent_bytes((uint64_t)steps));
        state_release(s[i]);
    }
    return s[0] && s[1];
}

struct state *state_new(int steps)
{
    struct state *s = state_room(steps);
    if (s)
        memset(state_sent(s), 0, state_sent_bytes(0));
    return s;
}

struct state *state_hold(struct state *s)
{
    atomic_fetch_add(&s->held, 1);
    return s;
}

void state_release(struct state *s)
{
    if (!s || atomic_fetch_sub(&s->held, 1) != 1)
        return;
    for (int i = 0; i < 2 && s; i++)
        s = atomic_exchange(&spare[i], s);
    free(s);
}

size_t state_sent_bytes(uint64_t step)
{
    return sizeof(struct state) - offsetof(struct state, step) +
           (state_moments + (size_t)step) * sizeof(uint32_t);
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* FNV-1a of 64 bits: it tells states apart that differ by accident. */
static uint64_t digest_of(uint64_t before, const struct gradient *g)
{
    const unsigned char *bytes = (const unsigned char *)g;
    uint64_t digest = before ^ 0xcbf29ce484222325;
    for (size_t i = 0; i < sizeof *g; i++)
        digest = (digest ^ bytes[i]) * 0x100000001b3;
    return digest;
}

void gradient_of(struct gradient *g, const struct state *s, int local_rank, uint64_t batch)
{
    memset(g, 0, sizeof *g);
    for (int i = 0; i < SAMPLES; i++) {
        double x[FEATURES], error = 0;
        for (int k = 0; k < FEATURES; k++) {
            x[k] = input(batch, i, k);
            error += (s->weight[k] - target_weight(local_rank, k)) * x[k];
        }
        for (int k = 0; k < FEATURES; k++)
            g->weight[k] += error * x[k] / SAMPLES;
    }
    for (int k = 0; k < FEATURES; k++)
        g->weight[k] = nearbyint(g->weight[k] * GRID) / GRID + 0.0; /* there is no -0 */
    g->batches = 1;
    g->marks = mark(batch);
}

bool gradient_is_of(const struct gradient *g, const struct state *s, int n)
{
    double marks = 0;
    for (int i = 0; i < n; i++)
        marks += mark(s->batches + (uint64_t)i);
    return g->batches == n && g->marks == marks;
}

struct state *state_apply(const struct state *s, const struct gradient *g, int steps)
{
    struct state *next = state_room(steps);
    if (!next)
        return NULL;
    const uint32_t marks = (uint32_t)(uint64_t)g->marks, batches = (uint32_t)g->batches;
    next->step = s->step + 1;
    next->batches = s->batches + batches;
    next->digest = digest_of(s->digest, g);
    for (int k = 0; k < FEATURES; k++)
        next->weight[k] = s->weight[k] - RATE * (g->weight[k] / g->batches);
    for (size_t i = 0; i < state_moments; i++)
        next->numbers[i] = s->numbers[i] * 3 + marks;
    memcpy(next->numbers + state_moments, state_trained(s), (size_t)s->step * sizeof batches);
    next->numbers[state_moments + s->step] = batches;
    return next;
}

static void add(struct gradient *sum, const struct gradient *g)
{
    for (int k = 0; k < FEATURES; k++)
        sum->weight[k] += g->weight[k];
    sum->batches += g->batches;
    sum->marks += g->marks;
}

bool state_is_reproducible(const struct state *s, int local_rank, int steps)
{
    struct state *again = state_new(steps);
    while (again && again->step < s->step) {
        struct gradient sum = {0}, g;
        for (uint32_t i = 0; i < state_trained(s)[again->step]; i++) {
            gradient_of(&g, again, local_rank, again->batches + i);
            add(&sum, &g);
        }
        struct state *next = state_apply(again, &sum, steps);
        state_release(again);
        again = next;
    }
    bool same = again && memcmp(&again->step, &s->step, state_sent_bytes(s->step)) == 0;
    state_release(again);
    return same;
}
