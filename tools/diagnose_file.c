/*
 * Writes a file as a whole or not at all: it gets its name when everything is in it, so that
 * whoever reads it meanwhile finds the one before.
 */
#include "diagnose.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int cannot(const char *path)
{
    return ft_fail(FT_SYSTEM, "cannot write %.200s: %s", path, strerror(errno));
}

/* As readable as a file that fopen() makes. */
static bool open_to_readers(int fd)
{
    mode_t mask = umask(0);
    umask(mask);
    return fchmod(fd, 0666 & ~mask) == 0;
}

static bool fill(FILE *out, write_content *put, const void *what)
{
    put(out, what);
    bool good = fflush(out) == 0 && !ferror(out) && open_to_readers(fileno(out));
    int err = errno;
    good &= fclose(out) == 0;
    if (err)
        errno = err;
    return good;
}

int write_whole(const char *path, write_content *put, const void *what)
{
    char beside[PATH_MAX];
    if (snprintf(beside, sizeof beside, "%s.XXXXXX", path) >= (int)sizeof beside) {
        errno = ENAMETOOLONG;
        return cannot(path);
    }
    int fd = mkostemp(beside, O_CLOEXEC);
    FILE *out = fd < 0 ? NULL : fdopen(fd, "w");
    if (!out) {
        int status = cannot(path);
        if (fd >= 0)
            close(fd), unlink(beside);
        return status;
    }
    errno = 0;
    if (fill(out, put, what) && rename(beside, path) == 0)
        return FT_OK;
    int status = cannot(path);
    unlink(beside);
    return status;
}
