"""Property: perf/compare's arithmetic: sizes, medians, ratios, bandwidths, limits, what is printed
where a figure is missing; the form of its files. Method: rows made by hand, results computed by
hand."""

import json
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.environ["top_srcdir"], "perf"))
from measuring import cases, results, table  # noqa: E402
from measuring.programs import (
    CHECK_BYTES,
    CHECK_CALLS,
    adopt_orphans,
    right_way,
    run_bounded,
)  # noqa: E402


def cell(*times_s, status="ok"):
    return {"status": status, "times_s": list(times_s)}


def row(collective="all_reduce", ranks=2, size=8, transport="tcp", **libraries):
    """Libraries as (blocking, pipelined) cells."""
    return {
        "collective": collective,
        "ranks": ranks,
        "bytes": size,
        "transport": transport,
        "rounds": 3,
        "libraries": {
            who: dict(zip(("blocking", "pipelined"), both)) for who, both in libraries.items()
        },
    }


class Sizes(unittest.TestCase):
    def test_texts(self):
        self.assertEqual(
            [cases.size_of(t) for t in ("8", "4K", "2m", "1GB")], [8, 4096, 2 << 20, 1 << 30]
        )
        self.assertEqual(
            [cases.size_text(s) for s in (8, 4096, 2 << 20, 4100)],
            ["8 B", "4 KiB", "2 MiB", "4100 B"],
        )

    def test_blocks_are_whole(self):
        self.assertEqual(cases.case_of("all_reduce", 8, 8, "shm").bytes, 8)
        self.assertEqual(cases.case_of("alltoall", 8, 8, "shm").bytes, 128)
        self.assertEqual(cases.case_of("all_gather", 2, 33, "shm").bytes, 64)
        self.assertEqual(cases.case_of("all_gather", 4, 1 << 20, "shm").bytes, 1 << 20)


class Ratios(unittest.TestCase):
    def test_medians_not_means(self):
        r = row(
            ftccl=(cell(2, 100, 1), cell(1)),
            mpich=(cell(4, 3, 900), cell(8)),
            openmpi=(cell(3), cell(2, 4)),
        )
        self.assertEqual(table.median_s(r, "ftccl", "blocking"), 2)
        self.assertEqual(table.ratio(r, "mpich", "blocking"), 2)
        self.assertEqual(table.best_ratio(r, "blocking"), 1.5)  # the fastest of the others counts
        self.assertEqual(table.best_ratio(r, "pipelined"), 3)

    def test_what_is_missing_stays_missing(self):
        slow, lacks = cell(5, status="too slow"), cell(status="n/a")
        r = row(ftccl=(cell(1), cell(1)), mpich=(slow, slow), gloo=(lacks, lacks))
        self.assertIsNone(table.best_ratio(r, "blocking"))
        self.assertEqual(
            [table.cell_text(r, who, "blocking") for who in ("mpich", "openmpi", "gloo")],
            ["too slow", "-", "n/a"],
        )
        r = row(ftccl=(slow, slow), mpich=(cell(1), cell(1)))
        self.assertIsNone(table.ratio(r, "mpich", "blocking"))
        self.assertEqual(
            (table.cell_text(r, "mpich", "blocking"), table.time_text(r, "blocking")),
            ("-", "too slow"),
        )

    def test_line_has_every_column(self):
        r = row(
            size=2 << 20,
            ftccl=(cell(1e-3), cell(5e-4)),
            mpich=(cell(2e-3), cell(1e-3)),
            openmpi=(cell(status="n/a"),) * 2,
            gloo=(cell(1.5e-3), cell(4e-4)),
        )
        r["limit_s"] = 2.5e-4
        words = "all_reduce 2 2 MiB tcp 25% | 1000.00 2.097 2.00 n/a 1.50 1.50 | 500.00 4.194 0.80"
        self.assertEqual(table.line(r).split(), words.split())

    def test_summary_names_the_worst(self):
        rows = [
            row(size=size, ftccl=(cell(took), cell(1)), mpich=(cell(1), cell(1)))
            for size, took in ((8, 2), (64, 1))
        ]
        self.assertEqual(
            table.summary(rows)[0],
            "one call at a time: no slower than the fastest other in 1 of 2 cases; "
            "worst 0.50 (all_reduce, 2 ranks, 8 B, tcp)",
        )


class Bandwidths(unittest.TestCase):
    def test_bus(self):
        for collective in cases.COLLECTIVES:
            wanted = {"all_reduce": 1.5, "broadcast": 1}.get(collective, 0.75)
            self.assertAlmostEqual(
                table.bus_gbs(cases.Case(collective, 4, 1000000000, "shm"), 1),
                wanted,
                msg=collective,
            )


