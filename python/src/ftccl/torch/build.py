"""Builds and loads the C++ part of the backend.

One binary fits one version of torch: its virtual functions move between minor versions, and a
binary for another one would crash. So the binary's name has torch's version, Python's, and a digest
of the sources and of ftccl.h, and it is never loaded elsewhere.

    python -m ftccl.torch.build              # builds it now, for example into an image

FTCCL_TORCH_CACHE is the folder for binaries (default: ftccl in XDG_CACHE_HOME or ~/.cache). It must
belong to this user: what lies there is loaded as code.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch

OLDEST = (2, 12)
_SOURCES = Path(__file__).parent / "csrc"


class BuildError(ImportError):
    """The backend cannot be built or loaded here; the message says what is missing."""


def _pkg_config(*options: str) -> list[str]:
    prefix = os.environ.get("FTCCL_PREFIX")
    environment = dict(os.environ)
    if prefix:
        old = environment.get("PKG_CONFIG_PATH", "")
        environment["PKG_CONFIG_PATH"] = f"{prefix}/lib/pkgconfig:{old}"
        options = (f"--define-variable=prefix={prefix}", *options)  # it may have been moved there
    try:
        out = subprocess.run(
            ["pkg-config", *options, "ftccl"],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(
            "ftccl.torch: pkg-config does not find ftccl; install the library and set "
            "FTCCL_PREFIX or PKG_CONFIG_PATH"
        ) from error
    return out.split()


def _version_of_torch() -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if not match or (int(match[1]), int(match[2])) < OLDEST:
        raise BuildError(
            f"ftccl.torch needs torch {OLDEST[0]}.{OLDEST[1]} or later; this is "
            f"{torch.__version__}"
        )
    return int(match[1]), int(match[2])


def _files() -> list[Path]:
    return sorted(path for path in _SOURCES.iterdir() if path.suffix in (".cpp", ".hpp"))


def _name(include: list[str], libraries: list[str]) -> str:
    """The library's place belongs to it, which the binary keeps."""
    digest = hashlib.sha256(" ".join([torch.__version__, sys.version, *libraries]).encode())
    for folder in [option[2:] for option in include if option.startswith("-I")] or ["/usr/include"]:
        header = Path(folder) / "ftccl.h"
        if header.exists():
            digest.update(header.read_bytes())
            break
    for path in _files():
        digest.update(path.read_bytes())
    major, minor = _version_of_torch()
    return f"_ftccl_c10d_{major}_{minor}_{digest.hexdigest()[:16]}"


def _cache(name: str) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("FTCCL_TORCH_CACHE") or Path(home) / "ftccl") / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise BuildError(f"ftccl.torch: {folder} belongs to another user")
    return folder


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Other processes wait. The kernel gives this lock back if its owner dies. Until 2.13, torch's
    own lock is that a file exists; a killed builder leaves it, and others would wait for ever."""
    with open(folder / "builder", "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        (folder / "lock").unlink(missing_ok=True)
        yield


@contextlib.contextmanager
def _ninja_on_path() -> Iterator[None]:
    """torch calls ninja by its name. pip puts it beside the interpreter, whose folder is on the
    path only where a virtual environment is activated."""
    path = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = os.pathsep.join(
        [path, sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    )
    try:
        yield
    finally:
        os.environ["PATH"] = path


@functools.lru_cache(maxsize=1)
def load(verbose: bool = False) -> ModuleType:
    """Returns the extension for this torch. Builds it if it is not in the cache, which takes about
    a minute; other processes wait for the one that builds. Raises BuildError."""
    from torch.utils import cpp_extension

    include, libraries = _pkg_config("--cflags"), _pkg_config("--libs")
    folders = [option[2:] for option in libraries if option.startswith("-L")]
    name = _name(include, libraries)
    folder = _cache(name)
    if not (folder / f"{name}.so").exists():
        print(
            "ftccl.torch: building the backend for torch",
            torch.__version__,
            "(once)",
            file=sys.stderr,
        )
    try:
        with _alone(folder), _ninja_on_path():
            return cpp_extension.load(
                name=name,
                sources=[str(path) for path in _files() if path.suffix == ".cpp"],
                extra_cflags=["-O2", "-g0", *include],
                extra_ldflags=[*libraries, *(f"-Wl,-rpath,{path}" for path in folders)],
                build_directory=str(folder),
                with_cuda=False,
                verbose=verbose,
            )
    except (RuntimeError, OSError, ImportError) as error:
        raise BuildError(f"ftccl.torch: the backend could not be built: {error}") from error


if __name__ == "__main__":
    print(load(verbose=True).__file__)
