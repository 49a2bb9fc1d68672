"""Properties: what users do wrong, and what happens to them, ends in an exception with a sentence:
ranks that stop or die, also the one that hosts the store; fork after init; interpreters that exit
or are interrupted in the middle of an operation; tensors, handles and groups that do not fit.
Nobody hangs or crashes, and nothing is left behind. FSDP2, DTensor, tensor and pipeline parallel
models compute what one process computes. Method: ranks as processes of this file that meet over a
FileStore or by files; the stopped and the killed are so by themselves, at a known step."""

import contextlib
import datetime
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")
dist = torch.distributed
ftccl_torch = pytest.importorskip("ftccl.torch")
import ftccl  # noqa: E402
from ranks import Process, when_main_thread_is_in  # noqa: E402

WAIT_S = 90  # twice in a test at most; a busy machine takes four times as long
PROMPT_S = 15  # far below every time limit of the groups here, for a busy machine
LONG = datetime.timedelta(minutes=30)
SHORT = datetime.timedelta(seconds=4)


# ---- what ranks use ------------------------------------------------------------------------------


def start(rank, size, folder, timeout=LONG, **options):
    store = dist.FileStore(os.path.join(folder, "store"), size)
    dist.init_process_group(
        "ftccl", store=store, rank=rank, world_size=size, timeout=timeout, **options
    )


def post(folder, name, text=""):
    path = os.path.join(folder, name)
    with open(path + ".part", "w") as file:
        file.write(text)
    os.rename(path + ".part", path)


def is_posted(folder, name):
    return os.path.exists(os.path.join(folder, name))


def wait_for(folder, name):
    end = time.monotonic() + WAIT_S
    while not is_posted(folder, name):
        assert time.monotonic() < end, name + " did not come"
        time.sleep(0.002)
    with open(os.path.join(folder, name)) as file:
        return file.read()


def become(folder, uuid, rank, ranks, timeout=60):
    """This group becomes these ranks, whose handles go by files: no store is needed."""
    post(folder, "handle_%d_%d" % (uuid, rank), dist._get_reconfigure_handle())
    handles = [wait_for(folder, "handle_%d_%d" % (uuid, r)) for r in ranks]
    dist._reconfigure(uuid, handles, timeout=datetime.timedelta(seconds=timeout)).wait()
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x.tolist() == [float(len(ranks))] * 3 and dist.get_world_size() == len(ranks)


@contextlib.contextmanager
def fails(*words, within=PROMPT_S, kind=RuntimeError, what=""):
    """The block raises an exception with all of the words, soon."""
    begin, said = time.monotonic(), "nothing"
    try:
        yield
    except kind as error:
        said = str(error)
    took = time.monotonic() - begin
    assert took < within and all(re.search(word, said) for word in words) and said != "nothing", (
        what,
        took,
        words,
        said,
    )


def sum_of(size, **options):
    x = torch.ones(1)
    dist.all_reduce(x, **options)
    return x.item() == size


# ---- what tests use ------------------------------------------------------------------------------


