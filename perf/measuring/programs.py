"""Finds, builds and runs the programs that are compared. A run is bounded in time and leaves no
process behind."""

import ctypes
import glob
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from .cases import MODES, case_of, describe

PERF = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARIES = ["ftccl", "mpich", "openmpi", "gloo"]
NAMES = {"ftccl": "FTCCL", "mpich": "MPICH", "openmpi": "Open MPI", "gloo": "Gloo"}
IN_PLACE = {
    "broadcast"
    # MPI_Bcast and Gloo's have one buffer: ours is measured with sendbuff == recvbuff; all others
    # out of place
}
LACKS = 3  # exit status of a program that has no such collective
GRACE_S = 5  # between asking a program to end and killing it
PR_SET_CHILD_SUBREAPER = 36
CHECK_BYTES, CHECK_CALLS = 1 << 20, 20

# Settings in addition to the command line. Debian's MPICH uses UCX, and its own shared memory
# unless that is switched off.
ENVIRONMENT = {
    ("ftccl", "shm"): {"FTCCL_TRANSPORTS": "shm"},
    ("ftccl", "tcp"): {"FTCCL_TRANSPORTS": "tcp"},
    ("mpich", "tcp"): {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self"},
}


class Failure(Exception):
    """A run without a result. `status` is the reason: too slow, n/a or failed."""

    def __init__(self, status, reason):
        super().__init__(reason)
        self.status = status


# ---- building ------------------------------------------------------------------------------------


def find_build(given):
    for path in (
        [given]
        if given
        else ["build", os.getcwd(), os.path.join(PERF, "..", "build"), os.path.join(PERF, "..")]
    ):
        if all(
            os.path.exists(os.path.join(path, *parts))
            for parts in (("tools", "ftccl-run"), ("perf", "all_reduce_perf"))
        ):
            return os.path.abspath(path)
    return None


def compile_one(out, commands, sources):
    """Builds a program unless it is newer than its sources. Returns None, or the reason of a
    failure."""
    if os.path.exists(out) and all(
        os.path.getmtime(out) >= os.path.getmtime(source) for source in sources
    ):
        return None
    for command in commands:
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode != 0:
            return run.stderr.strip()[-400:]
    return None


def compile_peers(folder, wanted):
    """Returns {name: path} of the programs that were built, and sentences about those that were
    not."""
    os.makedirs(folder, exist_ok=True)
    made, missing = {}, []
    cc, cxx = shutil.which("cc") or shutil.which("gcc"), shutil.which("c++") or shutil.which("g++")
    native = ["-march=native"] if platform.machine() == "x86_64" else []
    common = [os.path.join(PERF, name) for name in ("peer.c", "meet.c", "peer.h", "meet.h")]
    shared = [os.path.join(folder, name) for name in ("peer.o", "meet.o")]
    objects = [[cc, "-O2", "-c", source, "-o", out] for source, out in zip(common, shared)]
    plans = {
        "limits": (
            "limits.c",
            cc,
            lambda source, out: [[cc, "-O3"] + native + ["-o", out, source]],
        ),
        "gloo": (
            "gloo_perf.cc",
            cxx if glob.glob("/usr/include/gloo/context.h") else None,
            lambda source, out: [
                *objects,
                [cxx, "-std=c++17", "-O2", "-w", "-o", out, source, *shared, "-lgloo", "-lpthread"],
            ],
        ),
    }
    for mpi in ("mpich", "openmpi"):
        compiler = shutil.which("mpicc." + mpi) if shutil.which("mpiexec." + mpi) else None
        plans[mpi] = (
            "mpi_perf.c",
            compiler,
            lambda source, out, compiler=compiler: [
                *objects,
                [compiler, "-O2", "-o", out, source, *shared],
            ],
        )
    for name, (source, compiler, commands) in plans.items():
        if name != "limits" and name not in wanted:
            continue
        source, out = os.path.join(PERF, source), os.path.join(folder, name + "_perf")
        reason = (
            compile_one(out, commands(source, out), [source] + common)
            if compiler
            else "not installed, or no compiler"
        )
        if reason:
            missing.append("%s: %s" % (NAMES.get(name, name), reason))
        else:
            made[name] = out
    return made, missing


class Programs:
    """The paths of all programs. `seconds` is the time limit of one run."""

    def __init__(self, build, wanted, seconds):
        self.build, self.seconds = build, seconds
        self.peers, self.missing = compile_peers(os.path.join(build, "perf", "peers"), wanted)
        self.libraries = [
            who for who in LIBRARIES if who in wanted and (who == "ftccl" or who in self.peers)
        ]
        self.scratch = tempfile.TemporaryDirectory(prefix="compare.")
        self.json = os.path.join(self.scratch.name, "ftccl.json")
        self.meet = os.path.join(
            self.scratch.name, "meet"
        )  # where ranks of every library meet between timed calls
        self.extra = {}  # environment of FTCCL's programs
        adopt_orphans()

    # ---- one run ---------------------------------------------------------------------------------

    def command(self, who, case, mode, iterations, warmups, check=0):
        options = [
            "-b",
            str(case.bytes),
            "-e",
            str(case.bytes),
            "-n",
            str(iterations),
            "-w",
            str(warmups),
            "-z",
            str(MODES[mode]),
            "-c",
            str(check),
        ]
        if who == "ftccl":
            return (
                [
                    os.path.join(self.build, "tools", "ftccl-run"),
                    "-n",
                    str(case.ranks),
                    os.path.join(self.build, "perf", case.collective + "_perf"),
                ]
                + options
                + ["-J", self.json]
            )
        if who == "gloo":
            return [self.peers[who], case.collective, "-t", str(case.ranks)] + options
        return (
            ["mpiexec." + who]
            + mpi_options(who, case)
            + ["-n", str(case.ranks), self.peers[who], case.collective]
            + options
        )

    def seconds_of(self, who, output, case):
        """The seconds of one call, as the program reports them."""
        if who == "ftccl":
            with open(self.json) as file:
                row = json.load(file)["results"][0]
            size, took_us = (
                row["size"],
                row["in_place" if case.collective in IN_PLACE else "out_of_place"]["time"],
            )
        else:
            fields = [
                line for line in output.splitlines() if line.strip() and not line.startswith("#")
            ][-1].split()
            size, took_us = int(fields[0]), float(fields[5])
        if size != case.bytes:
            raise Failure("failed", "measured %d bytes instead of %d" % (size, case.bytes))
        return took_us * 1e-6

    def measure(self, who, case, mode, iterations, warmups, check=0):
        """Returns the seconds of one call and of the whole run. Raises Failure."""
        if who == "gloo" and case.transport != "tcp":
            raise Failure("n/a", "Gloo has no shared memory")
        environment = dict(
            os.environ,
            **ENVIRONMENT.get((who, case.transport), {}),
            **(self.extra if who == "ftccl" else {}),
            FTCCL_PERF_MEET=self.meet
        )
        with open(self.meet, "w"):
            pass  # empty
        begin = time.monotonic()
        status, output, errors = run_bounded(
            self.command(who, case, mode, iterations, warmups, check), environment, self.seconds
        )
        took = time.monotonic() - begin
        try:
            if status is None:
                raise Failure("too slow", "longer than %g s" % self.seconds)
            if status != 0:
                raise Failure(
                    "n/a" if status == LACKS else "failed", (errors or output).strip()[-300:]
                )
            return self.seconds_of(who, output, case), took
        except (ValueError, IndexError, KeyError, TypeError, OSError) as error:
            raise Failure("failed", "no result: %s" % error) from error
        finally:
            if who == "ftccl" and os.path.exists(self.json):
                os.unlink(self.json)

    # ---- does the data take the right way? -------------------------------------------------------

    def loopback_bytes(self, who, transport):
        """Counts bytes over the loopback interface in a separate network namespace. Returns None if
        that is not possible."""
        case = case_of("all_reduce", 2, CHECK_BYTES, transport)
        script = (
            "ip link set lo up && \"$@\" >/dev/null 2>&1 && awk '/lo:/ {print $2}' /proc/net/dev"
        )
        argv = ["unshare", "-rn", "sh", "-c", script, "sh"] + self.command(
            who, case, "pipelined", CHECK_CALLS, 0
        )
        environment = dict(os.environ, **ENVIRONMENT.get((who, transport), {}))
        try:
            status, output, _ = run_bounded(argv, environment, self.seconds)
        except OSError:
            return None
        return int(output) if status == 0 and output.strip().isdigit() else None


def right_way(transport, count):
    """Each of two ranks sends a vector once per call. Over TCP the interface counts all of it,
    otherwise almost nothing."""
    payload = 2 * CHECK_BYTES * CHECK_CALLS
    return count >= payload if transport == "tcp" else count < payload // 10


def mpi_options(who, case):
    if who != "openmpi":
        return []
    options = ["--oversubscribe"] + (["--allow-run-as-root"] if os.geteuid() == 0 else [])
    if case.ranks > os.cpu_count():
        options += ["--mca", "mpi_yield_when_idle", "1", "--bind-to", "none"]
    if case.transport == "tcp":
        options += [
            "--mca",
            "pml",
            "ob1",
            "--mca",
            "btl",
            "tcp,self",
            "--mca",
            "btl_tcp_if_include",
            "lo",
        ]
    return options


# ---- processes -----------------------------------------------------------------------------------


def adopt_orphans():
    """Makes ranks whose launcher was killed children of this process, so that they can be found."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError):
        pass


def end_leftovers():
    """Ends all remaining children, and then their children."""
    while True:
        try:
            with open("/proc/self/task/%d/children" % os.getpid()) as file:
                pids = [int(pid) for pid in file.read().split()]
        except OSError:
            return
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass


def run_bounded(argv, environment, seconds):
    """Returns (status, stdout, stderr). The status is None if the time limit was reached."""
    process = None
    try:
        process = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        output, errors = process.communicate(timeout=seconds)
        return process.returncode, output, errors
    except subprocess.TimeoutExpired:
        return None, "", ""
    finally:
        if process and process.poll() is None:
            end(process)
        end_leftovers()  # also a process that was interrupted while it was being made
        if process:
            process.stdout.close()
            process.stderr.close()


def end(process):
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            process.wait(timeout=GRACE_S)
            return
        except subprocess.TimeoutExpired:
            continue


def complain(who, case, failure):
    print(
        "%s %s: %s: %s"
        % (NAMES[who], describe(case), failure.status, re.sub(r"\s+", " ", str(failure))),
        file=sys.stderr,
    )
