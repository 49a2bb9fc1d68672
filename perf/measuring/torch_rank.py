"""One rank of perf/compare_torch: FTCCL and Gloo under torch.distributed. Two programs:
operations  both backends in the same processes, in rounds of A B; rank 0 prints a JSON line for
            each case
recovery    one backend; the group is reconfigured to the ranks that are left when one is lost.
            Times are those of the clock that all processes of the host share."""

import datetime
import json
import sys
import time

import torch
import torch.distributed as dist

BUDGET_S = 0.03  # of timed calls in one sample
ITERATIONS_MAX = 1000
BACKENDS = ["ftccl", "gloo"]


def seconds(n):
    return datetime.timedelta(seconds=n)


# ---- operations ----------------------------------------------------------------------------------


def ddp_step(group, size):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(784, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 10),
    )
    ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.rand(64, 784), torch.randint(10, (64,))

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()

    return step


def call_of(what, size, ranks, group):
    """What is timed. size: bytes of the larger buffer, which is a multiple of 4 bytes for each
    rank."""
    if what == "ddp":
        return ddp_step(group, size)
    count = max(size // 4, 1)
    part = max(count // ranks, 1)
    large, other, small = torch.ones(part * ranks), torch.ones(part * ranks), torch.ones(part)
    calls = {
        "all_reduce": lambda: dist.all_reduce(torch_all, group=group),
        "broadcast": lambda: dist.broadcast(torch_all, 0, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(large, small, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(small, large, group=group),
        "all_to_all": lambda: dist.all_to_all_single(large, other, group=group),
    }
    torch_all = torch.zeros(count)
    return calls[what]


def sample(call, iterations, group):
    """Seconds for a call: that of the slowest rank."""
    dist.barrier(group=group)
    begin = time.perf_counter()
    for _ in range(iterations):
        call()
    took = torch.tensor([(time.perf_counter() - begin) / iterations], dtype=torch.float64)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return took.item()


def measure(what, size, ranks, groups, rounds):
    calls = {name: call_of(what, size, ranks, groups[name]) for name in BACKENDS}
    iterations = {}
    for name in BACKENDS:
        sample(calls[name], 1, groups[name])
        took = sample(calls[name], 2, groups[name])
        iterations[name] = int(min(ITERATIONS_MAX, max(2, BUDGET_S / took)))
    times = {name: [] for name in BACKENDS}
    for _ in range(rounds):
        for name in BACKENDS:
            times[name].append(sample(calls[name], iterations[name], groups[name]))
    return {"what": what, "ranks": ranks, "bytes": size, "times_s": times}


def operations(plan, rank, store):
    ranks = plan["ranks"]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=seconds(120))
    groups = {name: dist.new_group(backend=name, timeout=seconds(120)) for name in BACKENDS}
    for what, size in plan["cases"]:
        row = measure(what, size, ranks, groups, plan["rounds"])
        if rank == 0:
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()


# ---- recovery ------------------------------------------------------------------------------------


def collect(store, key, rank, ranks):
    store.set("%s/%d" % (key, rank), dist._get_reconfigure_handle())
    return [store.get("%s/%d" % (key, r)).decode() for r in ranks]


def recovery(plan, rank, board):
    """The group's own store is with rank 0 where rank 0 is the lost one; the board is with whoever
    measures."""
    ranks, lost, limit = plan["ranks"], plan["lost"], seconds(plan["limit_s"])
    store = board
    if plan["case"] == "store":
        if rank == 0:
            store = dist.TCPStore(
                "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit
            )
            board.set("store", str(store.port))
        else:
            store = dist.TCPStore(
                "127.0.0.1", int(board.get("store")), is_master=False, timeout=limit
            )
    dist.init_process_group(
        plan["backend"],
        store=store,
        rank=rank,
        world_size=ranks,
        timeout=seconds(plan["timeout_s"]),
        enable_reconfigure=True,
    )
    dist._reconfigure(1, collect(board, "first", rank, range(ranks)), timeout=limit).wait()
    x = torch.ones(256)
    dist.all_reduce(x)
    board.set("ready/%d" % rank, "1")
    try:
        while True:
            dist.all_reduce(x.fill_(1))
    except RuntimeError as error:
        failed, words = time.monotonic(), str(error)
    left = [r for r in range(ranks) if r != lost]
    try:
        dist._reconfigure(2, collect(board, "second", rank, left), timeout=limit).wait()
        dist.all_reduce(x.fill_(1))
        assert x[0].item() == len(left), x[0].item()
        end = {"failed": failed, "back": time.monotonic(), "words": words[:200]}
    except Exception as error:  # a result too
        end = {"failed": failed, "words": str(error).splitlines()[0][:200]}
    board.set("end/%d" % rank, json.dumps(end))
    time.sleep(plan["limit_s"])  # until it is killed: an exit would be another loss


def main():
    plan, rank, port = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    board = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=seconds(120))
    {"operations": operations, "recovery": recovery}[plan["program"]](plan, rank, board)


if __name__ == "__main__":
    main()
