"""Waits that Ctrl-C can end.

The C calls release the GIL, but Python handles a signal only between two of them, in the main
thread. So a wait is a row of short ones; calls that cannot be made short run in a helper thread
while the main thread waits for a lock.
"""

import threading
from typing import Any, Callable, List, TypeVar

from ._lib import ffi, lib

SLICE_MS = 50
_T = TypeVar("_T")


def wait_stream(handle: Any) -> int:
    """As ftcclStreamSynchronize()."""
    result: int = lib.ftcclStreamWait(handle, SLICE_MS)
    while result == lib.ftcclInProgress:
        result = lib.ftcclStreamWait(handle, SLICE_MS)
    return result


def wait_communicator(handle: Any) -> int:
    """Waits for the end of the call that a non-blocking communicator makes, and returns its result.
    There are such only if NCCL_COMM_BLOCKING says so."""
    error = ffi.new("ftcclResult_t *", lib.ftcclInProgress)
    result: int = lib.ftcclSuccess
    while result == lib.ftcclSuccess and error[0] == lib.ftcclInProgress:
        result = lib.ftpy_comm_wait(handle, SLICE_MS, error)
    return result if result != lib.ftcclSuccess else int(error[0])


def in_helper(call: Callable[[], _T]) -> _T:
    """call(), which a signal in the main thread leaves behind; it must be bounded and must not
    raise."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    results: List[_T] = []
    left = threading.Event()
    done = threading.Lock()
    done.acquire()

    def run() -> None:
        try:
            if not left.is_set():
                results.append(call())
        finally:
            done.release()

    try:
        threading.Thread(target=run, name="ftccl", daemon=True).start()
        # in slices: a signal that another thread gets, or that comes just before the wait, does not
        # end it
        while not done.acquire(timeout=SLICE_MS / 1000):
            pass
    except BaseException:
        left.set()
        raise
    return results[0]
