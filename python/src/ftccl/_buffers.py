"""Buffers of other packages: address, number of elements and type, checked before a call reaches
the library.

Accepted are NumPy arrays (of ml_dtypes too), tensors of torch on the CPU, everything with Python's
buffer protocol (bytearray, memoryview, array, mmap, ctypes arrays), and CPU memory that is given by
DLPack.
"""

import ctypes
import enum
import struct
import sys
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple, Union

from ._errors import InvalidArgument
from ._lib import ffi, lib


class DataType(enum.IntEnum):
    """ftcclDataType_t"""

    INT8 = lib.ftcclInt8
    UINT8 = lib.ftcclUint8
    INT32 = lib.ftcclInt32
    UINT32 = lib.ftcclUint32
    INT64 = lib.ftcclInt64
    UINT64 = lib.ftcclUint64
    FLOAT16 = lib.ftcclFloat16
    FLOAT32 = lib.ftcclFloat32
    FLOAT64 = lib.ftcclFloat64
    BFLOAT16 = lib.ftcclBfloat16
    FLOAT8E4M3 = lib.ftcclFloat8e4m3
    FLOAT8E5M2 = lib.ftcclFloat8e5m2


SIZES: Dict[int, int] = {
    lib.ftcclInt8: 1,
    lib.ftcclUint8: 1,
    lib.ftcclInt32: 4,
    lib.ftcclUint32: 4,
    lib.ftcclInt64: 8,
    lib.ftcclUint64: 8,
    lib.ftcclFloat16: 2,
    lib.ftcclFloat32: 4,
    lib.ftcclFloat64: 8,
    lib.ftcclBfloat16: 2,
    lib.ftcclFloat8e4m3: 1,
    lib.ftcclFloat8e5m2: 1,
}
# As NumPy, ml_dtypes and torch call them.
_by_name: Dict[str, int] = {
    "int8": lib.ftcclInt8,
    "uint8": lib.ftcclUint8,
    "int32": lib.ftcclInt32,
    "uint32": lib.ftcclUint32,
    "int64": lib.ftcclInt64,
    "uint64": lib.ftcclUint64,
    "float16": lib.ftcclFloat16,
    "float32": lib.ftcclFloat32,
    "float64": lib.ftcclFloat64,
    "bfloat16": lib.ftcclBfloat16,
    "float8_e4m3fn": lib.ftcclFloat8e4m3,
    "float8_e5m2": lib.ftcclFloat8e5m2,
}
_names = {code: name for name, code in _by_name.items()}
_HINT = (
    "; FTCCL has int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16, "
    "float8_e4m3fn and"
    " float8_e5m2, and dtype= says as which of them a buffer is to be taken"
)


class Span(NamedTuple):
    """Memory as a call needs it. `owner` keeps it alive."""

    pointer: Any
    elements: int
    dtype: int
    owner: Any


NOTHING = Span(ffi.NULL, 0, lib.ftcclInt8, None)


def _formats() -> Dict[str, int]:
    """The struct module's formats that FTCCL has, by the sizes of this machine."""
    signed = {1: lib.ftcclInt8, 4: lib.ftcclInt32, 8: lib.ftcclInt64}
    unsigned = {1: lib.ftcclUint8, 4: lib.ftcclUint32, 8: lib.ftcclUint64}
    floats = {2: lib.ftcclFloat16, 4: lib.ftcclFloat32, 8: lib.ftcclFloat64}
    found = {}
    for kinds, letters in ((signed, "bilqn"), (unsigned, "cBILQN"), (floats, "efd")):
        for prefix in ("", "@", "=", "<" if sys.byteorder == "little" else ">"):
            for letter in letters:
                if prefix in ("", "@") or letter not in "nN":
                    size = struct.calcsize(prefix + letter)
                    if size in kinds:
                        found[prefix + letter] = kinds[size]
    return found


_by_format = _formats()
DType = Union[DataType, str, None]


