/*
 * Checks of a host, with thresholds: its network, processors, memory, disks, clock and GPUs. They
 * only read what the kernel and drivers count, so they take no time from a job.
 */
#ifndef FT_AGENT_CHECKS_H
#define FT_AGENT_CHECKS_H

#include "../daemon/past.h"

/* WARN: worth knowing. BAD: it explains a slow or dead rank. */
enum check_state { CHECK_GOOD, CHECK_WARN, CHECK_BAD };

struct check {
    char name[48]; /* "nic eth0 errors" */
    enum check_state state;
    double value;
    char sentence[160];
};

struct checks;
/* root: before /sys and /proc, for tests. state: a folder whose disk is looked at, too; "": none.
 * NULL: no memory. */
struct checks *checks_open(const char *root, const char *state, double interval_s);
void checks_close(struct checks *);
/* pids: of the ranks, whose control groups are looked at. */
void checks_look(struct checks *, const int *pids, int npids);
int checks_list(const struct checks *, const struct check **out);
/* Alarms that are on. host: whose, "": this one. */
void checks_note(const struct checks *, const char *host, struct daemon_past *);
struct daemon_service checks_service(struct checks *);
const char *check_state_name(enum check_state state);

#endif
