"""Properties: 1. calendar clocks that jump by hours, in ranks and in ftccld, change no view and no
leader. 2. While a host is suspended its monotonic clock stands, and a lease does not: a leader that
comes back after longer than its lease, and cannot reach etcd, serves nobody. Method: real ftccld
with a real etcd, real ranks of examples/replicas, and clocks by liar.so. Leases and bounds of 1 are
far longer than the run, so that a slow machine changes nothing.

member_clocks.py; FT_SEED repeats a run.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

from member_faults import (LIAR, MOST_JUMP_S, RUN_S, Lies, Relay, can_lie, free_port, go_on, show,
                           start, suspend)

REPLICAS = 3
KEY = "the key of members whose clocks jump\n"


class Cluster:
    """etcd, two ftccld, of which the first reaches it over a relay and leads, and later ranks."""

    def __init__(self, folder, lease_s):
        self.folder = folder
        self.key = os.path.join(folder, "key")
        with open(os.open(self.key, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(KEY)
        self.processes = [self.start_etcd()]
        self.lies, self.addresses = [], []
        self.relay = Relay(("127.0.0.1", self.port))
        self.start_daemon("ftccld0", self.relay.address, lease_s)
        self.await_leader(0)
        self.start_daemon("ftccld1", "127.0.0.1:%d" % self.port, lease_s)

    def start(self, words, name, env):
        log = open(os.path.join(self.folder, name), "w")
        self.processes.append(start(words, dict(os.environ, **env), log))

    def start_etcd(self):
        self.port = free_port()
        client, peer = ("http://127.0.0.1:%d" % port for port in (self.port, free_port()))
        log = open(os.path.join(self.folder, "etcd"), "w")
        return start(["etcd", "--data-dir", os.path.join(self.folder, "data"), "--name", "x",
                      "--listen-client-urls", client, "--advertise-client-urls", client,
                      "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                      "--initial-cluster", "x=" + peer], dict(os.environ), log)

    def start_daemon(self, name, etcd, lease_s):
        address = "127.0.0.1:%d" % free_port()
        lies = Lies(self.folder, name)
        self.start(["./tools/ftccld", "--listen", address, "--key-file", self.key, "--advertise",
                    address, "--store", "etcd://" + etcd, "--lease", str(lease_s)], name,
                   lies.environment())
        self.addresses.append(address)
        self.lies.append(lies)

    def start_rank(self, i):
        lies = Lies(self.folder, "rank%d" % i)
        self.lies.append(lies)
        self.start(["./examples/replicas", "-s", "400", "-p", "10", "-w", "100", "--window",
                    "60000", "--timeout", "60"], "rank%d" % i,
                   dict(lies.environment(), RANK=str(i), WORLD_SIZE=str(REPLICAS),
                        FTCCL_SECRET_FILE=self.key, FTCCL_SUSPECT_MS="60000",
                        FTCCL_COORDINATOR=",".join(self.addresses)))

    def leads(self, i):
        """As its page says, which is of some moments ago. None: it does not answer."""
        url = "http://%s/status?format=json" % self.addresses[i]
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return json.load(answer)["members"]["leads"]
        except OSError:
            return None

    def await_leader(self, i):
        until = time.monotonic() + RUN_S
        while not self.leads(i):
            if time.monotonic() > until:
                raise TimeoutError("ftccld%d does not lead" % i)
            time.sleep(0.02)

    def sentence_for_member(self, i):
        """Why a rank that knows this ftccld alone cannot join."""
        env = dict(os.environ, RANK="0", WORLD_SIZE="1", FTCCL_SECRET_FILE=self.key,
                   FTCCL_COORDINATOR=self.addresses[i])
        words = ["./examples/replicas", "-s", "1", "--timeout", "2"]
        return subprocess.run(words, env=env, capture_output=True, text=True, check=False).stderr

    def epochs(self):
        """The last epoch that each rank has told, and of how many replicas."""
        last = []
        for i in range(REPLICAS):
            with open(os.path.join(self.folder, "rank%d" % i)) as file:
                words = [line.replace(",", "").split() for line in file if " replicas, " in line]
            last.append((words[-1][4], words[-1][7]) if words else ("0", "0"))
        return last

    def await_all(self):
        """Until all ranks are in one view. False: it took too long."""
        until = time.monotonic() + RUN_S
        while time.monotonic() < until:
            told = self.epochs()
            if len(set(told)) == 1 and told[0][1] == str(REPLICAS):
                return True
            time.sleep(0.01)
        return False

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
        self.relay.over = True


def calendars_jump(folder, dice):
    """What is wrong; None: nothing."""
    cluster = Cluster(folder, lease_s=60)
    try:
        for i in range(REPLICAS):
            cluster.start_rank(i)
        if not cluster.await_all():
            return "no view of all replicas"
        before = cluster.epochs()
        until = time.monotonic() + RUN_S
        ranks = cluster.processes[-REPLICAS:]
        while any(rank.poll() is None for rank in ranks):
            dice.choice(cluster.lies).numbers[0] = dice.randint(-MOST_JUMP_S, MOST_JUMP_S)
            time.sleep(0.02)
            if time.monotonic() > until:
                return "the ranks do not end"
        if any(rank.returncode for rank in ranks):
            return "ranks ended with %s" % [rank.returncode for rank in ranks]
        if cluster.epochs() != before:
            return "views were %s, and are %s" % (before, cluster.epochs())
        return None if cluster.leads(0) and not cluster.leads(1) else "the leader has changed"
    finally:
        cluster.close()


def leader_is_suspended(folder, _):
    cluster = Cluster(folder, lease_s=5)
    try:
        cluster.relay.frozen = True
        process, lies = cluster.processes[1], cluster.lies[0]
        stopped_ns = suspend(process)
        cluster.await_leader(1)
        go_on(process, lies, stopped_ns)
        sentence = cluster.sentence_for_member(0)
        return None if "lead" in sentence else "it serves a member, who says: '%s'" % sentence
    finally:
        cluster.close()


def main():
    if not can_lie():
        print("SKIP: there is no %s, or it cannot be preloaded" % LIAR)
        return 77
    if not shutil.which("etcd"):
        print("SKIP: etcd (Debian's etcd-server) is not installed")
        return 77
    seed = int(os.environ.get("FT_SEED") or random.randrange(1 << 31))
    for what in (calendars_jump, leader_is_suspended):
        with tempfile.TemporaryDirectory(prefix="ft-clocks-") as folder:
            wrong = what(folder, random.Random(seed))
            print("%s, seed %d: %s" % (what.__name__, seed, wrong or "passed"), flush=True)
            if wrong:
                show(folder)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
