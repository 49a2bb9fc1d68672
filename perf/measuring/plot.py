"""Draws a comparison's JSON as SVG, for perf/compare --draw: usage plot.py FILE.json. One file for
each way between the ranks; for each collective and number of ranks the bus bandwidth and the time
of one call against the size, with the machine's limit."""

import os
import sys

sys.dont_write_bytecode = True
if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from measuring import results, table  # noqa: E402
from measuring.programs import LIBRARIES, NAMES  # noqa: E402

COLORS = {"ftccl": "#c1272d", "mpich": "#0071bc", "openmpi": "#009245", "gloo": "#f7931e"}


def microseconds(_, seconds):
    return seconds * 1e6


def draw_panel(axes, rows, value):
    """`value`: computes what is drawn from a case and seconds."""
    for who in LIBRARIES:
        points = [
            (row["bytes"], value(table.case_in(row), table.median_s(row, who, "blocking")))
            for row in rows
            if table.median_s(row, who, "blocking")
        ]
        if points:
            axes.plot(
                *zip(*points),
                color=COLORS[who],
                marker="o",
                markersize=3,
                linewidth=1.8 if who == "ftccl" else 1,
                label=NAMES[who]
            )
    limit = [
        (row["bytes"], value(table.case_in(row), row["limit_s"]))
        for row in rows
        if row.get("limit_s")
    ]
    if limit:
        axes.plot(*zip(*limit), color="black", linestyle="--", linewidth=0.9, label="limit")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.grid(True, linewidth=0.3)
    axes.tick_params(labelsize=7)


def draw(result, transport, path):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "ftccl"  # the same drawing gives the same file
    import matplotlib.pyplot as plt

    rows = sorted(
        (row for row in result["rows"] if row["transport"] == transport),
        key=lambda row: row["bytes"],
    )
    collectives = list(dict.fromkeys(row["collective"] for row in rows))
    ranks = sorted({row["ranks"] for row in rows})
    figure, grid = plt.subplots(
        len(collectives),
        2 * len(ranks),
        squeeze=False,
        figsize=(6 * len(ranks), 2.5 * len(collectives) + 0.8),
    )
    for y, collective in enumerate(collectives):
        for x, n in enumerate(ranks):
            here = [row for row in rows if row["collective"] == collective and row["ranks"] == n]
            for axes, value, unit in zip(
                grid[y][2 * x : 2 * x + 2], (table.bus_gbs, microseconds), ("busbw GB/s", "time us")
            ):
                draw_panel(axes, here, value)
                axes.set_title("%s, %d ranks: %s" % (collective, n, unit), fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("bytes", fontsize=7)
    handles, labels = [], []
    for axes in grid.flat:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            if label not in labels:
                handles.append(handle)
                labels.append(label)
    figure.legend(
        handles, labels, loc="upper center", ncol=len(labels) or 1, fontsize=8, frameon=False
    )
    machine = result["machine"]
    figure.suptitle(
        "%s, %s cores, %s, %s"
        % (machine["processor"], machine["cores"], transport, result["date"]),
        fontsize=9,
        y=0.005,
        va="bottom",
    )
    figure.tight_layout(rect=(0, 0.02, 1, 0.97))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main():
    path = sys.argv[1]
    result = results.load(path)
    for transport in dict.fromkeys(row["transport"] for row in result["rows"]):
        out = "%s-%s.svg" % (path[:-5] if path.endswith(".json") else path, transport)
        draw(result, transport, out)
        print("drawn:", out)


if __name__ == "__main__":
    main()
