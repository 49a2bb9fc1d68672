"""Memory that other ranks of the host read in place."""

from typing import Any

from ._errors import InvalidArgument, make
from ._lib import ffi, lib
from ._lifetime import generation, is_foreign


def mem_alloc(nbytes: int) -> memoryview:
    """Zeroed, page-aligned memory of nbytes bytes, writable, format "B". From 64 KiB on it is
    shared memory, which other ranks of this host read in place when it is a send buffer. It is
    freed when the last object that uses it goes, as
    `numpy.frombuffer(ftccl.mem_alloc(n), "float32")`, which needs no copy."""
    if nbytes < 0:
        raise InvalidArgument("mem_alloc: %d bytes" % nbytes)
    pointer = ffi.new("void **")
    result = lib.ftcclMemAlloc(pointer, nbytes)
    if result != lib.ftcclSuccess:
        raise make(result, "MemAlloc")
    made_in = generation()

    def free(memory: Any) -> None:
        if not is_foreign(made_in):
            lib.ftcclMemFree(memory)

    memory = ffi.gc(ffi.cast("char *", pointer[0]), free, nbytes)
    return memoryview(ffi.buffer(memory, nbytes)).cast("B")
