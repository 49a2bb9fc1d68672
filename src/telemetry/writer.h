/*
 * The state of the writer, shared by file.c and writer.c.
 */
#ifndef FT_TELEMETRY_WRITER_H
#define FT_TELEMETRY_WRITER_H

#include "format.h"

#include <sys/types.h>

struct ft_telemetry {
    struct ft_tm_file *file;
    struct ft_env *env;
    uint64_t serial; /* number of operations recorded */
    uint64_t events; /* number of events recorded */
    uint32_t next;   /* slot of the next operation, unless an operation that runs has it */
    int next_comm, next_link, next_path;
    /* of each path: sums that become those of before */
    struct ft_tm_path_sums path_mark[FT_TM_PATHS];
    uint32_t next_seat;
    int seats_left; /* of the communicator that was opened last */
    /* the name of the latest operation's algorithm, and its copy in the form of a record */
    const char *algo_from;
    char algo[sizeof((struct ft_tm_op *)NULL)->algo];
    pid_t pid;
    struct ft_telemetry *others; /* next file that is open in this process */
    char path[128];
};

#endif
