"""The machine, and what it can do without any library."""

import os
import platform
import re
import subprocess
import time

from .programs import NAMES, run_bounded

LEAST_BYTES = 4096  # below it a round's latency is the limit


def first_line(argv, pattern):
    try:
        text = subprocess.run(argv, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(pattern, text)
    return match[1].strip() if match else None


def versions(programs):
    found = {}
    for who in programs.libraries:
        if who == "gloo":
            found[NAMES[who]] = first_line(
                ["dpkg-query", "-W", "-f", "${Version}", "libgloo-dev"], r"(\S+)"
            )
        elif who == "ftccl":
            found[NAMES[who]] = first_line(
                [os.path.join(programs.build, "tools", "ftccl-info"), "--version"], r"ftccl (\S+)"
            )
        else:
            found[NAMES[who]] = first_line(
                ["mpiexec." + who, "--version"], r"(?:Version:|\(OpenRTE\))\s*(\S+)"
            )
    return found


def identity():
    """Data that must be equal if results share a table: the machine, and how ranks synchronise
    between calls."""
    return {
        "meeting": "one counter",
        "processor": first_line(["lscpu"], r"Model name:\s*(.*)"),
        "cores": os.cpu_count(),
        "l2": first_line(["lscpu"], r"L2 cache:\s*(.*)"),
        "l3": first_line(["lscpu"], r"L3 cache:\s*(.*)"),
        "hypervisor": first_line(["lscpu"], r"Hypervisor vendor:\s*(.*)"),
        "kernel": platform.release().split("-")[0],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
    }


def session():
    return {"begin": time.strftime("%Y-%m-%d %H:%M:%S"), "load_begin": round(os.getloadavg()[0], 2)}


def limits(programs, transport, ranks, sizes):
    """Measures once. Returns a list of [name, bytes, value]; it is empty if nothing could be
    measured."""
    if "limits" not in programs.peers:
        return []
    argv = [programs.peers["limits"], transport, str(ranks)] + [
        str(s) for s in sorted({max(s, LEAST_BYTES) for s in sizes})
    ]
    _, output, _ = run_bounded(argv, dict(os.environ), 600)
    return [
        [name, int(size), float(value)]
        for name, size, value in (line.split() for line in output.splitlines())
    ]


def limits_text(transport, ranks, values):
    largest = {}
    for name, size, value in values:
        if name not in largest or size > largest[name][0]:
            largest[name] = (size, value)
    words = [
        "%s %.2f%s" % (name, value, " us" if name == "round_us" else " GB/s")
        for name, (_, value) in largest.items()
    ]
    return "limits over %s, each of %d processes: %s" % (transport, ranks, ", ".join(words))
