/*
 * What lasts: verdicts, alarms, jobs, hosts. Each has a row in the history from when it is first
 * noted until it is noted no more.
 */
#ifndef FT_DAEMON_PAST_H
#define FT_DAEMON_PAST_H

#include "daemon.h"

struct daemon_past;
/* Keeps the history in a folder; "": in memory. NULL: no memory. */
struct daemon_past *daemon_past_open(const char *folder);
void daemon_past_close(struct daemon_past *);
/* It is so now. What had not been noted since the last sweep is noted as new. At most 8192 things
 * last at a time; others are left out. */
void daemon_past_note(struct daemon_past *, enum daemon_record, const char *name, const char *kind,
                      const char *sentence);
/* Forgets what was not noted since the last sweep. */
void daemon_past_sweep(struct daemon_past *);
/* The service that shows the history. */
struct daemon_service daemon_past_service(struct daemon_past *);

#endif
