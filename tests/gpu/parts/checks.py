"""Whether it works: the device's tests on the real driver, all collectives, ranks that are
killed."""

import csv
import glob
import re
import shutil
import statistics
import threading

from .rig import all_right
from .speed import Sharing

COLLECTIVES = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "alltoall",
    "alltoallv",
    "gather",
    "scatter",
    "sendrecv",
]
FREE_MS = 100  # after a kill, or after abort or shrink, a stream is free within it

# Tests that only the stand-in can play: a driver that refuses, what it counts, more devices than
# one.
NEEDS_STANDIN = {
    "pass_test": [],
    "gpu_test": [
        "GpuErrors.ADriverThatRefuses*",
        "GpuErrors.AStatusWordThatCannotBeHad",
        "*.AResultThatIsSpoiled*",
    ],
    "blocking_test": ["*.AKernelThatCannot*"],
    "spin_test": [],
    "processes_test": [],
    "links_test": ["*.GoesWithTheRank*", "*.MayBeRefused*"],
    "devmem_test": ["*.ADriverMayRefuse*"],
    "graph_test": ["*.WhatTheDriverRefuses*"],
    "queue_test": [
        "*.WhatTheDriverRefuses*",
        "*.MemoryIsZeroedAndKnown",
        "*.TheDeviceIsTaken*",
        "*.ClosingWaitsForNoStream*",
        "*.PinnedMemoryIsGivenOut*",
        "*.MemoryForAProgram*",
        "*.KernelsAreLoaded*",
    ],
}
TINY = {
    "pass_test": "*EveryShape*/float32",
    "gpu_test": "Transports/Gpu.*/shm:Gpu*.*",
    "blocking_test": "*",
    "spin_test": "*",
    "processes_test": "OnFailure/GpuKill.*/release",
    "links_test": "Bytes/GpuLinks.*/shm_16M",
    "devmem_test": "*.BuffersMayLieAnywhere*",
    "graph_test": "Graph*.*:*/Graphs.*/inproc",
    "queue_test": "*",
}
SUITE_S = 60  # that one test suite may take on a GPU, at least


# ---- device --------------------------------------------------------------------------------------


def on_real_driver(rig):
    """Test programs are linked to the stand-in: the real driver and what the stand-in offers beside
    it are put in front; in a dry run what hides what a GPU does not tell. Ranks as threads have
    many streams: one that waits must not keep another's kernel from its start.
    """
    if rig.dry:
        return {"LD_PRELOAD": rig.program("tests", "cuda", ".libs", "libblind.so")}
    return {
        "LD_PRELOAD": "%s:%s" % (rig.driver, rig.program("tests", "cuda", ".libs", "libreal.so")),
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    }


def suites_of(listing):
    """The test suites that --gtest_list_tests has printed."""
    return [
        line.split()[0] for line in listing.splitlines() if re.match(r"[^\s$#]\S*\.(\s|$)", line)
    ]


def gtest(rig, name, seconds):
    """On a GPU each suite is a process of its own: one that hangs or loses the context does not
    take the others' results with it."""
    program, env = rig.program("tests", "cuda", name), on_real_driver(rig)
    without = "-" + ":".join(NEEDS_STANDIN[name])
    env["GTEST_FILTER"] = (TINY[name] if rig.dry else "*") + without
    suites = [] if rig.dry else suites_of(rig.run([program, "--gtest_list_tests"], 20, env).output)
    for suite in suites:
        if rig.has_time("%s %s" % (name, suite), 5):
            judge_gtest(
                rig,
                "%s %s" % (name, suite),
                rig.run(
                    [program],
                    max(SUITE_S, seconds / len(suites)),
                    dict(env, GTEST_FILTER=suite + "*" + without),
                ),
            )
    if not suites:
        judge_gtest(rig, name, rig.run([program], seconds, env))


def judge_gtest(rig, name, result):
    passed = [
        line
        for line in result.output.splitlines()
        if line.startswith("[  PASSED  ]") and " 0 tests" not in line
    ]
    failed = [
        line.strip()
        for line in result.output.splitlines()
        if line.startswith("[  FAILED  ]") and "(" not in line
    ]
    good = result.status == 0 and bool(passed)
    rig.check(name, good, passed[0][13:] if good else "; ".join(failed[:5]) or result.why())


