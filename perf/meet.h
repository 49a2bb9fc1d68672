/*
 * Where the processes of a machine meet between timed calls, without a library: how ranks leave a
 * library's own barrier, and how far apart, is part of what is timed next. The file that
 * FTCCL_PERF_MEET names (empty at first, for one run) has a counter that all map.
 */
#ifndef FT_MEET_H
#define FT_MEET_H

#ifdef __cplusplus
extern "C" {
#endif

struct meeting;

/* Waits until n processes have come to the file, at most half a minute. *out is NULL where no file
 * is named. 0, or -1 after a message. */
int meeting_join(struct meeting **out, int n);
/* Waits until all have called it as often. A process that waits for a minute and a half ends, after
 * a message: one of the others has. */
void meeting_wait(struct meeting *m);
void meeting_leave(struct meeting *m); /* NULL: nothing */

#ifdef __cplusplus
}
#endif
#endif