@contextlib.contextmanager
def ranks(function, size, folder, *arguments):
    """The processes of the ranks; afterwards none is left, and nothing in /dev/shm."""
    ftccl_torch.build.load()  # once, before the ranks need it
    os.environ["OMP_NUM_THREADS"] = "1"
    before = set(os.listdir("/dev/shm"))
    identity = ftccl.get_unique_id()
    processes = [
        Process(function, identity, size, rank, str(folder), *arguments) for rank in range(size)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.process.kill()
            process.process.wait()
    # the telemetry of a rank that died or failed stays for those who ask why
    left = [
        name
        for name in set(os.listdir("/dev/shm")) - before
        if not re.fullmatch(r"ftccl-\d+-\d+-\d+", name)
        and any(str(process.process.pid) in name for process in processes)
    ]
    assert not left, left


def ends_of(processes, want):
    """Status, result and stderr of each. One that ends as it must not has the others killed
    soon."""
    end = time.monotonic() + WAIT_S
    while any(process.process.poll() is None for process in processes) and time.monotonic() < end:
        if any(
            process.process.poll() not in (None, status) for process, status in zip(processes, want)
        ):
            end = min(end, time.monotonic() + 5)
        time.sleep(0.01)
    for process in processes:
        process.process.kill()
    got = [process.end() for process in processes]
    said = "\n".join(
        "rank %d: %s %s\n%s" % (process.rank, status, result, err)
        for process, (status, result, err) in zip(processes, got)
    )
    assert [status for status, _, _ in got] == want, said
    assert all(status != 0 or result == "fine" for status, result, _ in got), said
    assert "Fatal Python" not in said and "terminate called" not in said, said
    return got


def run(function, size, folder, *arguments, ends=None):
    """Runs the ranks to their ends, which are 0 and "fine" unless told."""
    with ranks(function, size, folder, *arguments) as processes:
        return ends_of(processes, ends or [0] * size)


needs_reconfigure = pytest.mark.skipif(
    not hasattr(dist, "_reconfigure"), reason="this torch has no reconfigure"
)


# ---- ranks that stop or die ----------------------------------------------------------------------


def stopped(identity, size, rank, folder, seconds):
    timeout = datetime.timedelta(seconds=seconds)
    start(rank, size, folder, timeout, enable_reconfigure=True)
    become(folder, 1, rank, range(size))
    others = [r for r in range(size) if r != 1]
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        with fails("rank 1: all_reduce, operation"):
            while True:
                dist.all_reduce(torch.ones(1))
        with fails("rank 1"):
            dist.all_reduce(torch.ones(1))
        post(folder, "gone_on")
        dist.destroy_process_group()
        return "fine"
    with fails("rank %d: all_reduce, operation" % rank, "rank 1[^:]", within=min(seconds, 4) + 8):
        while True:
            dist.all_reduce(torch.ones(1))
    become(folder, 2, rank, others)
    post(folder, "together_%d" % rank)
    over = torch.zeros(1)
    while not over.item():  # meanwhile the other one goes on
        over = torch.tensor([float(is_posted(folder, "gone_on"))])
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
    become(folder, 3, rank, others)
    dist.destroy_process_group()
    return "fine"


@needs_reconfigure
@pytest.mark.parametrize("size, seconds", [(3, 4), (4, 4), (3, 1800), (4, 1800)])
def test_stopped(size, seconds, tmp_path):
    with ranks(stopped, size, tmp_path, seconds) as processes:
        for rank in range(size):
            if rank != 1:
                wait_for_rank(processes, tmp_path, "together_%d" % rank)
        os.kill(processes[1].process.pid, signal.SIGCONT)
        ends_of(processes, [0] * size)


def wait_for_rank(processes, folder, name):
    """Waits for a file of a rank, unless a rank fails."""
    end = time.monotonic() + WAIT_S
    while not is_posted(folder, name):
        if time.monotonic() > end or any(
            process.process.poll() is not None for process in processes
        ):
            ends_of(processes, [0] * len(processes))
        time.sleep(0.01)


def store_host_dies(identity, size, rank, folder):
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, size, True, wait_for_workers=False)
        post(folder, "port", str(store.port))
    else:
        store = dist.TCPStore("127.0.0.1", int(wait_for(folder, "port")), size, False)
    dist.init_process_group(
        "ftccl", store=store, rank=rank, world_size=size, timeout=LONG, enable_reconfigure=True
    )
    become(folder, 1, rank, range(size))
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    with fails("rank %d: all_reduce, operation" % rank, "rank 0"):
        while True:
            dist.all_reduce(torch.ones(1))
    become(folder, 2, rank, range(1, size))
    dist.barrier()
    got = torch.empty(1)
    right, left = (rank % (size - 1)), (rank - 2) % (size - 1)
    works = [dist.isend(torch.ones(1) * rank, right), dist.irecv(got, left)]
    for work in works:
        work.wait()
    assert got.item() == left + 1
    dist.destroy_process_group()
    return "fine"


@needs_reconfigure
@pytest.mark.parametrize("size", [3, 4])
def test_store_host_dies(size, tmp_path):
    run(store_host_dies, size, tmp_path, ends=[-signal.SIGKILL] + [0] * (size - 1))


# ---- fork, exits, interrupts ---------------------------------------------------------------------


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        return torch.full((4,), float(i))


