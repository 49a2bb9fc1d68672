"""Loads the extension module, and refuses a library of another version than it was built with."""

try:
    from ._ftccl import ffi, lib
except ImportError as error:
    raise ImportError(
        "ftccl cannot load its extension module or the library libftccl.so.0 (%s). Install FTCCL "
        "and then this package"
        " again; if the library has moved since, LD_LIBRARY_PATH can name its folder." % error
    ) from error

__all__ = ["ffi", "lib"]


def _check_version() -> None:
    version = ffi.new("int *")
    lib.ftcclGetVersion(version)
    if version[0] != lib.FTCCL_VERSION_CODE:
        raise ImportError(
            "ftccl was built with FTCCL %s, but the library that was loaded is %s: install both "
            "from one tree" % (_text(lib.FTCCL_VERSION_CODE), _text(version[0]))
        )


def _text(code: int) -> str:
    return "%d.%d.%d" % (code // 10000, code // 100 % 100, code % 100)


_check_version()
