/*
 * The tables of tests/scale.
 */
#include "measure.h"

void report_head(void)
{
    printf("%7s %5s %6s | %6s %6s | %7s %7s %7s %8s %7s | %7s %8s %8s | %8s %8s %8s | %8s %8s %8s "
           "| %7s %6s %6s\n",
           "members", "local", "conns", "join", "CPU", "beat", "CPU", "quiet", "answered", "idle",
           "first", "view", "CPU", "same", "from 1st", "CPU", "changed", "from 1st", "CPU",
           "rejoin", "memory", "most");
    printf("%7s %5s %6s | %6s %6s | %7s %7s %7s %8s %7s | %7s %8s %8s | %8s %8s %8s | %8s %8s %8s "
           "| %7s %6s %6s\n",
           "", "", "", "s", "s", "ms", "ms", "ms", "ms", "ms/s", "GB", "ms", "ms", "ms", "ms", "ms",
           "ms", "ms", "ms", "ms", "MiB", "MiB");
    fflush(stdout); /* before forks */
}

void report_line(const struct measured *m)
{
    const struct view_times *first = &m->view[ROUND_FIRST], *same = &m->view[ROUND_SAME],
                            *changed = &m->view[ROUND_CHANGED];
    printf("%7u %5u %6u | %6.2f %6.2f | %7.1f %7.1f %7.1f %8.1f %7.1f | %7.2f %8.0f %8.0f | %8.1f "
           "%8.1f %8.1f | %8.1f %8.1f %8.1f | %7.1f %6.0f %6.0f\n",
           m->shape.members, m->shape.local, shape_conns(&m->shape), m->join_s, m->join_cpu_s,
           m->beat_ms[BEATS_USUAL], m->beat_cpu_ms[BEATS_USUAL], m->beat_cpu_ms[BEATS_QUIET],
           m->beat_cpu_ms[BEATS_ANSWERED], m->idle_cpu_ms, m->first_gb, first->from_last_ms,
           first->cpu_ms, same->from_last_ms, same->from_first_ms, same->cpu_ms,
           changed->from_last_ms, changed->from_first_ms, changed->cpu_ms, m->rejoin_ms, m->rss_mib,
           m->peak_mib);
    if (m->again)
        printf("        %u handshakes were begun again\n", m->again);
    fflush(stdout);
}

void report_bytes(const struct measured *m, int count)
{
    printf(
        "\nbytes of a member and round, headers included; a heartbeat is one for a connection\n");
    printf("%7s %5s | %7s %7s | %7s %7s | %7s | %10s %10s %10s\n", "members", "local", "JOIN",
           "JOINED", "BEAT", "ALIVE", "ASK", "VIEW first", "same", "changed");
    for (; count-- > 0; m++)
        printf("%7u %5u | %7.1f %7.1f | %7.1f %7.1f | %7.1f | %10.0f %10.1f %10.1f\n",
               m->shape.members, m->shape.local, m->join_out, m->join_in, m->beat_out, m->beat_in,
               m->ask_out, m->view_in[ROUND_FIRST], m->view_in[ROUND_SAME],
               m->view_in[ROUND_CHANGED]);
}
