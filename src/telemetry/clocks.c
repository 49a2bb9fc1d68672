/*
 * Files of hosts whose clocks differ: the times of all become those of one of them. Every rank has
 * measured the clocks of some peers; the offsets from host to host add up along the way with the
 * least error. Where the offset is not larger than its error, the clocks may be the same, and
 * nothing is changed.
 */
#include "collect.h"

#include <stdlib.h>
#include <string.h>

struct hosts {
    struct ft_snapshot *s;
    int n;
    int *of;         /* [nengines] number of the engine's host */
    int64_t *ahead;  /* [n] its clock, beside that of the first */
    uint64_t *error; /* [n] UINT64_MAX: not known */
};

static int find_engine(const struct ft_snapshot *s, uint64_t id)
{
    for (int i = 0; i < s->nengines; i++)
        if (s->engines[i].id == id)
            return i;
    return -1;
}

/* The first host is one whose processes this machine has, if there is one: `now` is of its clock.
 */
static int first_engine(const struct ft_snapshot *s)
{
    for (int i = 0; i < s->nengines; i++)
        if (s->engines[i].state != FT_PROCESS_UNKNOWN && s->engines[i].state != FT_PROCESS_GONE)
            return i;
    return 0;
}

static void number_hosts(struct hosts *h)
{
    const struct ft_snap_engine *engines = h->s->engines;
    uint64_t first = engines[first_engine(h->s)].host;
    h->n = 1;
    for (int i = 0; i < h->s->nengines; i++) {
        int same = 0;
        while (same < i && engines[same].host != engines[i].host)
            same++;
        h->of[i] = engines[i].host == first ? 0 : same < i ? h->of[same] : h->n++;
    }
}

/* True if a clock has told more of a host than was known. */
static bool relax(struct hosts *h, int from, int to, int64_t offset_ns, uint64_t error_ns)
{
    uint64_t error = h->error[from] + error_ns;
    if (error < error_ns || error >= h->error[to]) /* the sum is too large, or unknown */
        return false;
    h->error[to] = error;
    h->ahead[to] = (int64_t)((uint64_t)h->ahead[from] + (uint64_t)offset_ns);
    return true;
}

static void follow_clocks(struct hosts *h)
{
    bool more = true;
    for (int i = 1; i < h->n; i++)
        h->error[i] = UINT64_MAX;
    for (int round = 0; more && round < h->n; round++) {
        more = false;
        for (int i = 0; i < h->s->nclocks; i++) {
            const struct ft_snap_clock *c = &h->s->clocks[i];
            int other = find_engine(h->s, c->peer);
            if (other < 0 || h->of[other] == h->of[c->engine] || c->offset_ns == INT64_MIN)
                continue;
            more |= relax(h, h->of[c->engine], h->of[other], c->offset_ns, c->error_ns);
            more |= relax(h, h->of[other], h->of[c->engine], -c->offset_ns, c->error_ns);
        }
    }
}

static bool set_shifts(const struct hosts *h, int64_t *shift)
{
    bool any = false;
    for (int i = 0; i < h->s->nengines; i++) {
        int host = h->of[i];
        int64_t ahead = h->ahead[host];
        uint64_t size = ahead < 0 ? 0 - (uint64_t)ahead : (uint64_t)ahead;
        bool differs = h->error[host] != UINT64_MAX && size > h->error[host];
        shift[i] = differs ? ahead : 0;
        any |= differs;
    }
    return any;
}

int ft_tm_align(struct ft_snapshot *s)
{
    if (s->nclocks == 0 || s->nengines < 2)
        return FT_OK;
    size_t n = (size_t)s->nengines;
    struct hosts h = {s, 0, calloc(n, sizeof *h.of), calloc(n, sizeof *h.ahead),
                      calloc(n, sizeof *h.error)};
    int64_t *shift = calloc(n, sizeof *shift);
    bool good = h.of && h.ahead && h.error && shift;
    if (good) {
        number_hosts(&h);
        follow_clocks(&h);
        if (set_shifts(&h, shift))
            ft_tm_shift_times(s, shift);
    }
    free(h.of);
    free(h.ahead);
    free(h.error);
    free(shift);
    return good ? FT_OK
                : ft_fail(FT_NOMEM, "no memory for the clocks of %d processes", s->nengines);
}