def loads_data(identity, size, rank, folder):
    """DDP with data from two worker processes, which are forks of this one, in the middle of
    operations."""
    start(rank, size, folder)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    loader = torch.utils.data.DataLoader(
        Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork"
    )
    for _ in range(2):
        work = dist.all_reduce(torch.ones(1), async_op=True)
        for batch in loader:
            model(batch).sum().backward()
        work.wait()
    assert sum_of(size)
    dist.destroy_process_group()
    return "fine"


def test_data_loader(tmp_path):
    run(loads_data, 2, tmp_path)


def in_child(action):
    """Exit status of a fork that does this and exits as programs do."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        except Exception as error:
            print("in the child: %s" % error, file=sys.stderr)
            sys.exit(7 if "fork" in str(error) else 8)
        sys.exit(6)
    end = time.monotonic() + PROMPT_S
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "hung"
        time.sleep(0.01)


def forks(identity, size, rank, folder):
    start(rank, size, folder)
    assert sum_of(size)
    work = dist.irecv(torch.empty(1), 1 - rank, tag=9)  # with a thread of its own
    calls = [
        lambda: dist.all_reduce(torch.ones(1)),
        dist.barrier,
        dist.monitored_barrier,
        lambda: dist.send(torch.ones(1), 1 - rank),
        lambda: dist.recv(torch.ones(1), 1 - rank),
        work.wait,
        lambda: dist.new_group([rank]),
        lambda: dist.all_gather_object([None] * size, 1),
    ]
    got = [in_child(call) for call in calls]
    assert got == [7] * len(calls), got
    ends = [dist.destroy_process_group, lambda: None, dist.distributed_c10d._abort_process_group]
    got = [in_child(call) for call in ends]
    assert got == [6] * len(ends), got
    assert sum_of(size)
    dist.send(torch.ones(1), 1 - rank, tag=9)
    work.wait()
    dist.destroy_process_group()
    return "fine"


def test_fork(tmp_path):
    run(forks, 2, tmp_path)


def exits(identity, size, rank, folder, how):
    """Rank 0 exits while an operation, a receive and a future wait for rank 1, which is told."""
    start(rank, size, folder)
    assert sum_of(size)
    if rank == 1:
        wait_for(folder, "leaves")
        with fails("rank 1: all_reduce, operation", "rank 0"):
            dist.all_reduce(torch.ones(1 << 20))
            dist.all_reduce(torch.ones(1))
            dist.all_reduce(torch.ones(1))
        return "fine"
    work = dist.all_reduce(torch.ones(1 << 20), async_op=True)
    future = work.get_future()
    receive = dist.irecv(torch.empty(1), 1)
    if how == "thread":
        threading.Thread(target=work.wait, daemon=True).start()
        threading.Thread(target=receive.wait, daemon=True).start()
        threading.Thread(target=future.wait, daemon=True).start()
    if how == "interrupt":
        when_main_thread_is_in("wait_in_main", lambda: os.kill(os.getpid(), signal.SIGINT))

        def wait_in_main():
            receive.wait()

        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            wait_in_main()
        assert time.monotonic() - begin < PROMPT_S
    post(folder, "leaves")
    if how == "exception":
        raise ValueError("as planned")
    if how == "exit":
        sys.exit(3)
    if how == "_exit":
        os._exit(4)
    if how == "destroy":
        dist.destroy_process_group()
    return "fine"


@pytest.mark.parametrize(
    "how, status",
    [("return", 0), ("thread", 0), ("exit", 3), ("_exit", 4), ("exception", 1), ("interrupt", 0)],
)
def test_exit_in_the_middle(how, status, tmp_path):
    run(exits, 2, tmp_path, how, ends=[status, 0])


def interrupted(identity, size, rank, folder):
    """SIGINT ends every wait; the group can be aborted then, which leaves no thread."""
    start(rank, size, folder)
    assert sum_of(size)
    if rank == 1:
        wait_for(folder, "done")
        return "fine"
    threads = len(os.listdir("/proc/self/task"))

    def wait_in_main(call):
        call()

    calls = [
        lambda: dist.all_reduce(torch.ones(1)),
        lambda: dist.recv(torch.ones(1), 1),
        dist.barrier,
        lambda: dist.recv(torch.ones(1)),
        dist.monitored_barrier,
        lambda: dist.new_group([0, 1]),
    ]
    for i, call in enumerate(calls):
        when_main_thread_is_in("wait_in_main", lambda: os.kill(os.getpid(), signal.SIGINT))
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            wait_in_main(call)
        assert time.monotonic() - begin < PROMPT_S, i
    dist.distributed_c10d._abort_process_group()
    gc.collect()
    post(folder, "done")
    return "fine"


def test_interrupt(tmp_path):
    run(interrupted, 2, tmp_path)


# ---- tensors, handles and groups that do not fit -------------------------------------------------


def bad_tensors(identity, size, rank, folder):
    """What one rank can see by itself fails there alone, and the group goes on."""
    start(rank, size, folder)
    one, meta = torch.ones(4), torch.ones(4, device="meta")
    sparse, wide = torch.eye(4).to_sparse(), torch.ones(1).expand(4)
    bad = ValueError, TypeError, RuntimeError, NotImplementedError
    many = [torch.ones(4) for _ in range(size)]
    backend = dist.group.WORLD._get_backend(
        torch.device("cpu")
    )  # torch itself answers calls with a meta tensor
    for call in (
        lambda: backend.allreduce([meta]),
        lambda: backend.broadcast(meta, 0),
        lambda: backend.send([meta], 1 - rank, 0),
        lambda: backend.recv([meta], 1 - rank, 0),
        lambda: backend.recv_anysource([meta], 0),
        lambda: backend.allgather([[meta] * size], [one]),
    ):
        with fails("meta", kind=bad):
            call()
    for tensor, word in ((sparse, "parse|dense"), (wide, "share memory|expanded")):
        reads = (
            [lambda: dist.send(tensor, 1 - rank), lambda: dist.all_gather(many, tensor)]
            if tensor is not wide
            else []
        )
        writes = [
            lambda: dist.all_reduce(tensor),
            lambda: dist.broadcast(tensor, 1 - rank),
            lambda: dist.recv(tensor, 1 - rank),
            lambda: dist.recv(tensor),
            lambda: dist.reduce(tensor, rank),
            lambda: dist.all_gather([tensor] * size, one),
            lambda: dist.reduce_scatter(tensor, many),
            lambda: dist.all_gather_into_tensor(tensor, torch.ones(2)),
            lambda: dist.reduce_scatter_tensor(tensor, torch.ones(4 * size)),
            lambda: dist.all_to_all_single(tensor, one),
            lambda: dist.all_to_all([tensor] * size, many),
            lambda: dist.scatter(tensor, many if rank == 0 else None, 0),
        ]
        for i, call in enumerate(writes + reads):
            with fails(word, kind=bad, what=(word, i)):
                call()
    wrong = [
        lambda: dist.all_gather(many, torch.ones(5)),
        lambda: dist.all_gather(many[1:], one),
        lambda: dist.all_gather(many, one.int()),
        lambda: dist.reduce_scatter(torch.ones(5), many),
        lambda: dist.all_gather_into_tensor(torch.ones(5), one),
        lambda: dist.all_gather_into_tensor(torch.ones(4 * size).int(), one),
        lambda: dist.reduce_scatter_tensor(one, torch.ones(5)),
        lambda: dist.all_to_all_single(one, torch.ones(4), [1, 2], [2, 2]),
        lambda: dist.all_to_all_single(one, torch.ones(4), [5, -1], [2, 2]),
        lambda: dist.all_to_all_single(one, torch.ones(4).int()),
        lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3)),
        lambda: dist.all_to_all(many, many[1:]),
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.cfloat), op=dist.ReduceOp.MAX),
        lambda: dist.all_reduce(one, op=dist.ReduceOp.BAND),
        lambda: dist.all_reduce(torch.tensor([True]), op=dist.ReduceOp.AVG),
        lambda: dist.broadcast(one, size),
        lambda: dist.send(one, size),
        lambda: dist.recv(one, size),
        lambda: dist.send(one, rank),
        lambda: dist.reduce(one, -7),
        lambda: dist.all_to_all([one], [one] * size),
    ]
    for i, call in enumerate(wrong):
        with fails("[a-z]{3}", kind=bad, what=i):
            call()
    assert sum_of(size)
    strided = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)[::2]
    for x in (
        strided,
        strided.to(torch.cfloat),
        strided > 5,
        torch.empty(0),
        torch.tensor(3.0),
        torch.ones(3).to(torch.int16),
    ):
        whole = x.clone()
        dist.broadcast(whole, 0)
        assert torch.equal(whole, x)
        out = [torch.zeros_like(x) for _ in range(size)]
        dist.all_gather(out, x)
        assert all(torch.equal(t, x) for t in out)
        if rank == 0:
            dist.send(x, 1)
        if rank == 1:
            got = torch.zeros_like(x)
            dist.recv(got, 0)
            assert torch.equal(got, x)
    dist.destroy_process_group()
    return "fine"


def test_bad_tensors(tmp_path):
    run(bad_tensors, 2, tmp_path)


def different(identity, size, rank, folder):
    """Ranks that do not agree: every rank has a sentence; only the group where it happened is
    lost."""
    start(rank, size, folder, SHORT)
    last = rank == size - 1
    n = 5 if last else 4
    tensor = torch.ones(n)
    many, whole = [torch.ones(n) for _ in range(size)], torch.ones(n * size)
    calls = [
        lambda g: dist.all_reduce(tensor, group=g),
        lambda g: dist.broadcast(tensor, 0, group=g),
        lambda g: dist.reduce(tensor, 0, group=g),
        lambda g: dist.all_gather(many, tensor, group=g),
        lambda g: dist.all_gather_into_tensor(whole, tensor, group=g),
        lambda g: dist.reduce_scatter_tensor(tensor, whole, group=g),
        lambda g: dist.all_to_all_single(whole, whole.clone(), group=g),
        lambda g: dist.gather(tensor, many if rank == 0 else None, group=g),
        lambda g: dist.scatter(tensor, many if rank == 0 else None, group=g),
        lambda g: dist.all_reduce(
            torch.ones(4).to(torch.int32 if last else torch.float32), group=g
        ),
        lambda g: dist.all_reduce(
            torch.ones(4), op=dist.ReduceOp.MAX if last else dist.ReduceOp.SUM, group=g
        ),
        lambda g: dist.broadcast(torch.ones(4), 1 if last else 0, group=g),
        lambda g: dist.barrier(group=g) if last else dist.all_reduce(torch.ones(4), group=g),
        lambda g: dist.all_reduce(
            torch.ones(2).to(torch.int16 if last else torch.float32), group=g
        ),
    ]
    for i, call in enumerate(calls):
        group = dist.new_group(timeout=SHORT)
        with fails("rank %d: " % rank, "different|bytes|sizes|lost|rank [0-9]", what=i):
            call(group)
            dist.barrier(group=group)  # a root that only sends may have been done before
        with fails("[a-z]{3}"):
            dist.all_reduce(torch.ones(1), group=group)
        dist.destroy_process_group(group)
    assert sum_of(size)
    if rank == 0:
        dist.send(torch.ones(7), 1)
    if rank == 1:
        with fails("rank 1: recv, operation", "28 bytes", "16"):
            dist.recv(torch.ones(4), 0)
    assert sum_of(size)
    dist.destroy_process_group()
    return "fine"


@pytest.mark.parametrize("size", [2, 3])
def test_different(size, tmp_path):
    run(different, size, tmp_path)


def foreign_handles(identity, size, rank, folder):
    start(rank, size, folder, enable_reconfigure=True)
    become(folder, 1, rank, range(size))
    mine = dist._get_reconfigure_handle()
    wrong = [
        "",
        "/",
        "rubbish",
        mine[:-1],
        mine[:40],
        mine + "0",
        mine.upper(),
        mine.replace("/", "-"),
        mine.replace("ftccl1", "ftccl9"),
        "\0" * 200,
        "a" + "\u00e9" * 100,
        "ftccl1/" + "/" * 100,
        "ftccl1/%s/-/99999999999999999999/%s" % ("0" * 16, "0" * 256),
        "ftccl1/%s/-/-1/%s" % ("0" * 16, "0" * 256),
    ]
    uuid = 100
    for handle in wrong:
        uuid += 1
        with fails("handle", kind=(ValueError, RuntimeError)):
            dist._reconfigure(uuid, [mine, handle], timeout=SHORT)
    for handles, word in (
        ([], "no handles"),
        ([mine, mine], "same process"),
        (["ftccl1/%s/-/0/%s" % ("1" * 16, mine.split("/")[4])], "not among"),
    ):
        uuid += 1
        with fails(word, kind=(ValueError, RuntimeError)):
            dist._reconfigure(uuid, handles, timeout=SHORT)
    assert sum_of(size)  # nothing of this touched the group
    # of another job: it is well formed, and nobody comes
    nobody = "ftccl1/%s/-/0/%s" % ("2" * 16, ftccl.get_unique_id().hex())
    for handle in (
        nobody,
        "ftccl1/%s/-/0/%s" % ("3" * 16, "00" * 128),
        "ftccl1/%s/%s/1/%s" % ("4" * 16, "5" * 16, "ff" * 128),
    ):
        uuid += 1
        with fails("[a-z]{3}"):
            dist._reconfigure(
                uuid, [handle, mine] if rank else [mine, handle], timeout=SHORT
            ).wait()
        mine = dist._get_reconfigure_handle()
        with fails("[a-z]{3}"):
            dist.all_reduce(torch.ones(1))
    become(folder, 2, rank, range(size))
    dist.destroy_process_group()
    return "fine"


@needs_reconfigure
def test_foreign_handles(tmp_path):
    run(foreign_handles, 2, tmp_path)


def one_name(identity, size, rank, folder):
    """Groups with the same name on the same store, one after the other; one made again; two at a
    time."""
    store = dist.PrefixStore("same", dist.FileStore(os.path.join(folder, "store"), size))

    def make(timeout=LONG):
        return ftccl_torch.load().create(store, rank, size, "name", timeout)

    groups = [make() for _ in range(3)]
    for group in groups:
        x = torch.ones(1)
        group.allreduce([x]).wait()
        assert x.item() == size
    for group in groups:
        group.shutdown()
    for _ in range(2):
        dist.init_process_group("ftccl", store=store, rank=rank, world_size=size, timeout=LONG)
        assert sum_of(size)
        dist.destroy_process_group()
    made = [None, None]

    def run(i):
        try:
            made[i] = make(datetime.timedelta(seconds=8))
            made[i].allreduce([torch.ones(1)]).wait()
        except RuntimeError as error:
            made[i] = str(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PROMPT_S + 8)
        assert not thread.is_alive()
    return "fine"


@pytest.mark.parametrize("size", [2, 3])
def test_one_name(size, tmp_path):
    run(one_name, size, tmp_path)


# ---- ranks as threads ----------------------------------------------------------------------------


def as_threads(identity, size, rank, folder):
    """Three ranks of one group in each of two processes; then they become another group, and abort
    each other's waits."""
    ranks, errors = range(3 * rank, 3 * rank + 3), []

    def run(me):
        try:
            store = dist.PrefixStore(
                "threads", dist.FileStore(os.path.join(folder, "store"), 3 * size)
            )
            group = ftccl_torch.load().create(store, me, 3 * size, "threads", LONG)
            for n in (1, 1000, 100000):
                x = torch.full((n,), float(me))
                group.allreduce([x]).wait()
                assert x[-1].item() == sum(range(3 * size))
            right, left = (me + 1) % (3 * size), (me - 1) % (3 * size)
            got = torch.empty(1)
            works = [group.send([torch.tensor([float(me)])], right, 5), group.recv([got], left, 5)]
            for work in works:
                work.wait()
            assert got.item() == left
            group.barrier().wait()
            if me == 0:
                pending = group.recv([torch.ones(1)], 1, 6)
                waiter = threading.Thread(
                    target=lambda: errors.append(None if refuses(pending.wait) else "no error")
                )
                waiter.start()
                group.abort()
                waiter.join(PROMPT_S)
                assert not waiter.is_alive()
            else:
                assert refuses(lambda: group.recv([torch.ones(1)], 0, 6).wait())
                assert refuses(lambda: group.allreduce([torch.ones(1)]).wait())
                group.abort()
        except BaseException as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=run, args=(me,)) for me in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert not any(errors), errors
    return "fine"


