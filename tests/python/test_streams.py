"""Properties: a group is one entry of its streams, and nothing of it is enqueued if its block
raises; a stream keeps what its operations use until it has passed them, and no longer, and not more
than a bound; windows and signals. Method: two ranks in one thread, by groups, or as threads; who is
kept is seen by weak references.
"""

import gc
import threading
import weakref

import numpy as np
import pytest

import ftccl
from ftccl import _stream
from ranks import in_threads


@pytest.fixture
def pair():
    made = ftccl.init_all(2)
    yield made
    for one in made:
        one.destroy()


class Array(np.ndarray):
    """NumPy's array, which cannot have weak references itself when it is no subclass."""


def make(value):
    return np.full(3, value, "float64").view(Array)


def finish(pair):
    for one in pair:
        one.synchronize()


def test_group(pair):
    a, b = make(1), make(2)
    sent, got = make(7), make(0)
    with ftccl.group():
        pair[0].all_reduce(a)
        with ftccl.group():
            pair[1].all_reduce(b)
            pair[0].send(sent, 0)
            pair[0].recv(got, 0)
    finish(pair)
    assert a.tolist() == b.tolist() == [3, 3, 3]
    assert got.tolist() == [7, 7, 7]


def test_group_that_raises_enqueues_nothing(pair):
    a = make(1)
    with pytest.raises(KeyError):
        with ftccl.group():
            pair[0].all_reduce(a)
            raise KeyError("x")
    assert pair[0].stream.query()  # else it would wait for rank 1
    with pytest.raises(ftccl.InvalidUsage, match="a block inside this group raised"):
        with ftccl.group():
            pair[0].all_reduce(a)
            try:
                with ftccl.group():
                    raise KeyError("x")
            except KeyError:
                pass
    assert pair[0].stream.query()
    with pytest.raises(ftccl.InvalidArgument):
        with ftccl.group():
            pair[0].all_reduce(a)
            try:
                pair[0].broadcast(a, root=9)
            except ftccl.InvalidArgument:
                pass  # the library remembers it
    assert pair[0].stream.query() and not pair[0].stream._holds
    test_group(pair)


def test_split_in_a_group(pair):
    with ftccl.group():
        children = [one.split(0, key=-one.rank) for one in pair]
        with pytest.raises(ftccl.InvalidUsage, match="its group has not ended"):
            children[0].size
    assert [child.rank for child in children] == [1, 0]
    test_group(children[::-1])
    for child in children:
        child.destroy()


def test_simulate(pair):
    with ftccl.simulate() as cost:
        pair[0].all_reduce(np.zeros(1 << 20))
    assert 1e-6 < cost.seconds < 10, cost.seconds
    assert pair[0].stream.query() and not pair[0].stream._holds


def test_buffers_are_kept_until_the_stream_has_passed(pair):
    a, b, out = make(1), make(2), make(0)
    seen = [weakref.ref(a), weakref.ref(out)]
    pair[0].all_reduce(a, out)
    del a, out
    gc.collect()
    assert all(one() is not None for one in seen), "memory of a pending operation was given back"
    pair[1].all_reduce(b)
    finish(pair)
    gc.collect()
    assert all(one() is None for one in seen), "memory is kept after the operation"


def test_query_releases_too(pair):
    a, b = make(1), make(2)
    seen = weakref.ref(a)
    pair[0].all_reduce(a)
    del a
    assert pair[0].stream.query() is False
    pair[1].all_reduce(b)
    pair[1].synchronize()
    while not pair[0].stream.query():
        pass
    assert seen() is None


def test_what_is_kept_is_bounded():
    def rank_of(comm):
        most = 0
        x = np.ones(1)
        for _ in range(2 * _stream.MAX_UNDER_WAY):
            comm.all_reduce(np.ones(1), x)
            most = max(most, len(comm.stream._holds))
        comm.synchronize()
        assert x == 2
        return most

    assert max(in_threads(2, rank_of)) <= _stream.MAX_UNDER_WAY


def test_closed_stream_lets_its_operations_end(pair):
    """A block that raises does not wait for the stream, whose operations go on."""
    x, y = make(1), make(2)
    with pytest.raises(KeyError):
        with ftccl.Stream() as stream:
            pair[0].all_reduce(x, stream=stream)
            raise KeyError("x")
    seen = weakref.ref(x)
    del x
    gc.collect()
    assert seen() is not None
    pair[1].all_reduce(y)
    pair[1].synchronize()
    assert y.tolist() == [3, 3, 3]
    while _stream._left_over:
        ftccl.Stream().close()
    assert seen() is None


