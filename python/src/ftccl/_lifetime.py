"""What is alive: communicators that the interpreter's exit aborts, and those that a call is still making."""
import atexit
import os
import weakref
from typing import Any, List, Optional

from . import _errors
from ._errors import FtcclError
from ._lib import ffi, lib
from ._waits import wait_communicator

_alive: "weakref.WeakSet[Any]" = weakref.WeakSet()


def enlist(one: Any) -> None:
    """`one.abort()` will be called when the interpreter exits, if it still lives."""
    _alive.add(one)


@atexit.register
def _abort_all() -> None:
    for one in list(_alive):
        try:
            one.abort()
        except FtcclError:
            pass  # it has ended meanwhile


def _forget_all() -> None:
    """In a child of fork: what there is belongs to the parent."""
    global _alive
    _alive = weakref.WeakSet()


os.register_at_fork(after_in_child=_forget_all)


class Making:
    """A communicator or window that a call makes. `out` is where the library stores its handle, and lives as long as the
    call may store it. parent: the communicator that makes it; None: an init."""

    def __init__(self, operation: str, kind: str, parent: Any, child: Any) -> None:
        self.operation = operation
        self.out = ffi.new(kind)
        self.parent = parent
        self.child = child
        self.over = False  # nothing of it is under way
        enlist(self)

    def wait(self) -> Optional[FtcclError]:
        """Waits for the end; the child then has its handle. Returns the error, if it failed."""
        handle = self.parent._handle if self.parent is not None else self.out[0]
        if not handle:
            return None  # the call was discarded, which the group's error tells
        result = wait_communicator(handle)
        self.over = True
        if result != lib.ftcclSuccess:
            failed = self.parent.failed_ranks if self.parent is not None else ()
            return _errors.make(result, self.operation, _errors.last_error(handle), self.parent, failed)
        if self.child is not None:
            self.child._adopt(self.out[0])
        _alive.discard(self)
        return None

    def abandon(self) -> None:
        """The child is not wanted any more, whether the call has ended or not."""
        _alive.discard(self)
        if self.parent is None or self.over:
            self.end()
        else:
            self.parent._orphans.append(self)
        if self.child is not None:
            self.child._adopt(ffi.NULL)

    abort = abandon

    def end(self) -> None:
        """The call is over, or that of an init; what it made goes."""
        handle, self.out[0] = self.out[0], ffi.NULL
        if handle and ffi.typeof(self.out) is _comm_out:
            lib.ftcclCommAbort(handle)


_comm_out = ffi.typeof("ftcclComm_t *")


def end_orphans(orphans: List[Making]) -> None:
    while orphans:
        orphans.pop().end()
