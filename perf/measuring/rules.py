"""Evaluates the times of perf/tune: the fastest way to do each case, and the lines of a tuning
table (docs/algorithms.md)."""

import collections
import math
import statistics

KIND = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "alltoall": "alltoall",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
# what is so near to the fastest goes on with the neighbouring size's way: fewer lines, and no
# change for noise
CLOSE = 1.03

Way = collections.namedtuple("Way", "algo chunk_bytes chunks")  # None: as configured


def shape(way):
    return [
        "%s=%d" % (name, value)
        for name, value in (("chunk_bytes", way.chunk_bytes), ("chunks", way.chunks))
        if value
    ]


def way_text(way):
    return "/".join([way.algo] + shape(way))


def way_of(text):
    algo, *more = text.split("/")
    given = {name: int(value) for name, value in (part.split("=") for part in more)}
    return Way(algo, given.get("chunk_bytes"), given.get("chunks"))


def medians(times):
    """Maps {way: [seconds]} to {way: seconds}. Leaves out a way with too few rounds."""
    rounds = max((len(all_s) for all_s in times.values()), default=0)
    return {
        way: statistics.median(all_s)
        for way, all_s in times.items()
        if all_s and len(all_s) * 2 > rounds
    }


def choose(sizes):
    """Maps [(bytes, {way: seconds})] to [(bytes, fastest way)], ordered by size."""
    chosen, last = [], None
    for size, took in sorted(sizes, key=lambda item: item[0]):
        if not took:
            continue
        fastest = min(took, key=took.get)
        last = last if last in took and took[last] <= took[fastest] * CLOSE else fastest
        chosen.append((size, last))
    return chosen


def spans(chosen):
    """Returns [(from, to, way)]. Each size represents the sizes that are nearer to it than to its
    neighbours, by ratio."""
    found = []
    for i, (size, way) in enumerate(chosen):
        low = 0 if i == 0 else found[-1][1] + 1
        high = None if i + 1 == len(chosen) else int(math.sqrt(size * chosen[i + 1][0]))
        if found and found[-1][2] == way:
            found[-1] = (found[-1][0], high, way)
        else:
            found.append((low, high, way))
    return found


def lines(collective, ranks, transport, chosen):
    """Makes a line of a tuning table. The ranks of one machine are one host, whatever connects
    them."""
    for low, high, way in spans(chosen):
        parts = [
            "best",
            KIND[collective],
            "ranks=%d" % ranks,
            "hosts=1",
            "over=%s" % transport,
            "from=%d" % low,
        ]
        parts += ["to=%d" % high] if high is not None else []
        parts += ["algo=%s" % way.algo]
        yield " ".join(parts + shape(way))
