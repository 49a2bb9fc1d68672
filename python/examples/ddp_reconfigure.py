"""DDP that loses workers and takes in new ones without losing a step: reconfigure alone, no
torchft.

    python3 ddp_reconfigure.py --kill 1@20 --kill 0@45 --csv losses.csv     # two of three workers
    kill themselves, two come instead python3 ddp_reconfigure.py --plot docs/losses.svg
    # with and without deaths, drawn by matplotlib

A step is a batch of the same --batch images however many workers share it, so that the losses do
not depend on who is alive. Workers that got a step's last all-reduce have done the step, others
have not; after a reconfigure all take the state of whoever is furthest. A new worker has done
nothing, so it takes that state too. What the workers need from outside is who is a member. Here a
supervisor says so over a store that it hosts: it starts the workers and sees them end. It also
starts a spare for each kill beforehand, and lets it in
--rejoin steps after the death.
"""

import argparse
import csv
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import digits
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

HOST = "127.0.0.1"
BOUND = timedelta(seconds=60)


def options():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--workers", type=int, default=3)
    p.add_argument("--steps", type=int, default=80)
    p.add_argument("--batch", type=int, default=120, help="images of a step, shared by the workers")
    p.add_argument(
        "--kill",
        action="append",
        default=[],
        metavar="NAME@STEP",
        help="this worker (0 to --workers - 1, then the spares) kills itself in the middle of "
        "this step",
    )
    p.add_argument(
        "--rejoin",
        type=int,
        default=10,
        help="steps from a death until the spare is let in; 0: at once",
    )
    p.add_argument("--csv", default="losses.csv")
    p.add_argument("--plot", metavar="FILE", help="run with and without deaths, and draw")
    p.add_argument("--backend", default="ftccl")
    p.add_argument(
        "--limit", type=float, default=100, help="seconds after which the whole gives up"
    )
    p.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    o = p.parse_args()
    o.kills = dict(tuple(map(int, kill.split("@"))) for kill in o.kill)
    return o


# ---- a worker ------------------------------------------------------------------------------------


class Worker:
    def __init__(self, o):
        self.o, self.name = o, o.worker
        self.board = dist.TCPStore(
            HOST, int(os.environ["BOARD_PORT"]), is_master=False, timeout=BOUND
        )
        dist.init_process_group(
            o.backend,
            store=dist.HashStore(),
            rank=0,
            world_size=1,
            timeout=BOUND,
            enable_reconfigure=True,
        )
        self.images, self.labels = digits.make(2000)
        self.model = digits.model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.ddp = None
        self.view, self.history = (
            0,
            [],
        )  # (loss, workers, seconds since the job's begin) of each step that is done

    def members(self, view):
        """Who is in a view; None while the supervisor has not said so."""
        key = "view/%d" % view
        return list(map(int, self.board.get(key).split())) if self.board.check([key]) else None

    def wait_for_view(self):
        """The newest view of which this worker is a member; one after the present."""
        self.board.wait(["view/%d" % (self.view + 1)], timedelta(seconds=self.o.limit))
        while self.members(self.view + 1) is not None:
            self.view += 1
        if self.name not in self.members(self.view):
            self.wait_for_view()  # a spare

    def come_together(self):
        """The group becomes the members of the next view, or of a later one if somebody dies
        meanwhile. All have one state then."""
        self.ddp = None  # the reducer of a failed step
        self.wait_for_view()
        while True:
            try:
                handles = self.exchange(self.members(self.view))
                if not handles:
                    self.wait_for_view()
                else:
                    dist._reconfigure(self.view, handles, timeout=BOUND).wait()
                    return self.take_newest_state()
            except dist.DistBackendError as error:
                print("worker %d, view %d: %s" % (self.name, self.view, error), flush=True)
                self.board.set("again/%d" % self.view, "1")
                self.wait_for_view()

    def exchange(self, members):
        """The handles of the members, in their order; None if a newer view came first."""
        self.board.set("handle/%d/%d" % (self.view, self.name), dist._get_reconfigure_handle())
        keys = ["handle/%d/%d" % (self.view, member) for member in members]
        while not self.board.check(keys):
            if self.members(self.view + 1) is not None:
                return None
            time.sleep(0.001)
        return [handle.decode() for handle in self.board.multi_get(keys)]

    def take_newest_state(self):
        steps = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(steps, torch.tensor([len(self.history)]))
        source = max(range(len(steps)), key=lambda rank: int(steps[rank]))
        state = [(self.model.state_dict(), self.optimizer.state_dict(), self.history)]
        dist.broadcast_object_list(state, src=source)
        if dist.get_rank() != source:
            self.model.load_state_dict(state[0][0])
            self.optimizer.load_state_dict(state[0][1])
            self.history = state[0][2]
        self.ddp = DistributedDataParallel(self.model)

    def step(self):
        step, rank, size = len(self.history), dist.get_rank(), dist.get_world_size()
        batch = torch.randint(
            len(self.images), (self.o.batch,), generator=torch.Generator().manual_seed(step)
        )
        mine = batch[rank * self.o.batch // size : (rank + 1) * self.o.batch // size]
        self.optimizer.zero_grad()
        logits = self.ddp(self.images[mine])
        loss = (
            torch.nn.functional.cross_entropy(logits, self.labels[mine], reduction="sum")
            / self.o.batch
        )
        if self.o.kills.get(self.name) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        (loss * size).backward()  # DDP divides by the number of workers
        said = torch.stack(
            [loss.detach(), torch.tensor(float(self.members(self.view + 1) is not None))]
        )
        dist.all_reduce(said)
        self.optimizer.step()
        self.history.append((said[0].item(), size, time.time() - float(os.environ["BEGIN"])))
        if rank == 0:
            self.board.set("step", str(len(self.history)))
        return (
            said[1].item() > 0
        )  # somebody has seen a new view: all leave this one after the same step

    def run(self):
        self.come_together()
        while len(self.history) < self.o.steps:
            try:
                if self.step():
                    self.come_together()
            except dist.DistBackendError as error:
                print("worker %d, step %d: %s" % (self.name, len(self.history), error), flush=True)
                self.come_together()
        if dist.get_rank() == 0:
            write(self.o.csv, self.history)
        self.board.set("end/%d" % self.name, "1")
        dist.destroy_process_group()


def write(path, history):
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["step", "loss", "workers", "seconds"])
        rows.writerows(
            [step, "%.9g" % loss, workers, "%.3f" % seconds]
            for step, (loss, workers, seconds) in enumerate(history)
        )