def sanitizer(rig):
    found = shutil.which("compute-sanitizer") or next(
        iter(glob.glob("/usr/local/cuda*/bin/compute-sanitizer")), None
    )
    if not found:
        rig.skip(
            "compute-sanitizer is not here: it looks for wrong accesses of the kernel on a GPU"
        )
        return None
    return [found, "--target-processes", "all", "--error-exitcode", "42"]


# The driver refuses an address that is not the GPU's, which is how one is told from another: that
# is no error.
MEMCHECK = ["--tool", "memcheck", "--report-api-errors", "no"]


def device(rig):
    for name, seconds in (
        ("pass_test", 60),
        ("queue_test", 40),
        ("gpu_test", 60),
        ("blocking_test", 25),
        ("spin_test", 10),
        ("processes_test", 60),
        ("links_test", 40),
        ("devmem_test", 60),
        ("graph_test", 60),
    ):
        if rig.has_time(name, 5):
            gtest(rig, name, seconds)


def clean(result):
    """Each of its processes says how much it has found."""
    found = re.findall(r"ERROR SUMMARY: (\d+)|RACECHECK SUMMARY: (\d+)", result.output)
    return (
        result.status == 0
        and bool(found)
        and all(a in ("", "0") and b in ("", "0") for a, b in found)
    )


# ---- collectives ---------------------------------------------------------------------------------


def collective(rig, name, n, options, env=None, seconds=40, before=()):
    """One run of a perf program with n processes on the GPU, verified to the last bit."""
    env = dict({"FTCCL_OP_TIMEOUT_MS": "20000"}, **(env or {}))
    result = rig.run(
        rig.ranks(
            n, list(before) + [rig.program("perf", name + "_perf"), "-B", "device"] + options
        ),
        seconds,
        env,
    )
    return result, result.status == 0 and all_right(result.output)


def every_collective(rig, add, sizes, ranks, transports):
    with Sharing(rig) as sharing:
        rig.say(
            "   ranks share the GPU: %s%s"
            % (sharing.name, " (%s)" % sharing.why if sharing.why else "")
        )
        for n in ranks:
            for transport in transports:
                each_collective(rig, add, sizes, (n, transport, sharing))


