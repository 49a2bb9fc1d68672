"""Ranks in the leaf-spine network: results are right, an error is recoverable and known to all, and
the job goes on with all live ranks: when hosts reduce, a link goes down or drops in silence, is
slow or loses packets, connections are reset, or a rank is killed."""

import os
import shutil
import unittest

import fabric
import ranks

PROGRAM = os.path.join(os.environ.get("CLOS_BUILD", "."), "tests", "clos", "rank")
MESSAGE_BYTES = 400000
# So short that a dead path that is not left soon ends an operation.
SHORT = {"FTCCL_SUSPECT_MS": "1000", "FTCCL_OP_TIMEOUT_MS": "5000"}


class Ranks(unittest.TestCase):
    def job(self, hosts, **shape):
        self.net = fabric.Fabric(**{**dict(hosts=hosts, leaves=4, spines=2, rate=100), **shape})
        self.net.up()
        job = ranks.Job(PROGRAM, self.net, list(range(hosts)), MESSAGE_BYTES, SHORT)
        self.addCleanup(job.close)
        job.wait_until_ready()
        return job

    def stop(self, job, others=()):
        """Ends it; the ranks without the killed others were right to their end."""
        statuses = job.stop()
        for number, (rank, status) in enumerate(zip(job.ranks, statuses)):
            if number not in others:
                self.assertEqual(status, 0, (number, rank.said))
                self.assertTrue(rank.said[-1].startswith("end "), rank.said)

    def errors(self, job):
        """How many errors each rank had. None was of another kind than recoverable."""
        lines = [[x for x in rank.said if x.startswith("error ")] for rank in job.ranks]
        for line in sum(lines, []):
            self.assertTrue(line.startswith("error recoverable "), line)
        return [len(of_rank) for of_rank in lines]

    def expect_all_go_on(self, job, what):
        """Calls complete on every rank, with all ranks or without error; prints what it took."""
        begun = [rank.mark(60)[1] for rank in job.ranks]
        for rank in job.ranks:
            rank.wait_for_calls(10, 120)
        took = max(rank.mark(60)[1] - at for rank, at in zip(job.ranks, begun))
        errors = self.errors(job)
        self.assertIn(errors.count(0), (0, len(errors)), "an error on some ranks only")
        for rank in job.ranks:
            sizes = {line for line in rank.said if line.startswith("shrunk")}
            self.assertLessEqual(sizes, {f"shrunk {len(job.ranks)}"}, "a live rank was left out")
        print("%s: %s errors a rank, 10 calls later after %.1f s" % (what, max(errors), took))

    def expect_no_error(self, what, fault):
        """The fault comes while 4 hosts reduce: calls go on, and none has an error."""
        job = self.job(4)
        job.ranks[0].wait_for_calls(3)
        fault()
        self.expect_all_go_on(job, what)
        self.assertEqual(self.errors(job), [0] * 4)
        self.stop(job)

    def reset(self, *connections):
        self.assertGreater(self.net.reset(*connections), 0, "there were none")

    def test_2_to_8_hosts_reduce(self):
        for hosts in (2, 5, 8):
            with self.subTest(hosts=hosts):
                job = self.job(hosts)
                for rank in job.ranks:
                    rank.wait_for_calls(5)
                self.stop(job)
                self.assertEqual(self.errors(job), [0] * hosts)

    def test_bonded_hosts_reduce(self):
        job = self.job(4, bonded=True)
        job.ranks[0].wait_for_calls(5)
        self.stop(job)
        self.assertEqual(self.errors(job), [0] * 4)

    def test_a_rank_that_is_killed_is_known_to_all(self):
        job = self.job(4)
        job.ranks[0].wait_for_calls(3)
        job.ranks[3].process.kill()
        for rank in job.ranks[:3]:
            rank.next_line("error recoverable", seconds=10)
            self.assertEqual(rank.next_line("shrunk"), "shrunk 3")
        for rank in job.ranks[:3]:
            rank.wait_for_calls(5)
        self.stop(job, others=(3,))
        self.errors(job)

    def test_a_link_that_is_down_and_routes_that_converge(self):
        job = self.job(4)
        job.ranks[0].wait_for_calls(3)
        self.net.link_down(0, 1)
        self.net.converge({(0, 1)})
        self.expect_all_go_on(job, "link down, routes converged")
        self.stop(job)

    def test_a_black_hole_that_nobody_is_told_of(self):
        self.expect_no_error("black hole", lambda: self.net.blackhole(0, 1))

    def test_a_link_at_a_tenth_of_its_rate(self):
        self.expect_no_error("a tenth of the rate", lambda: self.net.set_rate(0, 1, 10))

    @unittest.skipUnless(shutil.which("nft"), "nft (nftables) is missing")
    def test_a_link_that_loses_packets(self):
        self.expect_no_error("1% lost", lambda: self.net.lose(0, 1, 10))

    def test_connections_between_two_hosts_are_reset(self):
        self.expect_no_error(
            "connections of a pair reset", lambda: self.reset(0, self.net.address(1))
        )

    def test_all_connections_of_a_host_are_reset(self):
        self.expect_no_error("connections of a host reset", lambda: self.reset(2))
