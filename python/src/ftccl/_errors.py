"""Result codes as exceptions."""

import enum
import re
from typing import Any, Optional, Tuple

from ._lib import ffi, lib


class Result(enum.IntEnum):
    """ftcclResult_t"""

    SUCCESS = lib.ftcclSuccess
    UNHANDLED_CUDA_ERROR = lib.ftcclUnhandledCudaError
    SYSTEM_ERROR = lib.ftcclSystemError
    INTERNAL_ERROR = lib.ftcclInternalError
    INVALID_ARGUMENT = lib.ftcclInvalidArgument
    INVALID_USAGE = lib.ftcclInvalidUsage
    REMOTE_ERROR = lib.ftcclRemoteError
    IN_PROGRESS = lib.ftcclInProgress
    TIMEOUT = lib.ftcclTimeout


class ErrorClass(enum.IntEnum):
    """What an error means for the communicator.

    CALLER: the call had no effect. RECOVERABLE: the communicator is lost, but this rank can go on,
    with
    `Communicator.shrink()`. FATAL: this rank cannot go on; its peers get a recoverable error.
    """

    SUCCESS = lib.ftcclClassSuccess
    IN_PROGRESS = lib.ftcclClassInProgress
    CALLER = lib.ftcclClassCaller
    RECOVERABLE = lib.ftcclClassRecoverable
    FATAL = lib.ftcclClassFatal


class FtcclError(RuntimeError):
    """An error of the library; the message is the library's sentence, which names rank, peer and
    operation.

    code: the Result. error_class: what it means for the communicator. culprit: the rank that the
    sentence names as lost, or None. failed_ranks: those of the communicator that are known to have
    failed. operation: the call or operation that failed, or None. communicator: the one that
    failed, if that is known.
    """

    code: Result = Result.INTERNAL_ERROR

    def __init__(
        self,
        sentence: str,
        code: Optional[int] = None,
        operation: Optional[str] = None,
        communicator: Any = None,
        failed_ranks: Tuple[int, ...] = (),
    ) -> None:
        super().__init__(sentence)
        if code is not None:
            self.code = Result(code)
        self.error_class = ErrorClass(lib.ftcclGetErrorClass(int(self.code)))
        self.failed_ranks = failed_ranks
        self.culprit = _culprit(sentence, failed_ranks)
        self.operation = _operation(sentence) or operation
        self.communicator = communicator

    def __reduce__(self) -> Tuple[Any, ...]:  # between processes, without the communicator
        return type(self), (str(self), int(self.code), self.operation, None, self.failed_ranks)


class DeviceError(FtcclError):
    """The device failed."""

    code = Result.UNHANDLED_CUDA_ERROR


class SystemError_(FtcclError):
    """A system call failed, or memory, descriptors or shared memory ran out."""

    code = Result.SYSTEM_ERROR


class InternalError(FtcclError):
    """A bug in the library."""

    code = Result.INTERNAL_ERROR


class InvalidArgument(FtcclError, ValueError):
    """An argument is wrong; the call had no effect."""

    code = Result.INVALID_ARGUMENT


class InvalidUsage(FtcclError):
    """The call is not possible now, or ranks made different calls."""

    code = Result.INVALID_USAGE


class RemoteError(FtcclError):
    """A peer or the connection to it was lost."""

    code = Result.REMOTE_ERROR


class Timeout(FtcclError, TimeoutError):
    """A deadline passed."""

    code = Result.TIMEOUT


_classes = {
    kind.code: kind
    for kind in (
        DeviceError,
        SystemError_,
        InternalError,
        InvalidArgument,
        InvalidUsage,
        RemoteError,
        Timeout,
    )
}


def _culprit(sentence: str, failed_ranks: Tuple[int, ...]) -> Optional[int]:
    named = re.search(r"lost rank (\d+)|rank (\d+) is dead|rank (\d+) aborted", sentence)
    if named:
        return int(next(number for number in named.groups() if number))
    return failed_ranks[0] if len(failed_ranks) == 1 else None


def _operation(sentence: str) -> Optional[str]:
    named = re.search(r"\b(?:[A-Z]\w+\([^()]*\), )?operation \d+", sentence)
    return named.group(0) if named else None


def last_error(handle: Any = ffi.NULL) -> str:
    """The library's sentence about the communicator, or about the last call of this thread."""
    return str(ffi.string(lib.ftcclGetLastError(handle)).decode("utf-8", "replace"))


def make(
    code: int,
    operation: str,
    sentence: Optional[str] = None,
    communicator: Any = None,
    failed_ranks: Tuple[int, ...] = (),
) -> FtcclError:
    """The exception of a result, with the sentence of this thread's last call unless one is
    given."""
    if sentence is None:
        sentence = last_error()
    if not sentence:
        sentence = ffi.string(lib.ftcclGetErrorString(code)).decode()
    kind = _classes.get(Result(code), FtcclError)
    return kind("%s: %s" % (operation, sentence), code, operation, communicator, failed_ranks)


def of_call(code: int, operation: str, communicator: Any) -> FtcclError:
    """The exception of a call on a communicator that this thread has made."""
    sentence = last_error()  # before another call changes it
    return make(code, operation, sentence, communicator, communicator.failed_ranks)


def check(code: int, operation: str) -> None:
    """Raises the exception of a call's result; success and "in progress" pass."""
    if code != lib.ftcclSuccess and code != lib.ftcclInProgress:
        raise make(code, operation)