def test_a_second_stream_overtakes():
    def rank_of(comm):
        first, second = make(comm.rank), make(comm.rank + 1)
        with ftccl.Stream() as stream:
            comm.all_reduce(first, stream=stream)
            comm.all_reduce(second)
            comm.synchronize()
        return first.tolist() + second.tolist()

    assert in_threads(2, rank_of) == [[1, 1, 1, 3, 3, 3]] * 2


def test_send_and_recv_between_threads():
    def rank_of(comm):
        x = np.arange(10, dtype="int32") * (comm.rank + 1)
        if comm.rank == 0:
            comm.send(x, 1)
        else:
            comm.recv(x, 0)
        comm.synchronize()
        return x.tolist()

    assert in_threads(2, rank_of)[1] == list(range(10))


def test_concurrent_sends_and_receives():
    """Both ranks receive before they send, on different streams; a probe tells of a message and
    does not take it."""

    def rank_of(comm):
        got, mine = bytearray(4), bytes([comm.rank] * 4)
        with ftccl.Stream() as one, ftccl.Stream() as two:
            comm.recv(got, 1 - comm.rank, stream=one)
            comm.send(mine, 1 - comm.rank, stream=two)
            one.synchronize()
            two.synchronize()
            if comm.rank == 0:
                comm.send(b"more", 1, stream=two)
                two.synchronize()
            else:
                while not comm.probe(0):
                    pass
                assert comm.probe(0)
                comm.recv(bytearray(4), 0, stream=one)
                one.synchronize()
            with pytest.raises(ftccl.InvalidUsage, match="only sends and receives"):
                comm.all_reduce(np.zeros(1, np.float32))
        return bytes(got)

    assert in_threads(2, rank_of, concurrent_p2p=True) == [bytes([1] * 4), bytes(4)]


def test_kept_id():
    """It is served until it is released, and then those who come are told."""
    identity = ftccl.keep_unique_id()
    with ftccl.Communicator(1, identity, 0) as comm:
        assert comm.rank == 0
    released = ftccl.keep_unique_id()
    ftccl.release_unique_id(released)
    with pytest.raises(ftccl.FtcclError, match="released"):
        ftccl.Communicator(2, released, 1)


def test_windows():
    def rank_of(comm):
        mine = np.zeros(8, "int32")
        with comm.window(mine) as window, comm.register(mine):
            assert window.address == mine.ctypes.data
            peer = 1 - comm.rank
            comm.put_signal(np.full(2, comm.rank + 5, "int32"), peer, window, offset=8)
            comm.signal(peer)
            comm.wait_signal({peer: 2})
            comm.synchronize()
            got = mine.tolist()
            x = np.zeros(1)
            comm.all_reduce(x)  # nobody deregisters while the other still puts
            comm.synchronize()
        with pytest.raises(ftccl.InvalidArgument):
            comm.put_signal(mine, peer, window)
        return got

    assert in_threads(2, rank_of) == [[0, 0, 6, 6, 0, 0, 0, 0], [0, 0, 5, 5, 0, 0, 0, 0]]


def test_memory_is_freed_with_its_last_user():
    memory = ftccl.mem_alloc(100000)
    x = np.frombuffer(memory, "float32")
    del memory
    gc.collect()
    assert x.sum() == 0
    x[:] = 1
    with open("/proc/self/maps", encoding="ascii") as maps:
        before = maps.read().count("\n")
    kept = [ftccl.mem_alloc(1 << 20) for _ in range(8)]
    del kept
    gc.collect()
    with open("/proc/self/maps", encoding="ascii") as maps:
        assert maps.read().count("\n") <= before + 4
    with pytest.raises(ftccl.InvalidArgument):
        ftccl.mem_alloc(-1)


def test_the_gil_is_free_during_a_wait(pair):
    """The thread that waits for rank 0 does not keep this one from making rank 1's call."""
    a, b = make(1), make(2)
    pair[0].all_reduce(a)
    waiter = threading.Thread(target=pair[0].synchronize, daemon=True)
    waiter.start()
    pair[1].all_reduce(b)
    waiter.join(60)
    assert not waiter.is_alive() and a.tolist() == [3, 3, 3]
    pair[1].synchronize()
