#!/usr/bin/env python3
"""Simulates a long training with failures, and prints which share of its time makes progress.

usage: effective_time.py [--detect S] [--view S] [--standby S] ... [--seed N]
The first table repeats the figures of FT-HSDP (sections 1 and 6.1: 44% when every failure stops all
GPUs, 80% when the other replicas go on) from its parameters. The last ones have the given figures
in their place: how long until a failure is known, until there is a view without the dead, and until
a standby has the vacant role. Each line has the prediction of a formula, which knows one failure at
a time where replicas fail alone, beside the simulation, in which failures may fall into the
recovery from others.

The model: `replicas` train a step together; a step of `step` seconds ends with a collective across
them. A failure, once in `interval` seconds on average somewhere in the job, strikes one replica.
The others come to their collective and wait until the failure is known; a view without that replica
takes `view` seconds; then they go on. The step in which it happened is trained again (--keep-step:
they only repeat the collective). The replica is repaired `repair` seconds after its failure. It is
taken in when a step begins, and makes that step `join` seconds longer. Progress counts per replica:
1 means all replicas train all the time.
"""

import argparse
import collections
import heapq
import math
import os
import random
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True
from measuring.streams import ended  # noqa: E402

# All times in seconds. detect_from: a heartbeat or the end of a connection tells of a failure
# `detect` after it ("failure"); the timeout of a collective, after others began to wait ("wait").
Job = collections.namedtuple(
    "Job", "replicas interval step detect detect_from view keep_step repair join"
)
# FT-HSDP with its two fixes (6.1): 60 s timeout, "a few seconds" for the new collective, the step
# again; 10 minutes until a replica is repaired, of which its first step takes the last 100 s.
PAPER = Job(12, 1080, 20, 60, "wait", 5, False, 500, 100)
DAY_S = 86400
PAPER_RECOVERY_S = 600  # of a job whose failures stop all


# ---- simulation ----------------------------------------------------------------------------------


class Failures:
    """When failures happen, in order: `interval` apart, or at random with that mean."""

    def __init__(self, interval, at_random, seed):
        self.random = random.Random(seed)
        self.interval, self.at_random, self.last_s = interval, at_random, 0

    def next_s(self):
        if self.at_random:
            self.last_s += self.random.expovariate(1 / self.interval)
        else:
            self.last_s += self.interval
        return self.last_s


def synchronous(recovery, failures, horizon):
    """The share of progress if each failure stops everything for `recovery`. A failure during a
    recovery begins it again."""
    useful = resumed = 0
    failed = failures.next_s()
    while failed < horizon:
        useful += max(0, failed - resumed)
        resumed = max(resumed, failed + recovery)
        failed = failures.next_s()
    return (useful + max(0, horizon - resumed)) / horizon


class Training:
    """A job whose replicas fail and come back one by one."""

    def __init__(self, job, failures):
        self.job, self.failures = job, failures
        self.members = set(range(job.replicas))
        self.ready = set()
        self.repaired_s = {}  # of replicas that are being repaired
        self.events = [(failures.next_s(), None)]  # a failure, or the replica that is repaired
        self.now = self.useful = 0

    def events_until(self, end):
        """Lets everything happen until `end`. Returns when members of the view failed."""
        failed = []
        while self.events[0][0] <= end:
            at, replica = heapq.heappop(self.events)
            if replica is None:
                heapq.heappush(self.events, (self.failures.next_s(), None))
                if self.fail(at):
                    failed.append(at)
            elif self.repaired_s.get(replica) == at:
                del self.repaired_s[replica]
                self.ready.add(replica)
        return failed

    def fail(self, at):
        """A replica fails. Returns whether it was in the view. One that is being repaired has to
        be repaired from the beginning."""
        victim = self.failures.random.randrange(self.job.replicas)
        was_member = victim in self.members
        self.members.discard(victim)
        self.ready.discard(victim)
        self.repaired_s[victim] = at + self.job.repair
        heapq.heappush(self.events, (self.repaired_s[victim], victim))
        return was_member

    def resumes(self, end):
        """When the survivors go on that came to the end of their step at `end`."""
        job, known = self.job, end
        if job.detect_from == "wait":
            known = end + job.detect
        while True:
            failed = self.events_until(known + job.view)
            late = [at for at in failed if job.detect_from == "failure" or at > known]
            if not late:
                return known + job.view
            known = max(known, late[-1] + job.detect)

    def step(self):
        job = self.job
        if not self.members and not self.ready:  # all are being repaired
            at = self.events[0][0]
            self.events_until(at)
            self.now = max(self.now, at)
            return
        joins = job.join if self.ready else 0
        self.members |= self.ready
        self.ready = set()
        end = self.now + joins + job.step
        failed = self.events_until(end)
        if not failed:
            self.useful += job.step * len(self.members)
            self.now = end
            return
        if job.detect_from == "failure":
            end = max(end, failed[-1] + job.detect)
        self.now = self.resumes(end)
        if job.keep_step:
            self.useful += job.step * len(self.members)


def fault_tolerant(job, failures, horizon):
    training = Training(job, failures)
    while training.now < horizon:
        training.step()
    return training.useful / (job.replicas * training.now)


# ---- prediction ----------------------------------------------------------------------------------


