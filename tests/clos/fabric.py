"""A leaf-spine network: hosts, leaves and spines are network namespaces h0, l0 and s0 ..., joined
by veth links. It is made inside the namespaces of inside.py, and ends with them.

A host has a port to one leaf, p0, or (bonded) a left and a right one, p0 and p1, to the two leaves
of its pair, and an address that both lead to, on the device bond.
    host i, on leaf L        10.L.i.1, the leaf's end is 10.L.i.0
    host i, bonded           10.200.0.i as well
    leaf L to spine S        172.16.L.2S, the spine's end is 172.16.L.2S+1
Leaves choose the spine, bonded hosts and spines the leaf, by the hash of addresses, protocol and
ports (fib_multipath_hash_policy 3, fields 0x37) with a seed for each tier: the same flow takes the
same way each time, and so do the packets that answer it.
"""

import json
import os
import re
import subprocess
from typing import NamedTuple

HASHED_FIELDS = 0x37  # both addresses, protocol, both ports
BURST_BYTES = 70000  # a packet of 64 KiB before it is segmented, with the headers of its segments
QUEUE_S = 0.01
BOND_NET = "10.200.0.0/16"


class Failure(Exception):
    """A command of the rig failed; a sentence."""


def command(*words, text=None):
    """Returns what the command printed."""
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise Failure("%s: %s" % (" ".join(words), done.stderr.strip() or done.stdout.strip()))
    return done.stdout


def batch(tool, namespace, lines):
    return command(tool, "-n", namespace, "-batch", "-", text="".join(f"{x}\n" for x in lines))


def run_in(namespace, *words, text=None):
    return command("ip", "netns", "exec", namespace, *words, text=text)


def remove_namespaces():
    for name in os.listdir("/run/netns"):
        command("ip", "netns", "del", name)


def sysctl(namespace, values):
    """values: by their names below net.ipv4."""
    lines = ("echo %s >/proc/sys/net/ipv4/%s" % (v, k.replace(".", "/")) for k, v in values.items())
    run_in(namespace, "sh", "-e", text="\n".join(lines))


def tbf(device, mbit):
    limit = BURST_BYTES + int(mbit * 1e6 / 8 * QUEUE_S)
    return f"qdisc replace dev {device} root tbf rate {int(mbit * 1000)}kbit " + (
        f"burst {BURST_BYTES} limit {limit}"
    )


def missing():
    """Returns a sentence about what this kernel lacks, or None."""
    seed = "fib_multipath_hash_seed"
    settings = {"fib_multipath_hash_policy": 3, "fib_multipath_hash_fields": HASHED_FIELDS, seed: 1}
    steps = [
        ("no network namespaces", lambda: command("ip", "netns", "add", "trial")),
        (
            "no veth devices",
            lambda: batch("ip", "trial", ["link add dev a0 type veth peer name b0"]),
        ),
        ("no ECMP with seeds (Linux 6.11 has it)", lambda: sysctl("trial", settings)),
        ("no rate limits (tbf)", lambda: batch("tc", "trial", [tbf("a0", 50)])),
        ("no silent drop", lambda: batch("tc", "trial", ["qdisc replace dev a0 root blackhole"])),
    ]
    try:
        for what, step in steps:
            step()
    except Failure as failure:
        return "%s: %s" % (what, str(failure).splitlines()[0])
    command("ip", "netns", "del", "trial")
    return None


class End(NamedTuple):
    """One end of a link."""

    namespace: str
    device: str
    mac: str
    address: str


