"""Property: whatever happens to the coordinator, to the ways to it, to clocks and to ranks, and
whatever a rank says of its step, a job of examples/replicas comes to its end: all replicas equal
bit by bit, each batch trained once. Method: seeded runs with real processes; members reach a real
ftccld over two relays, half of them each. Faults: ftccld is killed and started again, or stopped,
or its host is suspended, so that its monotonic clock stands; a relay is cut or swallows everything;
a rank is killed and started again, or is slow, or says that it is ahead of what it has, or behind;
the calendar clock of a process jumps by hours; strangers connect who say nothing, or nonsense.

member_faults.py [RUNS [SEED]]; FT_SEED repeats the first run. Clocks and lies need liar.so.
"""

import mmap
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

RUN_S = 180  # of one run, far more than it takes; ranks are more patient, so they heal no hang
LIAR = os.path.abspath("tests/proc/.libs/liar.so")
MOST_JUMP_S = 48 * 3600


def start(words, env, out):
    """A process that ends with this one."""
    return subprocess.Popen(words, env=env, stdout=out, stderr=subprocess.STDOUT)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def can_lie():
    return os.path.exists(LIAR) and not os.environ.get("FT_SANITIZER")


class Lies:
    """What liar.so makes of the clocks and the step of one process; the file that it reads."""

    def __init__(self, folder, name):
        self.path = os.path.join(folder, name + ".lies")
        with open(self.path, "w+b") as file:
            file.write(bytes(24))
            file.flush()
            self.map = mmap.mmap(file.fileno(), 24)
        self.numbers = memoryview(self.map).cast("q")  # calendar_s, stopped_ns, steps

    def environment(self):
        return {"LD_PRELOAD": LIAR, "FT_LIES": self.path} if can_lie() else {}


class Relay(threading.Thread):
    """Carries bytes between members and the coordinator."""

    def __init__(self, to):
        super().__init__(daemon=True)
        self.to = to
        self.frozen = self.over = self.cut = False
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.other = {}  # of each socket of a pair
        self.start()

    def run(self):
        while not self.over:
            if self.cut:
                self.cut = False
                for s in list(self.other):
                    self.end(s)
            if self.frozen:
                time.sleep(0.01)
                continue
            ready, _, _ = select.select([self.listener, *self.other], [], [], 0.02)
            for s in ready:
                if s is self.listener:
                    self.accept()
                elif s in self.other:
                    self.carry(s)

    def accept(self):
        member, _ = self.listener.accept()
        try:
            coordinator = socket.create_connection(self.to, timeout=1)
        except OSError:
            member.close()
            return
        coordinator.settimeout(None)
        self.other[member] = coordinator
        self.other[coordinator] = member

    def carry(self, s):
        try:
            data = s.recv(65536)
            if data:
                self.other[s].sendall(data)
                return
        except OSError:
            pass
        self.end(s)

    def end(self, s):
        other = self.other.pop(s, None)
        self.other.pop(other, None)
        for each in (s, other):
            if each:
                each.close()


def suspend(process):
    """Returns when."""
    process.send_signal(signal.SIGSTOP)
    return time.monotonic_ns()


def go_on(process, lies, stopped_ns):
    lies.numbers[1] += time.monotonic_ns() - stopped_ns
    process.send_signal(signal.SIGCONT)


