"""Property: what tests/gpu/run makes of what programs do: one that hangs is cut with all its
children, a part that breaks or lacks something does not stop the others, tables are read as they
are printed, bounds are judged on a GPU and only there. Method: small programs and recorded output;
no driver of any kind."""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
import unittest
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from parts import building, checks, ddp, speed  # noqa: E402
from parts.rig import Missing, Result, Rig, rows_of  # noqa: E402

TABLE = """#  Rank  0 Group  0 Pid     12 on       host device  0 [0000:00:00] NVIDIA H200
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time
# algbw   busbw  #wrong
     1048576        262144     float     sum      -1   250.00    4.19    6.29       0   240.00\
    4.37    6.55       0
     4194304       1048576     float     sum      -1  1000.00    4.19    6.30     N/A  1010.00\
    4.15    6.23     N/A
# Out of bounds values : 0 OK
"""


class WithARig(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        o = argparse.Namespace(
            dry_run=True,
            build=self.folder.name,
            out=self.folder.name,
            seconds=60,
            source=self.folder.name,
            nccl=None,
        )
        self.said = []
        Rig.say, self.say = lambda rig, text: self.said.append(text), Rig.say
        self.rig = Rig(o)
        self.rig.dry = False  # bounds and judgement as on a GPU
        self.rig.begin("test", 60)

    def tearDown(self):
        Rig.say = self.say
        self.folder.cleanup()

    def outcomes(self):
        with open(os.path.join(self.folder.name, "checks.csv"), newline="") as file:
            return [row["outcome"] for row in csv.DictReader(file)]


class Bounds(WithARig):
    def test_a_program_that_hangs_is_cut_with_its_children(self):
        mark = "sleep 98765.%d" % os.getpid()
        began = time.monotonic()
        result = self.rig.run(["sh", "-c", "echo here; trap '' TERM; %s & %s" % (mark, mark)], 1)
        self.assertLess(time.monotonic() - began, 30)
        self.assertIn("cut", str(result.status))
        self.assertIn("here", result.output)
        # One that was killed is there until it has had a processor, which may be busy.
        while self.runs(mark):
            self.assertLess(time.monotonic() - began, 30)
            time.sleep(0.05)

    def runs(self, command):
        said = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
        return command in [line.strip() for line in said.splitlines()]

    def test_what_a_part_has_no_time_for_is_said(self):
        self.rig.part_stops = time.monotonic() + 2
        self.assertTrue(self.rig.has_time("this", 1))
        self.assertFalse(self.rig.has_time("that", 3))
        self.assertEqual(self.outcomes(), ["skipped"])
        began = time.monotonic()
        self.rig.run(["sleep", "60"], 50)
        self.assertLess(time.monotonic() - began, 20)

    def test_a_part_that_breaks_or_lacks_something_stops_no_other(self):
        loader = SourceFileLoader("gpu_run", os.path.join(HERE, "run"))
        run = module_from_spec(spec_from_loader("gpu_run", loader))
        loader.exec_module(run)

        def lacks(rig):
            raise Missing("no such thing here")

        def breaks(rig):
            raise ValueError("of a kind")

        run.run_part(self.rig, "lacks", lacks, 5)
        self.assertEqual(self.rig.finish(), 0)
        run.run_part(self.rig, "breaks", breaks, 5)
        self.assertEqual(self.outcomes(), ["skipped", "failed"])
        self.assertEqual(self.rig.finish(), 1)

    def judge(self, lines, status=0, dry=False):
        self.rig.dry = dry
        table = self.rig.table("kill", ["how"])
        checks.judge(self.rig, table, ("release", 3, 4096, 1), Result(status, "\n".join(lines), 1))
        return self.outcomes()[-1]

    def test_streams_of_survivors_are_judged_on_a_gpu_alone(self):
        fast, slow = "release,0,%d,2,3.5,20,no,yes", "release,0,%d,2,101.5,120,no,yes"
        self.assertEqual(self.judge([fast % 0, fast % 1]), "passed")
        self.assertEqual(self.judge([fast % 0, slow % 1]), "failed")
        self.assertEqual(self.judge([fast % 0, slow % 1], dry=True), "passed")
        self.assertEqual(self.judge([fast % 0]), "failed")  # one survivor said nothing
        self.assertEqual(self.judge([fast % 0, fast % 1], status=1), "failed")


class Reading(unittest.TestCase):
    def test_a_toolkit_is_one_that_is_whole(self):
        top = tempfile.TemporaryDirectory()
        self.addCleanup(top.cleanup)
        folders = [os.path.join(top.name, name) for name in ("none", "half", "whole")]
        for folder, files in zip(folders[1:], (["bin/nvcc"], ["bin/nvcc", "include/cuda.h"])):
            for file in files:
                os.makedirs(os.path.dirname(os.path.join(folder, file)), exist_ok=True)
                open(os.path.join(folder, file), "w").close()
        self.assertEqual(building.find_toolkit([None] + folders), folders[2])
        self.assertIsNone(building.find_toolkit(folders[:2]))

    def test_the_table(self):
        rows, device = rows_of(TABLE)
        self.assertEqual(device, "NVIDIA H200")
        self.assertEqual(rows, [[1048576, 250.0, 6.29, "0"], [4194304, 1000.0, 6.3, "N/A"]])

    def test_what_a_sanitizer_says(self):
        memory, races = (
            "========= ERROR SUMMARY: %d errors\n",
            "========= RACECHECK SUMMARY: %d hazards displayed (0 errors, 0 warnings)\n",
        )
        for good, status, text in (
            (True, 0, memory % 0 + memory % 0),
            (False, 0, memory % 0 + memory % 3),
            (False, 42, memory % 0),
            (False, 0, "it did not start"),
            (True, 0, races % 0),
            (False, 0, races % 10),
        ):
            self.assertEqual(checks.clean(Result(status, text, 1)), good, text)

    def test_the_suites_of_a_test(self):
        listing = (
            "$ LD_PRELOAD=a.so tests/cuda/gpu_test --gtest_list_tests\nFT_SEED=1\nTransports/Gpu.\n"
            '  AGroup/inproc  # GetParam() = "inproc"\nGpuErrors.\n  One\n'
        )
        self.assertEqual(checks.suites_of(listing), ["Transports/Gpu.", "GpuErrors."])

    def test_losses(self):
        self.assertEqual(
            ddp.losses("NCCL version\nloss 0 1.25\nloss 1 0.75\nlosses 3"), ["1.25", "0.75"]
        )


class Suites(WithARig):
    def test_one_that_hangs_does_not_hide_the_others(self):
        path = os.path.join(self.folder.name, "tests", "cuda", "queue_test")
        os.makedirs(os.path.join(os.path.dirname(path), ".libs"))
        open(os.path.join(os.path.dirname(path), ".libs", "libreal.so"), "w").close()
        with open(path, "w") as file:
            file.write("""#!/bin/sh
case $1 in --gtest_list_tests) printf 'A.\\n  one\\nB.\\n  two\\nC.\\n  three\\n'; exit ;; esac
case $GTEST_FILTER in
A.*) echo '[  PASSED  ] 1 test.' ;;
B.*) sleep 60 ;;
C.*) echo '[  PASSED  ] 1 test.' ;;
esac
""")
        os.chmod(path, 0o755)
        self.rig.driver, checks.SUITE_S = "libc.so.6", 2
        checks.gtest(self.rig, "queue_test", 2)
        self.assertEqual(self.outcomes(), ["passed", "failed", "passed"])


class Collectives(WithARig):
    def write(self, text, *path):
        path = os.path.join(self.folder.name, *path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write("#!/bin/sh\n" + text + "\n")
        os.chmod(path, 0o755)
        return path

    def setUp(self):
        super().setUp()
        self.write('shift 2; exec "$@"', "tools", "ftccl-run")
        for name in checks.COLLECTIVES:
            self.write(
                "echo '# Out of bounds values : %s'" % ("1 FAILED" if name == "gather" else "0 OK"),
                "perf",
                name + "_perf",
            )

    def test_a_sanitizer_that_hangs_is_not_started_again(self):
        self.addCleanup(setattr, checks, "sanitizer", checks.sanitizer)
        for text, wanted in (
            (
                'echo "$CUDA_LAUNCH_BLOCKING: ERROR SUMMARY: 0 errors"; '
                'while [ "${1#/}" = "$1" ]; do shift; done; exec "$@"',
                ["passed"] * 4,
            ),
            ("sleep 60", ["failed"]),
        ):
            before = len(self.outcomes())
            checks.sanitizer = lambda rig, path=self.write(text, "compute-sanitizer"): [path]
            if "sleep" in text:
                self.rig.has_time, self.rig.part_stops = lambda *unused: True, time.monotonic() + 1
            checks.under_sanitizer(self.rig)
            self.assertEqual(self.outcomes()[before:], wanted)

    def test_all_run_and_one_that_fails_is_named(self):
        rows = []
        checks.each_collective(
            self.rig, rows.append, [], (3, "shm", argparse.Namespace(name="mps", env={}))
        )
        self.assertEqual(sorted(row[0] for row in rows), sorted(checks.COLLECTIVES))
        self.assertEqual([row[0] for row in rows if row[4] != "right"], ["gather"])
        self.assertEqual(self.outcomes(), ["failed"])
        self.rig.part_stops = time.monotonic()
        checks.each_collective(
            self.rig, rows.append, [], (3, "tcp", argparse.Namespace(name="mps", env={}))
        )
        self.assertEqual(self.outcomes(), ["failed", "skipped"])


class Comparing(WithARig):
    def compare(self, ours_us, theirs_us):
        speed.library_of, kept = lambda rig: "libnccl.so.2", speed.library_of
        try:
            times = {
                (2, "bandwidth", 1 << 20): {
                    ("FTCCL", "2"): ours_us,
                    ("NCCL", "4"): theirs_us,
                    ("NCCL", ""): [1],
                    (speed.THREADS, "2"): [1],
                }
            }
            speed.say_nccl(self.rig, times, argparse.Namespace(name="mps"))
        finally:
            speed.library_of = kept
        return self.outcomes()[-1]

    def test_medians_with_half_the_blocks(self):
        self.assertEqual(self.compare([10, 500, 9], [10, 11, 12]), "passed")
        self.assertEqual(self.compare([20, 21, 1], [10, 11, 12]), "failed")


if __name__ == "__main__":
    unittest.main()
