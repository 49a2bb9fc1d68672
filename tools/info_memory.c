/*
 * Prints the memory that FTCCL uses in a running process, read from /proc/PID/smaps. A link's
 * shared memory belongs to two processes, so half of it counts here. Its pages count when they are
 * allocated, whether or not this process has touched them. Pages that long messages used are freed
 * when no long message has come for a while (FTCCL_TRIM_MS), so an idle process shows less than a
 * busy one. FTCCL's memory on the heap cannot be told from the program's; perf/scaling measures how
 * much a communicator adds.
 */
#include "info.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LINK, LIFE, RECORDS, OTHER };
struct sum {
    unsigned count;
    uint64_t bytes;
};

/* Finds the kind of a mapping by its name in a line of smaps. */
static int sort_of(const char *line)
{
    if (strstr(line, "/memfd:ftccl-link"))
        return LINK;
    if (strstr(line, "/memfd:ftccl-life"))
        return LIFE;
    return strstr(line, "/dev/shm/ftccl-") ? RECORDS : OTHER;
}

/* Bytes allocated for the file that is mapped at "FROM-TO"; 0 if only root may read that. */
static uint64_t allocated(int pid, const char *line)
{
    char path[128];
    struct stat file;
    snprintf(path, sizeof path, "/proc/%d/map_files/%.*s", pid, (int)strcspn(line, " "), line);
    return stat(path, &file) == 0 ? (uint64_t)file.st_blocks * 512 : 0;
}

static double kib(uint64_t bytes)
{
    return (double)bytes / 1024;
}

static void print(FILE *out, int pid, const struct sum sums[OTHER + 1])
{
    fprintf(out, "memory of process %d, KiB:\n", pid);
    fprintf(out,
            "  links      %9.0f  %u of shared memory; half of each counts here, half in the peer; "
            "more when long messages have come\n",
            kib(sums[LINK].bytes) / 2, sums[LINK].count);
    fprintf(out, "  life pages %9.0f  %u, its own and those of peers\n", kib(sums[LIFE].bytes),
            sums[LIFE].count);
    fprintf(out, "  telemetry  %9.0f  %u\n", kib(sums[RECORDS].bytes), sums[RECORDS].count);
    fprintf(out, "  anonymous  %9.0f  the library's and the program's own\n",
            kib(sums[OTHER].bytes));
    fprintf(out, "  sum        %9.0f\n",
            kib(sums[LINK].bytes) / 2 +
                kib(sums[LIFE].bytes + sums[RECORDS].bytes + sums[OTHER].bytes));
}

int info_memory(FILE *out, int pid)
{
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/smaps", pid);
    FILE *maps = fopen(path, "re");
    if (!maps)
        return ft_fail(FT_INVAL, "no process %d, or not one of this user", pid);
    struct sum sums[OTHER + 1] = {0};
    int sort = OTHER;
    uint64_t known = 0; /* bytes allocated in the file of the present mapping */
    while (fgets(line, sizeof line, maps)) {
        unsigned long long from, to, size_kib;
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2) {
            sort = sort_of(line);
            known = sort == OTHER ? 0 : allocated(pid, line);
            sums[sort].bytes += known;
            sums[sort].count++;
        } else if (sscanf(line, "Rss: %llu kB", &size_kib) == 1 && sort != OTHER && !known) {
            sums[sort].bytes += size_kib * 1024;
        } else if (sscanf(line, "Anonymous: %llu kB", &size_kib) == 1 && sort == OTHER) {
            sums[OTHER].bytes += size_kib * 1024;
        }
    }
    fclose(maps);
    print(out, pid, sums);
    return FT_OK;
}
