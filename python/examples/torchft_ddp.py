"""torchft over FTCCL: replica groups train one model; one after the other is killed and comes back,
and takes the model from a live one.

    pip install torchft-nightly
    python3 torchft_ddp.py --replicas 3 --kills 2        # --ranks 2: two processes in each replica
    group, each with its part

The scheme is that of torchft's train_ddp: a Lighthouse tells who takes part in a step, each process
has a Manager, the loop is that of any training. The Manager gets the default process group itself,
made with enable_reconfigure=True: it takes handles from it, the Lighthouse passes them on, and the
Manager reconfigures the group when the replicas change. The program without --worker starts the
Lighthouse and the processes, kills and restarts them, and checks at the end that all replicas have
the same model. It ends after
--limit seconds in any case. What the processes of one replica group do with each other is another
group's matter, and left out.
"""

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import digits
import torch
import torch.distributed as dist

HOST = "127.0.0.1"


def options():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--replicas", type=int, default=3, help="replica groups")
    p.add_argument("--ranks", type=int, default=1, help="processes of a replica group")
    p.add_argument(
        "--kills", type=int, default=2, help="how often a whole replica group gets SIGKILL"
    )
    p.add_argument(
        "--steps",
        type=int,
        default=10,
        help="steps with all replicas before a kill, and at the end",
    )
    p.add_argument("--backend", default="ftccl")
    p.add_argument(
        "--limit", type=float, default=150, help="seconds after which the whole gives up"
    )
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return p.parse_args()


# ---- one process of a replica group --------------------------------------------------------------


def train(o):
    from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer

    replica, rank = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["RANK"])
    limit = timedelta(seconds=o.limit)
    board = dist.TCPStore(HOST, int(os.environ["BOARD_PORT"]), is_master=False, timeout=limit)
    dist.init_process_group(
        o.backend,
        store=dist.HashStore(),
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=20),
        enable_reconfigure=True,
    )  # a process alone: the Manager brings the others
    images, labels = digits.make(3000)
    sampler = DistributedSampler(
        images, replica, o.replicas, group_rank=rank, num_replicas=o.ranks, seed=1
    )
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(images, labels), batch_size=32, sampler=sampler
    )
    model = digits.model(seed=replica)  # different: the first step makes them equal
    state = {"model": model}

    def load_state_dict(saved):
        for name, holder in state.items():
            holder.load_state_dict(saved[name])

    manager = Manager(
        pg=dist.group.WORLD,
        min_replica_size=max(1, o.replicas - 1),
        load_state_dict=load_state_dict,
        state_dict=lambda: {name: holder.state_dict() for name, holder in state.items()},
        replica_id="replica_%d" % replica,
        timeout=timedelta(seconds=20),
        quorum_timeout=limit,
    )
    ddp = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, torch.optim.AdamW(model.parameters(), lr=1e-3))
    state["optimizer"] = optimizer

    def stop():
        return board.check(["stop"]) and manager.current_step() >= int(board.get("stop"))

    while not stop():
        for x, y in loader:
            optimizer.zero_grad()  # asks for the quorum
            loss = torch.nn.functional.cross_entropy(ddp(x), y)
            loss.backward()
            optimizer.step()  # if all replicas say that the step is good
            board.set(
                "progress/%d/%d" % (replica, rank),
                "%d %d %f" % (manager.current_step(), manager.num_participants(), loss.item()),
            )
            if stop():
                break
    parameters = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    board.set(
        "end/%d/%d" % (replica, rank),
        "%d %s" % (manager.current_step(), hashlib.sha256(parameters).hexdigest()[:16]),
    )
    manager.shutdown(wait=False)
    dist.destroy_process_group()


# ---- the processes, from outside -----------------------------------------------------------------