class Fabric:
    """Rates in Mbit/s; host_rate: of the links of hosts, if they have another one. up() makes it.
    The faults are about the link of a leaf and a spine, both directions; heal() ends them."""

    def __init__(self, hosts=4, leaves=2, spines=2, rate=100, bonded=False, seed=1, host_rate=None):
        if not (0 < hosts <= 250 and 1 < leaves < 200 and 0 < spines < 100):
            raise Failure("a fabric has 1-250 hosts, 2-199 leaves and 1-99 spines")
        if bonded and leaves % 2:
            raise Failure("bonded hosts take an even number of leaves")
        self.hosts, self.leaves, self.spines = hosts, leaves, spines
        self.rate, self.bonded, self.seed = rate, bonded, seed
        self.host_rate = host_rate or rate
        self.down = set()  # links, as (leaf, spine)
        self.avoided = set()  # links that converge() took out of all routes

    # Addresses.

    def leaves_of(self, host):
        """The leaves of its ports, the left one first."""
        ports = 2 if self.bonded else 1
        first = host * (self.leaves // ports) // self.hosts * ports
        return list(range(first, first + ports))

    def address(self, host, port=0):
        return f"10.{self.leaves_of(host)[port]}.{host}.1"

    def bond_address(self, host):
        return f"10.200.0.{host}"

    def host_link(self, host, port):
        leaf = self.leaves_of(host)[port]
        mac = f"02:00:{leaf:02x}:{host:02x}:00"
        return (
            End(f"h{host}", f"p{port}", f"{mac}:01", f"10.{leaf}.{host}.1"),
            End(f"l{leaf}", f"h{host}", f"{mac}:00", f"10.{leaf}.{host}.0"),
        )

    def spine_link(self, leaf, spine):
        mac, net = f"02:01:{leaf:02x}:{spine:02x}:00", f"172.16.{leaf}"
        return (
            End(f"l{leaf}", f"s{spine}", f"{mac}:00", f"{net}.{2 * spine}"),
            End(f"s{spine}", f"l{leaf}", f"{mac}:01", f"{net}.{2 * spine + 1}"),
        )

    def spine_links(self):
        return [(leaf, spine) for leaf in range(self.leaves) for spine in range(self.spines)]

    def namespaces(self):
        tiers = (("h", self.hosts), ("l", self.leaves), ("s", self.spines))
        return [f"{letter}{i}" for letter, n in tiers for i in range(n)]

    # Making it.

    def up(self):
        """Makes everything, in about a second, in place of what was there. Raises Failure."""
        remove_namespaces()
        links = [self.spine_link(*link) for link in self.spine_links()]
        links += [
            self.host_link(host, port)
            for host in range(self.hosts)
            for port in range(len(self.leaves_of(host)))
        ]
        names = self.namespaces()
        command("ip", "-batch", "-", text="".join(f"netns add {name}\n" for name in names))
        for name in names:
            sysctl(name, self.settings(name))
        pair = "link add {0.device} netns {0.namespace} address {0.mac} type veth peer name "
        pair += "{1.device} netns {1.namespace} address {1.mac}\n"
        command("ip", "-batch", "-", text="".join(pair.format(*link) for link in links))
        lines = {name: ["link set lo up"] for name in names}
        for here, there in [*links, *(link[::-1] for link in links)]:
            lines[here.namespace].append(f"addr add {here.address}/31 dev {here.device}")
            lines[here.namespace] += self.opening(here, there)
        for name in names:
            batch("ip", name, lines[name])
            ends = [(end, link) for link in links for end in link if end.namespace == name]
            batch("tc", name, [tbf(end.device, self.rate_of(link)) for end, link in ends])
        for host in range(self.hosts):
            batch("ip", f"h{host}", self.host_routes(host))
        self.route()

    def rate_of(self, link):
        is_of_host = any(end.namespace[0] == "h" for end in link)
        return self.host_rate if is_of_host else self.rate

    def settings(self, name):
        hashed = {
            "fib_multipath_hash_policy": 3,
            "fib_multipath_hash_fields": HASHED_FIELDS,
            "fib_multipath_hash_seed": self.seed * 3 + "hls".index(name[0]) + 1,
        }
        role = {"ip_forward": 1} if name[0] != "h" else {"tcp_congestion_control": "reno"}
        return {
            **hashed,
            **role,
            "icmp_ratelimit": 0,  # each probe is answered
            "icmp_errors_use_inbound_ifaddr": 1,
            "conf.all.rp_filter": 0,
            "conf.default.rp_filter": 0,
            "conf.all.ignore_routes_with_linkdown": 1,
            "conf.default.ignore_routes_with_linkdown": 1,
        }

    @staticmethod
    def opening(here, there):
        """The neighbour is given, so that a link that drops all is silent: without it the leaf
        would tell senders that there is no such host."""
        return [
            f"link set {here.device} up",
            f"neigh replace {there.address} lladdr {there.mac} dev {here.device} nud permanent",
        ]

    def host_routes(self, host):
        links = [self.host_link(host, port) for port in range(len(self.leaves_of(host)))]
        if not self.bonded:
            return [f"route add default via {links[0][1].address}"]
        lines = [
            "link add bond type veth peer name bondpeer",
            "link set bond up",
            "link set bondpeer up",
            f"addr add {self.bond_address(host)}/32 dev bond",
        ]
        # The hash of older kernels may send what has the address of one port out at the other.
        for port, (near, far) in enumerate(links):
            lines += [
                f"route add default via {far.address} dev {near.device} table {100 + port}",
                f"rule add from {near.address} lookup {100 + port}",
            ]
        hops = " ".join(f"nexthop via {far.address} dev {near.device}" for near, far in links)
        return lines + [f"route add default src {self.bond_address(host)} {hops}"]

    # Routes of leaves and spines.

    def is_used(self, leaf, spine):
        return (leaf, spine) not in self.avoided

    def hops(self, leaf, spines):
        """The routes of a leaf by these spines; a link of its own that is down takes none."""
        ends = [self.spine_link(leaf, s) for s in spines if (leaf, s) not in self.down]
        return " ".join(f"nexthop via {far.address} dev {near.device}" for near, far in ends)

    def leaf_routes(self, leaf):
        mine = [s for s in range(self.spines) if self.is_used(leaf, s)]
        nets = {
            f"10.{other}.0.0/16": [s for s in mine if self.is_used(other, s)]
            for other in range(self.leaves)
            if other != leaf
        }
        if self.bonded:
            nets[BOND_NET] = mine
        for net, spines in nets.items():
            hops = self.hops(leaf, spines)
            yield f"route replace {net} {hops}" if hops else f"route replace unreachable {net}"
        for host in range(self.hosts if self.bonded else 0):
            if leaf in self.leaves_of(host):
                port = self.leaves_of(host).index(leaf)
                yield f"route replace {self.bond_address(host)} via {self.address(host, port)}"

    def spine_routes(self, spine):
        near = {leaf: self.spine_link(leaf, spine)[0] for leaf in range(self.leaves)}
        near = {leaf: end for leaf, end in near.items() if (leaf, spine) not in self.down}
        for leaf, end in near.items():
            yield f"route replace 10.{leaf}.0.0/16 via {end.address}"
        for host in range(self.hosts if self.bonded else 0):
            hops = [
                f"nexthop via {near[leaf].address}"
                for leaf in self.leaves_of(host)
                if leaf in near and self.is_used(leaf, spine)
            ]
            if hops:
                yield f"route replace {self.bond_address(host)} {' '.join(hops)}"

    def route(self):
        for leaf in range(self.leaves):
            batch("ip", f"l{leaf}", self.leaf_routes(leaf))
        for spine in range(self.spines):
            batch("ip", f"s{spine}", self.spine_routes(spine))

    def converge(self, avoided):
        """What a routing protocol does: from now on no leaf uses these links (leaf, spine)."""
        self.avoided = set(avoided)
        self.route()

    # Faults.

    def link_down(self, leaf, spine):
        """The leaf and the spine see it at once; other leaves only when converge() tells them."""
        self.down.add((leaf, spine))
        near, _ = self.spine_link(leaf, spine)
        batch("ip", near.namespace, [f"link set {near.device} down"])

    def link_up(self, leaf, spine):
        self.down.discard((leaf, spine))
        near, far = self.spine_link(leaf, spine)
        batch("ip", near.namespace, self.opening(near, far))
        batch("ip", far.namespace, self.opening(far, near))
        self.route()

    def set_queues(self, leaf, spine, line):
        for end in self.spine_link(leaf, spine):
            batch("tc", end.namespace, [line(end.device)])

    def blackhole(self, leaf, spine):
        """Drops everything; nobody is told."""
        self.set_queues(leaf, spine, lambda device: f"qdisc replace dev {device} root blackhole")

    def set_rate(self, leaf, spine, mbit):
        self.set_queues(leaf, spine, lambda device: tbf(device, mbit))

    def lose(self, leaf, spine, permille):
        """0 to 999 packets of a thousand. It takes nft(8)."""
        for end in self.spine_link(leaf, spine):
            table = f"loss_{end.device}"
            rules = f"table ip {table} {{}}\ndelete table ip {table}\n"
            if permille:
                rules += (
                    f"table ip {table} {{\nchain lose {{\ntype filter hook forward priority 0\n"
                    f'oifname "{end.device}" numgen random mod 1000 < {permille} drop\n}}\n}}\n'
                )
            run_in(end.namespace, "nft", "-f", "-", text=rules)

    def heal(self, leaf, spine):
        """Ends all of them but losses; routes avoid no link any more."""
        self.set_rate(leaf, spine, self.rate)
        self.avoided = set()
        self.link_up(leaf, spine)

    def reset(self, host, to=None):
        """Breaks the connections of a host, or those to an address; both ends are told. Returns
        how many."""
        peer = ["dst", to] if to else []
        said = run_in(f"h{host}", "ss", "-HtnK", "state", "established", *peer)
        return len(said.splitlines())

    # Observation.

    def spines_of(self, leaf, flows):
        """Which spine the kernel takes for each flow (source, destination, source port, port of the
        destination) of TCP that enters at this leaf. Sends nothing."""
        lines = (
            f"route get {to} from {source} iif h{int(source.split('.')[2])} ipproto tcp "
            f"sport {source_port} dport {port}"
            for source, to, source_port, port in flows
        )
        said = batch("ip", f"l{leaf}", lines)
        return [int(spine) for spine in re.findall(r" dev s(\d+)", said)]

    def link_bytes(self):
        """{(leaf, spine): (bytes to the spine, bytes to the leaf)} since up()."""
        carried = {}
        for leaf in range(self.leaves):
            for device in json.loads(command("ip", "-n", f"l{leaf}", "-s", "-j", "link")):
                if re.fullmatch(r"s\d+", device["ifname"]):
                    count = device["stats64"]
                    link = leaf, int(device["ifname"][1:])
                    carried[link] = count["tx"]["bytes"], count["rx"]["bytes"]
        return carried

    def spine_bytes(self, since=None):
        """What each spine received, of that since an earlier link_bytes()."""
        total = [0] * self.spines
        for link, (sent, _) in self.link_bytes().items():
            total[link[1]] += sent - (since[link][0] if since else 0)
        return total
