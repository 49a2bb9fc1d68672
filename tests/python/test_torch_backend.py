"""Properties: the c10d backend "ftccl" gives what torch.distributed promises: collectives of all
types, messages with tags in any order, DDP, events for the profiler; failures name the rank, and
time limits are kept; a group that is reconfigured shrinks, grows, merges and survives SIGKILL.
Method: ranks as processes of this file over a FileStore, or as threads; the expected values are
computed from the ranks."""

import concurrent.futures
import datetime
import os
import signal
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
dist = torch.distributed
ftccl_torch = pytest.importorskip("ftccl.torch")

WAIT_S = 120
# torch itself refuses monitored_barrier for all backends but gloo until 2.13
MONITORED = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 14)


def start(rank, size, path, **options):
    store = dist.FileStore(path, size)
    dist.init_process_group(
        "ftccl",
        store=store,
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=60),
        **options
    )
    return store


def collectives(rank, size, path):
    start(rank, size, path)
    for dtype in (
        torch.float32,
        torch.float64,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.bfloat16,
        torch.float16,
    ):
        x = torch.full((5,), rank + 1, dtype=dtype)
        dist.all_reduce(x)
        assert x.tolist() == [size * (size + 1) // 2] * 5, dtype
    x = torch.tensor([1 << rank], dtype=torch.int16)
    dist.all_reduce(x, op=dist.ReduceOp.BOR)
    assert x.item() == (1 << size) - 1
    x = torch.tensor([rank == 0, True])
    dist.all_reduce(x, op=dist.ReduceOp.PRODUCT)
    assert x.tolist() == [size == 1, True]
    x = torch.full((2,), complex(rank, 1))
    dist.all_reduce(x)
    assert x.tolist() == [complex(size * (size - 1) // 2, size)] * 2
    x = torch.arange(12.0).reshape(3, 4).t()
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    torch.testing.assert_close(x, torch.arange(12.0).reshape(3, 4).t())
    out = [torch.empty(3) for _ in range(size)]
    dist.all_gather(out, torch.full((3,), float(rank)))
    assert [t[0].item() for t in out] == list(range(size))
    one = torch.empty(2 * size)
    dist.all_gather_into_tensor(one, torch.full((2,), float(rank)))
    assert one.tolist() == [r for r in range(size) for _ in range(2)]
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, torch.arange(2.0 * size))
    assert part.tolist() == [2.0 * rank * size, (2.0 * rank + 1) * size]
    rows = [r + 1 for r in range(size)]
    got = torch.empty((rank + 1) * size)
    dist.all_to_all_single(got, torch.full((sum(rows),), float(rank)), [rank + 1] * size, rows)
    assert got.tolist() == [float(r) for r in range(size) for _ in range(rank + 1)]
    root = torch.full((2,), float(rank))
    dist.broadcast(root, size - 1)
    assert root.tolist() == [size - 1.0] * 2
    gathered = [torch.empty(1) for _ in range(size)] if rank == 0 else None
    dist.gather(torch.tensor([float(rank)]), gathered)
    assert rank or [t.item() for t in gathered] == list(range(size))
    dist.scatter(part, [torch.full((2,), float(r)) for r in range(size)] if rank == 0 else None)
    assert part.tolist() == [float(rank)] * 2
    dist.barrier()
    if MONITORED:
        dist.monitored_barrier()
    group = dist.new_group(list(range(size - 1)))
    if rank < size - 1:
        x = torch.ones(1)
        dist.all_reduce(x, group=group)
        assert x.item() == size - 1
    words = [None] * size
    dist.all_gather_object(words, {"rank": rank})
    assert words == [{"rank": r} for r in range(size)]
    dist.destroy_process_group()


def messages(rank, size, path):
    start(rank, size, path)
    after, before = (rank + 1) % size, (rank - 1) % size
    for count in (1, 50, 1 << 20):
        got = torch.empty(count)
        works = [dist.isend(torch.full((count,), float(rank)), after), dist.irecv(got, before)]
        for work in works:
            work.wait()
        assert got[0].item() == got[-1].item() == before
    one, two = torch.empty(70000), torch.empty(3)
    sends = [
        dist.isend(torch.full((70000,), 1.0), after, tag=1),
        dist.isend(torch.full((3,), 2.0), after, tag=2),
    ]
    dist.recv(two, before, tag=2)
    dist.recv(one, before, tag=1)
    assert two.tolist() == [2.0] * 3 and one[-1].item() == 1.0
    for work in sends:
        work.wait()
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            x = torch.empty(1)
            source = dist.recv(x)
            assert x.item() == source
            seen.add(source)
        assert seen == set(range(1, size))
    else:
        dist.send(torch.tensor([float(rank)]), 0)
    dist.barrier()
    dist.destroy_process_group()


def ddp(rank, size, path):
    start(rank, size, path)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    alone = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    alone.load_state_dict(model.state_dict())
    data = torch.randn(4 * size, 8)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.0001)
    wrapped(data[4 * rank : 4 * rank + 4]).pow(2).mean().backward()
    alone(data).pow(2).mean().backward()
    for mine, whole in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(mine.grad, whole.grad)
    dist.destroy_process_group()


def refused(rank, size, path):
    start(rank, size, path)
    with pytest.raises(ValueError, match="dense"):
        dist.all_reduce(torch.eye(3).to_sparse())
    with pytest.raises(ValueError, match="average"):
        dist.all_reduce(torch.tensor([True]), op=dist.ReduceOp.AVG)
    with pytest.raises(ValueError, match="share memory"):
        dist.all_reduce(torch.ones(1).expand(4))
    with pytest.raises(RuntimeError, match=r"rank 0.*rank 1|rank 1.*rank 0|different calls"):
        dist.all_reduce(torch.ones(rank + 1))
    dist.destroy_process_group()


def again(rank, size, path):
    """The last rank comes before rank 0, which only then can write to the store."""
    come = path + ".last"
    if rank == size - 1:
        open(come, "w").close()
    while rank == 0 and not os.path.exists(come):
        pass
    start(rank, size, path)
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == size
    # The death of one fails what another is still in: all of them are done before the first ends.
    open("%s.done%d" % (path, rank), "w").close()
    while not all(os.path.exists("%s.done%d" % (path, r)) for r in range(size)):
        pass
    os._exit(0)  # as one that is killed: the store keeps all that was written


def events(profile, name):
    return [event for event in profile.function_events if event.name == name]


def coalesced(rank, size, path):
    start(rank, size, path)
    group = dist.group.WORLD
    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        outs = [torch.empty(size), torch.empty(2 * size)]
        group.allgather_into_tensor_coalesced(
            outs, [torch.full((n,), float(rank)) for n in (1, 2)]
        ).wait()
        lists = [[torch.empty(2), torch.empty(3).t()] for _ in range(size)]
        dist.all_gather_coalesced(lists, [torch.full((n,), float(rank)) for n in (2, 3)])
        for dtype in (torch.float32, torch.int16):  # the second is reduced by the ranks themselves
            parts = [torch.empty(1, dtype=dtype), torch.empty(2, dtype=dtype)]
            group.reduce_scatter_tensor_coalesced(
                parts,
                [torch.full((n * size,), rank + 1, dtype=dtype) for n in (1, 2)],
                dist.ReduceScatterOptions(),
            ).wait()
            assert [t.tolist() for t in parts] == [
                [size * (size + 1) / 2] * n for n in (1, 2)
            ], dtype
        sums = [torch.full((n,), rank + 1) for n in (1, 4)]
        dist.all_reduce_coalesced(sums)
    assert [t.tolist() for t in outs] == [
        [r for r in range(size) for _ in range(n)] for n in (1, 2)
    ]
    assert [[t.tolist() for t in one] for one in lists] == [
        [[r] * n for n in (2, 3)] for r in range(size)
    ]
    assert [t.tolist() for t in sums] == [[size * (size + 1) // 2] * n for n in (1, 4)]
    found = {
        name: [event.input_shapes for event in events(profile, "ftccl:" + name)]
        for name in ("all_gather_single", "all_gather", "reduce_scatter_single", "all_reduce")
    }
    assert found == {
        "all_gather_single": [[[1], [2]]],
        "all_gather": [[[2], [3]]],
        "all_reduce": [[[1], [4]]],
        "reduce_scatter_single": [[[size], [2 * size]]] * 2,
    }, found
    dist.destroy_process_group()


def profiled(rank, size, path):
    start(rank, size, path)
    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        if rank == 0:
            dist.recv(torch.empty(3), 1)
            dist.recv(torch.empty(2))
        elif rank == 1:
            dist.send(torch.ones(3), 0)
            dist.send(torch.ones(2), 0)
        dist.barrier()
    found = {
        name: [event.input_shapes for event in events(profile, "ftccl:" + name)]
        for name in ("send", "recv", "recvAnySource", "barrier")
    }
    expected = [
        {"send": [], "recv": [[[3]]], "recvAnySource": [[[2]]]},
        {"send": [[[3]], [[2]]], "recv": [], "recvAnySource": []},
    ]
    if rank < 2:
        assert found == dict(expected[rank], barrier=[[]]), found
    assert all(event.is_async for event in events(profile, "ftccl:send"))
    dist.destroy_process_group()


def chained(rank, size, path):
    """A future's callback calls the next operation of the group, beside calls of this thread."""
    start(rank, size, path)
    for i in range(300):
        second = torch.ones(2)
        first = dist.all_reduce(torch.ones(1), async_op=True)
        works = []
        future = first.get_future().then(
            lambda _, x=second, to=works: to.append(dist.all_reduce(x, async_op=True))
        )
        got = torch.zeros(1)
        message = dist.irecv(got, (rank - 1) % size)
        dist.isend(torch.tensor([float(i)]), (rank + 1) % size).wait()
        message.wait()
        future.wait()
        works[0].wait()
        assert got.item() == i and second.tolist() == [size, size]
    dist.destroy_process_group()


def late(rank, size, path):
    store = start(rank, size, path)
    soon = datetime.timedelta(milliseconds=300)
    if rank == 0:
        with pytest.raises(RuntimeError, match=r"Timed out waiting 300ms"):
            dist.group.WORLD.barrier(timeout=soon).wait()
        with pytest.raises(
            RuntimeError,
            match=r"Rank 0 timed out in monitoredBarrier after 300 ms: Rank.* 1.* failed to pass",
        ):
            dist.monitored_barrier(timeout=soon)
        store.set("late", "1")
    else:
        if rank > 1:
            with pytest.raises(
                RuntimeError,
                match="Rank %d successfully reached monitoredBarrier.*from rank 0" % rank,
            ):
                dist.monitored_barrier(timeout=soon)
        store.wait(["late"])
    dist.distributed_c10d._set_pg_timeout(soon)
    group = dist.new_group(timeout=datetime.timedelta(seconds=5))
    if rank == 0:
        with pytest.raises(RuntimeError, match=r"Timed out waiting 300ms"):
            dist.barrier()
        with pytest.raises(RuntimeError, match=r"Timed out waiting: rank 0 waits for rank"):
            dist.barrier(group)
        store.set("later", "1")
    store.wait(["later"])
    dist.group.WORLD.abort()


def reconfigured(rank, size, path):
    store = start(rank, size, path, enable_reconfigure=True)

    def collect(key, ranks):
        store.set("%s_%d" % (key, rank), dist._get_reconfigure_handle())
        return [store.get("%s_%d" % (key, r)).decode() for r in ranks]

    def become(uuid, handles):
        dist._reconfigure(uuid, handles, timeout=datetime.timedelta(seconds=60)).wait()
        x = torch.ones(3)
        dist.all_reduce(x)
        assert x.tolist() == [float(len(handles))] * 3 and dist.get_world_size() == len(handles)

    everybody = range(size)
    become(1, collect("first", everybody))
    become(2, collect("same", everybody))
    handles = collect("shrink", everybody)
    if rank < size - 1:
        become(3, handles[:-1])
    become(4, collect("grow", everybody)[::-1])
    assert dist.get_rank() == size - 1 - rank
    become(10 + rank, [dist._get_reconfigure_handle()])
    become(5, set(collect("all", everybody)))
    handles = collect("split", everybody)
    become(6 + rank % 2, handles[rank % 2 :: 2])
    become(8, collect("merge", everybody))
    with pytest.raises(RuntimeError, match="already used"):
        dist._reconfigure(8, handles)
    with pytest.raises(ValueError, match="not a handle"):
        dist._reconfigure(9, ["rubbish"])
    dist.barrier()
    store.set("ready_%d" % rank, "1")
    if rank == 0:  # the process that made the last communicator's id, and the store's first
        store.wait(["ready_%d" % r for r in everybody])
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError, match="lost rank 0"):
        while True:
            dist.all_reduce(torch.ones(1))
    become(20, collect("after", everybody[1:]))
    dist.destroy_process_group()


def came_back(rank, size, path):
    store = start(rank, size, path, enable_reconfigure=True)

    def become(uuid, ranks):
        store.set("%d_%d" % (uuid, rank), dist._get_reconfigure_handle())
        handles = [store.get("%d_%d" % (uuid, r)).decode() for r in ranks]
        dist._reconfigure(uuid, handles, timeout=datetime.timedelta(seconds=60)).wait()
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == len(ranks)

    everybody = list(range(size))
    become(1, everybody)
    for uuid in (2, 3):
        dist.barrier()
        if rank == size - 1:
            dist.group.WORLD.shutdown()
        else:
            with pytest.raises(
                RuntimeError, match="Connection closed by peer.*lost rank %d" % (size - 1)
            ):
                while True:
                    dist.all_reduce(torch.ones(1))
        become(uuid, everybody)
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "name",
    ["collectives", "messages", "ddp", "refused", "coalesced", "profiled", "chained", "late"],
)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_group(name, size, tmp_path):
    if name == "late" and not MONITORED:
        pytest.skip("this torch has monitored_barrier for gloo alone")
    run(name, size, tmp_path, [0] * size)


def test_start_over_the_store_of_an_earlier_start(tmp_path):
    for _ in range(2):
        run("again", 3, tmp_path, [0] * 3)
        assert os.path.exists(
            tmp_path / "store"
        ), "the second start shall find what the first one left"
        for mark in tmp_path.glob("store.*"):
            mark.unlink()


@pytest.mark.parametrize("size", [3, 4])
def test_reconfigure(size, tmp_path):
    if not hasattr(dist, "_reconfigure"):
        pytest.skip("this torch has no reconfigure")
    run("reconfigured", size, tmp_path, [-signal.SIGKILL] + [0] * (size - 1))
    run("came_back", size, tmp_path / "back", [0] * size)


@pytest.mark.parametrize("size", [2, 4])
def test_reconfigure_of_threads(size):
    """Each rank is a thread with a backend of its own; handles go from one to the other in
    memory."""
    if not hasattr(dist, "_reconfigure"):
        pytest.skip("this torch has no reconfigure")
    make = ftccl_torch.build.load().create
    ranks = [make(None, 0, 1, "threads", datetime.timedelta(seconds=30), True) for _ in range(size)]
    options = torch._C._distributed_c10d.ReconfigureOptions()

    def become(uuid, members):
        options.uuid, options.handles = uuid, [ranks[r].get_reconfigure_handle() for r in members]

        def rank(r):
            ranks[r].reconfigure(options).wait()
            x = torch.full((3,), float(r))
            ranks[r].allreduce([x]).wait()
            return x.tolist()

        with concurrent.futures.ThreadPoolExecutor(len(members)) as pool:
            assert list(pool.map(rank, members)) == [[float(sum(members))] * 3] * len(members)

    become(1, range(size))
    become(2, range(size - 1))
    become(3, list(range(size))[::-1])


def test_ninja_is_found_beside_the_interpreter(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with ftccl_torch.build._ninja_on_path():
        folders = os.environ["PATH"].split(os.pathsep)
    assert os.path.dirname(sys.executable) in folders and os.environ["PATH"] == "/nowhere"


def run(name, size, folder, ends):
    folder.mkdir(exist_ok=True)
    ftccl_torch.build.load()  # once, before the ranks need it
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, name, str(rank), str(size), str(folder / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(size)
    ]
    try:
        said = [process.communicate(timeout=WAIT_S)[0] for process in ranks]
        assert [process.returncode for process in ranks] == ends, "\n".join(said)
    finally:
        for process in ranks:
            process.kill()


if __name__ == "__main__":
    globals()[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