class Job:
    """One run: ftccld, two relays, the ranks."""

    def __init__(self, seed, folder):
        self.random = random.Random(seed)
        self.folder = folder
        self.local = self.random.randint(1, 2)
        self.replicas = self.random.randint(2, 3)
        self.steps = self.random.randint(200, 500)
        self.key = os.path.join(folder, "key")
        with open(os.open(self.key, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write("the key of members among faults\n")
        self.port = free_port()
        self.faults = []
        self.strangers = []
        self.lies_of_daemon = Lies(folder, "ftccld")
        self.daemon = None
        self.start_daemon()
        self.relays = [Relay(("127.0.0.1", self.port)) for _ in range(2)]
        self.size = self.local * self.replicas
        self.restarts = [0] * self.size
        self.lies = [Lies(folder, "rank%d" % i) for i in range(self.size)]
        self.ranks = [self.start_rank(i) for i in range(self.size)]

    def start_daemon(self):
        log = open(os.path.join(self.folder, "ftccld"), "a")
        self.daemon = start(["./tools/ftccld", "--listen", "127.0.0.1:%d" % self.port, "--key-file",
                             self.key], dict(os.environ, **self.lies_of_daemon.environment()), log)

    def start_rank(self, i):
        env = dict(os.environ, RANK=str(i), WORLD_SIZE=str(self.size), FTCCL_STANDBY="0",
                   FTCCL_RESTART=str(self.restarts[i]), FTCCL_SECRET_FILE=self.key,
                   FTCCL_COORDINATOR=self.relays[i // self.local % 2].address,
                   **self.lies[i].environment())
        log = open(os.path.join(self.folder, "rank%d.%d" % (i, self.restarts[i])), "w")
        return start(["./examples/replicas", "-r", str(self.local), "-s", str(self.steps), "-p",
                      "10", "-w", "100", "--timeout", "1000", "--patience", "2000"], env, log)

    # ---- faults: each returns what to do when it is over, and after how long

    def kill_coordinator(self):
        self.daemon.kill()
        self.daemon.wait()
        return self.start_daemon, self.random.uniform(0, 1.5)

    def stop_coordinator(self):
        self.daemon.send_signal(signal.SIGSTOP)
        daemon = self.daemon
        return lambda: daemon.send_signal(signal.SIGCONT), self.random.uniform(0.1, 3)

    def suspend_coordinator(self):
        stopped_ns = suspend(self.daemon)
        daemon = self.daemon

        def resume():
            go_on(daemon, self.lies_of_daemon, stopped_ns)
        return resume, self.random.uniform(0.1, 3)

    def jump_clock(self):
        lies = self.random.choice([self.lies_of_daemon, *self.lies])
        lies.numbers[0] = self.random.randint(-MOST_JUMP_S, MOST_JUMP_S)
        return lambda: None, self.random.uniform(0, 0.3)

    def lie(self):
        lies = self.random.choice(self.lies)
        lies.numbers[2] = self.random.choice([-1000, -3, -1, 1, 2, 1000])

        def say_the_truth():
            lies.numbers[2] = 0
        return say_the_truth, self.random.uniform(0.05, 1)

    def cut_relay(self):
        self.random.choice(self.relays).cut = True
        return lambda: None, 0

    def freeze_relay(self):
        relay = self.random.choice(self.relays)
        relay.frozen = True

        def go_on():
            relay.frozen = False
        return go_on, self.random.uniform(0.1, 4)

    def kill_rank(self):
        running = [i for i in range(self.size) if self.ranks[i].poll() is None]
        if not running:
            return lambda: None, 0
        i = self.random.choice(running)
        self.ranks[i].kill()
        self.ranks[i].wait()

        def again():
            self.restarts[i] += 1
            self.ranks[i] = self.start_rank(i)
        return again, self.random.uniform(0, 0.5)

    def slow_rank(self):
        rank = self.ranks[self.random.randrange(self.size)]
        if rank.poll() is None:
            rank.send_signal(signal.SIGSTOP)
        return lambda: rank.poll() is None and rank.send_signal(signal.SIGCONT), \
            self.random.uniform(0.05, 1.2)

    def crowd(self):
        for _ in range(40):
            try:
                s = socket.create_connection(("127.0.0.1", self.port), timeout=1)
                s.setblocking(False)
                if self.random.random() < 0.5:
                    s.send(self.random.randbytes(self.random.randint(1, 200)))
                self.strangers.append(s)
            except OSError:
                break  # ftccld is not there, or stopped
        return lambda: None, 0

    def do_faults(self):
        """One after another, for as long as the job may still run."""
        kinds = [self.kill_coordinator, self.stop_coordinator, self.cut_relay, self.freeze_relay,
                 self.kill_rank, self.slow_rank, self.crowd, self.suspend_coordinator,
                 self.jump_clock, self.lie]
        for _ in range(self.random.randint(2, 6)):
            time.sleep(self.random.uniform(0, 0.6))
            fault = self.random.choice(kinds)
            self.faults.append(fault.__name__)
            end, after = fault()
            time.sleep(after)
            end()

    # ---- the end

    def wait(self):
        until = time.monotonic() + RUN_S
        for i in range(self.size):
            try:
                if self.ranks[i].wait(max(0.1, until - time.monotonic())) != 0:
                    return "rank %d ended with %d" % (i, self.ranks[i].returncode)
            except subprocess.TimeoutExpired:
                return "rank %d did not end" % i
        return self.judge()

    def judge(self):
        """What is wrong with what the ranks say; None: nothing."""
        said = {"end": {}, "parameters": {}, "trained": {}}
        for i in range(self.size):
            with open(os.path.join(self.folder, "rank%d.%d" % (i, self.restarts[i]))) as file:
                for words in map(str.split, file):
                    if words and words[0] in said:
                        said[words[0]][words[1], int(words[2])] = words[3:]
        if any(len(roles) != self.size for roles in said.values()):
            return "not all roles came to the end"
        trained = set(map(tuple, said["trained"].values()))
        if len(trained) != 1 or len(trained.pop()) != self.steps:
            return "ranks have trained different batches"
        for local in range(self.local):
            of = [tuple(p) for role, p in said["parameters"].items() if role[1] == local]
            if len(set(of)) != 1:
                return "parameters of local rank %d differ" % local
        return None

    def close(self):
        for process in [self.daemon, *self.ranks]:
            if process.poll() is None:
                process.kill()
                process.wait()
        for relay in self.relays:
            relay.over = True
        for s in self.strangers:
            s.close()


def show(folder):
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if not entry.is_file() or entry.name.endswith(".lies"):
            continue
        with open(entry.path, errors="replace") as file:
            print("==", entry.name)
            print("".join(line[:200].rstrip() + "\n" for line in file.readlines()[-40:]), end="")


def run(seed):
    with tempfile.TemporaryDirectory(prefix="ft-faults-") as folder:
        job = Job(seed, folder)
        try:
            job.do_faults()
            wrong = job.wait()
        finally:
            job.close()
        if wrong:
            print("FAIL: %s; %d replicas of %d, %d steps; %s" %
                  (wrong, job.replicas, job.local, job.steps, " ".join(job.faults)))
            print("replay: FT_SEED=%d tests/proc/member_faults_test.sh 1" % seed)
            show(folder)
        return len(job.faults), wrong


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else int(os.environ.get("FT_FAULTS_RUNS", "3"))
    seed = int(os.environ.get("FT_SEED") or
               (sys.argv[2] if len(sys.argv) > 2 else random.randrange(1 << 31)))
    print("seed %d; replay: FT_SEED=%d tests/proc/member_faults_test.sh %d" % (seed, seed, runs),
          flush=True)
    faults = failed = 0
    for i in range(runs):
        n, wrong = run(seed + i)
        faults += n
        failed += wrong is not None
    print("%d runs, %d faults, %d failed" % (runs, faults, failed))
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
