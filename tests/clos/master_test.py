"""Jobs that ask a master of paths: they share the spines, though each has fewer connections than
there are spines; they go on when the master is killed, keep their paths when another one comes, and
leave a link that an operator takes out. A master that is never there stops nobody. A link that
swallows everything from the start is found, and shown, though no connection needs to take it."""

import os
import re
import tempfile
import time
import unittest

import fabric
import master
import ranks

BUILD = os.environ.get("CLOS_BUILD", ".")
PROGRAM = os.path.join(BUILD, "tests", "clos", "rank")
MESSAGE_BYTES = 2000000
SPINES = 4
JOBS = 4  # of two hosts, one on each leaf
EVEN = 1.25  # most bytes of a spine to fewest


@unittest.skipUnless(os.path.exists(master.program(BUILD, "ftccld")), "ftccld is not built")
class PathMaster(unittest.TestCase):
    def make(self, hosts, leaves):
        self.net = fabric.Fabric(hosts=hosts, leaves=leaves, spines=SPINES, rate=50)
        self.net.up()
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.master = master.Master(BUILD, self.net, 0, self.folder.name)
        self.addCleanup(self.master.kill)

    def start_jobs(self, jobs):
        """Each is a list of its hosts."""
        settings = {
            "FTCCL_PATHS": "1",
            **self.master.settings(),
            "FTCCL_OP_TIMEOUT_MS": "20000",
        }
        self.jobs = []
        for hosts in jobs:
            job = ranks.Job(PROGRAM, self.net, hosts, MESSAGE_BYTES, settings)
            self.jobs.append(job)
            self.addCleanup(job.close)
        for job in self.jobs:
            job.wait_until_ready()

    def carried(self, calls=4):
        """What each leaf sends to each spine during some calls of all jobs."""
        before = self.net.link_bytes()
        for job in self.jobs:
            job.ranks[0].wait_for_calls(calls, seconds=60)
        after = self.net.link_bytes()
        return {link: after[link][0] - before[link][0] for link in after}

    def is_even(self, carried):
        return max(carried.values()) <= EVEN * min(carried.values())

    def wait_until(self, found, seconds=60):
        begun, carried = time.monotonic(), None
        while carried is None or not found(carried):
            self.assertLess(time.monotonic() - begun, seconds, carried)
            carried = self.carried()
        print("%s bytes after %.1f s" % (list(carried.values()), time.monotonic() - begun))

    def wait_for_status(self, found, seconds=30):
        begun, status = time.monotonic(), self.master.status()
        while not found(status):
            self.assertLess(time.monotonic() - begun, seconds, status)
            status = self.master.status()
        return status

    def stop(self, ranks_of_job=2):
        for job in self.jobs:
            self.assertEqual(job.stop(), [0] * ranks_of_job, [rank.said[-3:] for rank in job.ranks])
            said = [line for rank in job.ranks for line in rank.said if line.startswith("error ")]
            self.assertEqual(said, [])

    def ways(self, status):
        """{(job, rank, connection): way}"""
        return {
            (c["job"], c["rank"], c["from"], c["to"], c["connection"]): c["way"]
            for c in status["connections"]
        }

    def start_pairs(self):
        self.start_jobs([[number, number + JOBS] for number in range(JOBS)])

    def test_jobs_share_the_spines_and_outlive_the_master(self):
        self.make(hosts=2 * JOBS, leaves=2)
        self.master.start()
        self.start_pairs()
        self.wait_until(self.is_even)
        status = self.wait_for_status(lambda s: len(s["connections"]) == 2 * JOBS)
        self.assertEqual(status["ranks"], 2 * JOBS)
        held = self.ways(status)
        self.master.kill()
        self.assertTrue(self.is_even(self.carried()), "they keep their paths")
        self.master.start()
        status = self.wait_for_status(lambda s: len(s["connections"]) == 2 * JOBS, seconds=60)
        self.assertEqual(self.ways(status), held)
        self.assertEqual(status["moves"], 0)
        self.leave_a_link()
        self.stop()

    def leave_a_link(self):
        """An operator takes the way from the first leaf to a spine out, and back."""
        there = self.net.spine_link(0, 1)[1].address
        lines = [line for line in self.master.path() if re.search(rf"\b{there}\b", line)]
        self.assertRegex("\n".join(lines), rf"^any +{re.escape(there)} +good +1 ")
        self.master.path("out", "any", there)
        # what is left are acknowledgements of what comes over that spine
        self.wait_until(lambda carried: carried[0, 1] < 0.1 * max(carried.values()))
        self.master.path("in", "any", there)
        self.wait_until(self.is_even)

    def test_a_link_that_is_broken_is_found_at_the_start(self):
        """A host talks to one neighbour; the other ways are probed because the master asks."""
        self.make(hosts=3, leaves=3)
        self.net.blackhole(1, 2)
        self.master.start()
        begun = time.monotonic()
        self.start_jobs([[0, 1, 2]])
        missing = [("leaf 1", "spine 2"), ("spine 2", "leaf 1")]
        status = self.wait_for_status(lambda s: self.missing(s) == missing, seconds=90)
        print("known after %.1f s" % (time.monotonic() - begun))
        self.assertEqual(len(status["routers"]), 3 + SPINES)
        self.assertEqual(len(status["links"]), 2 * (3 * SPINES - 1))
        hosts = {host["address"]: host["router"] for host in status["hosts"]}
        self.assertEqual(hosts, {self.net.address(i): f"leaf {i}" for i in range(3)})
        before = self.net.link_bytes()
        self.jobs[0].ranks[0].wait_for_calls(10, seconds=60)
        lost = self.net.link_bytes()[1, 2][1] - before[1, 2][1]
        self.assertLess(lost, 0.01 * 10 * MESSAGE_BYTES)
        self.stop(3)

    def missing(self, status):
        return sorted((m["from_router"], m["to_router"]) for m in status["missing"])

    def test_a_master_that_is_not_there(self):
        self.make(hosts=2 * JOBS, leaves=2)
        self.start_pairs()
        for job in self.jobs:
            job.ranks[0].wait_for_calls(4)
        self.stop()
