"""Properties of the rig itself: a flow takes the same spine each time, as the kernel predicts;
each fault does what it is for, and ends; nothing is left afterwards."""

import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

import fabric

PORT = 5000
SINK = """
import socket, sys
s = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
while True:
    c, _ = s.accept()
    while c.recv(1 << 16):
        pass
    c.close()
"""
SEND = """
import socket, sys, time
source, to = sys.argv[1], sys.argv[3]
port, to_port, size = (int(sys.argv[i]) for i in (2, 4, 5))
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.settimeout(2)
s.bind((source, port))
try:
    s.connect((to, to_port))
except socket.timeout:
    sys.exit("silence")
begun = time.monotonic()
s.settimeout(30)
s.sendall(bytes(size))
s.shutdown(socket.SHUT_WR)
s.recv(1)
print(time.monotonic() - begun)
"""
DATAGRAMS = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(400):
    s.sendto(bytes(1000), (sys.argv[1], 9))
"""


class Rig(unittest.TestCase):
    def setUp(self):
        self.sinks = []
        self.make()

    def make(self, **shape):
        self.net = fabric.Fabric(**{**dict(hosts=4, leaves=2, spines=4, rate=100), **shape})
        self.net.up()
        self.source, self.to = self.net.address(0), self.net.address(self.net.hosts - 1)
        self.start_sink(self.to)

    def start_sink(self, address):
        host = f"h{self.net.hosts - 1}"
        words = ["ip", "netns", "exec", host, sys.executable, "-c", SINK, address, str(PORT)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.sinks.append(process)
        self.assertEqual(process.stdout.readline(), "listening\n")

    def tearDown(self):
        for process in self.sinks:
            process.kill()
            process.wait()
            process.stdout.close()

    def spine_of(self, port):
        return self.net.spines_of(0, [(self.source, self.to, port, PORT)])[0]

    def port_of(self, spine):
        return next(port for port in range(40000, 41000) if self.spine_of(port) == spine)

    def send(self, port, size=1):
        """Returns the seconds that it took, or None: silence."""
        words = [sys.executable, "-c", SEND, self.source, str(port), self.to, str(PORT), str(size)]
        done = subprocess.run(
            ["ip", "netns", "exec", "h0", *words], capture_output=True, text=True, timeout=60
        )
        if done.returncode and done.stderr.strip() == "silence":
            return None
        self.assertEqual(done.returncode, 0, done.stderr)
        return float(done.stdout)

    def taken(self, port, size=50000):
        """The spine whose bytes say that it carried them."""
        before = self.net.link_bytes()
        self.assertIsNotNone(self.send(port, size))
        carried = self.net.spine_bytes(before)
        self.assertEqual([n > size for n in carried].count(True), 1, carried)
        return max(range(len(carried)), key=carried.__getitem__)

    def test_flows_take_the_spine_that_the_kernel_predicts(self):
        for port in range(42000, 42012):
            self.assertEqual(self.taken(port), self.spine_of(port), port)

    def test_a_port_takes_the_same_spine_100_times_of_100(self):
        spine = self.spine_of(43000)
        words = [self.source, self.to, 43000, PORT]
        self.assertEqual(self.net.spines_of(0, [words] * 100), [spine] * 100)
        self.assertEqual([self.taken(43000) for _ in range(5)], [spine] * 5)

    def test_all_spines_are_used_and_the_answer_comes_back_by_the_same(self):
        ports = range(44000, 45000)
        there = self.net.spines_of(0, [(self.source, self.to, p, PORT) for p in ports])
        back = self.net.spines_of(1, [(self.to, self.source, PORT, p) for p in ports])
        self.assertEqual(sum(one != other for one, other in zip(there, back)), 0)
        for spine in range(4):
            self.assertTrue(150 < there.count(spine) < 350, there.count(spine))

    def test_a_black_hole_drops_in_silence_and_the_other_spines_do_not(self):
        self.net.blackhole(0, 2)
        self.assertIsNone(self.send(self.port_of(2)))
        self.assertIsNotNone(self.send(self.port_of(1)))
        self.net.heal(0, 2)
        self.assertEqual(self.taken(self.port_of(2)), 2)

    def test_rates_are_limited(self):
        # The upper bounds leave room for a busy machine.
        port, size = self.port_of(1), 2500000
        whole = min(self.send(port, size) for _ in range(3))
        self.assertTrue(0.18 < whole < 1, whole)  # 0.2 s at 100 Mbit/s
        self.net.set_rate(0, 1, 10)
        tenth = self.send(port, size)
        self.assertTrue(1.8 < tenth < 20, tenth)

    def test_links_of_hosts_may_have_another_rate(self):
        self.make(hosts=2, spines=2, rate=10, host_rate=40)
        shown = [
            fabric.command("tc", "-n", f"l{leaf}", "qdisc", "show", "dev", device)
            for leaf in range(2)
            for device in ("s0", f"h{leaf}")
        ]
        for text, rate in zip(shown, (10, 40, 10, 40)):
            self.assertIn(f"rate {rate}Mbit", text)

    def test_a_link_that_is_down_moves_flows_when_routes_converge(self):
        port = self.port_of(3)
        self.net.link_down(1, 3)  # the far leaf: this one does not know
        self.assertEqual(self.spine_of(port), 3)
        self.net.converge({(1, 3)})
        self.assertNotEqual(self.spine_of(port), 3)
        self.assertNotEqual(self.taken(port), 3)
        self.net.heal(1, 3)
        self.assertEqual(self.taken(port), 3)

    @unittest.skipUnless(shutil.which("nft"), "nft (nftables) is missing")
    def test_losses_are_as_many_as_asked_for(self):
        for permille, least, most in ((500, 140, 260), (0, 400, 405)):
            for spine in range(self.net.spines):
                self.net.lose(0, spine, permille)
            before = self.net.link_bytes()
            fabric.run_in("h0", sys.executable, "-c", DATAGRAMS, self.to)
            passed = self.sent_by_leaves(before)[0] / 1042  # with their headers
            self.assertTrue(least <= passed <= most, (permille, passed))

    def test_a_reset_is_known_to_both_ends(self):
        """A connection of a host to itself; the first end that breaks takes the other along."""
        words = [sys.executable, "-c", RESET, self.source]
        process = subprocess.Popen(
            ["ip", "netns", "exec", "h0", *words], stdin=-1, stdout=-1, text=True
        )
        self.assertEqual(process.stdout.readline(), "connected\n")
        self.assertGreater(self.net.reset(0, self.source), 0)
        said, _ = process.communicate(timeout=10)
        self.assertEqual(said, "broken\nbroken\n")

    def test_both_ports_of_bonded_hosts_and_their_common_address(self):
        self.tearDown()
        self.make(leaves=4, spines=2, bonded=True)
        for port in (0, 1):
            self.source = self.net.address(0, port)
            self.to = self.net.address(3, port)
            if port:
                self.start_sink(self.to)
            for source_port in range(46000, 46006):
                before = self.net.link_bytes()
                self.assertIsNotNone(self.send(source_port, 50000))
                self.assertEqual(self.leaves_used(before), [port], "left to left, right to right")
        self.source, self.to = self.net.bond_address(0), self.net.bond_address(3)
        self.start_sink(self.to)
        used = set()
        for source_port in range(47000, 47012):
            before = self.net.link_bytes()
            self.assertIsNotNone(self.send(source_port, 50000))
            used.update(self.leaves_used(before))
        self.assertEqual(used, {0, 1})

    def sent_by_leaves(self, before):
        """The bytes that each leaf sent to spines since."""
        sent = [0] * self.net.leaves
        for link, (up, _) in self.net.link_bytes().items():
            sent[link[0]] += up - before[link][0]
        return sent

    def leaves_used(self, before):
        return [leaf for leaf, sent in enumerate(self.sent_by_leaves(before)) if sent > 50000]


RESET = """
import socket, sys
listener = socket.create_server((sys.argv[1], 0))
near = socket.create_connection(listener.getsockname())
far, _ = listener.accept()
print("connected", flush=True)
for end in (near, far):
    try:
        print(end.recv(1))
    except OSError:
        print("broken")
