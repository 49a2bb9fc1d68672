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

struct state *state_new(int steps)
{
    struct state *s = calloc(1, sizeof *s + (size_t)steps * sizeof s->trained[0]);
    return s;
}

void state_begin(struct state *s)
{
    memset(s, 0, sizeof *s);
}

size_t state_bytes(const struct state *s)
{
    return sizeof *s + (size_t)s->step * sizeof s->trained[0];
}

/* FNV-1a of 64 bits: it tells states apart that differ by accident. */
uint64_t state_digest(const struct state *s)
{
    const unsigned char *bytes = (const unsigned char *)s;
    uint64_t digest = 0xcbf29ce484222325;
    for (size_t i = 0; i < state_bytes(s); i++)
        digest = (digest ^ bytes[i]) * 0x100000001b3;
    return digest;
}

bool state_read(struct state *s, const void *bytes, size_t len_bytes, uint64_t step)
{
    uint64_t sent;
    if (len_bytes != sizeof *s + (size_t)step * sizeof s->trained[0])
        return false;
    memcpy(&sent, bytes, sizeof sent);
    if (sent != step)
        return false;
    memcpy(s, bytes, len_bytes);
    return true;
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
        g->weight[k] = nearbyint(g->weight[k] * GRID) / GRID;
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

void state_apply(struct state *s, const struct gradient *g)
{
    for (int k = 0; k < FEATURES; k++)
        s->weight[k] -= RATE * (g->weight[k] / g->batches);
    s->trained[s->step++] = (uint32_t)g->batches;
    s->batches += (uint64_t)g->batches;
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
    if (!again)
        return false;
    while (again->step < s->step) {
        struct gradient sum = {0}, g;
        for (uint32_t i = 0; i < s->trained[again->step]; i++) {
            gradient_of(&g, again, local_rank, again->batches + i);
            add(&sum, &g);
        }
        state_apply(again, &sum);
    }
    bool same = again->batches == s->batches && memcmp(again, s, state_bytes(s)) == 0;
    free(again);
    return same;
}