def each_collective(rig, add, sizes, case):
    """Some at the same time: most of a run is that processes start."""
    n, transport, sharing = case
    wrong, left, lock = [], list(COLLECTIVES), threading.Lock()

    def work():
        while True:
            with lock:
                name = left.pop(0) if left and rig.seconds_left() > 5 else None
            if not name:
                return
            result, good = collective(
                rig, name, n, sizes, dict(sharing.env, FTCCL_TRANSPORTS=transport)
            )
            with lock:
                add(
                    [
                        name,
                        n,
                        transport,
                        sharing.name,
                        "right" if good else "failed",
                        "%.2f" % result.seconds,
                    ]
                )
                if not good:
                    wrong.append("%s: %s" % (name, result.why()))

    workers = [threading.Thread(target=work) for _ in range(1 if rig.dry else max(2, 12 // n))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    ran = len(COLLECTIVES) - len(left)
    if left:
        rig.skip("%s of %d ranks over %s: no time left" % (", ".join(left), n, transport))
    if ran:
        rig.check(
            "%d ranks over %s, %s" % (n, transport, sharing.name),
            not wrong,
            "; ".join(wrong) or "%d collectives" % ran,
        )


def special_cases(rig, add, sizes):
    """Settings beside the number of ranks. Several ranks of a process have many streams: see
    on_real_driver()."""
    many = {} if rig.dry else {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    cases = [
        (
            "all types and operators",
            "all_reduce",
            ["-b", "1K", "-e", "1K", "-n", "1", "-d", "all", "-o", "all"],
            {},
        ),
        (
            "unaligned, groups of three",
            "all_reduce",
            ["-b", "4K", "-e", "4K", "-u", "3", "-m", "3"],
            {},
        ),
        ("pinned buffers", "all_reduce", ["-b", "64K", "-e", "64K", "-B", "pinned"], {}),
        ("one connection", "alltoall", sizes, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
        ("one connection", "all_reduce", sizes + ["-m", "4"], {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
        ("launches that wait", "all_reduce", sizes, {"CUDA_LAUNCH_BLOCKING": "1"}),
        ("two ranks a thread", "all_reduce", sizes + ["-g", "2"], many),
        ("two threads", "all_gather", sizes + ["-t", "2"], many),
    ]
    for setting, name, more, env in cases[1:4] if rig.dry else cases:
        if not rig.has_time(setting, 5):
            break
        n = 2 if rig.dry else 4
        result, good = collective(rig, name, n, ["-n", "2", "-w", "1"] + more, env)
        add([name, n, "", setting, "right" if good else "failed", "%.2f" % result.seconds])
        rig.check("%s, %s" % (name, setting), good, "" if good else result.why())


def under_sanitizer(rig):
    """Its launches may wait for their kernels. It makes these a hundred times slower; one that
    hangs is enough."""
    before = sanitizer(rig)
    small, all_types = ["-b", "1K", "-e", "64K", "-f", "64", "-n", "1", "-w", "0"], [
        "-b",
        "4K",
        "-e",
        "4K",
        "-n",
        "1",
        "-w",
        "0",
        "-d",
        "all",
        "-o",
        "all",
    ]
    cases = [
        ("memcheck", "all_reduce", small),
        ("memcheck", "all_reduce, all types and operators", all_types),
        ("memcheck", "alltoall", small),
        ("racecheck", "all_reduce", small),
    ]
    for tool, what, options in cases if before else ():
        if not rig.has_time("%s under %s" % (what, tool), 20):
            return
        result, good = collective(
            rig,
            what.split(",")[0],
            2,
            options,
            {"FTCCL_OP_TIMEOUT_MS": "60000", "CUDA_LAUNCH_BLOCKING": "1"},
            45,
            before + (MEMCHECK if tool == "memcheck" else ["--tool", tool]),
        )
        good = good and clean(result)
        rig.check("%s under %s" % (what, tool), good, "" if good else result.why())
        if "cut" in str(result.status):
            return


def collectives(rig):
    add = rig.table(
        "collectives", ["collective", "ranks", "transport", "setting", "outcome", "seconds"]
    )
    sizes = (
        ["-b", "64", "-e", "4K", "-f", "64", "-n", "1", "-w", "0"]
        if rig.dry
        else ["-b", "8", "-e", "8M", "-f", "128", "-n", "2", "-w", "1"]
    )
    for name in COLLECTIVES:
        rig.program("perf", name + "_perf")
    special_cases(rig, add, sizes)
    if rig.dry:
        rig.skip("compute-sanitizer: there is no GPU whose accesses it could watch")
    else:
        under_sanitizer(rig)
    every_collective(
        rig,
        add,
        sizes,
        [2] if rig.dry else [4, 8, 2, 3, 1, 5, 6, 7],
        ["shm"] if rig.dry else ["shm", "tcp"],
    )


# ---- kill ----------------------------------------------------------------------------------------


def kill(rig):
    add = rig.table(
        "kill",
        [
            "how",
            "ranks",
            "bytes",
            "round",
            "rank",
            "error_ms",
            "free_ms",
            "again_ms",
            "held",
            "right",
        ],
    )
    cases = (
        [("release", 3, 65536, 2), ("abort", 3, 65536, 1), ("shrink", 3, 65536, 1)]
        if rig.dry
        else [
            (how, n, size, 5)
            for n, size in ((3, 4 << 20), (8, 4 << 20), (4, 64 << 20))
            for how in ("release", "abort", "shrink")
        ]
    )
    for how, n, size, rounds in cases:
        if not rig.has_time("kill, %s" % how, 5):
            break
        result = rig.run(
            [
                rig.program("perf", "gpu_recovery"),
                how,
                "-n",
                str(n),
                "-k",
                str(rounds),
                "-b",
                str(size),
            ],
            60,
        )
        judge(rig, add, (how, n, size, rounds), result)


def judge(rig, add, case, result):
    how, n, size, rounds = case
    lines = [line for line in result.output.splitlines() if line.startswith(how + ",")]
    free = []
    for row in csv.reader(lines):
        add([row[0], n, size] + row[1:])
        free.append(float(row[4]))
    name = "%s, %d ranks, %d KiB" % (how, n, size >> 10)
    good = result.status == 0 and len(lines) == rounds * (n - 1)
    detail = (
        result.why()
        if not good
        else "streams free after %.1f ms (median), %.1f ms at most"
        % (statistics.median(free), max(free))
    )
    if (
        good and max(free) > FREE_MS and rig.dry
    ):  # a busy machine without a GPU says nothing about time
        detail += ": over %d ms, which a dry run does not judge" % FREE_MS
    elif good and max(free) > FREE_MS:
        good, detail = False, detail + ": over %d ms" % FREE_MS
    rig.check(name, good, detail)
