"""How fast it is: the kernel alone, beside NVIDIA's NCCL, beside a matrix product."""

import csv
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

from .building import find_nccl, nccl_library
from .rig import Missing, rows_of

HERE = os.path.dirname(os.path.abspath(__file__))
THREADS = (
    "FTCCL in one process"  # ranks as threads share the GPU without MPS too; NCCL refuses that
)
NCCL_SOCKETS = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_DEBUG": "VERSION",
}


# ---- bandwidth -----------------------------------------------------------------------------------


def bandwidth(rig):
    add = rig.table(
        "bandwidth", ["device", "case", "type", "blocks", "bytes", "us", "gbps", "of_copy"]
    )
    options = (
        ["-b", "65536", "-B", "1,2", "-s", "0.002"]
        if rig.dry
        else ["-b", str(128 << 20), "-s", "0.02"]
    )
    result = rig.run([rig.program("perf", "gpu_kernels")] + options, 85)
    device, lines = "", [
        line for line in result.output.splitlines() if not line.startswith(("$", "case,"))
    ]
    rows = []
    for line in lines:
        if line.startswith("# "):
            device = line[2:]
        elif line.count(",") == 6:
            rows.append(next(csv.reader([line])))
            add([device] + rows[-1])
    if (
        rig.check(
            "measured on %s" % (device or "nothing"),
            result.status == 0 and len(rows) > 0,
            "%d rows" % len(rows) if rows else result.why(),
        )
        and not rig.dry
    ):
        say_bandwidth(rig, rows)


def say_bandwidth(rig, rows):
    copy = statistics.median(float(row[5]) for row in rows if row[0] == "device copy")
    rig.say("   the device's own copy: %.0f GB/s read and written" % copy)
    for case in ("copy", "sum of 2"):
        for row in rows:
            if row[0] == case and row[1] in ("any", "float32"):
                rig.say(
                    "   %-9s %2s blocks %8.1f GB/s, %3.0f%% of it, %6.1f GB/s a block"
                    % (
                        case,
                        row[2],
                        float(row[5]),
                        100 * float(row[6]),
                        float(row[5]) / int(row[2]),
                    )
                )
    two = [float(row[5]) for row in rows if row[0] == "copy" and row[2] == "2"]
    enough = [int(row[2]) for row in rows if row[0] == "copy" and float(row[6]) >= 0.9]
    rig.check(
        "2 blocks copy twice what a 400 Gb/s network brings",
        bool(two) and two[0] / 2 >= 100,
        "%.1f GB/s, of 100" % (two[0] / 2 if two else 0),
    )
    posts = [float(row[4]) for row in rows if row[0] == "post"]
    rig.check(
        "a command costs the processor less than 2 us",
        bool(posts) and statistics.median(posts) < 2,
        "%.2f us" % statistics.median(posts) if posts else "",
    )
    rig.check(
        "90% of the device's copy is reached",
        bool(enough),
        "with %d blocks" % min(enough) if enough else "not with 64 blocks",
    )


# ---- MPS -----------------------------------------------------------------------------------------


class Sharing:
    """Ranks of several processes run at the same time under MPS, else one after another. The card's
    settings stay as they are."""

    def __init__(self, rig):
        self.rig, self.env, self.why = rig, {}, None
        self.control = shutil.which("nvidia-cuda-mps-control")
        self.name = "stand-in" if rig.dry else "time-sliced"

    def __enter__(self):
        if self.rig.dry or not self.control:
            self.why = (
                "a dry run has no GPU to share"
                if self.rig.dry
                else "there is no nvidia-cuda-mps-control"
            )
            return self
        folders = {
            name: os.path.join(self.rig.scratch, name.lower())
            for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        }
        for folder in folders.values():
            os.makedirs(folder, exist_ok=True)
        self.env = folders
        said = self.tell("-d")
        tried = self.rig.run(
            [self.rig.program("perf", "gpu_kernels"), "-b", "65536", "-B", "1", "-s", "0.001"],
            30,
            self.env,
        )
        if tried.status == 0:
            self.name = "mps"
        else:
            self.why = "MPS does not start: %s %s" % (said, tried.why())
            self.quit()
        return self

    def tell(self, *options, text=""):
        """The daemon is started in a session of its own: it outlives the command, and is ended by
        quit()."""
        try:
            done = subprocess.run(
                [self.control, *options],
                input=text,
                text=True,
                env=self.rig.environment(self.env),
                timeout=20,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            return done.stdout.strip()
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)

    def quit(self):
        self.tell(text="quit\n")
        self.env = {}

    def __exit__(self, *unused):
        if self.name == "mps":
            self.quit()


