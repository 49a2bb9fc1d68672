/*
 * Keeps what killed ranks left. Their files are removed after a minute by other ranks, and tell
 * most beside those of the ranks that live. So the whole host's files are kept, as --save of
 * ftccl-diagnose does, in STATE/kept/TIME. Bounded in bytes and age; the oldest go first.
 */
#include "agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LISTED_MOST 4096 /* snapshots */
#define PRUNE_NS 600000000000u
#define FILE_BYTES_MOST ((uint64_t)1 << 20)

static int by_id(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The dead of this snapshot become those that are known. Returns how many are new, or -1. */
static int note_dead(struct keep *k, const struct ft_snapshot *s)
{
    uint64_t *dead = calloc((size_t)s->nengines + 1, sizeof *dead);
    int n = 0, fresh = 0;
    if (!dead)
        return -1;
    for (int i = 0; i < s->nengines; i++)
        if (s->engines[i].state == FT_PROCESS_GONE) {
            uint64_t id = s->engines[i].id;
            fresh += k->nknown == 0 || !bsearch(&id, k->known, (size_t)k->nknown, sizeof id, by_id);
            dead[n++] = id;
        }
    qsort(dead, (size_t)n, sizeof *dead, by_id);
    free(k->known);
    k->known = dead;
    k->nknown = n;
    return fresh;
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* The bytes of a snapshot; remove: removes it. */
static uint64_t visit(const struct keep *k, const char *name, bool remove)
{
    char path[600];
    uint64_t bytes = 0;
    snprintf(path, sizeof path, "%s/%s", k->folder, name);
    DIR *list = opendir(path);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        struct stat st;
        if (entry->d_name[0] == '.')
            continue;
        if (fstatat(dirfd(list), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            bytes += (uint64_t)st.st_size;
        if (remove)
            unlinkat(dirfd(list), entry->d_name, 0);
    }
    if (list)
        closedir(list);
    if (remove)
        rmdir(path);
    return bytes;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int list_all(const struct keep *k, char **names)
{
    int n = 0;
    DIR *list = opendir(k->folder);
    for (struct dirent *entry; list && n < LISTED_MOST && (entry = readdir(list));)
        if (entry->d_name[0] != '.' && (names[n] = strdup(entry->d_name)))
            n++;
    if (list)
        closedir(list);
    qsort(names, (size_t)n, sizeof *names, by_name);
    return n;
}

/* Names are times, so they are in the order of their age; the newest is looked at first. */
static void prune(struct keep *k, uint64_t room)
{
    char **names = calloc(LISTED_MOST, sizeof *names), oldest[32];
    time_t limit = time(NULL) - KEEP_AGE_MOST_S;
    struct tm parts;
    int n = names ? list_all(k, names) : 0;
    strftime(oldest, sizeof oldest, "%Y%m%dT%H%M%SZ", gmtime_r(&limit, &parts));
    k->kept = 0;
    k->bytes = 0;
    for (int i = n - 1; i >= 0; i--) {
        uint64_t bytes = visit(k, names[i], false);
        bool stays = strcmp(names[i], oldest) >= 0 && k->bytes + bytes + room <= KEEP_BYTES_MOST;
        if (stays) {
            k->bytes += bytes;
            k->kept++;
        } else {
            visit(k, names[i], true);
        }
        free(names[i]);
    }
    free(names);
    k->pruned_ns = daemon_now_ns();
}

static void save(struct keep *k, const char *dir)
{
    char path[400], when[32];
    time_t now = time(NULL);
    struct tm parts;
    strftime(when, sizeof when, "%Y%m%dT%H%M%SZ", gmtime_r(&now, &parts));
    snprintf(path, sizeof path, "%s/%s", k->folder, when);
    k->trouble[0] = '\0';
    if (ft_snapshot_save(dir, path) == FT_OK)
        prune(k, 0);
    else
        snprintf(k->trouble, sizeof k->trouble, "what a killed rank left was not kept: %.240s",
                 ft_fail_text());
}

void keep_look(struct keep *k, const struct ft_snapshot *s, const char *dir)
{
    int fresh = k->folder[0] ? note_dead(k, s) : 0;
    if (k->folder[0] && daemon_now_ns() - k->pruned_ns > PRUNE_NS)
        prune(k, 0);
    if (fresh <= 0)
        return;
    prune(k, ft_min((uint64_t)s->nengines * FILE_BYTES_MOST, KEEP_BYTES_MOST));
    save(k, dir);
}

int keep_open(struct keep *k, const char *state)
{
    *k = (struct keep){0};
    if (!state[0])
        return FT_OK;
    char folder[sizeof k->folder];
    if (snprintf(folder, sizeof folder, "%s/kept", state) >= (int)sizeof folder)
        return ft_fail(FT_SYSTEM, "the path of the state folder is too long");
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return ft_fail(FT_SYSTEM, "cannot make %.200s: %s", folder, strerror(errno));
    memcpy(k->folder, folder, sizeof folder);
    prune(k, 0);
    return FT_OK;
}

void keep_close(struct keep *k)
{
    free(k->known);
}
