"""Messages in the GPUs' memory (CUDA IPC, peer access) and in the host's: both right, each where it
should lie, and how fast either is."""

import re
import statistics

from .rig import all_right, rows_of
from .speed import Sharing

WAYS = [("gpu", {"FTCCL_CUDA_IPC": "1"}), ("host", {"FTCCL_CUDA_IPC": "0"})]


def bytes_of(output):
    """Of messages, as queues say at their end: all, and those in memory of GPUs."""
    found = re.findall(
        r"of messages it staged (\d+) bytes and reached (\d+) where they lay, (\d+) of them", output
    )
    return sum(int(staged) + int(reached) for staged, reached, _ in found), sum(
        int(there) for _, _, there in found
    )


def one_run(rig, sharing, add, times, case):
    n, name, how, way, env, options = case
    program = [rig.program("perf", name + "_perf"), "-B", "device"] + options
    argv = program + ["-t", str(n)] if how == "threads" else rig.ranks(n, program)
    if how == "threads" and not rig.dry:
        env = dict(env, CUDA_DEVICE_MAX_CONNECTIONS="32")  # see on_real_driver() of checks.py
    result = rig.run(
        argv,
        45,
        dict(
            sharing.env,
            FTCCL_TRANSPORTS="inproc,shm",
            FTCCL_OP_TIMEOUT_MS="20000",
            FTCCL_DEBUG="INFO",
            **env
        ),
    )
    rows, device = rows_of(result.output)
    every, there = bytes_of(result.output)
    good = result.status == 0 and all_right(result.output) and every > 0
    for size, us, busbw, _ in rows:
        add(
            [
                device,
                "one process" if how == "threads" else sharing.name,
                name,
                n,
                way,
                size,
                us,
                busbw,
            ]
        )
        times.setdefault((how, n, name, size), {}).setdefault(way, []).append(us)
    where = 2 * there > every if way == "gpu" else there == 0
    rig.check(
        "%s, %d %s, %s's memory" % (name, n, how, way),
        good and where,
        "%d of %d bytes in memory of GPUs" % (there, every) if good else result.why(),
    )


def ipc(rig):
    add = rig.table(
        "ipc", ["device", "sharing", "collective", "ranks", "memory", "bytes", "us", "busbw_gbps"]
    )
    times = {}
    options = (
        ["-b", "64K", "-e", "256K", "-f", "4", "-n", "1", "-w", "1"]
        if rig.dry
        else ["-b", "64K", "-e", "256M", "-f", "16", "-n", "10", "-w", "2"]
    )
    with Sharing(rig) as sharing:
        rig.say(
            "   ranks share the GPU: %s%s"
            % (sharing.name, " (%s)" % sharing.why if sharing.why else "")
        )
        for _ in range(1 if rig.dry else 3):
            for how in ("processes", "threads"):
                for n, name in (
                    ((2, "all_reduce"),)
                    if rig.dry
                    else ((2, "all_reduce"), (4, "all_reduce"), (4, "alltoall"), (2, "sendrecv"))
                ):
                    for way, env in WAYS:
                        if rig.seconds_left() > 5:
                            one_run(rig, sharing, add, times, (n, name, how, way, env, options))
    for (how, n, name, size), by in sorted(times.items()):
        if not rig.dry:
            rig.say(
                "   %d %-9s %-10s %10d B: %s"
                % (
                    n,
                    how,
                    name,
                    size,
                    ", ".join(
                        "%s's memory %.1f us" % (way, statistics.median(us))
                        for way, us in sorted(by.items())
                    ),
                )
            )
