"""PyTorch's DistributedDataParallel: the same losses with either library, and what becomes of the
others when a rank is killed."""

import os
import re
import signal
import tempfile
import time

from .rig import Missing
from .speed import library_of, torch_of

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 30
END_S = 30  # after a kill the other ranks have ended with an error within it


class Job:
    """Ranks on one GPU, each as if on a host of its own."""

    def __init__(self, rig, python, library, n, steps):
        store = tempfile.mktemp(prefix="store", dir=rig.scratch)  # made by the first rank
        self.rig, self.ranks = rig, []
        for rank in range(n):
            env = {
                "RANK": str(rank),
                "WORLD_SIZE": str(n),
                "LOCAL_RANK": "0",
                "STORE": store,
                "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
                "NCCL_HOSTID": "rank%d" % rank,
                "NCCL_P2P_DISABLE": "1",
                "NCCL_SHM_DISABLE": "1",
                "NCCL_NET": "Socket",
                "NCCL_IB_DISABLE": "1",
                "NCCL_MULTI_RANK_GPU_ENABLE": "1",
                "FTCCL_TRANSPORTS": "tcp",
                "NCCL_DEBUG": "VERSION",
                "LD_PRELOAD": library,
                "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
                # Otherwise PyTorch sleeps for a minute after an error, for its report.
                "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
            }
            self.ranks.append(
                rig.start([python, "-u", os.path.join(HERE, "ddp_rank.py"), str(steps)], env)
            )

    def wait(self, seconds, but=None):
        """Status of each rank; None for one that is still there."""
        end = time.monotonic() + max(1, min(seconds, self.rig.seconds_left()))
        while time.monotonic() < end and any(
            p.poll() is None for i, p in enumerate(self.ranks) if i != but
        ):
            time.sleep(0.02)
        return [p.poll() for p in self.ranks]

    def stop(self):
        return [self.rig.stop(p) for p in self.ranks]


def losses(output):
    return re.findall(r"^loss \d+ (\S+)$", output, re.M)


def trained(rig, add, python, name, library, n):
    job = Job(rig, python, library, n, STEPS)
    statuses = job.wait(80)
    outputs = job.stop()
    found = losses(outputs[0])
    good = all(status == 0 for status in statuses) and len(found) == STEPS
    last = [line for line in outputs[0].splitlines() if line.strip()][-1:]
    rig.check(
        "%d ranks train with %s" % (n, name),
        good,
        "last loss %s" % found[-1] if good else "%s: %s" % (statuses, last),
    )
    for step, loss in enumerate(found):
        add([name, n, step, loss])
    return found


def killed(rig, python, library, n):
    job = Job(rig, python, library, n, 1000000)
    end = time.monotonic() + 60
    while time.monotonic() < end and not all(len(losses(rig.read(p))) >= 5 for p in job.ranks):
        time.sleep(0.1)
    os.kill(job.ranks[1].pid, signal.SIGKILL)
    at = time.monotonic()
    statuses = job.wait(END_S)
    took = time.monotonic() - at
    outputs = job.stop()
    ended = [status not in (None, 0) for rank, status in enumerate(statuses) if rank != 1]
    said = [
        line.strip() for line in outputs[0].splitlines() if re.search(r"rank 1|emote|rror", line)
    ]
    rig.check(
        "one of %d ranks is killed: the others end with an error" % n,
        all(ended),
        (
            "%.1f s after the kill: %s" % (took, (said or ["nothing said"])[0][:200])
            if all(ended)
            else "statuses %s after %.0f s" % (statuses, took)
        ),
    )


def ddp(rig):
    if rig.dry:
        raise Missing(
            "DistributedDataParallel with NCCL's backend needs PyTorch with CUDA and a GPU"
        )
    python = torch_of()
    if not python:
        raise Missing("there is no PyTorch with CUDA")
    ours, theirs = rig.program("src", ".libs", "libnccl.so.2"), library_of(rig)
    add = rig.table("ddp", ["library", "ranks", "step", "loss"])
    for n in (2, 4):
        if not rig.has_time("training of %d ranks" % n, 30):
            break
        with_ours, with_theirs = trained(rig, add, python, "FTCCL", ours, n), trained(
            rig, add, python, "NCCL", theirs, n
        )
        far = max(
            (abs(float(a) - float(b)) / abs(float(b)) for a, b in zip(with_ours, with_theirs)),
            default=None,
        )
        # A sum of two is the same in any order; one of more is rounded on another way.
        same = (
            far is not None
            and len(with_ours) == len(with_theirs)
            and far <= (0 if n == 2 else 1e-5)
        )
        rig.check("the same losses, %d ranks" % n, same, "relative difference %s at most" % far)
    if rig.has_time("kill", 30):
        killed(rig, python, ours, 3)
