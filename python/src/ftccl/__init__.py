"""FTCCL: collective communication that survives the death of ranks.

::

    import ftccl, numpy
    with ftccl.init_from_env() as comm:         # under ftccl-run, torchrun, mpiexec or srun
        x = numpy.full(4, comm.rank + 1.0)
        comm.all_reduce(x)                      # enqueues, in place
        comm.synchronize()                      # waits, and raises what failed

Buffers are NumPy arrays, torch tensors on the CPU, everything with Python's buffer protocol, and
CPU memory that is given by DLPack; they are C-contiguous, and nothing is copied. Operations enqueue
and return; their stream's synchronize() waits and raises their errors. Every call releases the GIL,
every wait is bounded, and Ctrl-C ends it. Errors are FtcclError with code, error_class, culprit and
failed_ranks. ftccl.h documents each call of the library.
"""

from ._buffers import DataType
from ._communicator import (
    Communicator,
    Registration,
    UniqueId,
    Window,
    get_unique_id,
    init_all,
    keep_unique_id,
    release_unique_id,
)
from ._config import Config
from ._errors import (
    DeviceError,
    ErrorClass,
    FtcclError,
    InternalError,
    InvalidArgument,
    InvalidUsage,
    RemoteError,
    Result,
    SystemError_,
    Timeout,
)
from ._launch import Launch, find_launch, init_from_env
from ._lib import lib as _library
from ._memory import mem_alloc
from ._operations import RedOp, ReduceOp
from ._stream import Stream, group, simulate
from ._version import __version__

SUM, PROD, MAX, MIN, AVG = ReduceOp.SUM, ReduceOp.PROD, ReduceOp.MAX, ReduceOp.MIN, ReduceOp.AVG


def reset_debug() -> None:
    """Reads the debug level and file from the environment again at the next use."""
    _library.ftcclResetDebugInit()


__all__ = [
    "AVG",
    "Communicator",
    "Config",
    "DataType",
    "DeviceError",
    "ErrorClass",
    "FtcclError",
    "InternalError",
    "InvalidArgument",
    "InvalidUsage",
    "Launch",
    "MAX",
    "MIN",
    "PROD",
    "RedOp",
    "ReduceOp",
    "Registration",
    "RemoteError",
    "Result",
    "SUM",
    "Stream",
    "SystemError_",
    "Timeout",
    "UniqueId",
    "Window",
    "__version__",
    "find_launch",
    "get_unique_id",
    "group",
    "init_all",
    "init_from_env",
    "keep_unique_id",
    "mem_alloc",
    "release_unique_id",
    "reset_debug",
    "simulate",
]
