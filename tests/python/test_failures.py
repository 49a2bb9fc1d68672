"""Properties: when a rank is killed, every other rank has RemoteError with its number, shrinks,
goes on, and takes in a replacement; agreement, revoking, deadlines and aborts give the errors that
they promise. Method: ranks as processes, one of which kills itself between two collectives; ranks
as threads where nobody has to die.
"""

import os
import pickle
import signal
import threading

import numpy as np
import pytest

import ftccl
from ranks import Process, in_processes, in_threads, when_main_thread_is_in


def reduce_ones(comm):
    x = np.ones(1000)
    comm.all_reduce(x)
    comm.synchronize()
    return float(x[0])


def survivor(identity, nranks, rank, victim):
    comm = ftccl.Communicator(nranks, identity, rank)
    told = [reduce_ones(comm)]
    if rank == victim:  # it dies when the others have that sum too
        for peer in set(range(nranks)) - {victim}:
            comm.recv(bytearray(1), peer)
        comm.synchronize()
        os.kill(os.getpid(), signal.SIGKILL)
    comm.send(b"1", victim)
    try:
        for _ in range(1000):  # the first one to fail is the first that needs the victim
            reduce_ones(comm)
    except ftccl.RemoteError as error:
        told += [
            type(error).__name__,
            int(error.code),
            int(error.error_class),
            error.culprit,
            list(error.failed_ranks),
            error.communicator is comm,
            "rank %d" % victim in str(error),
        ]
    smaller = comm.shrink()
    told += [
        list(comm.failed_ranks),
        smaller.size,
        smaller.rank,
        comm.error is not None,
        reduce_ones(smaller),
    ]
    told.append(comm.last_agreed_op)
    comm.destroy()
    smaller.destroy()
    return told


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_rank(victim):
    ends = in_processes(3, survivor, victim)
    assert ends.pop(victim)[0] == -signal.SIGKILL
    for new_rank, (status, told, err) in enumerate(ends):
        assert (status, err) == (0, "")
        assert told == [
            3.0,
            "RemoteError",
            6,
            3,
            victim,
            [victim],
            True,
            True,
            [victim],
            2,
            new_rank,
            True,
            2.0,
            1,
        ]


def grower(identity, nranks, rank):
    comm = ftccl.Communicator(nranks, identity, rank)
    grow_id = comm.get_unique_id() if rank == 0 else None
    if rank == 0:
        print(grow_id.hex(), flush=True)
    larger = comm.grow(nranks + 1, grow_id)
    result = [larger.size, larger.rank, reduce_ones(larger), reduce_ones(comm)]
    comm.destroy()
    larger.destroy()
    return result


def joiner(identity, nranks, rank):
    with ftccl.Communicator.join(nranks, identity, rank) as comm:
        return [comm.size, comm.rank, reduce_ones(comm)]


def test_grow():
    identity = ftccl.get_unique_id()
    old = [Process(grower, identity, 2, rank) for rank in range(2)]
    new = Process(joiner, bytes.fromhex(old[0].line()), 3, 2)
    assert [one.end() for one in old] == [(0, [3, 0, 3.0, 2.0], ""), (0, [3, 1, 3.0, 2.0], "")]
    assert new.end() == (0, [3, 2, 3.0], "")


def test_agree():
    assert in_threads(3, lambda comm: comm.agree(0b1111 ^ 1 << comm.rank)) == [0b1000] * 3


def agree_in_main_thread(identity, nranks, rank):
    with ftccl.Communicator(nranks, identity, rank) as comm:
        return comm.agree(2 + rank)


def test_agree_in_main_thread():
    assert in_processes(2, agree_in_main_thread) == [(0, 2, "")] * 2


def test_shrink_with_a_list():
    def rank_of(comm):
        if comm.rank == 1:
            with pytest.raises(ftccl.InvalidUsage):
                comm.shrink([1])
            return None
        with comm.shrink([1]) as smaller:
            return [smaller.size, smaller.rank, reduce_ones(smaller)]

    assert in_threads(3, rank_of) == [[2, 0, 2.0], None, [2, 1, 2.0]]


def test_revoke():
    def rank_of(comm):
        x = np.ones(1)
        if comm.rank == 0:
            comm.all_reduce(x)
        reached.wait(60)
        if comm.rank == 1:
            comm.revoke()
        else:
            with pytest.raises(ftccl.RemoteError, match="revoked") as raised:
                comm.synchronize()
            assert raised.value.communicator is comm
            assert raised.value.error_class == ftccl.ErrorClass.RECOVERABLE
        with comm.shrink() as again:
            return reduce_ones(again)

    reached = threading.Barrier(2)
    assert in_threads(2, rank_of) == [2.0, 2.0]


def reduce_alone(wait):
    """Rank 0 reduces, which nobody else does within its 100 ms, and waits in its way."""

    def rank_of(comm):
        if comm.rank == 0:
            comm.all_reduce(np.ones(1))
            wait(comm)
        over.wait(60)

    over = threading.Barrier(2)
    in_threads(2, rank_of, op_timeout_ms=100)


def test_deadline():
    def wait(comm):
        with pytest.raises(ftccl.Timeout, match="not done within 100 ms") as raised:
            comm.synchronize()
        assert isinstance(raised.value, TimeoutError)
        assert raised.value.code == ftccl.Result.TIMEOUT

    reduce_alone(wait)


def test_destroy_leaves_a_failed_operation_to_the_wait_for_it():
    reduce_alone(lambda comm: comm.destroy())


def test_finalize_says_which_operation_failed():
    def wait(comm):
        with pytest.raises(ftccl.Timeout, match="CommFinalize: .*not done within 100 ms"):
            comm.finalize()

    reduce_alone(wait)


def test_different_calls_are_named():
    def rank_of(comm):
        x = np.ones(2)
        if comm.rank == 0:
            comm.all_reduce(x)
        else:
            comm.broadcast(x)
        with pytest.raises(ftccl.InvalidUsage, match="different calls") as raised:
            comm.synchronize()
        assert raised.value.operation == "operation 1", raised.value.operation
        over.wait(60)  # a rank that leaves may be what the other one sees first

    over = threading.Barrier(2)
    in_threads(2, rank_of)


def test_abort_from_another_thread():
    def rank_of(comm):
        comm.all_reduce(np.ones(1))
        when_main_thread_is_in("wait_stream", comm.abort)
        with pytest.raises(ftccl.RemoteError, match="aborted"):
            comm.synchronize()

    a, b = ftccl.init_all(2)
    rank_of(a)
    with pytest.raises(ftccl.RemoteError, match="rank 0 aborted"):
        b.all_reduce(np.ones(1))  # fails here if b knows it already
        b.synchronize()
    b.abort()


def test_missing_rank_is_named():
    with pytest.raises(ftccl.Timeout, match="1"):
        ftccl.Communicator(2, ftccl.get_unique_id(), 0, init_timeout_ms=200)


def test_error_text_between_processes():
    error = ftccl.RemoteError("AllReduce: rank 0 lost rank 2: killed", 6, "AllReduce", None, (2,))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.culprit, again.failed_ranks, again.code) == (str(error), 2, (2,), 6)


def test_policy_retry():
    ends = in_processes(3, retrying)
    assert ends.pop(1)[0] == -signal.SIGKILL
    assert ends == [(0, [2.0, 2, 0, [1]], ""), (0, [2.0, 2, 1, [1]], "")]


def retrying(identity, nranks, rank):
    with ftccl.Communicator(nranks, identity, rank, retry=True) as comm:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        result = reduce_ones(comm)
        return [result, comm.size, comm.rank, list(comm.failed_ranks)]
