/*
 * Copies telemetry files and checks the copies before use. A file is read and not mapped, because
 * its owner may truncate it at any time. Nothing in it is trusted: sizes must be exactly those of
 * this version, strings are cut and made printable, and numbers that index or name something are
 * checked where they are used.
 */
#include "format.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* attempts to read one record that is being written; a running writer finishes it within 100 ns */
#define RETRIES 8

static uint32_t guard_at(const void *row)
{
    uint32_t guard;
    memcpy(&guard, row, sizeof guard);
    return guard;
}

static int read_all(int fd, void *buf, size_t len_bytes, size_t off)
{
    for (size_t done = 0; done < len_bytes;) {
        ssize_t n = pread(fd, (char *)buf + done, len_bytes - done, (off_t)(off + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return ft_fail(FT_SYSTEM, "read: %s", strerror(errno));
        if (n == 0)
            return ft_fail(FT_INVAL, "the file is cut off at %zu bytes", off + done);
        done += (size_t)n;
    }
    /* orders one copy before the next one; pairs with the release stores of the guards */
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return FT_OK;
}

/* ---- consistency: the same even guard before and after the copy ------------------------------ */

static bool reread(int fd, size_t off, void *row, size_t len_bytes)
{
    for (int i = 0; i < RETRIES; i++) {
        uint32_t before, after;
        if (read_all(fd, &before, sizeof before, off) || read_all(fd, row, len_bytes, off) ||
            read_all(fd, &after, sizeof after, off))
            return false;
        if (before == after && !(before & 1) && guard_at(row) == before)
            return true;
    }
    return false;
}

/* The position of one table, which is the same in all three copies. */
struct table {
    size_t off, nrows, row_bytes;
    unsigned char *torn;
};

static void settle_table(struct ft_image *image, const void *before, const void *after,
                         const struct table *table)
{
    for (size_t i = 0; i < table->nrows; i++) {
        size_t off = table->off + i * table->row_bytes;
        char *row = (char *)&image->file + off;
        uint32_t guard = guard_at(row);
        bool same = guard == guard_at((const char *)before + off) &&
                    guard == guard_at((const char *)after + off);
        if (!same || guard & 1)
            table->torn[i] = image->fd < 0 || !reread(image->fd, off, row, table->row_bytes);
    }
}

static void settle_all(struct ft_image *image, const struct ft_tm_file *before,
                       const struct ft_tm_file *after)
{
    const struct table comms = {offsetof(struct ft_tm_file, comm), FT_TM_COMMS,
                                sizeof(struct ft_tm_comm), image->comm_torn};
    const struct table ops = {offsetof(struct ft_tm_file, op), FT_TM_OPS, sizeof(struct ft_tm_op),
                              image->op_torn};
    const struct table events = {offsetof(struct ft_tm_file, event), FT_TM_EVENTS,
                                 sizeof(struct ft_tm_event), image->event_torn};
    const struct table paths = {offsetof(struct ft_tm_file, path), FT_TM_PATHS,
                                sizeof(struct ft_tm_path), image->path_torn};
    const struct table clocks = {offsetof(struct ft_tm_file, clock), FT_TM_CLOCKS,
                                 sizeof(struct ft_tm_clock), image->clock_torn};
    const struct table conns = {offsetof(struct ft_tm_file, conn), FT_TM_CONNS,
                                sizeof(struct ft_tm_conn), image->conn_torn};
    settle_table(image, before, after, &comms);
    settle_table(image, before, after, &ops);
    settle_table(image, before, after, &events);
    settle_table(image, before, after, &paths);
    settle_table(image, before, after, &clocks);
    settle_table(image, before, after, &conns);
}

/* ---- checks ---------------------------------------------------------------------------------- */

static int check_header(const struct ft_tm_header *h)
{
    if (memcmp(h->magic, FT_TM_MAGIC, sizeof h->magic))
        return ft_fail(FT_INVAL, "not a telemetry file");
    if (h->order != FT_TM_ORDER)
        return ft_fail(FT_INVAL, "written in another byte order");
    if (h->version != FT_TM_VERSION)
        return ft_fail(FT_INVAL, "layout version %u; this program reads %u", h->version,
                       FT_TM_VERSION);
    const struct {
        const char *name;
        uint32_t is, want;
    } field[] = {
        {"header_bytes", h->header_bytes, sizeof *h},
        {"file_bytes", h->file_bytes, FT_TM_BYTES},
        {"comm_offset", h->comm_offset, offsetof(struct ft_tm_file, comm)},
        {"comm_rows", h->comm_rows, FT_TM_COMMS},
        {"comm_row_bytes", h->comm_row_bytes, sizeof(struct ft_tm_comm)},
        {"op_offset", h->op_offset, offsetof(struct ft_tm_file, op)},
        {"op_rows", h->op_rows, FT_TM_OPS},
        {"op_row_bytes", h->op_row_bytes, sizeof(struct ft_tm_op)},
        {"link_offset", h->link_offset, offsetof(struct ft_tm_file, link)},
        {"link_rows", h->link_rows, FT_TM_LINKS},
        {"link_row_bytes", h->link_row_bytes, sizeof(struct ft_tm_link)},
        {"event_offset", h->event_offset, offsetof(struct ft_tm_file, event)},
        {"event_rows", h->event_rows, FT_TM_EVENTS},
        {"event_row_bytes", h->event_row_bytes, sizeof(struct ft_tm_event)},
        {"seat_offset", h->seat_offset, offsetof(struct ft_tm_file, seat)},
        {"seat_rows", h->seat_rows, FT_TM_SEATS},
        {"seat_row_bytes", h->seat_row_bytes, sizeof(struct ft_tm_seat)},
        {"path_offset", h->path_offset, offsetof(struct ft_tm_file, path)},
        {"path_rows", h->path_rows, FT_TM_PATHS},
        {"path_row_bytes", h->path_row_bytes, sizeof(struct ft_tm_path)},
        {"latency_offset", h->latency_offset, offsetof(struct ft_tm_file, latency)},
        {"latency_rows", h->latency_rows, FT_TM_LATENCIES},
        {"latency_row_bytes", h->latency_row_bytes, sizeof(struct ft_tm_latency)},
        {"clock_offset", h->clock_offset, offsetof(struct ft_tm_file, clock)},
        {"clock_rows", h->clock_rows, FT_TM_CLOCKS},
        {"clock_row_bytes", h->clock_row_bytes, sizeof(struct ft_tm_clock)},
        {"thread_offset", h->thread_offset, offsetof(struct ft_tm_file, thread)},
        {"thread_rows", h->thread_rows, FT_TM_THREADS},
        {"thread_row_bytes", h->thread_row_bytes, sizeof(struct ft_tm_thread)},
        {"conn_offset", h->conn_offset, offsetof(struct ft_tm_file, conn)},
        {"conn_rows", h->conn_rows, FT_TM_CONNS},
        {"conn_row_bytes", h->conn_row_bytes, sizeof(struct ft_tm_conn)},
    };
    for (size_t i = 0; i < FT_ARRAY_LEN(field); i++)
        if (field[i].is != field[i].want)
            return ft_fail(FT_INVAL, "%s is %u, not %u", field[i].name, field[i].is, field[i].want);
    if (h->pid == 0 || h->pid > INT32_MAX)
        return ft_fail(FT_INVAL, "pid is %u", h->pid);
    return FT_OK;
}

static void clean_text(char *text, size_t size)
{
    text[size - 1] = '\0';
    for (char *p = text; *p; p++)
        if (!isprint((unsigned char)*p) || (unsigned char)*p > 126)
            *p = '?';
}

static void clean_all(struct ft_tm_file *f)
{
    clean_text(f->header.hostname, sizeof f->header.hostname);
    clean_text(f->header.program, sizeof f->header.program);
    for (int i = 0; i < FT_TM_COMMS; i++)
        clean_text(f->comm[i].name, sizeof f->comm[i].name);
    for (int i = 0; i < FT_TM_OPS; i++)
        clean_text(f->op[i].algo, sizeof f->op[i].algo);
    for (int i = 0; i < FT_TM_LINKS; i++)
        clean_text(f->link[i].transport, sizeof f->link[i].transport);
}

/* ---- opening --------------------------------------------------------------------------------- */

static struct ft_image *image_new(void)
{
    struct ft_image *image = calloc(1, sizeof *image);
    if (image)
        image->fd = -1;
    else
        ft_fail(FT_NOMEM, "out of memory");
    return image;
}

void ft_image_free(struct ft_image *image)
{
    if (!image)
        return;
    ft_fd_close(&image->fd);
    free(image);
}

int ft_image_parse(const void *data, size_t len_bytes, struct ft_image **out)
{
    if (len_bytes != FT_TM_BYTES)
        return ft_fail(FT_INVAL, "%zu bytes long; a telemetry file has %zu", len_bytes,
                       FT_TM_BYTES);
    struct ft_image *image = image_new();
    if (!image)
        return FT_NOMEM;
    memcpy(&image->file, data, FT_TM_BYTES);
    int status = check_header(&image->file.header);
    if (status) {
        ft_image_free(image);
        return status;
    }
    settle_all(image, &image->file, &image->file);
    clean_all(&image->file);
    *out = image;
    return FT_OK;
}

static int open_file(const char *path, int *fd)
{
    struct stat st;
    /* O_NONBLOCK: opening a pipe would wait for its writer */
    *fd = ft_fd_own(open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (*fd < 0)
        return ft_fail(FT_INVAL, "cannot open: %s", strerror(errno));
    if (fstat(*fd, &st) < 0)
        return ft_fail(FT_SYSTEM, "fstat: %s", strerror(errno));
    if (!S_ISREG(st.st_mode))
        return ft_fail(FT_INVAL, "not a regular file");
    if (st.st_size != (off_t)FT_TM_BYTES)
        return ft_fail(FT_INVAL, "%lld bytes long; a telemetry file has %zu", (long long)st.st_size,
                       FT_TM_BYTES);
    return FT_OK;
}

/* Makes three copies: guards, rows, guards. Rows that changed in between are read again one by
 * one. */
int ft_image_load(const char *path, struct ft_image **out)
{
    struct ft_image *image = image_new();
    struct ft_tm_file *before = malloc(FT_TM_BYTES), *after = malloc(FT_TM_BYTES);
    int status = image && before && after ? FT_OK : ft_fail(FT_NOMEM, "out of memory");
    if (!status)
        status = open_file(path, &image->fd);
    if (!status)
        status = read_all(image->fd, before, FT_TM_BYTES, 0);
    if (!status)
        status = read_all(image->fd, &image->file, FT_TM_BYTES, 0);
    if (!status)
        status = read_all(image->fd, after, FT_TM_BYTES, 0);
    if (!status)
        status = check_header(&image->file.header);
    if (!status) {
        settle_all(image, before, after);
        clean_all(&image->file);
        ft_fd_close(&image->fd);
        *out = image;
    } else {
        ft_image_free(image);
    }
    free(before);
    free(after);
    return status;
}
