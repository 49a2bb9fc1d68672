/*
 * What is known of a process apart from its telemetry file: the kernel says it, or a directory in
 * which ft_snapshot_save() has kept it. Private to this folder.
 */
#ifndef FT_TELEMETRY_SAVED_H
#define FT_TELEMETRY_SAVED_H

#include "diagnose/diagnose.h"
#include "format.h"

#define FT_TM_PROCESSES "processes" /* the file in a saved directory */
#define FT_TM_MOST_SAVED 65536      /* processes in it */
#define FT_TM_NAME_BYTES 48         /* name of a telemetry file */

struct ft_tm_seen {
    enum ft_process_state state;
    char doing[96]; /* as in struct ft_snap_engine */
};
/* Asks the kernel about the process of a telemetry file. */
void ft_tm_look(const struct ft_tm_header *, struct ft_tm_seen *);
/* UNKNOWN, RUNS or GONE. letter: what the kernel says, if it runs. */
enum ft_process_state ft_tm_process_state(const struct ft_tm_header *, char *letter);

/* Looks at the threads and children of a process that runs, as far as the kernel shows them: sets
 * `doing`, and `state` if threads are stopped. letter: its state in /proc/<pid>/stat. */
void ft_process_look(int pid, char letter, struct ft_tm_seen *);

const char *ft_tm_state_name(enum ft_process_state); /* the word in `processes` */

/* False for a file that is being made, has just gone, or that an ended process has left in another
 * version's layout. */
bool ft_tm_should_be_readable(const char *path, int pid);

/* Calls visit() for every telemetry file of this user below a directory, for root for those of all
 * users. path NULL: it is too long. FT_INVAL: the directory cannot be listed. */
typedef void ft_tm_visit(void *arg, const char *path, const char *name);
int ft_tm_each_file(const char *dir, ft_tm_visit *visit, void *arg);

struct ft_tm_saved {
    char name[FT_TM_NAME_BYTES];
    struct ft_tm_seen seen;
};
/* The content of `processes`. No two have the same name. */
struct ft_tm_moment {
    uint64_t now_ns, real_ns;
    int unreadable;
    struct ft_tm_saved *process;
    int nprocesses, capacity;
};
/* The caller frees `process`, also after an error. FT_INVAL: there is none, or it is malformed,
 * with a sentence; FT_NOMEM. */
int ft_tm_moment_read(const char *dir, struct ft_tm_moment *out);

#endif