class Limits(unittest.TestCase):
    shm = {
        "copy": {4096: 5, 1 << 20: 4},
        "copy_stream": {1 << 20: 8},
        "readv": {1 << 20: 1},
        "add": {1 << 20: 2},
        "copy_others": {1 << 20: 16},
        "round_us": {0: 10},
    }
    tcp = {"ring": {1 << 20: 1}, "chain": {1 << 20: 2}, "round_us": {0: 30}}

    def limit(self, collective, ranks, size, transport):
        return table.limit_s(
            cases.Case(collective, ranks, size, transport),
            self.shm if transport == "shm" else self.tcp,
        )

    def test_bytes_over_rates(self):
        size = 1 << 20
        for collective, part in (
            ("all_reduce", 0.75 / 2 + 0.75 / 8),
            ("reduce_scatter", 0.75 / 2),
            ("all_gather", 0.75 / 8),
            ("alltoall", 0.75 / 8),
            ("broadcast", 1 / 16),
        ):
            self.assertAlmostEqual(
                self.limit(collective, 4, size, "shm"), part * size / 1e9, msg=collective
            )
        for collective, part in (("all_reduce", 1.5), ("all_gather", 0.75), ("broadcast", 0.5)):
            self.assertAlmostEqual(
                self.limit(collective, 4, size, "tcp"), part * size / 1e9, msg=collective
            )

    def test_small_sizes_take_rounds(self):
        self.assertAlmostEqual(self.limit("all_reduce", 8, 8, "shm"), 30e-6)
        self.assertAlmostEqual(self.limit("alltoall", 8, 128, "tcp"), 30e-6)
        self.assertAlmostEqual(self.limit("broadcast", 2, 8, "tcp"), 30e-6)

    def test_unknown_is_none(self):
        self.assertIsNone(table.limit_s(cases.Case("all_reduce", 2, 8, "shm"), {}))
        self.assertIsNone(
            table.limit_s(
                cases.Case("all_reduce", 2, 8, "shm"), {"round_us": {0: 1}, "copy": {8: 1}}
            )
        )

    def test_passes_are_merged_at_their_best(self):
        passes = [
            {"transport": "shm", "ranks": 2, "values": [["copy", 8, 3.0], ["round_us", 0, 2.0]]},
            {"transport": "shm", "ranks": 2, "values": [["copy", 8, 4.0], ["round_us", 0, 5.0]]},
            {"transport": "tcp", "ranks": 2, "values": [["copy", 8, 9.0]]},
        ]
        self.assertEqual(table.merged(passes, "shm", 2), {"copy": {8: 4.0}, "round_us": {0: 2.0}})


class Files(unittest.TestCase):
    result = {
        "machine": {"cores": 2},
        "sizes": [8, 64],
        "none": [],
        "rows": [{"a": [1, 2]}, {"a": {"b": 0.5}}],
        "parts": {"setup": {"load": 1.5, "rows": [{"c": "d"}]}},
    }

    def test_a_line_for_each_record(self):
        self.assertEqual(
            results.text_of(self.result).split("\n"),
            [
                '{',
                ' "machine": {"cores":2},',
                ' "sizes": [8,64],',
                ' "none": [],',
                ' "rows": [',
                '  {"a":[1,2]},',
                '  {"a":{"b":0.5}}',
                ' ],',
                ' "parts": {',
                '  "setup": {',
                '   "load": 1.5,',
                '   "rows": [',
                '    {"c":"d"}',
                '   ]',
                '  }',
                ' }',
                '}',
            ],
        )

    def test_what_is_saved_is_loaded(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "new", "a.json")
            results.save(path, self.result)
            self.assertEqual(results.load(path), self.result)
            self.assertEqual(os.listdir(os.path.dirname(path)), ["a.json"])

    def test_digits(self):
        self.assertEqual(
            results.rounded({"s": [8.090682199999999e-07, 123456789, (2.0, "x", None)]}),
            {"s": [8.090682e-07, 123456789, [2.0, "x", None]]},
        )
        self.assertEqual(json.loads(results.text_of(results.rounded([1 / 3]))), [0.3333333])


class Bounds(unittest.TestCase):
    def test_nothing_survives_the_time_limit(self):
        """A process that left its launcher's group is ended, too."""
        adopt_orphans()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "pid")
            script = (
                'setsid sh -c \'echo $$ >"$0.new"; mv "$0.new" "$0"; sleep 600\' "$0" & sleep 600'
            )
            self.assertIsNone(run_bounded(["sh", "-c", script, path], dict(os.environ), 3)[0])
            with open(path) as file:
                self.assertFalse(os.path.exists("/proc/" + file.read().strip()))

    def test_status_and_output(self):
        self.assertEqual(
            run_bounded(["sh", "-c", "echo a; echo b >&2; exit 3"], dict(os.environ), 60),
            (3, "a\n", "b\n"),
        )


class Ways(unittest.TestCase):
    def test_what_loopback_saw(self):
        payload = 2 * CHECK_BYTES * CHECK_CALLS
        self.assertEqual(
            [right_way("tcp", n) for n in (0, payload - 1, payload, 3 * payload)],
            [False, False, True, True],
        )
        self.assertEqual(
            [right_way("shm", n) for n in (0, payload // 20, payload)], [True, True, False]
        )


if __name__ == "__main__":
    unittest.main()
