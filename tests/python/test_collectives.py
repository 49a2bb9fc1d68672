"""Properties: each collective gives what NumPy computes, on every type, in place and not, on three
ranks; each kind of buffer is used in place, without a copy. Method: ranks as threads; values are
small integers, so that sums are exact.
"""

import array
import ctypes
import mmap

import numpy as np
import pytest

import ftccl
from ranks import in_processes, in_threads

RANKS = 3
TYPES = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
EXTENSIONS = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]


def values(rank, count, dtype, seed=0):
    return ((np.arange(count) * 3 + rank + seed) % 4).astype(dtype)


def equal(got, want):
    assert np.array_equal(np.asarray(got), np.asarray(want)), "got %r, want %r" % (got, want)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("in_place", [False, True])
def test_all_collectives(dtype, in_place):
    all_in = [values(rank, 2 * RANKS, dtype) for rank in range(RANKS)]
    total = sum(one.astype("int64") for one in all_in).astype(dtype)

    def rank_of(comm):
        me = comm.rank
        mine = all_in[me]
        block = slice(2 * me, 2 * me + 2)
        send, out = mine.copy(), np.zeros_like(mine)
        got = comm.all_reduce(send) if in_place else comm.all_reduce(mine, out)
        comm.synchronize()
        equal(got, total)
        send, out = mine.copy(), np.zeros_like(mine)
        got = comm.reduce(send, root=1) if in_place else comm.reduce(send, out, root=1)
        comm.synchronize()
        if me == 1:
            equal(got, total)
        send, out = mine.copy(), np.zeros_like(mine)
        if in_place:
            got = comm.broadcast(send, root=2)
        else:
            got = comm.broadcast(send if me == 2 else None, out, root=2)
        comm.synchronize()
        equal(got, all_in[2])
        out = np.zeros(2 * RANKS, dtype)
        if in_place:
            out[block] = mine[:2]
        comm.all_gather(None if in_place else mine[:2], out)
        comm.synchronize()
        equal(out, np.concatenate([one[:2] for one in all_in]))
        send, out = mine.copy(), np.zeros(2, dtype)
        got = comm.reduce_scatter(send)[block] if in_place else comm.reduce_scatter(send, out)
        comm.synchronize()
        equal(got, total[block])
        send, out = mine.copy(), np.zeros_like(mine)
        got = comm.all_to_all(send) if in_place else comm.all_to_all(send, out)
        comm.synchronize()
        equal(got, np.concatenate([one[block] for one in all_in]))
        out = np.zeros(2 * RANKS, dtype) if me == 1 else None
        if in_place and me == 1:
            out[block] = mine[:2]
        comm.gather(None if in_place and me == 1 else mine[:2], out, root=1)
        comm.synchronize()
        if me == 1:
            equal(out, np.concatenate([one[:2] for one in all_in]))
        out = None if in_place and me == 0 else np.zeros(2, dtype)
        send = mine.copy() if me == 0 else None
        got = comm.scatter(send, out, root=0)
        comm.synchronize()
        equal(got[block] if out is None else got, all_in[0][block])

    in_threads(RANKS, rank_of)


@pytest.mark.parametrize(
    "op, want", [(ftccl.SUM, 6), (ftccl.PROD, 6), (ftccl.MAX, 3), (ftccl.MIN, 1), (ftccl.AVG, 2)]
)
def test_operators(op, want):
    def rank_of(comm):
        x = np.full(5, comm.rank + 1, "float32")
        comm.all_reduce(x, op=op)
        comm.synchronize()
        equal(x, np.full(5, want, "float32"))

    in_threads(RANKS, rank_of)


@pytest.mark.parametrize(
    "dtype, scalar", [("float32", 2.0), ("int32", 3), ("bfloat16", 0.5), ("float16", 4)]
)
def test_pre_mul_sum(dtype, scalar):
    kind = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype

    def rank_of(comm):
        with comm.pre_mul_sum(scalar, dtype) as op:
            x = np.full(4, 2 * comm.rank + 2).astype(kind)
            comm.all_reduce(x, op=op)
            comm.synchronize()
            equal(x.astype("float64"), np.full(4, 12 * scalar))
        factor = np.array(scalar).astype(kind)
        with comm.pre_mul_sum(factor) as op:
            factor[...] = 2  # it is read when the collective runs
            x = np.full(4, 2 * comm.rank + 2).astype(kind)
            comm.all_reduce(x, op=op)
            comm.synchronize()
            equal(x.astype("float64"), np.full(4, 24))

    in_threads(RANKS, rank_of)