def refuses(call):
    with fails("[a-z]{3}"):
        call()
    return True


def test_threads(tmp_path):
    run(as_threads, 2, tmp_path)


# ---- barriers, many groups, aborts ---------------------------------------------------------------


def barriers(identity, size, rank, folder):
    """Who does not come to a barrier is named by all who came."""
    start(rank, size, folder)
    missing = size - 1
    plain, watched = dist.new_group(timeout=SHORT), dist.new_group(timeout=SHORT)
    if rank == missing:
        wait_for(folder, "over_0")
        dist.barrier()
        return "fine"
    if rank == 0:
        with fails("Rank %d failed to pass" % missing):
            dist.monitored_barrier(watched, timeout=SHORT, wait_all_ranks=True)
    else:
        with fails("Rank 0 did not complete|rank 0"):
            dist.monitored_barrier(watched, timeout=SHORT)
    with fails("rank %d: barrier, operation" % rank, "rank %d[^:]" % missing):
        dist.barrier(group=plain)
    assert plain_error(plain) != "SUCCESS"
    post(folder, "over_%d" % rank)
    dist.barrier()
    return "fine"


def plain_error(group):
    return group._get_backend(torch.device("cpu")).get_error().name


@pytest.mark.parametrize("size", [2, 3, 4])
def test_barriers(size, tmp_path):
    run(barriers, size, tmp_path)