"""
LEFT_BEHIND = """
import os, subprocess, sys
sys.path.insert(0, os.environ["CLOS_FOLDER"])
import inside
inside.enter()
import fabric
fabric.Fabric().up()
subprocess.Popen(["ip", "netns", "exec", "h0", "sleep", "1000"])
open("/dev/shm/clos-left", "w").close()
print("up", flush=True)
sys.stdin.read()
"""


class Ending(unittest.TestCase):
    """The rig, started inside its own namespaces, in which all that it left would show."""

    def start(self, others=0):
        """A rig that lives until its input ends, with a process in it, beside so many others."""
        script = "/dev/shm/clos_ending.py"
        with open(script, "w") as file:
            file.write(LEFT_BEHIND)
        environment = dict(os.environ, CLOS_FOLDER=os.path.dirname(os.path.abspath(__file__)))
        words = [sys.executable, script]
        process = subprocess.Popen(words, env=environment, stdin=-1, stdout=-1, text=True)
        self.assertEqual(process.stdout.readline(), "up\n")
        self.wait_for_left(["sleep"] * (1 + others))
        return process

    def left(self):
        """The processes that sleep, and what lies where it wrote."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline") as file:
                    words = file.read().split("\0")
            except OSError:
                continue
            if words[0] == "sleep":
                found.append("sleep")
        found += [name for name in ("/dev/shm/clos-left", "/run/netns/h3") if os.path.exists(name)]
        return found

    def ended(self, process):
        """After a signal its input stays open until it has ended."""
        status = process.wait(timeout=20)
        process.stdin.close()
        process.stdout.close()
        self.wait_for_left([])
        return status

    def wait_for_left(self, what):
        end = time.monotonic() + 10
        while self.left() != what and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(self.left(), what)

    def setUp(self):
        fabric.remove_namespaces()

    def test_nothing_is_left_after_an_end(self):
        process = self.start()
        process.stdin.close()
        self.assertEqual(self.ended(process), 0)

    def test_nothing_is_left_after_a_signal(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with self.subTest(signal=number):
                process = self.start()
                process.send_signal(number)
                status = self.ended(process)
                self.assertEqual(status, -9 if number == signal.SIGKILL else 128 + number)

    def test_two_runs_stand_side_by_side(self):
        first, second = self.start(), self.start(others=1)
        second.stdin.close()
        self.assertEqual(second.wait(timeout=20), 0)
        second.stdout.close()
        self.wait_for_left(["sleep"])
        first.stdin.close()
        self.assertEqual(self.ended(first), 0)
