/*
 * Keeps a snapshot: a directory with copies of the telemetry files and a text file `processes`
 * (processes.c reads it). All is written to a directory beside the wanted one, which then gets its
 * name, so that nobody finds half of a snapshot. A rank may call this when its deadline has passed.
 */
#include "saved.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct saving {
    char dir[PATH_MAX]; /* where the files are until all are there */
    int fd;             /* of it */
    FILE *list;         /* `processes` */
    int saved, unreadable;
    int status;
};

/* ---- one file -------------------------------------------------------------------------------- */

static bool write_all(int fd, const void *from, size_t len_bytes)
{
    for (size_t done = 0; done < len_bytes;) {
        ssize_t n = write(fd, (const char *)from + done, len_bytes - done);
        if (n < 0 && errno != EINTR)
            return false;
        done += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static int create(const struct saving *s, const char *name)
{
    return openat(s->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
}

/* What is torn stays torn: an odd guard. */
static void keep_torn(struct ft_image *image)
{
    for (int i = 0; i < FT_TM_COMMS; i++)
        image->file.comm[i].guard |= image->comm_torn[i];
    for (int i = 0; i < FT_TM_OPS; i++)
        image->file.op[i].guard |= image->op_torn[i];
    for (int i = 0; i < FT_TM_EVENTS; i++)
        image->file.event[i].guard |= image->event_torn[i];
    for (int i = 0; i < FT_TM_PATHS; i++)
        image->file.path[i].guard |= image->path_torn[i];
    for (int i = 0; i < FT_TM_CONNS; i++)
        image->file.conn[i].guard |= image->conn_torn[i];
}

static int write_copy(const struct saving *s, const char *name, struct ft_image *image)
{
    keep_torn(image);
    int fd = ft_fd_own(create(s, name));
    bool good = fd >= 0 && write_all(fd, &image->file, sizeof image->file);
    int err = errno;
    ft_fd_close(&fd);
    return good ? FT_OK : ft_fail(FT_SYSTEM, "cannot write %.200s: %s", s->dir, strerror(err));
}

int ft_telemetry_copy_file(const char *path, struct ft_telemetry_copy *out)
{
    struct ft_image *image;
    struct ft_tm_seen seen;
    uint64_t now_ns = ft_now_ns(ft_env_real());
    int status = ft_image_load(path, &image);
    if (status != FT_OK)
        return status;
    ft_tm_look(&image->file.header, &seen);
    keep_torn(image);
    void *bytes = malloc(sizeof image->file);
    if (bytes)
        memcpy(bytes, &image->file, sizeof image->file);
    ft_image_free(image);
    if (!bytes)
        return ft_fail(FT_NOMEM, "no memory for a copy of %.200s", path);
    *out = (struct ft_telemetry_copy){
        .bytes = bytes, .len_bytes = sizeof image->file, .now_ns = now_ns, .state = seen.state};
    memcpy(out->doing, seen.doing, sizeof out->doing);
    return FT_OK;
}

static void save_file(void *arg, const char *path, const char *name)
{
    struct saving *s = arg;
    struct ft_image *image;
    struct ft_tm_seen seen;
    struct ft_tm_name parts = {0};
    if (s->status != FT_OK)
        return;
    if (!path || ft_image_load(path, &image) != FT_OK) {
        ft_tm_name_parse(name, &parts);
        s->unreadable += !path || ft_tm_should_be_readable(path, parts.pid);
        return;
    }
    ft_tm_look(&image->file.header, &seen);
    s->status = write_copy(s, name, image);
    ft_image_free(image);
    fprintf(s->list, "process %s %s %s\n", name, ft_tm_state_name(seen.state), seen.doing);
    s->saved++;
}

/* ---- the directory --------------------------------------------------------------------------- */

/* PATH.XXXXXX, for a PATH without slashes at its end. */
static int make_beside(const char *to, char *final, struct saving *s)
{
    size_t len = strlen(to);
    while (len > 1 && to[len - 1] == '/')
        len--;
    if (len == 0 || len + 8 > PATH_MAX)
        return ft_fail(FT_INVAL, "%.200s is not the path of a directory", to);
    snprintf(final, PATH_MAX, "%.*s", (int)len, to);
    snprintf(s->dir, sizeof s->dir, "%.*s.XXXXXX", (int)len, to);
    if (!mkdtemp(s->dir))
        return ft_fail(FT_INVAL, "cannot make %.200s: %s", final, strerror(errno));
    return FT_OK;
}

static int open_list(struct saving *s)
{
    s->fd = ft_fd_own(open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    int fd = s->fd < 0 ? -1 : create(s, FT_TM_PROCESSES);
    s->list = fd < 0 ? NULL : fdopen(fd, "w");
    if (s->list)
        return FT_OK;
    int err = errno;
    if (fd >= 0)
        close(fd);
    return ft_fail(FT_SYSTEM, "cannot write %.200s: %s", s->dir, strerror(err));
}

/* The line "end" is last: a reader knows by it that nothing is missing. */
static int close_list(struct saving *s)
{
    fprintf(s->list, "unreadable %d\nend %d\n", s->unreadable, s->saved);
    bool bad = ferror(s->list);
    bad |= fclose(s->list) != 0;
    s->list = NULL;
    return bad ? ft_fail(FT_SYSTEM, "cannot write %.200s: %s", s->dir, strerror(errno)) : FT_OK;
}

static int write_files(struct saving *s, const char *from)
{
    int status = open_list(s);
    if (status != FT_OK)
        return status;
    fprintf(s->list, "ftccl-processes 1\n");
    fprintf(s->list, "time %" PRIu64 " %" PRIu64 "\n", ft_now_ns(ft_env_real()), ft_tm_real_ns());
    status = ft_tm_each_file(from, save_file, s);
    int closed = close_list(s);
    return status != FT_OK ? status : s->status != FT_OK ? s->status : closed;
}

/* Removes the files that were written. */
static void give_up(struct saving *s)
{
    DIR *list = opendir(s->dir);
    for (struct dirent *entry; list && (entry = readdir(list));)
        if (entry->d_name[0] != '.')
            unlinkat(dirfd(list), entry->d_name, 0);
    if (list)
        closedir(list);
    rmdir(s->dir);
}

int ft_snapshot_save(const char *dir, const char *to)
{
    struct saving s = {.fd = -1};
    char final[PATH_MAX];
    int status = make_beside(to, final, &s);
    if (status != FT_OK)
        return status;
    status = write_files(&s, dir);
    ft_fd_close(&s.fd);
    if (status == FT_OK && rename(s.dir, final) != 0)
        status = errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR
                     ? ft_fail(FT_INVAL, "%.200s is there and not an empty directory", final)
                     : ft_fail(FT_SYSTEM, "cannot make %.200s: %s", final, strerror(errno));
    if (status != FT_OK)
        give_up(&s);
    return status;
}
