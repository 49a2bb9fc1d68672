/*
 * A barrier for the processes of a machine between timed calls, without a library. A library's own
 * barrier would affect the time of the next call, because ranks leave it at different times. The
 * file named by FTCCL_PERF_MEET (empty at first, for one run) contains a counter that all processes
 * map.
 */
#ifndef FT_MEET_H
#define FT_MEET_H

#ifdef __cplusplus
extern "C" {
#endif

struct meeting;

/* Waits until n processes have opened the file, at most half a minute. *out is NULL if no file is
 * named. Returns 0, or -1 after a message. */
int meeting_join(struct meeting **out, int n);
/* Waits until all processes have called it equally often. A process that waits for a minute and a
 * half ends with a message, because another process must have ended. */
void meeting_wait(struct meeting *m);
void meeting_leave(struct meeting *m); /* NULL: nothing */

#ifdef __cplusplus
}
#endif
#endif