# ---- the supervisor: who is alive is a member ----------------------------------------------------


class Supervisor:
    def __init__(self, o):
        self.o, self.view, self.begin = o, 0, time.time()
        self.board = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        self.board.set("step", "0")
        self.processes = [self.start(name) for name in range(o.workers + len(o.kills))]
        self.inside = set(range(o.workers))
        self.spares = []  # (step from which it is let in, name)

    def start(self, name):
        command = [
            sys.executable,
            os.path.abspath(__file__),
            *sys.argv[1:],
            "--worker",
            str(name),
            "--csv",
            self.o.csv,
        ]
        return subprocess.Popen(
            command,
            env=dict(
                os.environ,
                BOARD_PORT=str(self.board.port),
                BEGIN=str(self.begin),
                OMP_NUM_THREADS="1",
            ),
        )

    def say(self, words):
        print("%7.2f s  %s" % (time.time() - self.begin, words), flush=True)

    def publish(self):
        self.view += 1
        self.board.set("view/%d" % self.view, " ".join(map(str, sorted(self.inside))))
        self.say(
            "view %d: workers %s, after step %s"
            % (self.view, sorted(self.inside), self.board.get("step").decode())
        )

    def bury(self):
        """Removes workers that died. True if there were any."""
        dead = {name for name in self.inside if self.processes[name].poll() not in (None, 0)}
        self.inside -= dead
        step = int(self.board.get("step"))
        for name in dead:
            self.say("worker %d ended with %d" % (name, self.processes[name].returncode))
            used = self.o.workers + len(self.spares)
            if used < len(self.processes):
                self.spares.append((step + self.o.rejoin, used))
        return bool(dead)

    def admit(self):
        """Lets in spares whose time has come. True if there were any."""
        step = int(self.board.get("step"))
        come = {
            name for due, name in self.spares if due <= step and self.processes[name].poll() is None
        } - self.inside
        self.inside |= come
        return bool(come)

    def run(self):
        self.publish()
        while not all(self.processes[name].poll() == 0 for name in self.inside):
            changed = self.bury()
            if self.admit() or changed or self.board.check(["again/%d" % self.view]):
                self.publish()
            if time.time() - self.begin > self.o.limit or not self.inside:
                raise SystemExit(
                    "given up: step %s, workers %s"
                    % (self.board.get("step").decode(), sorted(self.inside))
                )
            time.sleep(0.001)
        self.say("%d steps done; losses in %s" % (self.o.steps, self.o.csv))

    def close(self):
        for process in self.processes:  # and a spare that was not needed
            process.kill()
            process.wait()


def supervise(o):
    supervisor = Supervisor(o)
    try:
        supervisor.run()
    finally:
        supervisor.close()


# ---- the picture ---------------------------------------------------------------------------------


def draw(path, runs):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (losses, workers) = pyplot.subplots(
        2, 1, sharex=True, height_ratios=[3, 1], figsize=(7, 5)
    )
    for (name, file), style in zip(runs.items(), ["-", "--"]):
        with open(file, newline="") as text:
            rows = list(csv.DictReader(text))
        steps = [int(row["step"]) for row in rows]
        losses.plot(steps, [float(row["loss"]) for row in rows], style, label=name)
        workers.step(steps, [int(row["workers"]) for row in rows], style, where="mid")
    losses.set_ylabel("loss")
    losses.legend()
    workers.set_ylabel("workers")
    workers.set_xlabel("step")
    figure.savefig(path)
    print("drawn: " + path)


def plot(o):
    kills = o.kill or ["1@20", "0@45"]
    base = [
        sys.executable,
        os.path.abspath(__file__),
        "--workers",
        str(o.workers),
        "--steps",
        str(o.steps),
        "--batch",
        str(o.batch),
        "--limit",
        str(o.limit),
        "--backend",
        o.backend,
        "--rejoin",
        str(o.rejoin),
    ]
    runs = {
        "no deaths": ([], o.plot + ".quiet.csv"),
        "killed: " + ", ".join(kills): (["--kill=" + k for k in kills], o.plot + ".killed.csv"),
    }
    for more, file in runs.values():
        subprocess.run(base + more + ["--csv", file], check=True, timeout=o.limit + 10)
    draw(o.plot, {name: file for name, (_, file) in runs.items()})
    for _, file in runs.values():
        os.unlink(file)


def main():
    o = options()
    if o.worker is not None:
        Worker(o).run()
    elif o.plot:
        plot(o)
    else:
        supervise(o)


if __name__ == "__main__":
    main()
