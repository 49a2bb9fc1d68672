"""Property: a wrong argument is an exception whose sentence says what is wrong, before anything is
enqueued: the communicator works as if the call had not been made. Method: a communicator of one
rank for what is looked at before the call; afterwards an all-reduce on it.
"""

import array
import os

import numpy as np
import pytest

import ftccl


@pytest.fixture
def comm():
    with ftccl.Communicator(1, ftccl.get_unique_id(), 0) as made:
        yield made
        x = np.ones(3)
        made.all_reduce(x)
        made.synchronize()
        assert x.tolist() == [1, 1, 1]


@pytest.fixture
def pair():
    """Two ranks in this thread: what is wrong is only seen with more than one."""
    made = ftccl.init_all(2)
    yield made
    x = [np.ones(1), np.ones(1)]
    with ftccl.group():
        for one, its in zip(made, x):
            one.all_reduce(its)
    for one in made:
        one.synchronize()
    assert [float(its[0]) for its in x] == [2, 2]
    for one in made:
        one.destroy()


def refused(sentence, call, *arguments, error=ftccl.InvalidArgument, **options):
    with pytest.raises(error, match=sentence) as raised:
        call(*arguments, **options)
    if isinstance(raised.value, ftccl.FtcclError):
        assert raised.value.error_class == ftccl.ErrorClass.CALLER
    return raised.value


F32 = np.zeros(4, "float32")


def test_not_contiguous(comm):
    refused("send is not C-contiguous", comm.all_reduce, np.zeros((4, 4))[:, 1])
    refused("send is not C-contiguous", comm.all_reduce, np.zeros((4, 4)).T)
    refused("recv is not C-contiguous", comm.all_reduce, np.zeros(4), np.zeros(8)[::2])
    refused("send is not C-contiguous", comm.all_reduce, memoryview(bytearray(8))[::2])


def test_read_only(comm):
    frozen = np.zeros(4, "float32")
    frozen.flags.writeable = False
    refused("send is read-only, and the operation would write", comm.all_reduce, frozen)
    refused("recv is read-only", comm.all_reduce, F32, frozen)
    refused("recv is read-only", comm.all_gather, b"1234", b"1234")
    refused("buffer is read-only", comm.recv, b"1234", 0)
    comm.all_reduce(frozen, np.zeros(4, "float32"))  # as input it is right
    comm.synchronize()


@pytest.mark.parametrize(
    "dtype, called",
    [
        ("complex64", "Zf"),
        ("bool", r"\?"),
        ("int16", "h"),
        (">f4", ">f"),
        ("longdouble", "g"),
        ([("a", "i4"), ("b", "f4")], "T"),
    ],
)
def test_types(comm, dtype, called):
    refused(
        "send has elements of format .*%s.*, which FTCCL does not have; FTCCL has int8" % called,
        comm.all_reduce,
        np.zeros(4, dtype),
    )


def test_other_types(comm):
    refused("no buffer", comm.all_reduce, [1.0, 2.0], error=TypeError)
    refused("no buffer", comm.all_reduce, None, error=TypeError)
    refused("no buffer", comm.all_reduce, "text", error=TypeError)
    refused("Python objects", comm.all_reduce, np.array([None, {}]))
    refused("Python objects", comm.all_reduce, np.array([None, {}]), dtype="uint8")
    refused("elements of dtype datetime64", comm.all_reduce, np.zeros(2, "datetime64[s]"))
    refused(
        "'complex64' is not a data type",
        comm.all_reduce,
        np.zeros(2, "complex64"),
        dtype="complex64",
    )
    refused(
        "has 6 bytes, which are no whole number of float32",
        comm.all_reduce,
        bytearray(6),
        dtype="float32",
    )
    refused("send has float32, recv has float64", comm.all_reduce, F32, np.zeros(4))
    refused("ReduceOp", comm.all_reduce, F32, op="sum", error=TypeError)


def test_sizes(pair):
    comm = pair[0]
    three = np.zeros(3, "float32")
    refused(
        "recv has 3 elements where both have the same number: send has 4, so recv must have 4",
        comm.all_reduce,
        F32,
        three,
    )
    refused(
        "all_gather: recv has 4 elements where 2 ranks have a block each: send has 4, so recv "
        "must have 8",
        comm.all_gather,
        F32,
        F32.copy(),
    )
    refused(
        "recv has 3 elements, which cannot be divided into equal blocks for 2 ranks",
        comm.all_gather,
        None,
        three,
    )
    refused("send has 3 elements, which cannot be divided", comm.reduce_scatter, three, three)
    refused("reduce_scatter: recv has 3 elements .* must have 2", comm.reduce_scatter, F32, three)
    refused("send has 3 elements, which cannot be divided", comm.all_to_all, three)
    refused("gather: recv has 4 elements .* must have 8", comm.gather, F32, F32.copy())
    refused("gather: root needs recv", comm.gather, F32)
    refused("scatter: root needs send", comm.scatter, None, three)
    refused("scatter: recv has 3 elements .* must have 2", comm.scatter, F32, three)
    refused("broadcast: recv has 3 elements .* must have 4", comm.broadcast, F32, three)
    refused("reduce: recv has 3 elements .* must have 4", comm.reduce, F32, three)


