/*
 * Processors, memory, disks, the clock, and errors of memory that the hardware has seen.
 */
#include "checks_parts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <time.h>

#define WINDOW 10
#define RARE_WINDOW 150 /* growth is over one or two of them: 5 minutes */

/* ---- processors ------------------------------------------------------------------------------ */

static void visit_processor(struct checks *c, const char *name)
{
    uint64_t core, package;
    if (strncmp(name, "cpu", 3) != 0)
        return;
    if (check_read_number(c, &core,
                          "/sys/devices/system/cpu/%s/thermal_throttle/"
                          "core_throttle_count",
                          name))
        c->throttles += core;
    if (check_read_number(c, &package,
                          "/sys/devices/system/cpu/%s/thermal_throttle/"
                          "package_throttle_count",
                          name))
        c->throttles += package;
}

/* The share of time in which a control group was not let run. */
static void visit_quota(struct checks *c, const char *path)
{
    char text[2048], name[48];
    uint64_t throttled_us;
    double seconds;
    if (!check_read(c, text, sizeof text, "/sys/fs/cgroup%s/cpu.stat", path) ||
        !check_find_number(text, "throttled_usec", &throttled_us))
        return;
    snprintf(name, sizeof name, "cpu quota %.36s", path);
    double share = (double)check_growth(c, name, throttled_us, WINDOW, &seconds) / 1e6 / seconds;
    check_judge(c, name, share, (struct check_limit){0.02, 0.2},
                "processes of control group %.60s were held back for %.1f%% of the time by "
                "cpu.max",
                path, share * 100);
}

void check_processors(struct checks *c, const int *pids, int npids)
{
    double seconds;
    c->throttles = 0;
    check_each(c, "/sys/devices/system/cpu", visit_processor);
    uint64_t n = check_growth(c, "cpu heat", c->throttles, WINDOW, &seconds);
    check_judge(c, "cpu heat", (double)n, (struct check_limit){0.5, 100},
                "processors were slowed down because of heat %llu times in %.0f s",
                (unsigned long long)n, seconds);
    check_each_cgroup(c, pids, npids, visit_quota);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void judge_pressure(struct checks *c, const char *resource)
{
    char text[256], path[64], name[48];
    snprintf(path, sizeof path, "/proc/pressure/%s", resource);
    const char *at = check_read(c, text, sizeof text, "%s", path) ? strstr(text, "full avg10=")
                                                                  : NULL;
    if (!at)
        return;
    double share = strtod(at + strlen("full avg10="), NULL);
    snprintf(name, sizeof name, "%s pressure", resource);
    check_judge(c, name, share, (struct check_limit){5, 30},
                "all processes waited for %s for %.1f%% of the last 10 s", resource, share);
}

static void judge_event(struct checks *c, const char *path, const char *text, const char *event)
{
    uint64_t value;
    char name[48];
    double seconds;
    bool kills = strcmp(event, "oom_kill") == 0;
    if (!check_find_number(text, event, &value))
        return;
    snprintf(name, sizeof name, "memory %s %.28s", event, path);
    uint64_t n = check_growth(c, name, value, kills ? RARE_WINDOW : WINDOW, &seconds);
    check_judge(c, name, (double)n, (struct check_limit){kills ? 0.25 : 0.5, kills ? 0.5 : 1000},
                kills ? "%.60s: %llu processes were killed for lack of memory in %.0f s"
                      : "%.60s: memory.high was reached %llu times in %.0f s",
                path, (unsigned long long)n, seconds);
}

static void visit_memory(struct checks *c, const char *path)
{
    char text[512];
    if (!check_read(c, text, sizeof text, "/sys/fs/cgroup%s/memory.events", path))
        return;
    judge_event(c, path, text, "high");
    judge_event(c, path, text, "oom_kill");
}

void check_memory(struct checks *c, const int *pids, int npids)
{
    judge_pressure(c, "memory");
    judge_pressure(c, "io");
    check_each_cgroup(c, pids, npids, visit_memory);
}

/* ---- disks ----------------------------------------------------------------------------------- */

static void judge_disk(struct checks *c, const char *below, const char *path)
{
    char whole[600], name[48];
    struct statvfs fs;
    snprintf(whole, sizeof whole, "%s%s", below, path);
    if (statvfs(whole, &fs) != 0 || fs.f_blocks == 0)
        return;
    double used = 100 * (1 - (double)fs.f_bavail / (double)fs.f_blocks);
    snprintf(name, sizeof name, "disk %.40s", path);
    check_judge(c, name, used, (struct check_limit){90, 98}, "%.60s is %.1f%% full", path, used);
}

void check_disks(struct checks *c)
{
    judge_disk(c, c->root, "/dev/shm");
    judge_disk(c, c->root, "/tmp");
    if (c->state[0])
        judge_disk(c, "", c->state);
}

/* ---- the clock ------------------------------------------------------------------------------- */

static int64_t read_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* A step shows in the difference to a clock that is never set. It is told for five minutes. */
static void judge_step(struct checks *c)
{
    int64_t offset_ns = read_clock(CLOCK_REALTIME) - read_clock(CLOCK_BOOTTIME);
    int64_t moved_ns = c->clock_begun ? offset_ns - c->clock_offset_ns : 0;
    c->clock_offset_ns = offset_ns;
    c->clock_begun = true;
    if (llabs(moved_ns) > 100000000) {
        c->clock_step_s = (double)moved_ns / 1e9;
        c->clock_step_ns = c->now_ns;
    }
    bool lately = c->clock_step_ns && c->now_ns - c->clock_step_ns < 300000000000u;
    double step_s = lately ? c->clock_step_s : 0;
    check_judge(c, "clock step", step_s < 0 ? -step_s : step_s, (struct check_limit){0.1, 0},
                lately ? "the clock was set by %.3f s in the last five minutes"
                       : "the clock was not set lately (%.0f s)",
                step_s);
}

void check_clock(struct checks *c)
{
    struct timex now = {.modes = 0};
    judge_step(c);
    int state = adjtimex(&now);
    bool unsynchronised = state == TIME_ERROR || now.status & STA_UNSYNC;
    if (state >= 0)
        check_judge(c, "clock synchronised", unsynchronised, (struct check_limit){0.5, 0},
                    unsynchronised ? "nothing sets the clock: times of this host may not be those "
                                     "of others"
                                   : "the clock is synchronised");
}

/* ---- memory errors --------------------------------------------------------------------------- */

static void visit_controller(struct checks *c, const char *name)
{
    uint64_t corrected, fatal;
    char check[48];
    double seconds;
    if (strncmp(name, "mc", 2) != 0 ||
        !check_read_number(c, &corrected, "/sys/devices/system/edac/mc/%s/ce_count", name) ||
        !check_read_number(c, &fatal, "/sys/devices/system/edac/mc/%s/ue_count", name))
        return;
    snprintf(check, sizeof check, "edac %.16s corrected", name);
    uint64_t n = check_growth(c, check, corrected, RARE_WINDOW, &seconds);
    check_judge(c, check, (double)n, (struct check_limit){10, 1000},
                "memory controller %.16s corrected %llu errors in %.0f s", name,
                (unsigned long long)n, seconds);
    snprintf(check, sizeof check, "edac %.16s fatal", name);
    check_judge(c, check, (double)fatal, (struct check_limit){0.25, 0.5},
                "memory controller %.16s has had %llu errors that it could not correct", name,
                (unsigned long long)fatal);
}

void check_errors(struct checks *c)
{
    check_each(c, "/sys/devices/system/edac/mc", visit_controller);
}