def stall_at_failure(job):
    """Mean time without progress of the survivors, if failures fall evenly into a step."""
    if job.detect_from == "wait":
        waited = job.step + job.detect
    elif job.detect >= job.step:
        waited = job.step / 2 + job.detect
    else:
        waited = job.step + job.detect**2 / (2 * job.step)
    return waited + job.view - (job.step if job.keep_step else 0)


def predicted(job):
    """One failure in each interval: all stand still when it fails and when it joins, and one
    replica is missing between. It joins half a step late in the mean."""
    stall = stall_at_failure(job)
    missing = max(0, job.repair + job.step / 2 - stall)
    return 1 - (stall + job.join + missing / job.replicas) / job.interval


def predicted_synchronous(interval, recovery, at_random):
    """It makes progress when the last failure is longer ago than a recovery takes."""
    return math.exp(-recovery / interval) if at_random else 1 - recovery / interval


# ---- text ----------------------------------------------------------------------------------------


def simulated(run, o):
    """Mean over seeds, in percent."""
    return 100 * statistics.mean(run(seed) for seed in range(o.seed, o.seed + o.runs))


def job_line(name, job, at_random, o, paper=""):
    def run(seed):
        return fault_tolerant(job, Failures(job.interval, at_random, seed), o.days * DAY_S)

    stall = stall_at_failure(job) + job.join
    return line(name, at_random, stall, 100 * predicted(job), simulated(run, o), paper)


def synchronous_line(at_random, o, paper=""):
    def run(seed):
        failures = Failures(o.interval, at_random, seed)
        return synchronous(PAPER_RECOVERY_S, failures, o.days * DAY_S)

    expected = 100 * predicted_synchronous(o.interval, PAPER_RECOVERY_S, at_random)
    share = simulated(run, o)
    return line("every failure stops all", at_random, PAPER_RECOVERY_S, expected, share, paper)


def line(name, at_random, stall, expected, share, paper=""):
    return "%-44s %-8s %8.1f %9.1f%% %9.1f%% %6s" % (
        name,
        "random" if at_random else "regular",
        stall,
        expected,
        share,
        paper,
    )


def head(title):
    return "%s\n%-44s %-8s %8s %10s %10s %6s" % (
        title,
        "",
        "failures",
        "stall s",
        "predicted",
        "simulated",
        "paper",
    )


def paper_lines(o):
    job = PAPER._replace(interval=o.interval)
    yield head("FT-HSDP: a failure every %g minutes, %d replicas" % (o.interval / 60, job.replicas))
    yield synchronous_line(False, o, "44%")
    yield job_line("the other replicas go on", job, False, o, "80%")
    yield synchronous_line(True, o)
    yield job_line("the other replicas go on", job, True, o)


def our_lines(o):
    ours = PAPER._replace(
        replicas=o.replicas,
        interval=o.interval,
        step=o.step,
        detect=o.detect,
        detect_from="failure",
        view=o.view,
        keep_step=o.keep_step,
        repair=o.standby + o.load,
        join=o.join,
    )
    yield head(
        "Given figures: known after %g s (silent host: %g s), view %g s, standby %g s"
        % (o.detect, o.silent, o.view, o.standby)
    )
    yield job_line("a process ends", ours, True, o)
    yield job_line("a host falls silent", ours._replace(detect=o.silent), True, o)
    kept = ours._replace(keep_step=True)
    yield job_line("a process ends, the step is kept", kept, True, o)
    yield job_line("a host falls silent, the step is kept", kept._replace(detect=o.silent), True, o)
    no_join = kept._replace(join=0)
    yield job_line("the same process, and joining stalls nobody", no_join, True, o)
    yield ""
    yield head("What remains: the application's own times (process ends, the step is kept)")
    for load in (600, 300, 60):
        for join in (100, 20, 0):
            job = kept._replace(repair=o.standby + load, join=join)
            yield job_line("loading %d s, first step %d s longer" % (load, join), job, True, o)


def options():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--replicas", type=int, default=PAPER.replicas)
    p.add_argument("--interval", type=float, default=PAPER.interval, help="between failures, s")
    p.add_argument("--step", type=float, default=PAPER.step, help="of the training, s")
    p.add_argument(
        "--detect", type=float, default=0.1, help="until the end of a process is known, s"
    )
    p.add_argument("--silent", type=float, default=5, help="until a silent host counts as gone, s")
    p.add_argument("--view", type=float, default=0.2, help="until there is a new view, s")
    p.add_argument("--standby", type=float, default=1, help="until a standby has the role, s")
    p.add_argument(
        "--load", type=float, default=PAPER.repair, help="what the application needs then, s"
    )
    p.add_argument("--join", type=float, default=PAPER.join, help="its first step takes longer, s")
    p.add_argument("--keep-step", action="store_true", help="the step is not trained again")
    p.add_argument("--days", type=float, default=30, help="of training in a run")
    p.add_argument("--runs", type=int, default=5, help="of which the mean is printed")
    p.add_argument("--seed", type=int, default=1, help="of the first run")
    return p.parse_args()


def main():
    o = options()
    for text in paper_lines(o):
        print(text)
    print()
    for text in our_lines(o):
        print(text)
    print("\nseeds %d to %d, %g days each" % (o.seed, o.seed + o.runs - 1, o.days))
    return 0


if __name__ == "__main__":
    sys.exit(ended(main))
