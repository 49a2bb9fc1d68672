/*
 * The writer's own state, shared by file.c and writer.c.
 */
#ifndef FT_TELEMETRY_WRITER_H
#define FT_TELEMETRY_WRITER_H

#include "format.h"

#include <sys/types.h>

struct ft_telemetry {
    struct ft_tm_file *file;
    struct ft_env *env;
    uint64_t serial; /* operations recorded */
    uint32_t next;   /* slot that the next one takes, if nothing runs there */
    int next_comm, next_link;
    /* the name of the latest operation's algorithm, and its copy as records have it */
    const char *algo_from;
    char algo[sizeof((struct ft_tm_op *)NULL)->algo];
    pid_t pid;
    struct ft_telemetry *others; /* open in this process */
    char path[128];
};

#endif
