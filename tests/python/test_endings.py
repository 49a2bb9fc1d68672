"""Properties: Ctrl-C ends every wait within a second, as KeyboardInterrupt, and leaves no thread,
descriptor or communicator behind; an interpreter that exits in the middle of an operation ends, and
its peers are told; a communicator that is forgotten is aborted, but not while an operation of it is
pending. Method: processes; a signal is sent when the main thread is in the wait, which another
thread sees in its frames.
"""

import gc
import os
import signal
import sys
import threading
import time
import warnings

import numpy as np
import pytest

import ftccl
from ranks import WAIT_S, Process, in_processes, when_main_thread_is_in

PROMPT_S = 1.0


def interrupted(function_name, call):
    """Seconds from SIGINT, which comes when the main thread is in that function, to
    KeyboardInterrupt out of call()."""
    sent = []

    def interrupt():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    when_main_thread_is_in(function_name, interrupt)
    try:
        call()
    except KeyboardInterrupt:
        return time.monotonic() - sent[0]
    raise AssertionError("no KeyboardInterrupt")


def held():
    """Threads and descriptors of this process, without the idle memory that the library keeps for
    the next communicator."""
    descriptors = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptors += "ftccl-arena" not in os.readlink("/proc/self/fd/" + name)
        except OSError:
            pass  # that of listdir()
    return len(os.listdir("/proc/self/task")), descriptors


def held_at_first():
    """The same, after what the library keeps for the process has been made."""
    ftccl.Communicator(1, ftccl.get_unique_id(), 0).destroy()
    return held()


def settles_at(before):
    """Empty if threads and descriptors go back to what they were, else what they are and were."""
    end = time.monotonic() + 20
    while any(now > then for now, then in zip(held(), before)):
        if time.monotonic() > end:
            return [held(), before]
        time.sleep(0.01)
    return []


def interrupt_synchronize(identity, nranks, rank):
    before = held_at_first()
    took = []
    try:
        with ftccl.Communicator(nranks, identity, rank) as comm:
            comm.all_reduce(np.ones(1000))
            took.append(interrupted("wait_stream", comm.synchronize))
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    return [took[0] < PROMPT_S or took, settles_at(before)]


def peer_of_interrupted(identity, nranks, rank):
    """The peer has RemoteError as soon as it needs the rank that was interrupted."""
    with ftccl.Communicator(nranks, identity, rank) as comm:
        sys.stdin.readline()
        try:
            comm.all_reduce(np.ones(1000))
            comm.synchronize()
        except ftccl.RemoteError as error:
            return error.culprit
    return "no error"


def test_interrupt_synchronize():
    identity = ftccl.get_unique_id()
    peer = Process(peer_of_interrupted, identity, 2, 1)
    assert Process(interrupt_synchronize, identity, 2, 0).end() == (0, [True, []], "")
    assert peer.end() == (0, 0, "")


def interrupt_init(identity, nranks, rank):
    before = held_at_first()
    took = interrupted("in_helper", lambda: ftccl.Communicator(nranks, identity, rank))
    return [took < PROMPT_S or took, settles_at(before)]


def test_interrupt_init():
    assert Process(interrupt_init, ftccl.get_unique_id(), 2, 1).end() == (0, [True, []], "")


def interrupt_group_init(identity, nranks, rank):
    def make():
        with ftccl.group():
            for one in range(2):
                ftccl.Communicator(nranks, identity, one)

    before = held_at_first()
    took = interrupted("in_helper", make)
    return [took < PROMPT_S or took, settles_at(before)]


def test_interrupt_group_init():
    status, result, err = Process(interrupt_group_init, ftccl.get_unique_id(), 3, 0).end()
    assert (status, result) == (0, [True, []]) and "Traceback" not in err, err


def interrupt_management(identity, nranks, rank, call):
    """split, shrink, agree or finalize while the other rank does nothing."""
    before = held_at_first()
    comm = ftccl.Communicator(nranks, identity, rank)
    if call == "finalize":
        comm.all_reduce(np.ones(1000))
    calls = {
        "split": lambda: comm.split(0),
        "shrink": comm.shrink,
        "agree": comm.agree,
        "finalize": comm.finalize,
    }
    took = interrupted("in_helper", calls[call])
    start = time.monotonic()
    comm.abort()
    aborted = time.monotonic() - start
    return [took < PROMPT_S or took, aborted < 10 or aborted, settles_at(before)]


