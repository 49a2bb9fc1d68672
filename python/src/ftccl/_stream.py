"""Streams, and the groups of calls that become one entry of them.

A stream keeps the objects whose memory its operations use, until it has passed them.
"""

import itertools
import threading
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Tuple, Type

from . import _errors
from ._errors import FtcclError, InvalidUsage
from ._lib import ffi, lib
from ._lifetime import Making, generation, is_foreign, make_all
from ._waits import wait_stream

# A stream with as many operations under way makes its caller wait until they have ended.
MAX_UNDER_WAY = 1024

_numbers = itertools.count()
_not_enqueued = float("inf")


class _Hold:
    """What one call needs until its stream has passed it. `number` is infinite while the call is
    being made."""

    __slots__ = ("number", "things")

    def __init__(self, things: Tuple[Any, ...]) -> None:
        self.number: float = _not_enqueued
        self.things = things


class Stream:
    """An ordered queue of operations. Calls enqueue and return at once; `synchronize()` waits and
    tells what failed.

    As a context manager it is synchronized at the end of the block, and then closed. Any thread may
    use it. The objects whose buffers operations use are kept until the stream has passed these;
    1,024 operations can be under way.
    """

    def __init__(self) -> None:
        self._handle = ffi.NULL
        self._holds: Dict[int, _Hold] = {}
        self._stashed: Optional[FtcclError] = None
        self._made_in = generation()
        _close_left_over()
        handle = ffi.new("ftcclStream_t *")
        _errors.check(lib.ftcclStreamCreate(handle), "StreamCreate")
        self._handle = handle[0]

    def synchronize(self) -> None:
        """Waits for everything that was enqueued so far, at most as long as the operations'
        deadlines. Raises the first error of an operation since the last synchronize() or query()
        that raised one. Ctrl-C ends the wait; the operations then go on, and their communicator can
        be aborted."""
        self._require()
        mark = next(_numbers)
        result = wait_stream(self._handle)
        if result != lib.ftcclSuccess:
            error = self._error(result, "synchronize")
            self._release(mark)
            self._stashed, error = None, self._stashed or error
            raise error
        self._release(mark)
        self._raise_stashed()

    def query(self) -> bool:
        """True if everything that was enqueued has ended, False if not. Raises as synchronize().
        Does not block."""
        self._require()
        mark = next(_numbers)
        self._raise_stashed()
        result = lib.ftcclStreamQuery(self._handle)
        if result == lib.ftcclInProgress:
            return False
        if result != lib.ftcclSuccess:
            raise self._error(result, "query")
        self._release(mark)
        return True

    def close(self) -> None:
        """Waits as synchronize(), and frees the stream; nothing on a stream that is closed. Raises
        as synchronize()."""
        if not self._handle:
            return
        try:
            self.synchronize()
        finally:
            self._leave()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._leave()

    def __del__(self) -> None:
        self._leave()

    def __repr__(self) -> str:
        return "<ftccl.Stream%s>" % ("" if self._handle else " (closed)")

    # ---- for the package -------------------------------------------------------------------------

    def _require(self) -> None:
        if not self._handle:
            raise InvalidUsage("the stream is closed")

    def _hold(self, things: Tuple[Any, ...]) -> _Hold:
        """Keeps `things` for a call that is about to be made; `_enqueued()` follows, or
        `_drop()`."""
        if len(self._holds) >= MAX_UNDER_WAY:
            self._make_room()
        hold = _Hold(things)
        self._holds[id(hold)] = hold
        return hold

    def _drop(self, hold: _Hold) -> None:
        self._holds.pop(id(hold), None)

    def _make_room(self) -> None:
        mark = next(_numbers)
        result = wait_stream(self._handle)
        if result != lib.ftcclSuccess and self._stashed is None:
            self._stashed = self._error(result, "synchronize")
        self._release(mark)

    def _release(self, mark: float) -> None:
        for key, hold in list(self._holds.items()):
            if hold.number < mark:
                self._holds.pop(key, None)

    def _raise_stashed(self) -> None:
        if self._stashed is not None:
            error, self._stashed = self._stashed, None
            raise error

    def _error(self, result: int, operation: str) -> FtcclError:
        """The error, with what is known of the communicator whose operation failed."""
        sentence = _errors.last_error()
        for hold in list(self._holds.values()):
            found = hold.things[0]._failure()
            if found is not None:
                return _errors.make(result, operation, sentence, hold.things[0], found)
        return _errors.make(result, operation, sentence)

    def _leave(self) -> None:
        """Frees the stream now or, if operations are under way, later; never blocks."""
        handle, self._handle = getattr(self, "_handle", None), ffi.NULL
        if handle and not is_foreign(self._made_in):
            holds, self._holds = self._holds, {}
            _left_over.append((handle, holds, self._made_in))
            _close_left_over()


