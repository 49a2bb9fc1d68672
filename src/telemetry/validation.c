/*
 * The two parts of a telemetry file through which a validation is asked for and told. Another
 * process of the same user writes the request; whatever it writes, the rank acts only on what has
 * the right sum, once. The answer is a row like others.
 */
#include "saved.h"
#include "writer.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_TRIES 100

uint64_t ft_tm_ask_sum(const struct ft_tm_ask *ask, uint64_t engine)
{
    const uint64_t words[] = {ask->number, ask->ctx, ask->until_ns, ask->pause_ms, engine};
    return ft_hash64(words, sizeof words, 0x66742d61736b2121u);
}

const char *ft_validation_why_text(unsigned why)
{
    static const char *const text[FT_VALIDATION_WHY_COUNT] = {
#define X(name, text) text,
        FT_VALIDATION_WHYS(X)
#undef X
    };
    return why < FT_VALIDATION_WHY_COUNT ? text[why] : "?";
}

/* ---- the rank -------------------------------------------------------------------------------- */

bool ft_telemetry_asked(struct ft_telemetry *t, struct ft_ask *out)
{
    if (!t)
        return false;
    const struct ft_tm_ask *from = &t->file->header.ask;
    uint64_t number = __atomic_load_n(&from->number, __ATOMIC_RELAXED);
    if (number == t->asked || number == 0)
        return false;
    struct ft_tm_ask ask = {.number = number,
                            .ctx = __atomic_load_n(&from->ctx, __ATOMIC_RELAXED),
                            .until_ns = __atomic_load_n(&from->until_ns, __ATOMIC_RELAXED),
                            .pause_ms = __atomic_load_n(&from->pause_ms, __ATOMIC_RELAXED)};
    /* a request that is being written has another sum, and is looked at again */
    if (__atomic_load_n(&from->sum, __ATOMIC_RELAXED) !=
        ft_tm_ask_sum(&ask, t->file->header.engine))
        return false;
    t->asked = number;
    *out = (struct ft_ask){ask.number, ask.ctx, ask.until_ns, ask.pause_ms};
    return ft_now_ns(t->env) < ask.until_ns;
}

void ft_telemetry_validation(struct ft_telemetry *t, const struct ft_validation *is)
{
    if (!t)
        return;
    struct ft_tm_validation *to = &t->file->header.validation;
    guard_enter(&to->guard);
    to->is = *is;
    guard_leave(&to->guard);
}

/* ---- tools ----------------------------------------------------------------------------------- */

/* Opens a file that this user may ask, and reads its header. */
static int open_rank(const char *path, int flags, struct ft_tm_header *h, int *out)
{
    struct stat st;
    int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return ft_fail(FT_SYSTEM, "cannot open %.200s: %s", path, strerror(errno));
    bool good = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
                (geteuid() == 0 || st.st_uid == geteuid()) && st.st_size == (off_t)FT_TM_BYTES &&
                pread(fd, h, sizeof *h, 0) == (ssize_t)sizeof *h &&
                !memcmp(h->magic, FT_TM_MAGIC, sizeof h->magic) && h->version == FT_TM_VERSION &&
                h->order == FT_TM_ORDER;
    if (good) {
        *out = fd;
        return FT_OK;
    }
    close(fd);
    return ft_fail(FT_INVAL, "%.200s is no telemetry file of this user and version %u", path,
                   FT_TM_VERSION);
}

static bool put(int fd, size_t at, const void *from, size_t len_bytes)
{
    off_t offset = (off_t)(offsetof(struct ft_tm_header, ask) + at);
    return pwrite(fd, from, len_bytes, offset) == (ssize_t)len_bytes;
}

/* The number comes last. Until then the rank sees the last request, which it has answered. */
int ft_validation_ask(const char *path, const struct ft_ask *from)
{
    struct ft_tm_header h;
    int fd, rc = open_rank(path, O_RDWR, &h, &fd);
    if (rc != FT_OK)
        return rc;
    struct ft_tm_ask ask = {.number = from->number,
                            .ctx = from->ctx,
                            .until_ns = from->until_ns,
                            .pause_ms = from->pause_ms};
    ask.sum = ft_tm_ask_sum(&ask, h.engine);
    size_t rest = offsetof(struct ft_tm_ask, ctx);
    bool good = put(fd, rest, (const char *)&ask + rest, sizeof ask - rest) &&
                put(fd, 0, &ask.number, sizeof ask.number);
    rc = good ? FT_OK : ft_fail(FT_SYSTEM, "cannot write %.200s: %s", path, strerror(errno));
    close(fd);
    return rc;
}

/* Not a consistent row: false. */
static bool read_row(int fd, struct ft_tm_validation *out)
{
    struct ft_tm_validation again;
    off_t at = (off_t)offsetof(struct ft_tm_header, validation);
    return pread(fd, out, sizeof *out, at) == (ssize_t)sizeof *out &&
           pread(fd, &again, sizeof again, at) == (ssize_t)sizeof again && out->guard % 2 == 0 &&
           !memcmp(out, &again, sizeof again);
}

static bool has_ended(const struct ft_validation *is)
{
    return is->state == FT_VALIDATION_DONE || is->state == FT_VALIDATION_GIVEN_UP;
}

static void set_gone(struct ft_validation *is)
{
    is->state = FT_VALIDATION_GIVEN_UP;
    is->why = FT_WHY_GONE;
}

int ft_validation_read(const char *path, struct ft_validation *out)
{
    struct ft_tm_header h;
    struct ft_tm_validation row = {.guard = 0};
    char letter;
    int fd, rc = open_rank(path, O_RDONLY, &h, &fd);
    if (rc == FT_SYSTEM && access(path, F_OK) < 0 && errno == ENOENT) {
        set_gone(&row.is);
        *out = row.is;
        return FT_OK;
    }
    if (rc != FT_OK)
        return rc;
    bool gone = ft_tm_process_state(&h, &letter) == FT_PROCESS_GONE, good = false;
    for (int i = 0; i < READ_TRIES && !(good = read_row(fd, &row)); i++)
        sched_yield();
    close(fd);
    if (!good && !gone)
        return ft_fail(FT_SYSTEM, "%.200s: the process stopped while it wrote", path);
    if (gone && !(good && has_ended(&row.is)))
        set_gone(&row.is);
    row.is.nlinks = (uint16_t)ft_min(row.is.nlinks, FT_MEASURED_MOST);
    *out = row.is;
    return FT_OK;
}
