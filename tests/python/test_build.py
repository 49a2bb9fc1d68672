"""Properties: header and binding cannot drift apart: every function and integer macro of ftccl.h is
declared, and every function is used; a library that is missing or of another version is refused
with a sentence, at build and at import. Method: the installed header read by other means than the
generator's; the generator's own checks called.
"""

import os
import re
import sys
import types

import pytest

import ftccl
from ftccl import _lib

SOURCE = os.environ.get("FT_PYTHON_SOURCE")
pytestmark = pytest.mark.skipif(SOURCE is None, reason="FT_PYTHON_SOURCE does not name the sources")
# Others do the same: InitRankScalable with one id, a group of inits, Broadcast in place,
# StreamWait.
NOT_USED = {
    "ftcclCommInitRank",
    "ftcclCommInitRankConfig",
    "ftcclCommInitAll",
    "ftcclBcast",
    "ftcclStreamSynchronize",
}
# Managed membership has no binding.
NOT_USED |= {
    "ftcclMemberJoin",
    "ftcclMemberView",
    "ftcclMemberCommit",
    "ftcclMemberRole",
    "ftcclMemberLeave",
    "ftcclCoordinatorStart",
    "ftcclCoordinatorStop",
}


@pytest.fixture
def build():
    sys.path.insert(0, SOURCE)
    try:
        import ftccl_build

        yield ftccl_build
    finally:
        sys.path.remove(SOURCE)


@pytest.fixture
def header(build, monkeypatch):
    monkeypatch.setenv("FTCCL_PREFIX", os.environ["FT_PYTHON_PREFIX"])
    include, _ = build.find_library()
    with open(os.path.join(include, "ftccl.h"), encoding="utf-8") as file:
        return file.read()


def test_all_of_the_header_is_there(header):
    functions = set(re.findall(r"^\w[\w ]*[ *](ftccl\w+)\(", header, re.M))
    assert len(functions) > 50
    assert functions <= set(dir(_lib.lib))
    package = os.path.dirname(ftccl.__file__)
    text = "".join(
        open(os.path.join(package, name), encoding="utf-8").read()
        for name in os.listdir(package)
        if name.endswith(".py")
    )
    used = set(re.findall(r"\.(ftccl[A-Z]\w+)", text))
    assert functions - used == NOT_USED
    macros = set(re.findall(r"^#define (FTCCL_\w+) ", header, re.M))
    missing = {name for name in macros - set(dir(_lib.lib))}
    assert missing == {
        "FTCCL_COMM_NULL",
        "FTCCL_CONFIG_INITIALIZER",
        "FTCCL_CONFIG_UNDEF_PTR",
        "FTCCL_OPTIONS_INITIALIZER",
        "FTCCL_SIM_INFO_INITIALIZER",
        "FTCCL_UNDEF_FLOAT",
    }


def test_missing_library(build, monkeypatch):
    monkeypatch.setenv("FTCCL_PREFIX", "/nowhere")
    with pytest.raises(build.BuildError, match="FTCCL_PREFIX is /nowhere, which has no"):
        build.find_library()
    monkeypatch.delenv("FTCCL_PREFIX")
    monkeypatch.setenv("PKG_CONFIG", "/nowhere/pkg-config")
    with pytest.raises(build.BuildError, match="was not found .*make install"):
        build.find_library()
    monkeypatch.setenv("PKG_CONFIG", "false")
    with pytest.raises(build.BuildError, match="was not found"):
        build.find_library()


def test_other_version(build, header, monkeypatch):
    build.check_version(header, ftccl.__version__)
    with pytest.raises(
        build.BuildError,
        match="this package is 9.9.9, but the installed ftccl.h is " + ftccl.__version__,
    ):
        build.check_version(header, "9.9.9")
    loaded = types.SimpleNamespace(
        FTCCL_VERSION_CODE=200, ftcclGetVersion=lambda version: version.__setitem__(0, 103)
    )
    monkeypatch.setattr(_lib, "lib", loaded)
    with pytest.raises(
        ImportError, match="built with FTCCL 0.2.0, but the library that was loaded is 0.1.3"
    ):
        _lib._check_version()