# ---- both libraries ------------------------------------------------------------------------------


def library_of(rig):
    """NVIDIA's libnccl.so.2. Dry: ours in its place, so that the program and the way it is started
    are tried."""
    if rig.dry:
        return rig.program("src", ".libs", "libnccl.so.2")
    folder = find_nccl(rig.o.nccl)
    if not folder:
        raise Missing("no libnccl.so.2 of NVIDIA's was found (--nccl DIR names it)")
    return nccl_library(folder)


def contenders(rig):
    """[name, blocks, environment, library or None for ours]. NCCL once as it likes and once with
    twice our blocks."""
    theirs = library_of(rig)
    name = "libnccl.so.2 of FTCCL" if rig.dry else "NCCL"
    ours = {"FTCCL_TRANSPORTS": "tcp", "FTCCL_OP_TIMEOUT_MS": "60000"}
    found = [("FTCCL", "2", ours, None), (name, "", NCCL_SOCKETS, theirs)]
    if not rig.dry:
        found += [
            (THREADS, "2", ours, None),
            ("FTCCL", "4", dict(ours, FTCCL_CUDA_BLOCKS="4"), None),
            (name, "4", dict(NCCL_SOCKETS, NCCL_MIN_NCHANNELS="4", NCCL_MAX_NCHANNELS="4"), theirs),
        ]
    return found


def command(rig, contender, n, options):
    _, _, env, library = contender
    if contender[0] == THREADS:
        # Their streams must not share a connection, where one that waits would keep the kernel of
        # another rank from its start.
        return [
            rig.program("perf", "all_reduce_perf"),
            "-B",
            "device",
            "-t",
            str(n),
        ] + options, dict(env, CUDA_DEVICE_MAX_CONNECTIONS="32")
    if library is None:
        return rig.ranks(n, [rig.program("perf", "all_reduce_perf"), "-B", "device"] + options), env
    # Each rank as if on a host of its own: NCCL does not take two of one host on the same GPU.
    each = 'export NCCL_HOSTID=rank$RANK LD_PRELOAD="$0"; exec "$@"'
    return (
        rig.ranks(
            n, ["sh", "-c", each, library, rig.program("perf", "nccl_all_reduce_perf")] + options
        ),
        env,
    )


def nccl(rig):
    add = rig.table(
        "nccl",
        ["device", "sharing", "library", "blocks", "ranks", "what", "bytes", "us", "busbw_gbps"],
    )
    with Sharing(rig) as sharing:
        rig.say(
            "   ranks share the GPU: %s%s"
            % (sharing.name, " (%s)" % sharing.why if sharing.why else "")
        )
        large = ["-b", "1M", "-e", "1G", "-f", "4", "-n", "4", "-w", "1", "-c", "0"]
        small = ["-b", "8", "-e", "32K", "-f", "8", "-n", "100", "-w", "5", "-c", "0"]
        if rig.dry:
            large, small = ["-b", "4K", "-e", "16K", "-f", "4", "-n", "1"], [
                "-b",
                "8",
                "-e",
                "8",
                "-n",
                "2",
            ]
        rounds = 1 if rig.dry else 3
        times = {}
        for _ in range(rounds):
            for what, options in (("latency", small), ("bandwidth", large)):
                for n in (2,) if rig.dry else (2, 4):
                    for contender in contenders(rig):
                        one_run(rig, sharing, add, times, (contender, n, what, options))
        say_nccl(rig, times, sharing)


def one_run(rig, sharing, add, times, case):
    contender, n, what, options = case
    if rig.seconds_left() < 5:
        return
    argv, env = command(rig, contender, n, options)
    result = rig.run(argv, 45, dict(sharing.env, **env))
    rows, device = rows_of(result.output)
    for size, us, busbw, _ in rows:
        add(
            [
                device,
                "one process" if contender[0] == THREADS else sharing.name,
                contender[0],
                contender[1],
                n,
                what,
                size,
                us,
                busbw,
            ]
        )
        times.setdefault((n, what, size), {}).setdefault(contender[:2], []).append(us)
    if result.status != 0:
        rig.say(
            "   %s, %d ranks, %s: %s (%d sizes measured)"
            % (contender[0], n, what, result.why(), len(rows))
        )
        times.setdefault("failed", set()).add((contender[0], n, what))
    said = re.findall(r"NCCL version \S+.*", result.output)
    if said:
        times.setdefault("versions", {})[contender[0]] = said[0]


