"""Ranks with FTCCL_PATHS in the leaf-spine network: the connections of a job are spread evenly over
the spines, and are again after they were reset; a spine that swallows everything is left, without
an error; where routers do not say who they are, the job goes on wherever the network sends it."""

import os
import re
import subprocess
import time
import unittest

import fabric
import ranks

BUILD = os.environ.get("CLOS_BUILD", ".")
PROGRAM = os.path.join(BUILD, "tests", "clos", "rank")
INFO = os.path.join(BUILD, "tools", "ftccl-info")
MESSAGE_BYTES = 2000000
SPINES = 4
LOGGED = {"FTCCL_DEBUG": "INFO", "FTCCL_OP_TIMEOUT_MS": "20000"}
EVEN = 1.1  # most bytes of a spine to fewest


class Paths(unittest.TestCase):
    def job(self, **settings):
        self.net = fabric.Fabric(hosts=2, leaves=2, spines=SPINES, rate=100)
        self.net.up()
        return self.start(**settings)

    def start(self, **settings):
        job = ranks.Job(PROGRAM, self.net, [0, 1], MESSAGE_BYTES, {**LOGGED, **settings})
        self.addCleanup(job.close)
        job.wait_until_ready()
        return job

    def carried(self, job, calls=4):
        """What each spine carries during some calls."""
        before = self.net.link_bytes()
        for rank in job.ranks:
            rank.wait_for_calls(calls)
        return self.net.spine_bytes(before)

    def wait_until(self, job, found, seconds=30):
        """Until what the spines carry is as it should be. Prints how long that took."""
        begun, carried = time.monotonic(), []
        while not carried or not found(carried):
            self.assertLess(time.monotonic() - begun, seconds, carried)
            carried = self.carried(job)
        print("%s bytes after %.1f s" % (carried, time.monotonic() - begun))

    def told(self, job):
        """What telemetry tells of each class of paths: the bytes of its connections."""
        told = [0] * SPINES
        for rank in job.ranks:
            words = [INFO, "--pid", str(rank.process.pid)]
            text = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
            for line in re.findall(r"class (\d+) of %d, (\d+) bytes" % SPINES, text):
                told[int(line[0])] += int(line[1])
        return told

    def is_even(self, carried):
        return max(carried) <= EVEN * min(carried)

    def errors(self, job):
        return [line for rank in job.ranks for line in rank.said if line.startswith("error ")]

    def stop(self, job):
        self.assertEqual(job.stop(), [0, 0], [rank.said[-3:] for rank in job.ranks])
        self.assertEqual(self.errors(job), [])

    def logged(self, job, words):
        return [line for rank in job.ranks for line in rank.said if words in line]

    def test_connections_are_spread_evenly_over_the_spines(self):
        job = self.job(FTCCL_TCP_CONNECTIONS=str(SPINES))
        print("%s bytes without FTCCL_PATHS" % self.carried(job))
        self.stop(job)
        self.assertEqual(self.logged(job, "source port"), [])
        job = self.start(FTCCL_PATHS=str(SPINES), FTCCL_TELEMETRY="1")
        self.wait_until(job, self.is_even)
        self.assertTrue(self.is_even(self.carried(job)), "they stay")
        self.expect_to_be_told(job)
        self.stop(job)
        for line in self.logged(job, "source ports"):
            for path in range(SPINES):
                self.assertIn(f"(class {path})", line)

    def expect_to_be_told(self, job):
        """Spines and classes are in the same order. Telemetry may be a second old."""
        told, carried = self.told(job), self.carried(job, calls=40)
        more = [after - before for before, after in zip(told, self.told(job))]
        print("%s bytes, of which telemetry tells %s" % (carried, more))
        for bytes_told, bytes_carried in zip(more, carried):
            self.assertGreater(bytes_told, 0.6 * bytes_carried)
            self.assertLess(bytes_told, 1.4 * bytes_carried)

    def test_connections_that_are_reset_are_spread_again(self):
        job = self.job(FTCCL_PATHS=str(SPINES))
        self.wait_until(job, self.is_even)
        self.assertGreater(self.net.reset(0), 0)
        self.wait_until(job, self.is_even)
        self.stop(job)

    def test_a_spine_that_swallows_everything_is_left(self):
        job = self.job(FTCCL_PATHS=str(SPINES))
        self.wait_until(job, self.is_even)
        self.net.blackhole(0, 1)
        # at once, wherever there is a way; and evenly when it was found out which ways are left
        self.wait_until(job, lambda carried: carried[1] < 0.01 * sum(carried))
        end = time.monotonic() + 60
        while len(self.logged(job, "of 3 classes")) < 2:
            self.assertLess(time.monotonic(), end)
            job.ranks[0].wait_for_calls(1)
        # three take two or three of the eight connections each
        left = self.carried(job)
        self.assertLess(left.pop(1), 0.01 * sum(left), left)
        self.assertGreater(min(left), 0.2 * sum(left), left)
        self.stop(job)

    def test_routers_that_do_not_answer_or_seldom(self):
        for milliseconds in (100000, 1000):
            with self.subTest(milliseconds=milliseconds):
                self.expect_to_stay(milliseconds)

    def expect_to_stay(self, milliseconds):
        """Between two answers of a router, after the first few."""
        self.net = fabric.Fabric(hosts=2, leaves=2, spines=SPINES, rate=100)
        self.net.up()
        for name in self.net.namespaces():
            fabric.sysctl(name, {"icmp_ratelimit": milliseconds})
        job = self.start(FTCCL_PATHS=str(SPINES))
        end = time.monotonic() + 30
        while len(self.logged(job, "go where the network sends them")) < 2:
            self.assertLess(time.monotonic(), end)
            job.ranks[0].wait_for_calls(1)
        self.stop(job)
        self.assertEqual(self.logged(job, "(class "), [])
