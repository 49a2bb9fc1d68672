"""Communicators: their life, going on after a failure, and windows. Operations are in
_operations."""

import warnings
from types import TracebackType
from typing import Any, Iterable, List, Optional, Sequence, Set, Tuple, Type, TypeVar, Union

from . import _config, _errors
from ._buffers import NOTHING, DType, span
from ._config import Config
from ._errors import FtcclError, InvalidArgument, InvalidUsage
from ._lib import ffi, lib
from ._lifetime import Making, enlist, generation, is_foreign, make_all
from ._operations import Operations, RedOp
from ._stream import Stream, group, open_group
from ._waits import in_helper, wait_communicator

_Child = TypeVar("_Child")


class UniqueId(bytes):
    """What all ranks of a job pass to `Communicator()`. It has the job's secret: give it to the
    job's ranks only.
    `hex()` and `UniqueId.fromhex()` make text of it and back."""

    def __new__(cls, value: Iterable[int]) -> "UniqueId":
        made = super().__new__(cls, value)
        if len(made) != lib.FTCCL_UNIQUE_ID_BYTES:
            raise InvalidArgument(
                "a unique id has %d bytes, not %d" % (lib.FTCCL_UNIQUE_ID_BYTES, len(made))
            )
        return made

    def __repr__(self) -> str:
        return "<ftccl.UniqueId>"

    def _fill(self, struct: Any) -> None:
        ffi.memmove(struct, bytes(self), len(self))


def _id_of(struct: Any) -> UniqueId:
    return UniqueId(ffi.buffer(struct)[:])


def get_unique_id() -> UniqueId:
    """Makes an id, for one communicator. This process serves the rendezvous until all ranks have
    come. Does not wait."""
    struct = ffi.new("ftcclUniqueId *")
    _errors.check(lib.ftcclGetUniqueId(struct), "GetUniqueId")
    return _id_of(struct)


def keep_unique_id() -> UniqueId:
    """As `get_unique_id()`, but the id is served until it is used or released, however long nobody
    comes."""
    struct = ffi.new("ftcclUniqueId *")
    _errors.check(lib.ftcclUniqueIdKeep(struct), "UniqueIdKeep")
    return _id_of(struct)


def release_unique_id(unique_id: bytes) -> None:
    """Ends the service of an id of `keep_unique_id()`: who comes with it gets an error at once."""
    struct = ffi.new("ftcclUniqueId *")
    UniqueId(unique_id)._fill(struct)
    _errors.check(lib.ftcclUniqueIdRelease(struct), "UniqueIdRelease")


def init_all(nranks: int, config: Optional[Config] = None, **options: Any) -> List["Communicator"]:
    """All ranks of a communicator in this process. Their calls go into a `group()`, or each rank
    has a thread."""
    identity = get_unique_id()
    with group():
        made = [Communicator(nranks, identity, rank, config, **options) for rank in range(nranks)]
    return made