def many_groups(identity, size, rank, folder):
    """Groups that overlap are made, used and destroyed, each rank in an order of its own."""
    start(rank, size, folder)
    lists = [[0, 1, 2], [0, 1], [1, 2], [0, 2], [2], [0, 1, 2]]
    groups = [dist.new_group(list(ranks)) for ranks in lists]
    groups.append(dist.split_group(split_ranks=[[0, 1, 2]]))
    lists.append([0, 1, 2])
    half = dist.split_group(split_ranks=[[0, 1], [2]])
    for ranks, group in list(zip(lists, groups)) * 2:
        if rank in ranks:
            assert sum_of(len(ranks), group=group)
    x = torch.ones(1)
    dist.all_reduce(x, group=half)
    assert x.item() == (1 if rank == 2 else 2)
    mine = [group for ranks, group in zip(lists, groups) if rank in ranks] + [half]
    works = [dist.all_reduce(torch.ones(1 << 16), group=group, async_op=True) for group in mine]
    for work in works:
        work.wait()
    for k in range(
        len(mine)
    ):  # rank 0 from the first, rank 1 from the last, rank 2 from the middle
        group = mine.pop(0 if rank == 0 else -1 if rank == 1 else len(mine) // 2)
        dist.destroy_process_group(group)
    assert sum_of(size)
    dist.destroy_process_group()
    return "fine"


def test_many_groups(tmp_path):
    run(many_groups, 3, tmp_path)


def aborts(identity, size, rank, folder):
    """abort() from another thread frees every waiter, with its rank and operation; get_error()
    tells the truth."""
    start(rank, size, folder)
    assert sum_of(size)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert plain_error(dist.group.WORLD) == "SUCCESS"
    if rank == 1:
        wait_for(folder, "aborted")
        with fails("rank 1: all_reduce, operation", "rank 0"):
            dist.all_reduce(torch.ones(1))
            dist.all_reduce(torch.ones(1))
            dist.all_reduce(torch.ones(1))
        assert plain_error(dist.group.WORLD) == "REMOTE_ERROR"
        return "fine"
    works = [
        dist.all_reduce(torch.ones(1), async_op=True),
        dist.irecv(torch.ones(1), 1),
        dist.isend(torch.ones(1 << 20), 1),
    ]
    futures = [works[0].get_future()]
    said, threads = [], []

    def wait(work):
        try:
            work.wait()
            said.append("no error")
        except RuntimeError as error:
            said.append(str(error))

    for work in works * 2 + futures:
        threads.append(threading.Thread(target=wait, args=(work,)))
        threads[-1].start()
    begin = time.monotonic()
    backend.abort()
    for thread in threads:
        thread.join(PROMPT_S)
        assert not thread.is_alive()
    assert time.monotonic() - begin < PROMPT_S
    post(folder, "aborted")
    for text in said:
        assert re.search(r"rank 0: (all_reduce|recv|send), operation [0-9]+ of group", text), said
    for work in works:
        assert work.is_completed() and not work.is_success()
    with fails("abort"):
        dist.all_reduce(torch.ones(1))
    return "fine"


def test_aborts(tmp_path):
    run(aborts, 2, tmp_path)


def called_late(identity, size, rank, folder):
    """A receive that is called while its message is on its way, to be kept, gets that message and
    not the next."""
    start(rank, size, folder)
    for round in range(3):
        big, one, next = (
            torch.full((1 << 24,), 1.0 + round),
            torch.empty(1),
            torch.full((1 << 24,), 50.0),
        )
        if rank == 0:
            works = [
                dist.isend(big, 1, tag=1),
                dist.isend(torch.ones(1), 1, tag=2),
                dist.isend(next, 1, tag=1),
            ]
        else:
            works = [dist.irecv(one, 0, tag=2)]
            works[0].is_completed()
            time.sleep(0.002)
            works[0].is_completed()
            for tensor, value in ((big.zero_(), 1.0 + round), (next.zero_(), 50.0)):
                dist.recv(tensor, 0, tag=1)
                assert tensor[0].item() == tensor[-1].item() == value, (round, tensor[0], value)
        for work in works:
            work.wait()
    dist.destroy_process_group()
    return "fine"


def test_called_late(tmp_path):
    run(called_late, 2, tmp_path)


# ---- models that are spread over the ranks -------------------------------------------------------


def model_of(features=8):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(features, 12), torch.nn.ReLU(), torch.nn.Linear(12, features)
    )


