"""What all parts share: programs that are run under a bound, checks that are counted, tables that
are written as they grow."""

import csv
import ctypes
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

GRACE_S = 3  # between asking a program to end and killing it
DRY_S = 280  # the only bound of a dry run, on a machine that may be busy; tests/limit.sh has 300


class Missing(Exception):
    """What a part needs and this machine does not have, and why the part needs it."""


class Result:
    def __init__(self, status, output, seconds):
        self.status, self.output, self.seconds = status, output, seconds

    def why(self):
        """The end of what a program said, in one line."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return "status %s: %s" % (self.status, " | ".join(lines[-3:])[-300:])


def find_driver():
    """The file of the real driver, or None and why there is no GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return None, str(error)
    status, count = driver.cuInit(0), ctypes.c_int(0)
    if status == 0:
        status = driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0 or count.value == 0:
        return None, "the driver says %d and names %d devices" % (status, count.value)
    with open("/proc/self/maps") as maps:
        found = re.search(r"(/\S*/libcuda\.so\S*)", maps.read())
    return (found[1], None) if found else (None, "libcuda.so.1 is loaded from nowhere")


class Rig:
    def __init__(self, o):
        self.o, self.dry, self.build_dir = o, o.dry_run, o.build
        self.out = os.path.abspath(o.out)
        self.stop_at = time.monotonic() + o.seconds
        self.driver, self.no_gpu = (None, None) if o.dry_run else find_driver()
        self.counting = threading.Lock()  # of `runs`
        self.part, self.part_stops, self.counts, self.runs = (
            None,
            0,
            {"passed": 0, "failed": 0, "skipped": 0},
            0,
        )
        os.makedirs(os.path.join(self.out, "log"), exist_ok=True)
        self.checks = self.table("checks", ["part", "check", "outcome", "detail"])
        self.scratch = tempfile.mkdtemp(prefix="ftgpu")
        self.say(
            "%s, %s"
            % (
                time.strftime("%Y-%m-%d %H:%M:%S"),
                "dry run on the stand-in driver" if self.dry else self.machine(),
            )
        )

    def machine(self):
        found = self.call(
            [
                "nvidia-smi",
                "--query-gpu=name,driver_version,memory.total,compute_cap",
                "--format=csv,noheader",
            ]
        )
        return "%s; %d cores" % (found or "no nvidia-smi", os.cpu_count())

    @staticmethod
    def call(argv):
        try:
            return subprocess.run(argv, capture_output=True, text=True, timeout=30).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            return ""

    # ---- what is found out -----------------------------------------------------------------------

    def say(self, text):
        print(text, flush=True)
        with open(os.path.join(self.out, "summary.txt"), "a") as file:
            file.write(text + "\n")

    def begin(self, part, seconds):
        self.part, now = part, time.monotonic()
        self.began, self.part_stops = now, min(self.stop_at, now + (DRY_S if self.dry else seconds))
        self.say("== %s" % part)

    def end(self):
        self.say("   %s took %.0f s" % (self.part, time.monotonic() - self.began))

    def check(self, name, good, detail=""):
        self.outcome(name, "passed" if good else "failed", detail)
        return good

    def skip(self, why):
        self.outcome(self.part, "skipped", why)

    def outcome(self, name, outcome, detail):
        self.counts[outcome] += 1
        self.checks([self.part, name, outcome, detail])
        self.say("   %s %s%s" % (outcome, name, ": " + detail if detail else ""))

    def table(self, name, columns):
        """A function that adds a row to NAME.csv at once: a run that is cut short leaves what it
        had."""
        path = os.path.join(self.out, name + ".csv")

        def add(row):
            with open(path, "a", newline="") as file:
                csv.writer(file).writerow(row)

        if not os.path.exists(path):
            add(columns)
        return add

    def finish(self):
        self.say("%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % self.counts)
        shutil.rmtree(self.scratch, ignore_errors=True)
        return 1 if self.counts["failed"] else 0

    # ---- time ------------------------------------------------------------------------------------

    def seconds_left(self):
        return self.part_stops - time.monotonic()

    def has_time(self, what, seconds):
        """False, and said, if what takes so long does not fit into the part any more."""
        if self.seconds_left() >= seconds:
            return True
        self.skip("%s: no time left" % what)
        return False

    # ---- programs --------------------------------------------------------------------------------

    def program(self, *path):
        found = os.path.join(self.build_dir, *path)
        if not os.path.exists(found):
            raise Missing("%s was not built" % os.path.join(*path))
        return found

    def ranks(self, n, argv):
        return [self.program("tools", "ftccl-run"), "-n", str(n)] + argv

    def environment(self, extra=None):
        env = dict(os.environ)
        for name in [
            name for name in env if name.startswith(("FTCCL_", "NCCL_", "GTEST_", "LD_PRELOAD"))
        ]:
            del env[name]
        folders = [os.path.join(self.build_dir, "tests", "cuda", ".libs")] if self.dry else []
        carry = os.path.join(self.o.source, "carry", "lib")  # libsodium, where the machine has none
        folders += [carry] if os.path.isdir(carry) else []
        env.update(extra or {})
        env["LD_LIBRARY_PATH"] = ":".join([env.get("LD_LIBRARY_PATH", "")] + folders).strip(":")
        return env

    def start(self, argv, env=None):
        """A process group of its own; its output goes to a file in log/."""
        with self.counting:
            self.runs += 1
            number = self.runs
        log = open(os.path.join(self.out, "log", "%s-%03d.txt" % (self.part, number)), "w+")
        log.write(
            "$ %s\n" % " ".join(["%s=%s" % pair for pair in sorted((env or {}).items())] + argv)
        )
        log.flush()
        process = subprocess.Popen(
            argv,
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        process.log = log
        return process

    @staticmethod
    def stop(process):
        """Ends the group; returns what it has said."""
        for number, seconds in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 10)):
            try:
                os.killpg(process.pid, number)
                process.wait(seconds)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass
        return Rig.read(process)

    @staticmethod
    def read(process):
        with open(process.log.name, errors="replace") as file:
            return file.read()

    def run(self, argv, seconds, env=None):
        """Bounded by `seconds` and by what the part has left."""
        began = time.monotonic()
        process = self.start(argv, env)
        try:
            status = process.wait(max(1, min(DRY_S if self.dry else seconds, self.seconds_left())))
        except subprocess.TimeoutExpired:
            status = "cut after %.0f s" % (time.monotonic() - began)
        output = self.stop(process)
        process.log.close()
        return Result(status, output, time.monotonic() - began)


# ---- the perf programs' table --------------------------------------------------------------------


def rows_of(output):
    """[size, time of a call in us and busbw in GB/s out of place, wrong elements], and the name of
    the device."""
    rows, device = [], ""
    for line in output.splitlines():
        fields = line.split()
        if line.startswith("#  Rank"):
            device = line.split("] ", 1)[-1]
        elif fields and fields[0].isdigit() and len(fields) >= 9:
            rows.append([int(fields[0]), float(fields[5]), float(fields[7]), fields[8]])
    return rows, device


def all_right(output):
    return "# Out of bounds values : 0 OK" in output
