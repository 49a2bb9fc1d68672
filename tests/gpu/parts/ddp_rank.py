"""One rank of a training job: a small network on data that every run has, losses with all their
digits."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank, steps = int(os.environ["RANK"]), int(sys.argv[1])
torch.use_deterministic_algorithms(True, warn_only=True)
torch.cuda.set_device(0)
dist.init_process_group(
    "nccl",
    init_method="file://" + os.environ["STORE"],
    rank=rank,
    world_size=int(os.environ["WORLD_SIZE"]),
)
torch.manual_seed(7)
net = torch.nn.Sequential(
    torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)
).cuda()
model = DistributedDataParallel(net, device_ids=[0])
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.Generator().manual_seed(100 + rank)
for step in range(steps):
    x = torch.randn(64, 256, generator=data).cuda()
    loss = torch.nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    print("loss %d %.9g" % (step, total.item() / dist.get_world_size()), flush=True)
dist.destroy_process_group()
