/*
 * detect.c: which rank watches which, and suspicion when heartbeats do not arrive. It only does the
 * bookkeeping; the engine sends and receives heartbeats. Time is this process's own running time.
 * If a tick comes late because this process was stopped or did not get a CPU, the gap counts as one
 * heartbeat interval at most. So a rank that wakes up does not suspect all others.
 */
#include "membership/membership.h"

/* Lists the ranks at distance 2^k. They are all different as long as 2^k < nranks. */
static int list_neighbours(int nranks, int rank, int sign, int *out, int capacity)
{
    int n = 0;
    for (int64_t step = 1; step < nranks && n < capacity; step *= 2)
        out[n++] = (int)((rank + sign * step + nranks) % nranks);
    return n;
}

int ft_detect_watchers(int nranks, int rank, int *out, int capacity)
{
    return list_neighbours(nranks, rank, 1, out, capacity);
}
int ft_detect_watched(int nranks, int rank, int *out, int capacity)
{
    return list_neighbours(nranks, rank, -1, out, capacity);
}

void ft_detect_open(struct ft_detect *detect, uint64_t beat_ns, uint64_t suspect_ns,
                    uint64_t now_ns)
{
    *detect = (struct ft_detect){.beat_ns = beat_ns, .suspect_ns = suspect_ns, .ticked_ns = now_ns};
}

static uint64_t running_at(const struct ft_detect *detect, uint64_t now_ns)
{
    uint64_t gap_ns = now_ns > detect->ticked_ns ? now_ns - detect->ticked_ns : 0;
    return detect->running_ns + (gap_ns < detect->beat_ns ? gap_ns : detect->beat_ns);
}

void ft_detect_tick(struct ft_detect *detect, uint64_t now_ns)
{
    detect->running_ns = running_at(detect, now_ns);
    detect->ticked_ns = now_ns;
}

bool ft_detect_heard(const struct ft_detect *detect, struct ft_pulse *pulse, uint64_t now_ns)
{
    bool recovered = pulse->suspected;
    *pulse = (struct ft_pulse){.heard_ns = running_at(detect, now_ns), .watched = true};
    return recovered;
}

uint64_t ft_detect_silence_ns(const struct ft_detect *detect, const struct ft_pulse *pulse)
{
    return detect->running_ns - pulse->heard_ns;
}

bool ft_detect_missed(const struct ft_detect *detect, struct ft_pulse *pulse)
{
    if (!pulse->watched || pulse->suspected ||
        ft_detect_silence_ns(detect, pulse) <= detect->suspect_ns)
        return false;
    return pulse->suspected = true;
}
