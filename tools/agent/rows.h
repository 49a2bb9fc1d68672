/*
 * What agents and the master say to each other about ranks. A report has 16 bytes for each process
 * and 80 for each of its communicators. It carries ages instead of times, so the master needs no
 * clock of the host. All that comes is checked here.
 */
#ifndef FT_AGENT_ROWS_H
#define FT_AGENT_ROWS_H

#include "../daemon/daemon.h"
#include "diagnose/diagnose.h"
#include "telemetry/telemetry.h"

/* Types of messages of DAEMON_DIAGNOSIS. An agent sends ROWS_HELLO first; the master sends
 * ROWS_FETCH and ROWS_ASK_STACKS, which have the same content. stacks.h has that of ROWS_STACKS,
 * pace.h that of ROWS_PACE. */
enum {
    ROWS_HELLO = 1,
    ROWS_REPORT,
    ROWS_NAMES,
    ROWS_CHECKS,
    ROWS_FILE,
    ROWS_FETCH,
    ROWS_ASK_STACKS,
    ROWS_STACKS,
    ROWS_PACE
};

#define ROWS_NOW_NS ((uint64_t)1 << 62) /* the time of what was decoded */
#define ROWS_ENGINES_MOST 4096
#define ROWS_MEMBERS_MOST 65536
#define ROWS_NAMES_MOST 4096 /* in a message */
#define ROWS_FETCH_MOST 64
#define ROWS_CHECKS_MOST 64

struct rows_hello {
    uint64_t host;
    uint32_t interval_ms;
    char hostname[64];
};
struct rows_name {
    uint64_t ctx;
    char name[40];
};
struct rows_check {
    char name[48], sentence[160];
    uint8_t state; /* enum check_state */
};

/* The caller frees what is encoded. NULL: no memory. */
unsigned char *rows_encode_hello(const struct rows_hello *, size_t *len);
/* slower: contexts of communicators whose steps have become slower. */
unsigned char *rows_encode_report(const struct ft_snapshot *, const uint64_t *slower, int nslower,
                                  size_t *len);
unsigned char *rows_encode_names(const struct rows_name *, int n, size_t *len);
unsigned char *rows_encode_checks(const struct rows_check *, int n, size_t *len);
unsigned char *rows_encode_fetch(uint32_t request, const uint64_t *engines, int n, size_t *len);
/* copy NULL: there is no such file. */
unsigned char *rows_encode_file(uint32_t request, uint64_t engine,
                                const struct ft_telemetry_copy *copy, size_t *len);

/* What a host has reported: rows of a snapshot, whose times are relative to ROWS_NOW_NS. */
struct rows_report {
    struct ft_snap_engine *engines;
    struct ft_snap_member *members;
    bool *slower; /* [nmembers] */
    int nengines, nmembers, unreadable;
    uint64_t real_ns;
};
struct rows_file {
    uint32_t request;
    uint64_t engine;
    struct ft_telemetry_copy copy; /* bytes: in the message; NULL: none */
};
/* False: it makes no sense, or there is no memory; nothing is to be freed. */
bool rows_decode_hello(const struct daemon_message *, struct rows_hello *);
bool rows_decode_report(const struct daemon_message *, struct rows_report *);
void rows_free_report(struct rows_report *);
/* Returns their number, at most `capacity`; -1: it makes no sense. */
int rows_decode_names(const struct daemon_message *, struct rows_name *, int capacity);
int rows_decode_checks(const struct daemon_message *, struct rows_check *, int capacity);
int rows_decode_fetch(const struct daemon_message *, uint32_t *request, uint64_t *engines,
                      int capacity);
bool rows_decode_file(const struct daemon_message *, struct rows_file *);

#endif
