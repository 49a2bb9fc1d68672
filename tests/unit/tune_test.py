"""Property: perf/tune's arithmetic: the fastest way of each case, noise that changes nothing, lines
that cover every size once. Method: times made by hand, tables computed by hand."""

import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.environ["top_srcdir"], "perf"))
from measuring import rules  # noqa: E402

RD, RING, SMALL = (
    rules.Way("rd", None, None),
    rules.Way("ring", None, None),
    rules.Way("ring", 32768, 8),
)


class Ways(unittest.TestCase):
    def test_texts_and_back(self):
        for way, text in (
            (RD, "rd"),
            (SMALL, "ring/chunk_bytes=32768/chunks=8"),
            (rules.Way("hd", None, 2), "hd/chunks=2"),
        ):
            self.assertEqual(rules.way_text(way), text)
            self.assertEqual(rules.way_of(text), way)

    def test_medians_leave_out_what_was_cut(self):
        self.assertEqual(rules.medians({RD: [3, 1, 100], RING: [1], SMALL: []}), {RD: 3})


class Choice(unittest.TestCase):
    def test_fastest_of_each_size(self):
        sizes = [(4096, {RD: 3, RING: 2}), (8, {RD: 1, RING: 2}), (64, {})]
        self.assertEqual(rules.choose(sizes), [(8, RD), (4096, RING)])

    def test_what_is_close_goes_on(self):
        sizes = [
            (8, {RD: 1, RING: 2}),
            (64, {RD: 1.02, RING: 1}),
            (512, {RD: 1.05, RING: 1}),
            (4096, {RD: 1, RING: 1.02}),
        ]
        self.assertEqual(rules.choose(sizes), [(8, RD), (64, RD), (512, RING), (4096, RING)])


class Lines(unittest.TestCase):
    def test_spans_cover_every_size_once(self):
        spans = rules.spans([(8, RD), (512, RD), (2048, RING), (32768, SMALL)])
        self.assertEqual(spans, [(0, 1024, RD), (1025, 8192, RING), (8193, None, SMALL)])
        self.assertEqual(rules.spans([(8, RD)]), [(0, None, RD)])

    def test_text(self):
        self.assertEqual(
            list(rules.lines("all_gather", 4, "tcp", [(8, RD), (512, SMALL)])),
            [
                "best allgather ranks=4 hosts=1 over=tcp from=0 to=64 algo=rd",
                "best allgather ranks=4 hosts=1 over=tcp from=65 algo=ring chunk_bytes=32768 "
                "chunks=8",
            ],
        )


if __name__ == "__main__":
    unittest.main()