def type_code(dtype: Any) -> int:
    """The code of a DataType, a name as "bfloat16", or a dtype of NumPy or torch."""
    if isinstance(dtype, int):
        return int(DataType(dtype))
    name = (
        dtype.__name__
        if isinstance(dtype, type)
        else str(getattr(dtype, "name", dtype)).rpartition(".")[2]
    )
    if name not in _by_name:
        raise InvalidArgument("%r is not a data type%s" % (dtype, _HINT))
    return _by_name[name]


def type_name(code: int) -> str:
    return _names[code]


# ---- readers: one for each kind of object, remembered by its class -------------------------------

Raw = Tuple[
    Any, int, Optional[int], Any, str
]  # pointer, bytes, type or None, owner, what the type is called
Reader = Callable[[Any, str, bool], Raw]


def _refuse(name: str, why: str) -> InvalidArgument:
    return InvalidArgument("%s %s" % (name, why))


def _check_layout(name: str, contiguous: bool, readonly: bool, written: bool) -> None:
    if not contiguous:
        raise _refuse(name, "is not C-contiguous; make a contiguous copy first")
    if written and readonly:
        raise _refuse(name, "is read-only, and the operation would write to it")


def _address(view: memoryview) -> Any:
    """Without what from_buffer() exports of the view: the garbage collector crashes on a view that
    it clears in a cycle while it is exported."""
    return ffi.cast("char *", ffi.from_buffer(view))


def _read_view(view: memoryview, name: str, written: bool) -> Raw:
    if not view.c_contiguous or (written and view.readonly):
        _check_layout(name, view.c_contiguous, view.readonly, written)
    form = view.format
    code = _by_format.get(form)
    if code is None and "O" in form:  # whatever dtype= says: these are pointers
        raise _refuse(name, "has Python objects as elements")
    return _address(view), view.nbytes, code, view, "format %r" % form


def _read_buffer(buffer: Any, name: str, written: bool) -> Raw:
    try:
        view = memoryview(buffer)
    except (BufferError, ValueError) as error:
        raise _refuse(name, "gives no buffer: %s" % error) from error
    return _read_view(view, name, written)


def _read_numpy(array: Any, name: str, written: bool) -> Raw:
    try:
        return _read_view(memoryview(array), name, written)
    except (BufferError, ValueError) as error:  # a type that the buffer protocol has no letter for
        if isinstance(error, InvalidArgument):
            raise
    if array.dtype.hasobject:
        raise _refuse(name, "has Python objects as elements")
    _check_layout(name, array.flags.c_contiguous, not array.flags.writeable, written)
    view = memoryview(array.reshape(-1).view("uint8"))
    return (
        _address(view),
        view.nbytes,
        _by_name.get(array.dtype.name),
        view,
        "dtype " + array.dtype.name,
    )


_torch_types: Dict[Any, Optional[int]] = {}


def _read_torch(tensor: Any, name: str, written: bool) -> Raw:
    if tensor.device.type != "cpu":
        raise _refuse(name, "is a tensor on %s; only the CPU's memory can be used" % tensor.device)
    if str(tensor.layout) != "torch.strided":
        raise _refuse(name, "is a sparse tensor (%s)" % tensor.layout)
    if tensor.is_neg() or tensor.is_conj():
        raise _refuse(
            name,
            "is a tensor whose values are negated or conjugated when they are read; resolve them "
            "first",
        )
    _check_layout(name, tensor.is_contiguous(), False, written)
    dtype = tensor.dtype
    if dtype not in _torch_types:
        _torch_types[dtype] = _by_name.get(str(dtype).rpartition(".")[2])
    return (
        ffi.cast("char *", tensor.data_ptr()),
        tensor.numel() * tensor.element_size(),
        _torch_types[dtype],
        tensor,
        "dtype %s" % dtype,
    )


