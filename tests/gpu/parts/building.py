"""Compiles the tree for this machine's GPU, and packs one for a machine that has little."""

import glob
import os
import shutil
import subprocess
import sys

from .rig import Missing

TESTS = [
    "tests/cuda/pass_test",
    "tests/cuda/queue_test",
    "tests/cuda/gpu_test",
    "tests/cuda/blocking_test",
    "tests/cuda/spin_test",
    "tests/cuda/processes_test",
    "tests/cuda/links_test",
    "tests/cuda/graph_test",
    "tests/cuda/libreal.la",
]
NEEDED = [
    "tools/ftccl-run",
    "perf/all_reduce_perf",
    "perf/nccl_all_reduce_perf",
    "perf/gpu_kernels",
    "perf/gpu_recovery",
] + TESTS


def built(rig):
    return all(os.path.exists(os.path.join(rig.build_dir, path)) for path in NEEDED)


def build(rig):
    kernels = os.path.join(rig.build_dir, "src", "device", "cuda", "kernel.fatbin")
    if rig.dry:
        rig.check("the CUDA device is in this build", os.path.exists(kernels), kernels)
        rig.skip(
            "compiling: a dry run takes the build that is there; "
            "that the tree compiles is what made it"
        )
        return
    if built(rig):
        rig.check("was built before", True, rig.build_dir)
        return
    os.makedirs(rig.build_dir, exist_ok=True)
    configure = os.path.join(rig.o.source, "configure")
    if not os.path.exists(configure):
        if not shutil.which("autoreconf"):
            raise Missing("there is neither configure nor autoconf: bring a tree of --pack")
        rig.run(["sh", "-c", "cd '%s' && ./autogen.sh" % rig.o.source], 120)
    log = run_in(rig, [configure, "--quiet"] + flags(rig), 120)
    if not rig.check("configure", log.status == 0, "" if log.status == 0 else log.why()):
        return
    # One after the other: `all` is a make of its own, which would link the libraries at the same
    # time.
    for what, targets in (
        ("the library and its programs compile", ["all"]),
        ("the tests compile", TESTS),
    ):
        log = run_in(rig, ["make", "-s", "-k", "-j%d" % os.cpu_count()] + targets, 600)
        rig.check(what, log.status == 0, "%.0f s" % log.seconds if log.status == 0 else log.why())
    rig.check("all is there that the other parts need", built(rig))
    figures(rig)


def run_in(rig, argv, seconds):
    return rig.run(["sh", "-c", 'cd "$0" && exec "$@"', rig.build_dir] + argv, seconds)


def flags(rig):
    """For this GPU alone; libsodium and googletest from carry/ where the tree has them."""
    found = ["--without-hwloc", "--without-verbs", "--without-libfabric", "--without-mpi"]
    cap = rig.call(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]).splitlines()
    if cap and cap[0].replace(".", "").isdigit():
        found.append("--with-cuda-arch=" + cap[0].replace(".", ""))
    toolkit = find_toolkit()
    if not toolkit:
        rig.skip(
            "the toolkit was not found (nvcc and cuda.h): "
            "without CUDA_HOME or nvcc in PATH the device cannot be compiled"
        )
    elif toolkit != "/usr/local/cuda":
        found.append("--with-cuda=" + toolkit)
    nccl = find_nccl(rig.o.nccl)
    if nccl and os.path.exists(os.path.join(nccl, "include", "nccl.h")):
        found.append("--with-nccl=" + nccl)
    carry = os.path.join(rig.o.source, "carry")
    if os.path.isdir(carry):
        include, lib = os.path.join(carry, "include"), os.path.join(carry, "lib")
        found += [
            "SODIUM_CFLAGS=-I" + include,
            "SODIUM_LIBS=-L%s -lsodium" % lib,
            "GTEST_CFLAGS=-I" + include,
            "GTEST_LIBS=-L%s -lgtest" % lib,
        ]
    return found


def find_toolkit(given=None):
    """A folder with bin/nvcc and include/cuda.h: as the environment says, where nvcc is, the usual
    places."""
    nvcc = shutil.which("nvcc")
    folders = given or [
        os.environ.get("CUDA_HOME"),
        os.environ.get("CUDA_PATH"),
        "/usr/local/cuda",
        os.path.dirname(os.path.dirname(os.path.realpath(nvcc))) if nvcc else None,
    ]
    folders += (
        sorted(glob.glob("/usr/local/cuda-*"), reverse=True) + ["/opt/cuda"] if not given else []
    )
    there = [
        f
        for f in folders
        if f and os.path.exists(f + "/bin/nvcc") and os.path.exists(f + "/include/cuda.h")
    ]
    return there[0] if there else None


def figures(rig):
    """Registers and stack of the kernel that was built, into kernel.txt."""
    cuobjdump = shutil.which("cuobjdump") or "/usr/local/cuda/bin/cuobjdump"
    if not os.path.exists(cuobjdump):
        rig.skip("the kernel's registers: there is no cuobjdump")
        return
    log = rig.run(
        [
            cuobjdump,
            "--dump-resource-usage",
            os.path.join(rig.build_dir, "src", "device", "cuda", "kernel.fatbin"),
        ],
        60,
    )
    with open(os.path.join(rig.out, "kernel.txt"), "w") as file:
        file.write(log.output)


# ---- NVIDIA's NCCL -------------------------------------------------------------------------------


def find_nccl(given):
    """A folder with lib/libnccl.so.2: as told, the wheel that PyTorch uses, the toolkit's,
    Debian's."""
    asked = "import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])"
    folders = [given] if given else []
    for python in ("python3", sys.executable):
        try:
            folders += subprocess.run(
                [python, "-c", asked], capture_output=True, text=True, timeout=60
            ).stdout.split()
        except (OSError, subprocess.TimeoutExpired):
            pass
    folders += ["/usr/local/cuda", "/usr"]
    return next((folder for folder in folders if nccl_library(folder)), None)


def nccl_library(folder):
    for lib in ("lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"):
        path = os.path.join(folder, lib, "libnccl.so.2")
        if os.path.exists(path):
            return path
    return None


# ---- for a bare machine --------------------------------------------------------------------------


def pack(source, build_dir, target):
    """A tree of `make distdir`, with libsodium (shared) and googletest (static) of this machine in
    carry/."""
    made = subprocess.run(
        ["make", "-s", "-C", build_dir, "distdir", "distdir=" + os.path.abspath(target)]
    )
    carry = os.path.join(target, "carry")
    if made.returncode != 0:
        return 1
    for folder in ("include", "lib"):
        os.makedirs(os.path.join(carry, folder), exist_ok=True)
    for name in ("sodium", "gtest"):
        shutil.copytree(
            os.path.join("/usr/include", name),
            os.path.join(carry, "include", name),
            dirs_exist_ok=True,
        )
    shutil.copy("/usr/include/sodium.h", os.path.join(carry, "include"))
    for pattern in ("libsodium.so*", "libgtest.a", "libgtest_main.a"):
        for path in glob.glob("/usr/lib/*-linux-gnu/" + pattern):
            shutil.copy(path, os.path.join(carry, "lib"))
    print("%s: run %s there" % (target, os.path.join("tests", "gpu", "run")))
    return 0
