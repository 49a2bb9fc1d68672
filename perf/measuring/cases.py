"""The cases that are measured. A case is a collective, a number of ranks, a size and the connection
between the ranks."""

import argparse
import collections
import re

COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall"]
COMPARED = COLLECTIVES + ["reduce"]
TRANSPORTS = ["shm", "tcp"]
MODES = {"blocking": 1, "pipelined": 0}  # the perf programs' -z

Case = collections.namedtuple("Case", "collective ranks bytes transport")


def size_of(text):
    match = re.fullmatch(r"(\d+)([KMG]?)B?", text.upper())
    if not match:
        raise argparse.ArgumentTypeError("%s is not a size" % text)
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def size_text(size):
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return "%d %s" % (size >> shift, unit)
    return "%d B" % size


def listed(kind, allowed=None):
    """A type for argparse: values separated by commas."""

    def parse(text):
        values = [kind(part) for part in text.split(",")]
        wrong = [value for value in values if allowed and value not in allowed]
        if wrong:
            raise argparse.ArgumentTypeError("%s is not one of %s" % (wrong[0], ", ".join(allowed)))
        return values

    return parse


def case_of(collective, ranks, size, transport):
    """Rounds the size up to what the programs can do: blocks are multiples of 16 bytes, as in
    nccl-tests."""
    step = 4 if collective in ("all_reduce", "broadcast", "reduce") else 16 * ranks
    return Case(collective, ranks, max(step, (size + step - 1) // step * step), transport)


def describe(case):
    return "%s, %d ranks, %s, %s" % (
        case.collective,
        case.ranks,
        size_text(case.bytes),
        case.transport,
    )