def say_nccl(rig, times, sharing):
    failed, versions = times.pop("failed", set()), times.pop("versions", {})
    for name, version in sorted(versions.items()):
        rig.say("   %s says: %s" % (name, version))
    wanted = [contender for contender in contenders(rig)]
    for library in sorted({contender[0] for contender in wanted}):
        measured = sum(1 for by in times.values() for key in by if key[0] == library)
        rig.check("%s was measured" % library, measured > 0, "%d sizes" % measured)
    if rig.dry:
        rig.skip("NVIDIA's NCCL needs a GPU: ours was loaded in its place to try the way")
        return
    slower = []
    for (n, what, size), by in sorted(times.items()):
        medians = {key: statistics.median(us) for key, us in by.items()}
        rig.say(
            "   %d ranks %-9s %10d B: %s"
            % (
                n,
                what,
                size,
                ", ".join(
                    "%s%s %.1f us" % (key[0], key[1] and " " + key[1] + " blocks", us)
                    for key, us in sorted(medians.items())
                ),
            )
        )
        ours, theirs = medians.get(("FTCCL", "2")), medians.get(("NCCL", "4"))
        if what == "bandwidth" and ours and theirs and ours > theirs:
            slower.append("%d ranks %d B %.2fx" % (n, size, ours / theirs))
    rig.check(
        "NCCL's busbw with half its blocks (%s)" % sharing.name,
        not slower and not failed,
        "; ".join(slower) or "%d runs failed" % len(failed),
    )


# ---- a matrix product beside an all-reduce -------------------------------------------------------


def torch_of():
    """A Python that has PyTorch with a GPU, or None."""
    for python in dict.fromkeys((shutil.which("python3"), sys.executable)):
        try:
            if (
                python
                and subprocess.run(
                    [python, "-c", "import torch; assert torch.cuda.is_available()"],
                    capture_output=True,
                    timeout=60,
                ).returncode
                == 0
            ):
                return python
        except (OSError, subprocess.TimeoutExpired):
            pass
    return None


def product_ms(rig, python, env):
    result = rig.run([python, os.path.join(HERE, "matmul_loop.py")], 40, env)
    found = re.search(r"median_ms ([0-9.]+)", result.output)
    return float(found[1]) if found else None


def matmul(rig):
    if rig.dry:
        raise Missing(
            "a matrix product beside an all-reduce needs a GPU with MPS, "
            "and PyTorch for the product"
        )
    python = torch_of()
    if not python:
        raise Missing("there is no PyTorch with CUDA, which the matrix product is made with")
    add = rig.table("matmul", ["beside", "blocks", "ms", "slowdown"])
    with Sharing(rig) as sharing:
        if sharing.name != "mps":
            raise Missing(
                "time-slicing would be measured instead of the libraries' kernels: %s" % sharing.why
            )
        alone = product_ms(rig, python, sharing.env)
    if not rig.check("the product alone", alone is not None, "%s ms" % alone):
        return
    add(["nothing", "", alone, 1])
    for contender in contenders(rig):
        if not rig.has_time("beside %s %s" % contender[:2], 15):
            break
        with Sharing(rig) as sharing:  # a daemon each, for the ranks are killed
            ms = product_beside(rig, python, sharing, contender)
        rig.check(
            "beside %s %s" % contender[:2],
            ms is not None,
            "%s ms, %.2fx" % (ms, ms / alone) if ms else "no figure",
        )
        if ms:
            add([contender[0], contender[1], ms, "%.4f" % (ms / alone)])


def product_beside(rig, python, sharing, contender):
    """The product's time while two ranks reduce for ever; None if either fails."""
    argv, env = command(
        rig, contender, 2, ["-b", "256M", "-e", "256M", "-n", "1", "-c", "0", "-N", "0"]
    )
    beside = rig.start(argv, dict(sharing.env, **env))
    end = time.monotonic() + min(30, rig.seconds_left())
    while not rows_of(rig.read(beside))[0] and beside.poll() is None and time.monotonic() < end:
        time.sleep(0.2)
    reduces = bool(rows_of(rig.read(beside))[0]) and beside.poll() is None
    ms = product_ms(rig, python, sharing.env) if reduces else None
    reduces = reduces and beside.poll() is None
    rig.stop(beside)
    return ms if reduces else None
