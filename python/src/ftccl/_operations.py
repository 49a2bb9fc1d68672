"""Operations of a communicator. All enqueue and return; the stream's synchronize() waits, and
raises their errors.

Buffers are checked here, before anything reaches the library. They must not be touched until the
stream has passed the operation; they are kept alive until then.
"""

import enum
import struct
from typing import Any, Callable, Mapping, Optional, Union

from . import _errors
from ._buffers import NOTHING, DType, Span, part, same, span, type_code
from ._errors import InvalidArgument, InvalidUsage
from ._lib import ffi, lib
from ._stream import Stream, enqueue


class ReduceOp(enum.IntEnum):
    """ftcclRedOp_t. AVG multiplies floats by 1/ranks before it sums, and divides integers after
    it."""

    SUM = lib.ftcclSum
    PROD = lib.ftcclProd
    MAX = lib.ftcclMax
    MIN = lib.ftcclMin
    AVG = lib.ftcclAvg


def _scalar_bytes(value: Any, code: int) -> bytes:
    letters = {
        lib.ftcclInt8: "b",
        lib.ftcclUint8: "B",
        lib.ftcclInt32: "i",
        lib.ftcclUint32: "I",
        lib.ftcclInt64: "q",
        lib.ftcclUint64: "Q",
        lib.ftcclFloat16: "e",
        lib.ftcclFloat32: "f",
        lib.ftcclFloat64: "d",
    }
    if code in letters:
        try:
            return struct.pack("=" + letters[code], value)
        except struct.error as error:
            raise InvalidArgument(
                "the scalar %r does not fit its type: %s" % (value, error)
            ) from error
    if code == lib.ftcclBfloat16:  # the upper half of a float32, rounded to nearest even
        bits = struct.unpack("=I", struct.pack("=f", value))[0]
        return struct.pack("=H", min(bits + 0x7FFF + (bits >> 16 & 1), 0xFFFFFFFF) >> 16)
    raise InvalidArgument("a scalar of an 8-bit float is given as a buffer of one element")


class RedOp:
    """An operator of `Communicator.pre_mul_sum()`, for that communicator and type, until
    close()."""

    def __init__(self, communicator: Any, scalar: Any, dtype: DType) -> None:
        if isinstance(scalar, (int, float)):
            if dtype is None:
                raise InvalidArgument("pre_mul_sum: a number as scalar needs dtype")
            self.dtype = type_code(dtype)
            memory = Span(ffi.from_buffer(_scalar_bytes(scalar, self.dtype)), 1, self.dtype, None)
            residence = lib.ftcclScalarHostImmediate
        else:
            memory = span(scalar, "scalar", False, dtype)
            self.dtype = memory.dtype
            residence = lib.ftcclScalarDevice
        if memory.elements != 1:
            raise InvalidArgument("pre_mul_sum: scalar has %d elements, not one" % memory.elements)
        self._communicator, self._memory = communicator, memory
        made = ffi.new("ftcclRedOp_t *")
        communicator._check(
            lib.ftcclRedOpCreatePreMulSum(
                made,
                ffi.cast("void *", memory.pointer),
                self.dtype,
                residence,
                communicator._require(),
            ),
            "RedOpCreatePreMulSum",
        )
        self._value: Optional[int] = int(ffi.cast("int", made[0]))

    def close(self) -> None:
        """Frees the operator; operations that are already enqueued with it are not affected.
        Nothing if that was done."""
        value, self._value = self._value, None
        if value is not None and self._communicator._handle:
            self._communicator._check(
                lib.ftcclRedOpDestroy(value, self._communicator._handle), "RedOpDestroy"
            )

    def __enter__(self) -> "RedOp":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


AnyOp = Union[ReduceOp, RedOp]


def _value_of(op: AnyOp, dtype: int, communicator: Any) -> int:
    if isinstance(op, ReduceOp):
        return int(op)
    if not isinstance(op, RedOp):
        raise TypeError("op is a ReduceOp or what pre_mul_sum() returns, not %r" % (op,))
    if op._value is None or op._communicator is not communicator:
        raise InvalidUsage("the operator is closed, or of another communicator")
    if op.dtype != dtype:
        raise InvalidArgument("the operator is for another type than the buffer")
    return op._value