def idle(identity, nranks, rank):
    with ftccl.Communicator(nranks, identity, rank):
        print("ready", flush=True)
        sys.stdin.readline()
    return "left"


@pytest.mark.parametrize("call", ["split", "shrink", "agree", "finalize"])
def test_interrupt_management(call):
    identity = ftccl.get_unique_id()
    peer = Process(idle, identity, 2, 1)
    status, result, err = Process(interrupt_management, identity, 2, 0, call).end()
    # the signal may come before the helper's call, which then finds no communicator and says so in
    # the log
    assert (status, result) == (0, [True, True, []]) and "Traceback" not in err, err
    peer.process.communicate("\n", timeout=WAIT_S)


def exit_in_the_middle(identity, nranks, rank, how):
    comm = ftccl.Communicator(nranks, identity, rank)
    x = np.ones(1 << 20)
    if rank == 1:
        try:
            comm.all_reduce(x)
            comm.synchronize()
        except ftccl.RemoteError as error:
            comm.abort()
            return error.culprit
        return "no error"
    stream = ftccl.Stream()
    comm.all_reduce(x, stream=stream)
    second = np.ones(1)
    comm.all_reduce(second, stream=stream)  # which the peer never makes
    if how == "thread":
        waiting = threading.Event()

        def wait():
            waiting.set()
            stream.synchronize()

        threading.Thread(target=wait, daemon=True).start()
        waiting.wait()
    if how == "exception":
        raise ValueError("as planned")
    if how == "exit":
        sys.exit(3)
    return "ended"


@pytest.mark.parametrize(
    "how, status", [("return", 0), ("thread", 0), ("exit", 3), ("exception", 1)]
)
def test_exit_in_the_middle(how, status):
    got = in_processes(2, exit_in_the_middle, how)
    assert got[0][0] == status, got[0]
    assert ("as planned" in got[0][2]) == (how == "exception") and "Fatal" not in got[0][2], got[0][
        2
    ]
    assert got[1][0] == 0 and got[1][1] in (0, "no error"), got[1]


def leave_threads_waiting(identity, nranks, rank):
    """The interpreter exits while a thread is in init."""
    entered = threading.Event()

    def run():
        entered.set()
        ftccl.Communicator(nranks, identity, rank)

    threading.Thread(target=run, daemon=True).start()
    entered.wait()
    return "ended"


def test_exit_during_init():
    assert Process(leave_threads_waiting, ftccl.get_unique_id(), 2, 1).end()[:2] == (0, "ended")


def test_forgotten_communicator_is_aborted():
    a, b = ftccl.init_all(2)
    x = np.ones(1)
    b.all_reduce(x)
    with pytest.warns(ResourceWarning, match="neither destroyed nor aborted"):
        del a
        gc.collect()
    with pytest.raises(ftccl.RemoteError):
        b.synchronize()
    b.destroy()


def test_pending_operation_keeps_its_communicator():
    a, b = ftccl.init_all(2)
    x, y, stream = np.ones(1), np.ones(1), ftccl.Stream()
    a.all_reduce(x, stream=stream)
    del a
    gc.collect()
    b.all_reduce(y)
    b.synchronize()
    with pytest.warns(ResourceWarning):
        stream.synchronize()
        gc.collect()
    assert x == y == 2
    b.destroy()


def test_block_that_raises_aborts():
    a, b = ftccl.init_all(2)
    with pytest.raises(KeyError):
        with a:
            raise KeyError("x")
    with pytest.raises(ftccl.RemoteError) as raised:
        b.all_reduce(np.ones(1))  # fails here if b knows it already
        b.synchronize()
    assert raised.value.culprit == 0, raised.value
    b.abort()


def test_nothing_is_left_behind():
    def cycle():
        for one in ftccl.init_all(2):
            with one, ftccl.Stream():
                one.mem = ftccl.mem_alloc(1 << 16)

    cycle()
    before = held()
    for _ in range(20):
        cycle()
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert settles_at(before) == []


def forked_child_exits(identity, nranks, rank):
    """A child of fork that exits as a program does leaves the parent's communicators alone."""
    with ftccl.Communicator(nranks, identity, rank) as comm:
        if rank == 0:
            pid = os.fork()
            if pid == 0:
                sys.exit(5)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        else:
            status = 5
        x = np.ones(1)
        comm.all_reduce(x)
        comm.synchronize()
        return [float(x[0]), status]


def test_forked_child_exits():
    assert in_processes(2, forked_child_exits) == [(0, [2.0, 5], "")] * 2