class Communicator(Operations):
    """A rank of a communicator of `nranks` ranks. All ranks pass the same `unique_id`, and each its
    `rank`::

        with ftccl.Communicator(nranks, unique_id, rank) as comm:
            comm.all_reduce(x)
            comm.synchronize()

    Blocks until all ranks have come, at most init_timeout_ms; in a `group()` it is ready after the
    block. unique_id can be a sequence of ids, made by different processes, which share the
    rendezvous. Settings are fields of Config, in `config` or by name. As a context manager it is
    destroyed at the end of the block, and aborted if the block raises, Ctrl-C included. `stream` is
    where operations go that name no other; children share it.

    Every wait ends with Ctrl-C. Any thread may use a communicator. In a child of fork every call
    raises InvalidUsage.
    """

    def __init__(
        self,
        nranks: int,
        unique_id: Union[bytes, Sequence[bytes]],
        rank: int,
        config: Optional[Config] = None,
        **options: Any
    ) -> None:
        self._start(Stream())
        ids = [unique_id] if isinstance(unique_id, bytes) else list(unique_id)
        structs = ffi.new("ftcclUniqueId[]", max(len(ids), 1))
        for i, one in enumerate(ids):
            UniqueId(one)._fill(ffi.addressof(structs, i))
        made = _config.make(config, options)
        self._init(
            "CommInitRank",
            lambda out: lib.ftcclCommInitRankScalable(
                out, nranks, rank, len(ids), structs, made.pointer
            ),
        )

    @classmethod
    def join(
        cls,
        nranks: int,
        unique_id: bytes,
        rank: int,
        config: Optional[Config] = None,
        **options: Any
    ) -> "Communicator":
        """Joins a communicator that grows to nranks ranks: rank is from its old size to nranks-1,
        unique_id from its root's `get_unique_id()`. Blocks until it has grown, at most
        init_timeout_ms."""
        self = cls.__new__(cls)
        self._start(Stream())
        struct = ffi.new("ftcclUniqueId *")
        UniqueId(unique_id)._fill(struct)
        made = _config.make(config, options)
        self._init(
            "CommGrow",
            lambda out: lib.ftcclCommGrow(ffi.NULL, nranks, struct, rank, out, made.pointer),
        )
        return self

    def _start(self, stream: Stream) -> None:
        self._handle = ffi.NULL
        self._made_in = generation()
        self._kept: Set[Any] = set()  # windows and registrations
        self.stream = stream

    def _init(self, operation: str, call: Any) -> None:
        _make(Making(operation, "ftcclComm_t *", None, self, call))

    def _adopt(self, handle: Any) -> None:
        self._handle = handle
        if handle:
            enlist(self)

    # ---- children --------------------------------------------------------------------------------

    def _child(self, operation: str, call: Any) -> "Communicator":
        child = Communicator.__new__(Communicator)
        child._start(self.stream)
        _make(Making(operation, "ftcclComm_t *", self, child, call))
        return child

    def split(
        self, color: Optional[int], key: int = 0, config: Optional[Config] = None, **options: Any
    ) -> Optional["Communicator"]:
        """Ranks with the same color (0 or more) form a communicator, ordered by key, then by rank;
        None: in none, and None is returned. Every rank calls this; blocks until all have."""
        handle = self._require()
        made = _config.make(config, options)
        if color is not None:
            return self._child(
                "CommSplit", lambda out: lib.ftcclCommSplit(handle, color, key, out, made.pointer)
            )
        _make(
            Making(
                "CommSplit",
                "ftcclComm_t *",
                self,
                None,
                lambda out: lib.ftcclCommSplit(
                    handle, lib.FTCCL_SPLIT_NOCOLOR, key, out, made.pointer
                ),
            )
        )
        return None

    def shrink(
        self,
        exclude: Iterable[int] = (),
        *,
        abort: bool = False,
        config: Optional[Config] = None,
        **options: Any
    ) -> "Communicator":
        """Makes a communicator of the live ranks, without failed ranks and those on the list. Every
        live rank calls this. Pending operations end first, with abort=True by an error on all
        ranks. Blocks at most init_timeout_ms and a few seconds. This communicator remains until it
        is destroyed."""
        handle = self._require()
        ranks = list(exclude)
        array = ffi.new("int[]", ranks) if ranks else ffi.NULL
        flags = lib.FTCCL_SHRINK_ABORT if abort else lib.FTCCL_SHRINK_DEFAULT
        made = _config.make(config, options)
        return self._child(
            "CommShrink",
            lambda out: lib.ftcclCommShrink(handle, array, len(ranks), out, made.pointer, flags),
        )

    def grow(
        self,
        nranks: int,
        unique_id: Optional[bytes] = None,
        config: Optional[Config] = None,
        **options: Any
    ) -> "Communicator":
        """Makes a communicator of nranks ranks: those of this one, and others that call `join()`.
        One rank passes the id of its `get_unique_id()`, the others None. Blocks until the joiners
        have come, at most init_timeout_ms; this communicator remains usable in any case."""
        handle = self._require()
        struct = ffi.NULL
        if unique_id is not None:
            struct = ffi.new("ftcclUniqueId *")
            UniqueId(unique_id)._fill(struct)
        made = _config.make(config, options)
        return self._child(
            "CommGrow", lambda out: lib.ftcclCommGrow(handle, nranks, struct, -1, out, made.pointer)
        )

    def get_unique_id(self) -> UniqueId:
        """Makes an id for one grow of this communicator. Does not wait."""
        struct = ffi.new("ftcclUniqueId *")
        self._check(lib.ftcclCommGetUniqueId(self._require(), struct), "CommGetUniqueId")
        return _id_of(struct)

    # ---- failures --------------------------------------------------------------------------------

    def agree(self, flags: int = 2**64 - 1) -> int:
        """The bitwise AND of all live ranks' flags (64 bits), the same on each of them, as is
        `failed_ranks` afterwards, even if ranks die meanwhile. Works on a failed communicator.
        Every live rank calls this. Blocks at most init_timeout_ms and a few seconds."""
        handle = self._require()
        value = ffi.new("uint64_t *", flags)

        def call() -> Tuple[int, str]:
            result = lib.ftcclCommAgree(handle, value)
            return result, _errors.last_error() if result != lib.ftcclSuccess else ""

        result, sentence = in_helper(call)
        if result != lib.ftcclSuccess:
            raise _errors.make(result, "CommAgree", sentence, self, self.failed_ranks)
        return int(value[0])

    def step(self, number: int) -> None:
        """Says in the telemetry that this rank begins step `number` (0 to 2**64 - 1), so that
        ftccl-diagnose knows how long steps take. Does not wait."""
        self._check(lib.ftcclStep(self._require(), number), "Step")

    def revoke(self) -> None:
        """Ends pending operations with RemoteError on every live rank. Returns at once. Afterwards
        agree(), shrink(), destroy() and abort() are useful."""
        self._check(lib.ftcclCommRevoke(self._require(), lib.FTCCL_REVOKE_DEFAULT), "CommRevoke")

    @property
    def failed_ranks(self) -> Tuple[int, ...]:
        """The ranks that have failed: after agree(), shrink() or grow() the agreed set, before that
        what this rank knows. Empty for a communicator that has ended."""
        count = ffi.new("int *")
        if (
            not self._handle
            or lib.ftcclCommGetFailedRanks(self._handle, ffi.NULL, 0, count) != lib.ftcclSuccess
        ):
            return ()
        capacity = count[0]
        ranks = ffi.new("int[]", max(capacity, 1))
        if lib.ftcclCommGetFailedRanks(self._handle, ranks, capacity, count) != lib.ftcclSuccess:
            return ()
        return tuple(sorted(ranks[0 : min(capacity, count[0])]))

    @property
    def last_agreed_op(self) -> int:
        """Number of the last collective that is complete on every live rank, as of the last
        agree(), shrink() or grow(); they count from 1, without sends and receives. 0: none."""
        number = ffi.new("uint64_t *")
        self._check(lib.ftcclCommGetLastAgreedOp(self._require(), number), "CommGetLastAgreedOp")
        return int(number[0])

    @property
    def error(self) -> Optional[FtcclError]:
        """The first error of the communicator, or None. Never blocks; another thread may ask during
        any call."""
        handle, result = self._require(), ffi.new("ftcclResult_t *")
        self._check(lib.ftcclCommGetAsyncError(handle, result), "CommGetAsyncError")
        if result[0] in (lib.ftcclSuccess, lib.ftcclInProgress):
            return None
        return _errors.make(
            result[0], "communicator", _errors.last_error(handle), self, self.failed_ranks
        )

    def _failure(self) -> Optional[Tuple[int, ...]]:
        """The failed ranks, if the communicator has failed."""
        result = ffi.new("ftcclResult_t *")
        if not self._handle or lib.ftcclCommGetAsyncError(self._handle, result) != lib.ftcclSuccess:
            return None
        return None if result[0] in (lib.ftcclSuccess, lib.ftcclInProgress) else self.failed_ranks

    # ---- place -----------------------------------------------------------------------------------

    def _number(self, call: Any, operation: str) -> int:
        number = ffi.new("int *")
        self._check(call(self._require(), number), operation)
        return int(number[0])

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._number(lib.ftcclCommCount, "CommCount")

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self._number(lib.ftcclCommUserRank, "CommUserRank")

    @property
    def device(self) -> int:
        """Number of the GPU whose buffers the communicator accepts; without a GPU 0."""
        return self._number(lib.ftcclCommCuDevice, "CommCuDevice")

    @property
    def device_status(self) -> int:
        """Address of the word that kernels on the GPU read; InvalidUsage without a GPU."""
        word = ffi.new("const uint32_t **")
        self._check(lib.ftcclCommGetDeviceStatus(self._require(), word), "CommGetDeviceStatus")
        return int(ffi.cast("uintptr_t", word[0]))

    # ---- the end ---------------------------------------------------------------------------------

    def finalize(self) -> None:
        """Waits until every operation of this rank has ended and peers have received what was sent,
        at most init_timeout_ms. Afterwards only destroy(), abort(), error, size and rank are
        allowed."""
        handle = self._require()

        def call() -> Tuple[int, str]:
            result = lib.ftcclCommFinalize(handle)
            if result != lib.ftcclInProgress:
                return result, _errors.last_error() if result != lib.ftcclSuccess else ""
            return wait_communicator(handle), _errors.last_error(handle)

        result, sentence = in_helper(call)
        if result != lib.ftcclSuccess:
            raise _errors.make(result, "CommFinalize", sentence, self, self.failed_ranks)

    def destroy(self) -> None:
        """Finalizes if that was not done, and frees the communicator; nothing if it has ended. A
        failure that was reported before is not raised again."""
        if not self._handle or self._is_foreign():
            return
        try:
            if self._failure() is None:
                self.finalize()
        except _errors.Timeout:
            if self._failure() is None:  # not an operation's time was over, but finalize's
                self.abort()
                raise
        except FtcclError:
            # it was finalized before, or failed now, which GetAsyncError of the peers tells too
            pass
        handle, self._handle = self._handle, ffi.NULL
        self._kept.clear()
        if handle:
            _errors.check(lib.ftcclCommDestroy(handle), "CommDestroy")

    def abort(self) -> None:
        """Ends pending operations with an error and frees the communicator at once; nothing if it
        has ended. Any thread may call it during any call. Peers that wait for this rank get
        RemoteError."""
        if self._is_foreign():
            return
        handle, self._handle = self._handle, ffi.NULL
        if handle:
            result = lib.ftcclCommAbort(handle)
            self._kept.clear()
            _errors.check(result, "CommAbort")

    def _is_foreign(self) -> bool:
        """Whether it is that of the parent of a fork; it then has ended here, and nothing is done
        to it."""
        if not is_foreign(self._made_in):
            return False
        self._handle = ffi.NULL
        return True

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if kind is None:
            self.destroy()
        else:
            self.abort()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) and not self._is_foreign():
            warnings.warn(
                "a communicator was neither destroyed nor aborted; it is aborted now",
                ResourceWarning,
                source=self,
            )
            self.abort()

    def __repr__(self) -> str:
        return (
            "<ftccl.Communicator rank %d of %d>" % (self.rank, self.size)
            if self._handle
            else "<ftccl.Communicator (not in use)>"
        )

    # ---- memory and operators --------------------------------------------------------------------

    def register(self, buffer: Any) -> "Registration":
        """Registers a buffer that operations will use; on host memory no operation needs this."""
        memory = span(buffer, "buffer", False, "uint8")
        handle = ffi.new("void **")
        self._check(
            lib.ftcclCommRegister(self._require(), memory.pointer, memory.elements, handle),
            "CommRegister",
        )
        return Registration(self, handle[0], memory)

    def window(self, buffer: Any = None, *, symmetric: bool = False) -> "Window":
        """Makes a buffer of each rank a window that the other ranks put into; None: no buffer of
        this rank. Every rank calls this; blocks until all have, at most the deadline of an
        operation."""
        handle = self._require()
        memory = NOTHING if buffer is None else span(buffer, "buffer", True, "uint8")
        flags = lib.FTCCL_WIN_COLL_SYMMETRIC if symmetric else lib.FTCCL_WIN_DEFAULT
        window = Window(self, memory)
        _make(
            Making(
                "CommWindowRegister",
                "ftcclWindow_t *",
                self,
                window,
                lambda out: lib.ftcclCommWindowRegister(
                    handle, memory.pointer, memory.elements, out, flags
                ),
            )
        )
        return window

    def pre_mul_sum(self, scalar: Any, dtype: DType = None) -> "RedOp":
        """An operator that multiplies each rank's input by scalar and sums. scalar: a number, with
        dtype; or a buffer of one element, which is read when the collective runs."""
        return RedOp(self, scalar, dtype)