class Job:
    def __init__(self, o):
        from torchft.coordination import LighthouseServer

        self.o, self.begin = o, time.monotonic()
        self.lighthouse = LighthouseServer(
            bind="[::]:0",
            min_replicas=max(1, o.replicas - 1),
            join_timeout_ms=1000,
            quorum_tick_ms=20,
            heartbeat_timeout_ms=1000,
        )
        self.board = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        self.stores, self.groups = {}, {}
        for replica in range(o.replicas):
            self.start(replica)

    def say(self, words):
        print("%7.2f s  %s" % (time.monotonic() - self.begin, words), flush=True)

    def start(self, replica):
        """A replica group has a store of its own, which torchft's Manager asks for."""
        store = self.stores[replica] = dist.TCPStore(
            HOST, 0, is_master=True, wait_for_workers=False
        )
        shared = dict(
            os.environ,
            REPLICA_GROUP_ID=str(replica),
            WORLD_SIZE=str(self.o.ranks),
            MASTER_ADDR=HOST,
            MASTER_PORT=str(store.port),
            BOARD_PORT=str(self.board.port),
            OMP_NUM_THREADS="1",
            TORCHFT_LIGHTHOUSE=self.lighthouse.address(),
        )
        command = [sys.executable, os.path.abspath(__file__), "--worker", *sys.argv[1:]]
        self.groups[replica] = [
            subprocess.Popen(command, env=dict(shared, RANK=str(rank)))
            for rank in range(self.o.ranks)
        ]

    def progress(self, replica):
        """(step, participants) of a replica group's rank that is the furthest behind; (-1, 0)
        before the first step."""
        keys = ["progress/%d/%d" % (replica, rank) for rank in range(self.o.ranks)]
        found = [self.board.get(key).split() for key in keys if self.board.check([key])]
        return (
            min((int(step), int(count)) for step, count, _ in found)
            if len(found) == self.o.ranks
            else (-1, 0)
        )

    def wait_until(self, true, what):
        while not true():
            for replica, processes in self.groups.items():
                for process in processes:
                    if process.poll() not in (None, 0):
                        raise SystemExit("replica %d ended with %d" % (replica, process.returncode))
            if time.monotonic() - self.begin > self.o.limit:
                raise SystemExit("given up after %g s: not yet %s" % (self.o.limit, what))
            time.sleep(0.01)

    def furthest(self):
        return max(self.progress(replica)[0] for replica in self.groups)

    def run_together(self, steps):
        """Until all replicas take part and have done so many further steps."""

        def together():
            return all(self.progress(replica)[1] == self.o.replicas for replica in self.groups)

        self.wait_until(together, "all replicas take part")
        first = self.furthest()
        self.wait_until(
            lambda: together() and min(self.progress(r)[0] for r in self.groups) >= first + steps,
            "step %d on all replicas" % (first + steps),
        )
        self.say("step %d, all %d replicas" % (self.furthest(), self.o.replicas))

    def kill(self, victim):
        for process in self.groups[victim]:
            process.send_signal(signal.SIGKILL)
        for process in self.groups[victim]:
            process.wait()
        killed, step = time.monotonic(), self.furthest()
        for rank in range(self.o.ranks):
            self.board.delete_key("progress/%d/%d" % (victim, rank))
        others = [replica for replica in self.groups if replica != victim]
        self.say("replica %d is killed at step %d, and started again" % (victim, step))
        self.start(victim)
        self.wait_until(
            lambda: min(self.progress(replica)[0] for replica in others) > step + 1,
            "the others go on",
        )
        self.say(
            "the others went on after %.2f s, with %d replicas"
            % (time.monotonic() - killed, self.progress(others[0])[1])
        )

    def end(self):
        self.board.set("stop", str(self.furthest() + 50))
        every = [process for processes in self.groups.values() for process in processes]
        self.wait_until(
            lambda: all(process.poll() == 0 for process in every), "the end of all processes"
        )
        ends = [
            {self.board.get("end/%d/%d" % (replica, rank)).decode() for replica in self.groups}
            for rank in range(self.o.ranks)
        ]
        for rank, words in enumerate(ends):
            self.say("rank %d ended with step and model %s" % (rank, " and ".join(sorted(words))))
        return 0 if all(len(words) == 1 for words in ends) else 1

    def close(self):
        for process in [process for processes in self.groups.values() for process in processes]:
            process.kill()
            process.wait()
        self.lighthouse.shutdown()


def main():
    o = options()
    if o.worker:
        return train(o)
    os.environ.setdefault("RUST_LOG", "error")  # torchft prints each step of each replica otherwise
    job = Job(o)
    try:
        for number in range(o.kills):
            job.run_together(o.steps)
            job.kill(number % o.replicas)
        job.run_together(o.steps)
        status = job.end()
        print(
            "all replicas have the same model"
            if status == 0
            else "the replicas have different models"
        )
        return status
    finally:
        job.close()


if __name__ == "__main__":
    sys.exit(main())