class _DLTensor(ctypes.Structure):
    """DLTensor of DLPack, at the start of DLManagedTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_DL_CPU = 1
_dl_types = {
    (0, 8): "int8",
    (0, 32): "int32",
    (0, 64): "int64",
    (1, 8): "uint8",
    (1, 32): "uint32",
    (1, 64): "uint64",
    (2, 16): "float16",
    (2, 32): "float32",
    (2, 64): "float64",
    (4, 16): "bfloat16",
    (10, 8): "float8_e4m3fn",
    (12, 8): "float8_e5m2",
}
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _is_dense(tensor: _DLTensor) -> bool:
    expected = 1
    for i in reversed(range(tensor.ndim)):
        if tensor.strides and tensor.shape[i] != 1 and tensor.strides[i] != expected:
            return False
        expected *= tensor.shape[i]
    return True


def _read_dlpack(giver: Any, name: str, written: bool) -> Raw:
    if giver.__dlpack_device__()[0] != _DL_CPU:
        raise _refuse(
            name, "is not in the CPU's memory (DLPack device %r)" % (giver.__dlpack_device__(),)
        )
    try:
        capsule = giver.__dlpack__()
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise _refuse(name, "cannot be given by DLPack: %s" % error) from error
    # The capsule is not consumed: its own destructor gives the memory back when the last reference
    # to it goes.
    tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    count = 1
    for i in range(tensor.ndim):
        count *= tensor.shape[i]
    _check_layout(name, count == 0 or _is_dense(tensor), False, written)
    found = _dl_types.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    pointer = ffi.cast("char *", (tensor.data or 0) + tensor.byte_offset)
    return (
        pointer,
        count * ((tensor.bits * tensor.lanes + 7) // 8),
        _by_name.get(found or ""),
        capsule,
        "DLPack type %d of %d bits" % (tensor.code, tensor.bits),
    )


_readers: Dict[type, Reader] = {}


def _find_reader(buffer: Any, name: str) -> Reader:
    kind = type(buffer)
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(buffer, torch.Tensor):
        return _readers.setdefault(kind, _read_torch)
    if numpy is not None and isinstance(buffer, numpy.ndarray):
        return _readers.setdefault(kind, _read_numpy)
    try:
        memoryview(buffer)
    except TypeError:
        if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__"):
            return _readers.setdefault(kind, _read_dlpack)
        raise TypeError(
            "%s is a %s, which has no buffer: NumPy arrays, torch tensors on the CPU, bytearray, "
            "memoryview,"
            " array, mmap and what gives DLPack can be used" % (name, kind.__name__)
        ) from None
    except (BufferError, ValueError):
        pass
    return _readers.setdefault(kind, _read_buffer)


def span(buffer: Any, name: str, written: bool, dtype: DType = None) -> Span:
    """The memory of `buffer`, which an argument called `name` gave; with dtype, taken as elements
    of that type."""
    reader = _readers.get(type(buffer)) or _find_reader(buffer, name)
    pointer, nbytes, code, owner, called = reader(buffer, name, written)
    if dtype is not None:
        code = type_code(dtype)
    elif code is None:
        raise _refuse(name, "has elements of %s, which FTCCL does not have%s" % (called, _HINT))
    size = SIZES[code]
    if nbytes % size:
        raise _refuse(
            name, "has %d bytes, which are no whole number of %s" % (nbytes, type_name(code))
        )
    return Span(pointer, nbytes // size, code, owner)


def same(send: Span, recv: Span, times: int, call: str, why: str) -> None:
    """Refuses a receive buffer that does not have `times` as many elements as the send buffer, of
    its type."""
    if send.dtype != recv.dtype:
        raise InvalidArgument(
            "%s: send has %s, recv has %s" % (call, type_name(send.dtype), type_name(recv.dtype))
        )
    if recv.elements != times * send.elements:
        raise InvalidArgument(
            "%s: recv has %d elements where %s: send has %d, so recv must have %d"
            % (call, recv.elements, why, send.elements, times * send.elements)
        )


def part(whole: Span, parts: int, index: int, name: str, call: str) -> Span:
    """Block `index` of a buffer of as many equal blocks as there are ranks."""
    if whole.elements % parts:
        raise InvalidArgument(
            "%s: %s has %d elements, which cannot be divided into equal blocks for %d ranks"
            % (call, name, whole.elements, parts)
        )
    count = whole.elements // parts
    return Span(whole.pointer + index * count * SIZES[whole.dtype], count, whole.dtype, whole.owner)
