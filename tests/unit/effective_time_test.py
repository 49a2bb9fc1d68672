"""Property: perf/effective_time.py simulates what it says: the figures of FT-HSDP come out, and
cases that a formula knows exactly, also with failures during the recovery from others. Method:
seeded runs beside closed formulas; single failures, whose loss is computed by hand."""

import math
import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.environ["top_srcdir"], "perf"))
import effective_time  # noqa: E402
from effective_time import PAPER, Failures, fault_tolerant, predicted, synchronous  # noqa: E402

DAYS = 86400
SEED = int(os.environ.get("FT_TEST_SEED", "1"))


class Listed:
    """Failures at given times, each of a given replica; in place of effective_time.Failures."""

    def __init__(self, failures):
        self.at_s = [at for at, _ in failures]
        self.victims = [victim for _, victim in failures]
        self.random = self

    def next_s(self):
        return self.at_s.pop(0) if self.at_s else math.inf

    def randrange(self, _):
        return self.victims.pop(0)


def progress(job, horizon, *failures):
    """Replica-seconds, and when the last step ended."""
    training = effective_time.Training(job, Listed(failures))
    while training.now < horizon:
        training.step()
    return training.useful, training.now


class Formulas(unittest.TestCase):
    def test_paper(self):
        regular = Failures(1080, False, SEED)
        self.assertAlmostEqual(synchronous(600, regular, 100 * DAYS), 0.444, delta=0.002)
        share = fault_tolerant(PAPER, Failures(1080, False, SEED), 100 * DAYS)
        self.assertAlmostEqual(share, 0.80, delta=0.01)
        self.assertAlmostEqual(share, predicted(PAPER), delta=0.005)

    def test_failures_during_recoveries_of_all(self):
        for recovery in (100, 600, 2000):
            share = synchronous(recovery, Failures(1080, True, SEED), 400 * DAYS)
            self.assertAlmostEqual(share, math.exp(-recovery / 1080), delta=0.01)

    def test_each_replica_alone(self):
        """Without stalls a replica makes progress when its last failure is long enough ago."""
        for repair in (100, 2000):
            job = PAPER._replace(
                replicas=4,
                step=2,
                detect=0,
                detect_from="failure",
                view=0,
                keep_step=True,
                repair=repair,
                join=0,
            )
            share = fault_tolerant(job, Failures(1080, True, SEED), 100 * DAYS)
            self.assertAlmostEqual(share, math.exp(-repair / (4 * 1080)), delta=0.01)


class ByHand(unittest.TestCase):
    job = PAPER._replace(
        replicas=2, step=10, detect=3, detect_from="failure", view=1, repair=40, join=5
    )

    def test_no_failure(self):
        self.assertEqual(progress(self.job, 100), (200, 100))

    def test_known_within_the_step(self):
        # Fails at 12. Known at 20, when the step ends; view 21; 3 steps and what remains of the
        # repair until 52: 31, 41, 51, 61. Then it joins: 76, 86, 96, 106.
        self.assertEqual(progress(self.job, 100, (12, 0)), (20 + 4 * 10 + 4 * 20, 106))

    def test_known_after_the_step(self):
        # Fails at 19. Known at 22; view 23; 33, 43, 53, 63; joins: 78, 88, 98, 108.
        self.assertEqual(progress(self.job, 100, (19, 0)), (20 + 4 * 10 + 4 * 20, 108))

    def test_kept_step(self):
        job = self.job._replace(keep_step=True)
        self.assertEqual(progress(job, 100, (12, 0)), (20 + 10 + 4 * 10 + 4 * 20, 106))

    def test_timeout_of_those_who_wait(self):
        # Known at 20 + 3, view 24; 34, 44, 54; joins: 69, 79, 89, 99, 109.
        job = self.job._replace(detect_from="wait")
        self.assertEqual(progress(job, 100, (12, 0)), (20 + 3 * 10 + 5 * 20, 109))

    def test_failure_before_the_view(self):
        # The second is known at 23.5, view 24.5; alone until 54.5, two until 69.5, three: 84.5.
        job = self.job._replace(replicas=3)
        self.assertEqual(progress(job, 80, (12, 0), (20.5, 1)), (30 + 3 * 10 + 20 + 30, 84.5))

    def test_nobody_is_left(self):
        # Both fail; the first is back at 52, the second at 53: a step of one, 67; then both.
        self.assertEqual(progress(self.job, 90, (12, 0), (13, 1)), (20 + 10 + 2 * 20, 92))

    def test_failed_again(self):
        # The repair begins again at 30 and lasts until 70.
        once = progress(self.job, 60, (12, 0), (30, 0))
        self.assertEqual(once, (20 + 4 * 10, 61))


if __name__ == "__main__":
    unittest.main()
