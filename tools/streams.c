#include "streams.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *name;

static void check_stdout(void)
{
    int err = fflush(stdout) ? errno : 0; /* the errno of an earlier write is lost */
    if (!err && !ferror(stdout))
        return;
    fprintf(stderr, "%s: cannot write%s%s\n", name, err ? ": " : "", err ? strerror(err) : "");
    _exit(1);
}

void streams_open(const char *program)
{
    name = program;
    /* opened in the wrong direction, so that using them fails as if they were closed */
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            _exit(1);
    atexit(check_stdout);
}
