"""Generates the C source of ftccl._ftccl from the installed ftccl.h.

setup.py calls it. The declarations are those of the header that the compiler then reads, so that
header and binding cannot differ; cffi lets the compiler check every type, value and layout.
"""

import os
import re
import subprocess

# Initialisers are macros that cffi cannot call; waits look at Python's signals in between.
HELPERS_DECLARED = """
void ftpy_config_init(ftcclConfig_t *config);
void ftpy_options_init(ftcclOptions_t *options);
void ftpy_sim_info_init(ftcclSimInfo_t *info);
ftcclResult_t ftpy_comm_wait(ftcclComm_t comm, int timeout_ms, ftcclResult_t *error);
"""
HELPERS = """
#include <ftccl.h>
#include <time.h>

static void ftpy_config_init(ftcclConfig_t *config)
{
    ftcclConfig_t initial = FTCCL_CONFIG_INITIALIZER;
    *config = initial;
}

static void ftpy_options_init(ftcclOptions_t *options)
{
    ftcclOptions_t initial = FTCCL_OPTIONS_INITIALIZER;
    *options = initial;
}

static void ftpy_sim_info_init(ftcclSimInfo_t *info)
{
    ftcclSimInfo_t initial = FTCCL_SIM_INFO_INITIALIZER;
    *info = initial;
}

/* Waits for the end of a non-blocking call: looks often at first, then every 0.2 ms. */
static ftcclResult_t ftpy_comm_wait(ftcclComm_t comm, int timeout_ms, ftcclResult_t *error)
{
    long nap_ns = 5000, left_ns = timeout_ms * 1000000l;
    for (;;) {
        ftcclResult_t result = ftcclCommGetAsyncError(comm, error);
        if (result != ftcclSuccess || *error != ftcclInProgress || left_ns <= 0)
            return result;
        struct timespec nap = {0, nap_ns};
        if (nanosleep(&nap, NULL))
            return result;
        left_ns -= nap_ns;
        nap_ns = nap_ns < 100000 ? 2 * nap_ns : 200000;
    }
}
"""


class BuildError(SystemExit):
    """The build cannot go on; pip shows the sentence."""

    def __init__(self, sentence):
        super().__init__("ftccl: " + sentence)


def pkg_config(*arguments):
    """The words that pkg-config prints about ftccl; BuildError if it does not know it."""
    missing = (
        "the library FTCCL was not found (%s). Install it with `make install` and set "
        "PKG_CONFIG_PATH to its"
        " lib/pkgconfig, or FTCCL_PREFIX to where it was installed."
    )
    try:
        done = subprocess.run(
            [os.environ.get("PKG_CONFIG", "pkg-config"), *arguments, "ftccl"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise BuildError(missing % error) from error
    if done.returncode != 0:
        raise BuildError(missing % " ".join(done.stderr.split()))
    return done.stdout.split()


def find_library():
    """(include folder, library folder) of FTCCL_PREFIX or else of pkg-config."""
    prefix = os.environ.get("FTCCL_PREFIX")
    if prefix:
        libraries = [
            folder
            for folder in (os.path.join(prefix, name) for name in ("lib", "lib64"))
            if os.path.exists(os.path.join(folder, "libftccl.so"))
        ]
        include = os.path.join(prefix, "include")
        if not libraries or not os.path.exists(os.path.join(include, "ftccl.h")):
            raise BuildError(
                "FTCCL_PREFIX is %s, which has no include/ftccl.h or no lib/libftccl.so" % prefix
            )
        return include, libraries[0]
    return pkg_config("--variable=includedir")[0], pkg_config("--variable=libdir")[0]


def check_version(header, version):
    """BuildError if the header is not of this version."""
    numbers = [
        re.search(r"#define FTCCL_%s (\d+)" % part, header) for part in ("MAJOR", "MINOR", "PATCH")
    ]
    found = ".".join(number.group(1) for number in numbers if number)
    if found != version:
        raise BuildError(
            "this package is %s, but the installed ftccl.h is %s; install both from one tree"
            % (version, found or "of no version")
        )


def macro(name, value):
    """The declaration of an integer macro, or "" for any other."""
    if re.fullmatch(r"(0x[0-9a-fA-F]+|\d+)[uU]?", value):
        return "#define %s %s\n" % (name, value.rstrip("uU"))
    if re.fullmatch(r"\(-?\d+\)|INT_MIN|INT64_MIN|FTCCL_VERSION\(.*\)", value):
        return "#define %s ...\n" % name
    return ""


def declarations(header):
    """The header as cffi's cdef() takes it: no comments, no preprocessor but the integer macros."""
    text = re.sub(r"/\*.*?\*/", " ", header, flags=re.S).replace("\\\n", " ")
    text = re.sub(r"^#ifdef __cplusplus$.*?^#endif$", "", text, flags=re.S | re.M)
    macros = "".join(
        macro(*found) for found in re.findall(r"^#define (\w+) +(\S.*?) *$", text, flags=re.M)
    )
    return macros + re.sub(r"^#.*$", "", text, flags=re.M) + HELPERS_DECLARED


def generate(output, version):
    """Writes the C source; returns (include folder, library folder)."""
    import cffi

    include, library = find_library()
    with open(os.path.join(include, "ftccl.h"), encoding="utf-8") as file:
        header = file.read()
    check_version(header, version)
    ffi = cffi.FFI()
    ffi.cdef(declarations(header))
    ffi.set_source("ftccl._ftccl", HELPERS)
    ffi.emit_c_code(output)
    return include, library
