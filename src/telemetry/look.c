/*
 * Which telemetry files there are, and a short look at one: for a thread that has other work and
 * takes them one by one.
 */
#include "format.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool take_name(const char *dir, const char *text, struct ft_telemetry_file *out)
{
    struct ft_tm_name name;
    if (!ft_tm_name_parse(text, &name) || (geteuid() != 0 && name.uid != geteuid()))
        return false;
    out->pid = name.pid;
    return snprintf(out->path, sizeof out->path, "%s/%s", dir, text) < (int)sizeof out->path;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct ft_telemetry_file *)a)->path,
                  ((const struct ft_telemetry_file *)b)->path);
}

struct listing {
    struct ft_telemetry_file *files;
    int n, capacity;
};

static bool add_file(struct listing *list, const struct ft_telemetry_file *file)
{
    if (list->n == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 64;
        void *grown = realloc(list->files, (size_t)capacity * sizeof *list->files);
        if (!grown)
            return false;
        list->files = grown;
        list->capacity = capacity;
    }
    list->files[list->n++] = *file;
    return true;
}

int ft_telemetry_files(const char *dir, struct ft_telemetry_file **out)
{
    struct listing list = {0};
    struct ft_telemetry_file file;
    bool good = true;
    DIR *stream = opendir(dir);
    if (!stream)
        return ft_fail(FT_INVAL, "cannot list %s: %s", dir, strerror(errno));
    for (struct dirent *entry;
         good && list.n < FT_TELEMETRY_FILES_MAX && (entry = readdir(stream));)
        if (take_name(dir, entry->d_name, &file))
            good = add_file(&list, &file);
    closedir(stream);
    if (!good) {
        free(list.files);
        return ft_fail(FT_NOMEM, "no memory for a list of %d files", list.n);
    }
    if (list.n > 0)
        qsort(list.files, (size_t)list.n, sizeof *list.files, by_path);
    *out = list.files;
    return list.n;
}

bool ft_telemetry_look(const struct ft_telemetry_file *file, struct ft_telemetry_process *out)
{
    struct ft_tm_header h;
    char letter = '?';
    uint64_t start = 0;
    int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    ssize_t len = fd < 0 ? -1 : pread(fd, &h, sizeof h, 0);
    if (fd >= 0)
        close(fd);
    if (len != (ssize_t)sizeof h || memcmp(h.magic, FT_TM_MAGIC, sizeof h.magic) ||
        h.version != FT_TM_VERSION)
        return false;
    memset(out, 0, sizeof *out);
    out->engine = h.engine;
    memcpy(out->hostname, h.hostname, sizeof out->hostname);
    ft_text_clean(out->hostname, sizeof out->hostname);
    if (h.pid_ns == 0 || h.pid_ns != ft_tm_pid_ns())
        return true; /* nothing can be said of a process of another container */
    bool there = ft_tm_process((int)h.pid, &letter, &start) && start == h.pid_start;
    out->ended = !there || letter == 'Z' || letter == 'X';
    out->stopped = !out->ended && (letter == 'T' || letter == 't');
    return true;
}
