"""What is alive: what the interpreter's exit aborts, what belongs to the parent of a fork, and
calls that make communicators or windows, which Ctrl-C may leave behind."""

import atexit
import os
import threading
import time
import weakref
from typing import Any, Callable, List, Tuple

from . import _errors
from ._errors import FtcclError
from ._lib import ffi, lib
from ._waits import in_helper, wait_communicator

_alive: "weakref.WeakSet[Any]" = weakref.WeakSet()
_generation = 0


def enlist(one: Any) -> int:
    """`one.abort()` will be called when the interpreter exits, if it still lives. Returns what
    is_foreign() takes."""
    _alive.add(one)
    return _generation


def generation() -> int:
    return _generation


def is_foreign(made_in: int) -> bool:
    """Whether this is a child of fork, and the thing the parent's."""
    return made_in != _generation


@atexit.register
def _abort_all() -> None:
    for one in list(_alive):
        try:
            one.abort()
        except FtcclError:
            pass  # it has ended meanwhile


def _begin_child() -> None:
    global _alive, _generation
    _alive = weakref.WeakSet()
    _generation += 1


os.register_at_fork(after_in_child=_begin_child)

_PUBLISHED_S = 1.0  # how long an init that has begun may take to say its handle


class Making:
    """A communicator or window that a call makes. `out` is where the library stores its handle.
    parent: the communicator that makes it; None: an init, whose handle is there from its beginning,
    so that it can be aborted.
    """

    def __init__(
        self, operation: str, kind: str, parent: Any, child: Any, call: Callable[[Any], int]
    ) -> None:
        self.operation, self.parent, self.child, self.call = operation, parent, child, call
        self.out = ffi.new(kind)
        self.started = self.over = self.abandoned = False
        self._lock = threading.Lock()
        enlist(self)

    def start(self) -> int:
        self.started = True
        return lib.ftcclSuccess if self.abandoned else self.call(self.out)

    def finish(self) -> None:
        """The call has ended."""
        self.over = True
        if self.abandoned:
            self._end()

    def adopt(self) -> None:
        _alive.discard(self)
        if self.child is not None:
            self.child._adopt(self.out[0])

    def abandon(self) -> None:
        """Nobody wants it any more, whether the call has ended, is under way in another thread or
        has not begun."""
        self.abandoned = True
        _alive.discard(self)
        if self.child is not None:
            self.child._adopt(ffi.NULL)
        if self.parent is None:
            end = time.monotonic() + _PUBLISHED_S
            while self.started and not self.over and not self.out[0] and time.monotonic() < end:
                time.sleep(0.0001)
        if self.parent is None or self.over:
            self._end()

    abort = abandon

    def _end(self) -> None:
        with self._lock:
            handle, self.out[0] = self.out[0], ffi.NULL
        if handle and ffi.typeof(self.out) is _comm_out:
            lib.ftcclCommAbort(handle)


_comm_out = ffi.typeof("ftcclComm_t *")


def make_all(makings: List[Making]) -> None:
    """Makes the calls, several as a group of the library, and waits for them. If one fails or
    Ctrl-C comes, all go."""
    try:
        result, sentence = in_helper(lambda: _run(makings))
    except BaseException:
        for making in makings:
            making.abandon()
        raise
    if result == lib.ftcclSuccess:
        for making in makings:
            making.adopt()
        return
    for making in makings:
        making.abandon()
    parent = makings[0].parent
    raise _errors.make(
        result,
        makings[0].operation,
        sentence,
        parent,
        parent.failed_ranks if parent is not None else (),
    )


def _run(makings: List[Making]) -> Tuple[int, str]:
    several = len(makings) > 1
    result = lib.ftcclGroupStart() if several else lib.ftcclSuccess
    for making in makings:
        result = making.start()
    if several:
        result = lib.ftcclGroupEnd()
    sentence = _errors.last_error() if result != lib.ftcclSuccess else ""
    if result == lib.ftcclInProgress:
        result, sentence = _wait_all(makings)
    for making in makings:
        making.finish()
    return result, sentence


def _wait_all(makings: List[Making]) -> Tuple[int, str]:
    """Of communicators that NCCL_COMM_BLOCKING=0 has made non-blocking."""
    first, sentence = lib.ftcclSuccess, ""
    for making in makings:
        handle = making.parent._handle if making.parent is not None else making.out[0]
        result = wait_communicator(handle)
        if making.parent is not None and making.out[0]:
            continue  # the result was the failure of the parent
        if first == lib.ftcclSuccess and result != lib.ftcclSuccess:
            first, sentence = result, _errors.last_error(handle)
    return first, sentence
