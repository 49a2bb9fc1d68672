"""The exit of a program whose output cannot be written."""

import errno
import os
import select
import signal
import sys

STDOUT = 1


def ended(main):
    """Runs main() and returns the exit status of the program. Returns 1, with a sentence, if its
    output cannot be written. If nobody reads the output, the program ends silently, as by
    SIGPIPE."""
    if sys.stdout is None:
        return told("it is closed")
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()
    except OSError as error:
        if not is_of_stdout(error):
            raise
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), STDOUT
        )  # what is in the buffer goes there when Python ends
        return 128 + signal.SIGPIPE if error.errno == errno.EPIPE else told(error.strerror)


def is_of_stdout(error):
    """Adds the name of the file to its error."""
    if error.errno != errno.EPIPE:
        return error.errno == errno.ENOSPC and error.filename is None
    poll = select.poll()
    poll.register(STDOUT, 0)
    return any(what & select.POLLERR for _, what in poll.poll(0))


def told(why):
    if sys.stderr:
        print(
            "%s: cannot write to stdout: %s" % (os.path.basename(sys.argv[0]), why), file=sys.stderr
        )
    return 1