def trained(model, data, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(data).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def parallel(identity, size, rank, folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    start(rank, size, folder)
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(1)
    data = torch.randn(4 * size, 8)
    alone = trained(model_of(), data)

    # FSDP2: each rank has a shard of the parameters and its part of the data
    model = model_of()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    trained(fully_shard(model, mesh=mesh), data[4 * rank : 4 * rank + 4])
    for mine, whole in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(mine.full_tensor(), whole)

    # DTensor: every layout to every other, uneven and partial ones too
    whole = torch.arange(7.0 * 5).reshape(7, 5)
    layouts = [Shard(0), Shard(1), Replicate()]
    for source in layouts:
        for target in layouts:
            tensor = distribute_tensor(whole, mesh, [source]).redistribute(mesh, [target])
            torch.testing.assert_close(tensor.full_tensor(), whole)
    square = distribute_tensor(whole, mesh, [Shard(1)]) @ distribute_tensor(
        whole.t().contiguous(), mesh, [Shard(0)]
    )
    assert isinstance(square.placements[0], Partial)
    torch.testing.assert_close(
        square.redistribute(mesh, [Shard(0)]).full_tensor(), whole @ whole.t()
    )

    # tensor parallel: the layers are split by columns and by rows
    model = parallelize_module(model_of(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    trained(model, data)
    for mine, one in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(mine.full_tensor(), one)
    dist.destroy_process_group()
    return "fine"


@pytest.mark.parametrize("size", [2, 3])
def test_parallel(size, tmp_path):
    run(parallel, size, tmp_path)


def pipeline(identity, size, rank, folder):
    """Each rank has a layer; its gradients are those of the layer in the whole model."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    start(rank, size, folder)
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(size)]
    data, target = torch.randn(16, 8), torch.randn(16, 8)
    whole = torch.nn.Sequential(*layers)
    want = torch.nn.functional.mse_loss(whole(data), target)
    want.backward()
    grads = [parameter.grad.clone() for parameter in layers[rank].parameters()]
    for kind in (ScheduleGPipe, Schedule1F1B):
        layers[rank].zero_grad()
        stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
        schedule = kind(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
        losses = []
        for _ in range(2):
            layers[rank].zero_grad()
            losses.clear()
            if rank == 0:
                schedule.step(data)
            elif rank == size - 1:
                schedule.step(target=target, losses=losses)
            else:
                schedule.step()
        for mine, grad in zip(layers[rank].parameters(), grads):
            torch.testing.assert_close(mine.grad, grad)
        if rank == size - 1:
            torch.testing.assert_close(torch.stack(losses).mean(), want)
    dist.barrier()
    dist.destroy_process_group()
    return "fine"


@pytest.mark.parametrize("size", [2, 4])
def test_pipeline(size, tmp_path):
    run(pipeline, size, tmp_path)


# ---- the build -----------------------------------------------------------------------------------


def test_build_was_killed():
    """A process that was killed while it built the extension left torch's lock."""
    module = ftccl_torch.build.load()
    with open(os.path.join(os.path.dirname(module.__file__), "lock"), "w"):
        pass
    done = subprocess.run(
        [sys.executable, "-m", "ftccl.torch.build"], capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.stdout.splitlines()[-1:] == [module.__file__], done