_left_over: List[Tuple[Any, Dict[int, _Hold], int]] = []


def _close_left_over() -> None:
    for one in list(_left_over):
        if not is_foreign(one[2]) and lib.ftcclStreamQuery(one[0]) != lib.ftcclInProgress:
            try:
                _left_over.remove(one)
            except ValueError:  # another thread was faster
                continue
            lib.ftcclStreamDestroy(one[0])


# ---- groups --------------------------------------------------------------------------------------


class _Open(threading.local):
    """The open group of a thread."""

    depth = 0
    broken = False
    holds: List[Tuple[Stream, _Hold]] = []
    pending: List[Making] = []  # what the end of the group makes


open_group = _Open()


def enqueue(
    stream: Stream,
    things: Tuple[Any, ...],
    operation: str,
    call: Callable[..., int],
    *arguments: Any
) -> None:
    """Makes a call that enqueues on the stream, which keeps `things`; the first is the
    communicator."""
    stream._require()
    hold = stream._hold(things)
    result = call(*arguments)
    if result != lib.ftcclSuccess and result != lib.ftcclInProgress:
        stream._drop(hold)
        raise _errors.of_call(result, operation, things[0])
    if open_group.depth:
        open_group.holds.append((stream, hold))
    else:
        hold.number = next(_numbers)


class group:
    """Calls in the block become one entry of their streams, which the end of the outermost block
    enqueues::

        with ftccl.group():
            comm.send(a, peer=1)
            comm.recv(b, peer=1)

    Sends and receives of a group make progress together. Groups nest. Calls that make communicators
    are possible too, but not together with operations; what they return is usable after the block.
    If the block raises, nothing of it is enqueued; then the blocks around it raise InvalidUsage at
    their end.
    """

    def __enter__(self) -> "group":
        _errors.check(lib.ftcclGroupStart(), "GroupStart")
        if not open_group.depth:
            open_group.broken, open_group.holds, open_group.pending = False, [], []
        open_group.depth += 1
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        open_group.depth -= 1
        open_group.broken |= kind is not None
        if open_group.depth:
            _errors.check(
                lib.ftcclGroupEnd() if kind is None else lib.ftcclGroupSimulateEnd(ffi.NULL),
                "GroupEnd",
            )
        elif open_group.broken:
            _discard()
            if kind is None:
                raise InvalidUsage(
                    "GroupEnd: a block inside this group raised, so nothing was enqueued"
                )
        else:
            self._end()

    def _end(self) -> None:
        holds, pending = open_group.holds, open_group.pending
        if holds and pending:
            _discard()
            raise InvalidUsage(
                "GroupEnd: a group makes communicators or enqueues operations, not both"
            )
        open_group.holds, open_group.pending = [], []
        result = lib.ftcclGroupEnd()
        if result != lib.ftcclSuccess and result != lib.ftcclInProgress:
            for stream, hold in holds:
                stream._drop(hold)
            for one in pending:
                one.abandon()
            raise _errors.make(result, "GroupEnd")
        for _, hold in holds:
            hold.number = next(_numbers)
        if pending:
            make_all(pending)


def _discard() -> None:
    lib.ftcclGroupSimulateEnd(ffi.NULL)
    _forget()


def _forget() -> None:
    for stream, hold in open_group.holds:
        stream._drop(hold)
    for one in open_group.pending:
        one.abandon()
    open_group.holds, open_group.pending = [], []


class simulate:
    """As group(), but nothing is enqueued; after the block `seconds` is the time that the cost
    model expects::

        with ftccl.simulate() as cost:
            comm.all_reduce(x)
        print(cost.seconds)
    """

    def __init__(self) -> None:
        self.seconds: Optional[float] = None

    def __enter__(self) -> "simulate":
        if open_group.depth:
            raise InvalidUsage("simulate: the thread has an open group")
        group().__enter__()
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        open_group.depth -= 1
        info = ffi.new("ftcclSimInfo_t *")
        lib.ftpy_sim_info_init(info)
        result = lib.ftcclGroupSimulateEnd(info)
        failure = (
            None
            if kind
            else _errors.make(result, "GroupSimulateEnd") if result != lib.ftcclSuccess else None
        )
        _forget()
        if failure is not None:
            raise failure
        self.seconds = float(info.estimatedTime)
