"""The arithmetic of a comparison, and its table. A row is the data that perf/compare keeps for a
case: for each library and mode the times of all rounds, or the reason why there are none."""

import math
import statistics

from .cases import Case, size_text
from .programs import LIBRARIES, NAMES

OTHERS = [who for who in LIBRARIES if who != "ftccl"]
GOOD = "ok"


def bus_factor(collective, ranks):
    """The ratio busbw / algbw, as in nccl-tests (see its doc/PERFORMANCE.md)."""
    others = (ranks - 1) / ranks
    return {"all_reduce": 2 * others, "broadcast": 1, "reduce": 1}.get(collective, others)


def bus_gbs(case, seconds):
    return case.bytes * bus_factor(case.collective, case.ranks) / seconds / 1e9


def case_in(row):
    return Case(row["collective"], row["ranks"], row["bytes"], row["transport"])


def median_s(row, who, mode):
    cell = row["libraries"].get(who, {}).get(mode, {})
    return (
        statistics.median(cell["times_s"])
        if cell.get("status") == GOOD and cell.get("times_s")
        else None
    )


def ratio(row, who, mode):
    """The other's time divided by FTCCL's: above 1 FTCCL is faster. None if one of them is
    missing."""
    ours, theirs = median_s(row, "ftccl", mode), median_s(row, who, mode)
    return theirs / ours if ours and theirs else None


def best_ratio(row, mode):
    """The ratio to the fastest of the other libraries that finished."""
    return min((r for r in (ratio(row, who, mode) for who in OTHERS) if r), default=None)


# ---- limits --------------------------------------------------------------------------------------


def merged(passes, transport, ranks):
    """Returns {name: {bytes: best value of all passes}}. For the time of a round the best is the
    lowest."""
    best = {}
    for found in passes:
        for name, size, value in (
            found["values"] if (found["transport"], found["ranks"]) == (transport, ranks) else []
        ):
            known = best.setdefault(name, {})
            choose = min if name == "round_us" else max
            known[size] = choose(value, known.get(size, value))
    return best


def at_size(limits, names, size):
    """The best rate of these names, in bytes/s, at the nearest size that was measured."""
    rates = []
    for name in names:
        known = limits.get(name)
        if known:
            nearest = min(known, key=lambda measured: abs(math.log(max(measured, 1) / size)))
            rates.append(known[nearest] * 1e9)
    return max(rates, default=None)


def limit_s(case, limits):
    """The lowest time that the machine's own rates allow: each byte that a rank must get is copied
    or added once, or sent around a ring; and a collective takes at least as many rounds as
    information needs to reach all ranks. None if not measured."""
    part = case.bytes * (case.ranks - 1) / case.ranks
    if case.transport == "tcp":
        chained = case.collective in ("broadcast", "reduce")
        rate = at_size(limits, ["chain" if chained else "ring"], case.bytes)
        work = [
            (case.bytes if chained else part * (2 if case.collective == "all_reduce" else 1), rate)
        ]
    else:
        copy = at_size(limits, ["copy", "copy_stream", "readv"], case.bytes)
        add = at_size(limits, ["add", "add_stream"], case.bytes)
        work = {
            "all_reduce": [(part, add), (part, copy)],
            "reduce_scatter": [(part, add)],
            "broadcast": [(case.bytes, at_size(limits, ["copy_others"], case.bytes))],
            "reduce": [(case.bytes, add)],
        }.get(case.collective, [(part, copy)])
    if "round_us" not in limits or not all(rate for _, rate in work):
        return None
    rounds = 1 if case.collective == "alltoall" else math.ceil(math.log2(case.ranks))
    return max(
        sum(amount / rate for amount, rate in work),
        rounds * min(limits["round_us"].values()) * 1e-6,
    )


# ---- text ----------------------------------------------------------------------------------------


def cell_text(row, who, mode):
    value = ratio(row, who, mode)
    if value:
        return "%.2f" % value
    if median_s(row, who, mode):
        return "-"  # FTCCL has no time to be compared with
    return row["libraries"].get(who, {}).get(mode, {}).get("status", "-")


def time_text(row, mode):
    seconds = median_s(row, "ftccl", mode)
    return (
        "%.2f" % (seconds * 1e6)
        if seconds
        else row["libraries"].get("ftccl", {}).get(mode, {}).get("status", "-")
    )


def number(value, form="%.2f"):
    return form % value if value else "-"


def head():
    columns = "".join("%9s" % NAMES[who] for who in OTHERS)
    above = "%-42s|%-55s|%s" % (
        "",
        " one call at a time (-z 1): x means times FTCCL's time",
        " one after another (-z 0)",
    )
    return "%s\n%-14s %5s %8s %4s %s | %9s %7s%s %7s | %10s %8s %7s" % (
        above,
        "collective",
        "ranks",
        "size",
        "over",
        "  limit",
        "FTCCL us",
        "GB/s",
        columns,
        "x best",
        "FTCCL us",
        "GB/s",
        "x best",
    )


def line(row):
    case = case_in(row)
    ours, piped, limit = (
        median_s(row, "ftccl", "blocking"),
        median_s(row, "ftccl", "pipelined"),
        row.get("limit_s"),
    )
    return "%-14s %5d %8s %4s %s | %9s %7s%s %7s | %10s %8s %7s" % (
        case.collective,
        case.ranks,
        size_text(case.bytes),
        case.transport,
        "%7s" % number(limit and ours and limit / ours * 100, "%.0f%%"),
        time_text(row, "blocking"),
        number(ours and bus_gbs(case, ours), "%.3f"),
        "".join("%9s" % cell_text(row, who, "blocking") for who in OTHERS),
        number(best_ratio(row, "blocking")),
        time_text(row, "pipelined"),
        number(piped and bus_gbs(case, piped), "%.3f"),
        number(best_ratio(row, "pipelined")),
    )


def summary(rows):
    """Returns sentences: in how many cases FTCCL is not slower, and the worst case."""
    lines = []
    for mode, words in (("blocking", "one call at a time"), ("pipelined", "one after another")):
        known = [(best_ratio(row, mode), row) for row in rows if best_ratio(row, mode)]
        if known:
            worst, row = min(known, key=lambda item: item[0])
            lines.append(
                "%s: no slower than the fastest other in %d of %d cases; "
                "worst %.2f (%s, %d ranks, %s, %s)"
                % (
                    words,
                    sum(r >= 1 for r, _ in known),
                    len(known),
                    worst,
                    row["collective"],
                    row["ranks"],
                    size_text(row["bytes"]),
                    row["transport"],
                )
            )
    return lines