def test_what_the_library_refuses(pair):
    comm = pair[0]
    whole = np.zeros(8, "float32")
    assert "overlap" in str(refused(".", comm.all_reduce, whole[:4], whole[2:6]))
    assert "7" in str(refused("root", comm.broadcast, F32, root=7))
    refused("Send", comm.send, F32, 5)
    refused("itself", comm.send, F32, 0, error=ftccl.InvalidUsage)


def test_torch(comm):
    torch = pytest.importorskip("torch")
    refused("not C-contiguous", comm.all_reduce, torch.zeros(4, 4).t())
    refused("sparse", comm.all_reduce, torch.zeros(4, 4).to_sparse())
    refused("torch.complex64", comm.all_reduce, torch.zeros(2, dtype=torch.complex64))
    refused("torch.bool", comm.all_reduce, torch.zeros(2, dtype=torch.bool))
    refused("torch.int16", comm.all_reduce, torch.zeros(2, dtype=torch.int16))
    refused("on meta", comm.all_reduce, torch.zeros(2, device="meta"))
    refused(
        "negated or conjugated", comm.all_reduce, torch.zeros(2, dtype=torch.complex64).conj().imag
    )


class Elsewhere:
    def __dlpack__(self):
        raise AssertionError("not to be asked for")

    def __dlpack_device__(self):
        return (2, 0)


class Strided:
    def __dlpack__(self):
        return np.zeros((4, 4)).T.__dlpack__()

    def __dlpack_device__(self):
        return (1, 0)


def test_dlpack(comm):
    refused("is not in the CPU's memory", comm.all_reduce, Elsewhere())
    refused("not C-contiguous", comm.all_reduce, Strided())


def test_handles(pair):
    comm, other = pair
    dead = ftccl.Communicator(1, ftccl.get_unique_id(), 0)
    operator = dead.pre_mul_sum(2.0, "float32")
    dead.destroy()
    for call in (
        dead.finalize,
        dead.agree,
        dead.revoke,
        dead.split,
        dead.shrink,
        lambda: dead.size,
        lambda: dead.error,
    ):
        refused(
            "destroyed or aborted",
            call,
            *([0] if call == dead.split else []),
            error=ftccl.InvalidUsage
        )
    refused("destroyed or aborted", dead.all_reduce, F32, error=ftccl.InvalidUsage)
    dead.destroy()  # nothing is left to do
    dead.abort()
    assert dead.failed_ranks == () and "not in use" in repr(dead)
    refused("of another communicator", comm.all_reduce, F32, op=operator, error=ftccl.InvalidUsage)
    stream = ftccl.Stream()
    stream.close()
    refused("the stream is closed", comm.all_reduce, F32, stream=stream, error=ftccl.InvalidUsage)
    refused("the stream is closed", stream.synchronize, error=ftccl.InvalidUsage)
    with comm.pre_mul_sum(2.0, "float64") as op:
        refused("another type", comm.all_reduce, F32, op=op)
    refused("needs dtype", comm.pre_mul_sum, 2.0)
    refused("not one", comm.pre_mul_sum, np.zeros(2))


def test_init():
    identity = ftccl.get_unique_id()
    refused("rank 2 of 2", ftccl.Communicator, 2, identity, 2)
    refused("128 bytes, not 3", ftccl.Communicator, 2, b"abc", 0)
    refused(".", ftccl.Communicator, 2, bytes(128), 0)
    refused(".", ftccl.Communicator, 1, identity, 0, suspect_ms=1)
    refused("nonsense", ftccl.Communicator, 1, identity, 0, nonsense=1, error=TypeError)
    assert identity.hex() not in repr(identity), "the secret is shown"


def test_bytes_are_not_resized_while_they_are_used(comm):
    numbers = array.array("d", [1, 2])
    comm.all_reduce(numbers)
    with pytest.raises(BufferError):
        numbers.append(3)
    comm.synchronize()
    numbers.append(3)


def test_child_of_fork(comm):
    """Every call of the child is refused with a sentence, and its end does not harm the parent."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = []
        for call in (
            lambda: comm.all_reduce(F32.copy()),
            comm.synchronize,
            lambda: comm.size,
            ftccl.get_unique_id,
            ftccl.Stream,
            comm.agree,
        ):
            try:
                call()
                said.append("no error")
            except ftccl.InvalidUsage as error:
                said.append("" if "child of fork" in str(error) else str(error))
        os.write(write, "|".join(said).encode())
        os._exit(0)
    os.close(write)
    assert os.waitpid(pid, 0)[1] == 0
    assert os.read(read, 4096).decode() == "|||||"
    os.close(read)
