"""DDP under torchrun's elastic restart: a worker dies, torchrun starts all of them again, they go
on from the last checkpoint.

    torchrun --nnodes=1 --nproc-per-node=3 --max-restarts=3 elastic_torchrun.py --steps 60
    --checkpoint /tmp/run.pt --kill 1@25

--kill RANK@STEP: this rank kills itself in this step of the first start. Rank 0 saves the model,
the optimizer and the step every
--every steps, so a death costs at most that many steps, and the time in which torchrun starts the
processes; ddp_reconfigure.py loses neither.
"""

import argparse
import os
import signal
from datetime import timedelta

import digits
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def options():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    p.add_argument("--checkpoint", required=True)
    p.add_argument("--kill", action="append", default=[], metavar="RANK@STEP")
    p.add_argument("--backend", default="ftccl")
    return p.parse_args()


def dies(o, rank, step):
    return os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and "%d@%d" % (rank, step) in o.kill


def save(path, state):
    """Whoever is killed here leaves the old checkpoint."""
    torch.save(state, path + ".new")
    os.replace(path + ".new", path)


def main():
    o = options()
    dist.init_process_group(o.backend, timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    images, labels = digits.make(1200)
    model = digits.model()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = 0
    if os.path.exists(o.checkpoint):
        saved = torch.load(o.checkpoint)
        first = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    if rank == 0:
        print(
            "start %s with %d ranks at step %d"
            % (os.environ["TORCHELASTIC_RESTART_COUNT"], size, first),
            flush=True,
        )
    for step in range(first, o.steps):
        chosen = torch.randint(
            len(images), (32 * size,), generator=torch.Generator().manual_seed(step)
        )[rank::size]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(images[chosen]), labels[chosen])
        if dies(o, rank, step):
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) % o.every == 0:
            save(
                o.checkpoint,
                {
                    "step": step + 1,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                },
            )
    dist.all_reduce(loss := loss.detach(), op=dist.ReduceOp.AVG)
    if rank == 0:
        print("step %d, loss %.5f" % (o.steps, loss.item()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