@pytest.mark.parametrize("dtype", EXTENSIONS)
def test_types_that_numpy_lacks(dtype):
    kind = getattr(pytest.importorskip("ml_dtypes"), dtype)

    def rank_of(comm):
        x = np.full((2, 2), comm.rank + 1).astype(kind)
        comm.all_reduce(x)
        comm.synchronize()
        equal(x.astype("float32"), np.full((2, 2), 6, "float32"))

    in_threads(RANKS, rank_of)


class OnlyDLPack:
    """Memory that can be had by DLPack alone."""

    def __init__(self, of):
        self.of = of

    def __dlpack__(self, **options):
        return self.of.__dlpack__()

    def __dlpack_device__(self):
        return self.of.__dlpack_device__()


def torch_buffer():
    torch = pytest.importorskip("torch")
    x = torch.zeros(4, dtype=torch.float32)
    return x, x.numpy()


def buffers():
    def of_view(buffer):
        return buffer, np.frombuffer(buffer, "float32")

    of_numpy = np.zeros(4, "float32")
    return {
        "numpy": (of_numpy, of_numpy),
        "bytearray": of_view(bytearray(16)),
        "array": of_view(array.array("f", [0] * 4)),
        "mmap": of_view(mmap.mmap(-1, 16)),
        "memoryview": of_view(memoryview(bytearray(16))),
        "ctypes": of_view((ctypes.c_float * 4)()),
        "mem_alloc": of_view(ftccl.mem_alloc(16)),
        "mem_alloc, shared": of_view(ftccl.mem_alloc(65536)),
        "DLPack": (OnlyDLPack(of_numpy), of_numpy),
    }


@pytest.mark.parametrize("kind", sorted(buffers()) + ["torch"])
def test_buffers(kind):
    def rank_of(comm):
        buffer, seen = torch_buffer() if kind == "torch" else buffers()[kind]
        seen[:] = comm.rank + 1
        comm.all_reduce(buffer, dtype="float32")
        comm.synchronize()
        equal(seen, np.full(len(seen), 6, "float32"))

    in_threads(RANKS, rank_of)


@pytest.mark.parametrize("name", TYPES + EXTENSIONS)
def test_torch_types(name):
    torch = pytest.importorskip("torch")
    kind = getattr(torch, name, None)
    if kind is None:
        pytest.skip("this torch has no " + name)

    def rank_of(comm):
        x = torch.full((3,), comm.rank + 1).to(kind)
        comm.all_reduce(x)
        comm.synchronize()
        assert x.to(torch.float64).tolist() == [6, 6, 6]

    in_threads(RANKS, rank_of)


def test_empty_and_scalar():
    def rank_of(comm):
        empty, one = np.zeros((0, 3), "float32"), np.array(1.0)
        comm.all_reduce(empty)
        comm.all_reduce(one)
        comm.synchronize()
        assert one == RANKS

    in_threads(RANKS, rank_of)


def process_of(identity, nranks, rank):
    with ftccl.Communicator(nranks, identity, rank, name="job") as comm:
        x = np.full(1000, rank + 1.0)
        with ftccl.Stream() as stream:
            comm.all_reduce(x, stream=stream)
        half = comm.split(rank % 2)
        alone = comm.split(None)
        result = [x.sum(), half.size, half.rank, alone, comm.size, comm.rank]
        half.destroy()
        return result


def test_processes_and_split():
    assert in_processes(3, process_of) == [
        (0, [6000, 2, 0, None, 3, 0], ""),
        (0, [6000, 1, 0, None, 3, 1], ""),
        (0, [6000, 2, 1, None, 3, 2], ""),
    ]