def _make(making: Making) -> None:
    """Now, or at the end of the open group."""
    if open_group.depth:
        open_group.pending.append(making)
    else:
        make_all([making])


class _Kept:
    """A handle of a communicator that ends with it. As a context manager it is closed at the end of
    the block."""

    def __init__(self, communicator: Communicator, handle: Any, memory: Any) -> None:
        self._communicator, self._handle, self._memory = communicator, handle, memory
        communicator._kept.add(self)

    def _close(self, call: Any, operation: str) -> None:
        handle, self._handle = self._handle, ffi.NULL
        if handle and self in self._communicator._kept:
            self._communicator._kept.discard(self)
            self._communicator._check(call(self._communicator._require(), handle), operation)

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: _Child) -> _Child:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


class Registration(_Kept):
    """A registered buffer, until close() or the end of its communicator."""

    def close(self) -> None:
        """Deregisters; nothing if that was done."""
        self._close(lib.ftcclCommDeregister, "CommDeregister")


class Window(_Kept):
    """A window, until close() or the end of its communicator; its buffer lives as long."""

    def __init__(self, communicator: Communicator, memory: Any) -> None:
        super().__init__(communicator, ffi.NULL, memory)

    def _adopt(self, handle: Any) -> None:
        self._handle = handle
        if not handle:
            self._communicator._kept.discard(self)

    @property
    def address(self) -> int:
        """Address of this rank's buffer."""
        pointer = ffi.new("void **")
        self._communicator._check(
            lib.ftcclWinGetUserPtr(self._communicator._require(), self._handle, pointer),
            "WinGetUserPtr",
        )
        return int(ffi.cast("uintptr_t", pointer[0]))

    def close(self) -> None:
        """Deregisters, locally; the caller makes sure that no rank still puts into it."""
        self._close(lib.ftcclCommWindowDeregister, "CommWindowDeregister")
