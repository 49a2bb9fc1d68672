#!/usr/bin/env python3
"""Measures whether replicas wait for one that fetches the state.

usage: member_catch_up.py [--build DIR] [--replicas 3] [--rounds 15] [--states 1,64]
                          [--pause 500] [--compute 0] [--steps 4]
examples/replicas runs with one rank a replica. In each round, one after another: all replicas
compute; a standby waits beside them; the standby is gone, a replica is killed, and the others go
on; it is started again, and fetches the state in its first step. The steps of the replicas that
have the state are sorted by which of these it was. They are compared with those in which all
compute, without a standby; but a replica that fetches computes nothing, so the steps meanwhile are
compared with those in which it is away. A step is all from the end of a commit to the end of the
next one; that which fails because of the kill is left out.

A gradient takes --pause ms of sleep (a GPU computes, the processor has nothing to do) and
--compute ms of processor time. Where all replicas share few cores, the latter is slowed down by
whatever the fetch and the server of the state need of them.
"""

import argparse
import collections
import os
import queue
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True
from measuring.streams import ended  # noqa: E402

BOUND_S = 120  # of one step, far more than it takes
KINDS = ["all compute", "a standby waits", "one is away", "one fetches", "after the fetch"]

# What a rank tells of a step. ms: the view, the work, the commit. sound: how many have the state.
Step = collections.namedtuple("Step", "replica epoch step replicas sound index ms")


def parsed(line):
    """The step of a line of examples/replicas --times; None: it is another line."""
    words = line.split()
    if len(words) != 17 or words[0] != "step":
        return None
    numbers = [int(words[i]) for i in (4, 6, 8, 10, 12)]
    return Step(words[1], *numbers, ms=[float(word) for word in words[14:]])


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Job:
    """ftccld and the replicas; the steps that they tell come in a queue."""

    def __init__(self, o, state, folder):
        self.o, self.state = o, state
        self.steps = queue.Queue()
        self.last = {}  # of each replica: its last step
        key = os.path.join(folder, "key")
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write("the key of a measurement\n")
        address = "127.0.0.1:%d" % free_port()
        self.environment = dict(
            os.environ, FTCCL_COORDINATOR=address, FTCCL_SECRET_FILE=key, WORLD_SIZE=str(o.replicas)
        )
        self.daemon = subprocess.Popen(
            [os.path.join(o.build, "tools", "ftccld"), "--listen", address, "--key-file", key],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.ranks = {i: self.start(i) for i in range(o.replicas)}

    def start(self, i, standby=0):
        words = [os.path.join(self.o.build, "examples", "replicas"), "--times", "--quiet"]
        words += ["--steps", "100000", "--pause", str(self.o.pause), "--state", str(self.state)]
        words += ["--compute", str(self.o.compute), "--patience", str(BOUND_S)]
        process = subprocess.Popen(
            words,
            env=dict(self.environment, RANK=str(i), FTCCL_STANDBY=str(standby)),
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self.read, args=(process.stdout,), daemon=True).start()
        return process

    def read(self, pipe):
        for step in filter(None, map(parsed, pipe)):
            self.steps.put(step)

    def taken(self, count, is_wanted=lambda step: True):
        """Steps in order, until replica 0 has made `count` wanted ones. With each step: whether it
        is in the view of the step before."""
        while count > 0:
            step = self.steps.get(timeout=BOUND_S)
            before = self.last.get(step.replica)
            self.last[step.replica] = step
            count -= step.replica == "replica0" and is_wanted(step)
            yield step, before is not None and before.epoch == step.epoch

    def end(self, process):
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self):
        for process in [self.daemon, *self.ranks.values()]:
            self.end(process)


class Times:
    """The times of the steps of each kind, of the replicas that have the state."""

    def __init__(self):
        self.of = {kind: [] for kind in KINDS}

    def take(self, kind, steps, replicas, sound):
        """All steps of one phase. Those in another view, or the first in one, belong to what
        happened before it; but the view in which one fetches is always new."""
        for step, same_view in steps:
            fits = step.index >= 0 and step.replicas == replicas and step.sound == sound
            if fits and (same_view or sound < replicas):
                self.of[kind].append(step.ms)


def do_round(job, times, victim):
    o, all_of_them = job.o, job.o.replicas

    def is_whole(step):
        return step.replicas == step.sound == all_of_them

    times.take("all compute", job.taken(o.steps, is_whole), all_of_them, all_of_them)
    standby = job.start(all_of_them, standby=1)
    for _ in job.taken(1):  # it comes in this step
        pass
    times.take("a standby waits", job.taken(o.steps), all_of_them, all_of_them)
    job.end(standby)
    job.end(job.ranks[victim])
    for _ in job.taken(1, lambda step: step.replicas < all_of_them):  # the first after the kill
        pass
    away = all_of_them - 1
    times.take("one is away", job.taken(o.steps), away, away)
    job.ranks[victim] = job.start(victim)
    # Until the first step in which all have the state: what was before it were fetches.
    steps = list(job.taken(1, is_whole))
    times.take("one fetches", steps, all_of_them, away)
    times.take("after the fetch", steps, all_of_them, all_of_them)


def ninth_tenth(values):
    return sorted(values)[(len(values) * 9 + 9) // 10 - 1]


def compared(value, base):
    return "%7.1f %+6.1f%%" % (value, 100 * (value / base - 1))


def lines(o, state, times):
    sums = {kind: [sum(ms) for ms in steps] for kind, steps in times.of.items()}
    yield "\nstate %d MB, %d replicas; a gradient: %d ms of sleep, %d ms of processor time" % (
        state,
        o.replicas,
        o.pause,
        o.compute,
    )
    parts = "view, work, commit (medians)"
    yield "%-16s %5s %15s %15s   %s" % ("ms", "steps", "median", "P90", parts)
    for kind in KINDS:
        base = sums["one is away" if kind == "one fetches" else "all compute"]
        if not sums[kind] or not base:
            continue
        yield "%-16s %5d %15s %15s   %s" % (
            kind,
            len(sums[kind]),
            compared(statistics.median(sums[kind]), statistics.median(base)),
            compared(ninth_tenth(sums[kind]), ninth_tenth(base)),
            " ".join("%.1f" % statistics.median(part) for part in zip(*times.of[kind])),
        )


def measure(o, state):
    times = Times()
    with tempfile.TemporaryDirectory(prefix="ft-catch-up-") as folder:
        job = Job(o, state, folder)
        try:
            for _ in job.taken(2, lambda step: step.sound == o.replicas):
                pass
            for i in range(o.rounds):
                do_round(job, times, 1 + i % (o.replicas - 1))
        finally:
            job.close()
    return times


def options():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--build", default=os.path.join(HERE, "..", "build"))
    p.add_argument("--replicas", type=int, default=3)
    p.add_argument("--rounds", type=int, default=15)
    p.add_argument("--steps", type=int, default=4, help="in each part of a round")
    p.add_argument("--states", default="1,64", help="MB, separated by commas")
    p.add_argument("--pause", type=int, default=500, help="of a gradient, ms")
    p.add_argument("--compute", type=int, default=0, help="of a gradient, ms of processor time")
    return p.parse_args()


def main():
    o = options()
    for state in map(int, o.states.split(",")):
        for text in lines(o, state, measure(o, state)):
            print(text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(ended(main))