class Operations:
    """The operations, which Communicator inherits.

    send and recv are buffers (see the package's documentation), of any shape, C-contiguous; counts
    are in elements. If recv is left out the operation is in place. stream: None means the
    communicator's own. dtype takes all buffers as elements of that type, for bytes and for types
    that the buffer cannot name. A wrong argument raises InvalidArgument and enqueues nothing. Each
    call returns the buffer that has the result once the stream has passed it.
    """

    _handle: Any
    stream: Stream

    @property
    def size(self) -> int:
        raise NotImplementedError

    @property
    def rank(self) -> int:
        raise NotImplementedError

    def _require(self) -> Any:
        if not self._handle:
            raise InvalidUsage(
                "the communicator has been destroyed or aborted, or its group has not ended yet"
            )
        return self._handle

    def _check(self, result: int, operation: str) -> None:
        if result != lib.ftcclSuccess and result != lib.ftcclInProgress:
            raise _errors.of_call(result, operation, self)

    def _enqueue(
        self,
        operation: str,
        things: Any,
        stream: Optional[Stream],
        call: Callable[..., int],
        *arguments: Any
    ) -> None:
        on = self.stream if stream is None else stream
        enqueue(on, (self, things), operation, call, *arguments, self._require(), on._handle)

    def synchronize(self) -> None:
        """Waits for everything on the communicator's own stream; see Stream.synchronize()."""
        self.stream.synchronize()

    # ---- collectives -----------------------------------------------------------------------------

    def all_reduce(
        self,
        send: Any,
        recv: Any = None,
        op: AnyOp = ReduceOp.SUM,
        *,
        stream: Optional[Stream] = None,
        dtype: DType = None
    ) -> Any:
        """recv[i] = op over the ranks of send[i]. Both have the same number of elements."""
        source = span(send, "send", recv is None, dtype)
        target = source
        if recv is not None:
            target = span(recv, "recv", True, dtype)
            same(source, target, 1, "all_reduce", "both have the same number")
        self._enqueue(
            "AllReduce",
            (source, target, op),
            stream,
            lib.ftcclAllReduce,
            source.pointer,
            target.pointer,
            source.elements,
            source.dtype,
            _value_of(op, source.dtype, self),
        )
        return send if recv is None else recv

    def reduce(
        self,
        send: Any,
        recv: Any = None,
        op: AnyOp = ReduceOp.SUM,
        *,
        root: int = 0,
        stream: Optional[Stream] = None,
        dtype: DType = None
    ) -> Any:
        """As all_reduce(), with the result at root only; the other ranks do not use recv."""
        at_root = self.rank == root
        source = span(send, "send", at_root and recv is None, dtype)
        target = source
        if at_root and recv is not None:
            target = span(recv, "recv", True, dtype)
            same(source, target, 1, "reduce", "both have the same number")
        self._enqueue(
            "Reduce",
            (source, target, op),
            stream,
            lib.ftcclReduce,
            source.pointer,
            target.pointer if at_root else ffi.NULL,
            source.elements,
            source.dtype,
            _value_of(op, source.dtype, self),
            root,
        )
        return send if recv is None else recv

    def broadcast(
        self,
        send: Any,
        recv: Any = None,
        *,
        root: int = 0,
        stream: Optional[Stream] = None,
        dtype: DType = None
    ) -> Any:
        """Copies root's send to every rank's recv; in place on each rank without recv. Ranks other
        than root that give recv may give None as send."""
        at_root = self.rank == root
        if recv is None:
            source = target = span(send, "send", not at_root, dtype)
        else:
            target = span(recv, "recv", True, dtype)
            source = NOTHING
            if at_root:
                source = span(send, "send", False, dtype)
                same(source, target, 1, "broadcast", "both have the same number")
        self._enqueue(
            "Broadcast",
            (source, target),
            stream,
            lib.ftcclBroadcast,
            source.pointer,
            target.pointer,
            target.elements,
            target.dtype,
            root,
        )
        return send if recv is None else recv

    def all_gather(
        self, send: Any, recv: Any, *, stream: Optional[Stream] = None, dtype: DType = None
    ) -> Any:
        """recv becomes the ranks' send, one after the other: it has ranks times as many elements.
        send None: in place, this rank's block of recv."""
        target = span(recv, "recv", True, dtype)
        size = self.size
        if send is None:
            source = part(target, size, self.rank, "recv", "all_gather")
        else:
            source = span(send, "send", False, dtype)
            same(source, target, size, "all_gather", "%d ranks have a block each" % size)
        self._enqueue(
            "AllGather",
            (source, target),
            stream,
            lib.ftcclAllGather,
            source.pointer,
            target.pointer,
            source.elements,
            source.dtype,
        )
        return recv

    def reduce_scatter(
        self,
        send: Any,
        recv: Any = None,
        op: AnyOp = ReduceOp.SUM,
        *,
        stream: Optional[Stream] = None,
        dtype: DType = None
    ) -> Any:
        """Block `rank` of the reduction of send goes to recv; send has ranks times as many
        elements. Without recv: in place, this rank's block of send."""
        source = span(send, "send", recv is None, dtype)
        target = part(source, self.size, self.rank, "send", "reduce_scatter")
        if recv is not None:
            block, target = target, span(recv, "recv", True, dtype)
            same(block, target, 1, "reduce_scatter", "it is one block of send, and a block of")
        self._enqueue(
            "ReduceScatter",
            (source, target, op),
            stream,
            lib.ftcclReduceScatter,
            source.pointer,
            target.pointer,
            target.elements,
            source.dtype,
            _value_of(op, source.dtype, self),
        )
        return send if recv is None else recv

    def all_to_all(
        self, send: Any, recv: Any = None, *, stream: Optional[Stream] = None, dtype: DType = None
    ) -> Any:
        """Block j of send goes to block `rank` of rank j's recv; both have a block for each
        rank."""
        source = span(send, "send", recv is None, dtype)
        count, target = part(source, self.size, 0, "send", "all_to_all").elements, source
        if recv is not None:
            target = span(recv, "recv", True, dtype)
            same(source, target, 1, "all_to_all", "both have the same number")
        self._enqueue(
            "AlltoAll",
            (source, target),
            stream,
            lib.ftcclAlltoAll,
            source.pointer,
            target.pointer,
            count,
            source.dtype,
        )
        return send if recv is None else recv

    def gather(
        self,
        send: Any,
        recv: Any = None,
        *,
        root: int = 0,
        stream: Optional[Stream] = None,
        dtype: DType = None
    ) -> Any:
        """At root recv becomes the ranks' send, one after the other; the others do not use it. At
        root send may be None: in place, root's block of recv."""
        at_root = self.rank == root
        target = NOTHING
        if at_root:
            target = self._at_root(recv, "recv", True, dtype, "gather")
        if at_root and send is None:
            source = part(target, self.size, root, "recv", "gather")
        else:
            source = span(send, "send", False, dtype)
            if at_root:
                same(source, target, self.size, "gather", "every rank has a block")
        self._enqueue(
            "Gather",
            (source, target),
            stream,
            lib.ftcclGather,
            source.pointer,
            target.pointer,
            source.elements,
            source.dtype,
            root,
        )
        return recv

    def scatter(
        self,
        send: Any,
        recv: Any = None,
        *,
        root: int = 0,
        stream: Optional[Stream] = None,
        dtype: DType = None
    ) -> Any:
        """Block j of root's send goes to rank j's recv; the others do not use send. At root recv
        may be None: in place, root's block of send."""
        at_root = self.rank == root
        source = NOTHING
        if at_root:
            source = self._at_root(send, "send", recv is None, dtype, "scatter")
        if at_root and recv is None:
            target = part(source, self.size, root, "send", "scatter")
        else:
            target = span(recv, "recv", True, dtype)
            if at_root:
                block = part(source, self.size, root, "send", "scatter")
                same(block, target, 1, "scatter", "it is one block of send, and a block of")
        self._enqueue(
            "Scatter",
            (source, target),
            stream,
            lib.ftcclScatter,
            source.pointer,
            target.pointer,
            target.elements,
            target.dtype,
            root,
        )
        return send if recv is None else recv

    @staticmethod
    def _at_root(buffer: Any, name: str, written: bool, dtype: DType, call: str) -> Span:
        if buffer is None:
            raise InvalidArgument("%s: root needs %s" % (call, name))
        return span(buffer, name, written, dtype)

    # ---- point to point and one-sided ------------------------------------------------------------

    def send(
        self, buffer: Any, peer: int, *, stream: Optional[Stream] = None, dtype: DType = None
    ) -> None:
        """The k-th send from a rank to another matches the k-th receive of that one from it."""
        source = span(buffer, "buffer", False, dtype)
        self._enqueue(
            "Send",
            source,
            stream,
            lib.ftcclSend,
            source.pointer,
            source.elements,
            source.dtype,
            peer,
        )

    def recv(
        self, buffer: Any, peer: int, *, stream: Optional[Stream] = None, dtype: DType = None
    ) -> Any:
        """Receives what peer sends; number and type of the elements must be equal."""
        target = span(buffer, "buffer", True, dtype)
        self._enqueue(
            "Recv",
            target,
            stream,
            lib.ftcclRecv,
            target.pointer,
            target.elements,
            target.dtype,
            peer,
        )
        return buffer

    def probe(self, peer: int) -> bool:
        """True if a message from peer has arrived that no receive was called for. Does not
        block."""
        arrived = ffi.new("int *")
        self._check(lib.ftcclProbe(self._require(), peer, arrived), "Probe")
        return bool(arrived[0])

    def put_signal(
        self,
        buffer: Any,
        peer: int,
        window: Any,
        offset: int = 0,
        *,
        stream: Optional[Stream] = None,
        dtype: DType = None
    ) -> None:
        """Copies the buffer into peer's part of the window, `offset` bytes from its start, and
        gives peer one signal. The stream has passed it when the buffer may be reused."""
        source = span(buffer, "buffer", False, dtype)
        self._enqueue(
            "PutSignal",
            (source, window),
            stream,
            lib.ftcclPutSignal,
            source.pointer,
            source.elements,
            source.dtype,
            peer,
            window._handle,
            offset,
            0,
            0,
            0,
        )

    def signal(self, peer: int, *, stream: Optional[Stream] = None) -> None:
        """Gives peer one signal, after everything that this rank has put to it before."""
        self._enqueue("Signal", None, stream, lib.ftcclSignal, peer, 0, 0, 0)

    def wait_signal(self, signals: Mapping[int, int], *, stream: Optional[Stream] = None) -> None:
        """The stream waits for so many signals from each peer, {peer: number}, and consumes
        them."""
        waits = ffi.new("ftcclWaitSignalDesc_t[]", max(len(signals), 1))
        for wait, (peer, count) in zip(waits, signals.items()):
            wait.peer, wait.opCnt = peer, count
        self._enqueue("WaitSignal", waits, stream, lib.ftcclWaitSignal, len(signals), waits)
