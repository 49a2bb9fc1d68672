"""Properties: init_from_env() finds rank and size as every launcher tells them; ranks of one
machine meet without any setting; contradictions are named. Method: ftccl-run, and processes with
the variables that the other launchers set.
"""

import os
import shutil
import subprocess
import sys

import pytest

import ftccl
from ftccl import _launch
from ranks import WAIT_S

VARIABLES = {name for launcher in _launch._LAUNCHERS for name in launcher[1:] if name} | {
    "MASTER_PORT",
    "NCCL_COMM_ID",
    "FTCCL_SECRET",
    "FTCCL_SECRET_FILE",
}
PROGRAM = """
import sys, ftccl
with ftccl.init_from_env() as comm:
    x = bytearray([comm.rank + 1])
    comm.all_reduce(x)
    comm.synchronize()
    # one write: the ranks share a pipe
    sys.stdout.write("%s %d %d %d\\n" % (ftccl.find_launch().launcher, comm.rank, comm.size, x[0]))
"""


@pytest.fixture(autouse=True)
def nobody_started_this(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def run_ranks(variables):
    """What the program prints with each of these environments."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **{name: str(value) for name, value in one.items()}},
        )
        for one in variables
    ]
    return [process.communicate(timeout=WAIT_S)[0].strip() for process in processes]


def test_alone():
    assert run_ranks([{}]) == ["alone 0 1 1"]


def test_under_ftccl_run():
    program = shutil.which("ftccl-run")
    if program is None:
        pytest.skip("no ftccl-run")
    environment = dict(os.environ)
    prefix = os.environ.get("FT_PYTHON_PREFIX")
    if prefix:  # an installation that the linker's configuration does not name
        environment["LD_LIBRARY_PATH"] = os.path.join(prefix, "lib")
    done = subprocess.run(
        [program, "-n", "3", sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env=environment,
    )
    assert sorted(done.stdout.split("\n")) == [
        "",
        "ftccl-run 0 3 6",
        "ftccl-run 1 3 6",
        "ftccl-run 2 3 6",
    ], done.stderr


VICTIM = """
import os, signal, ftccl
comm = ftccl.init_from_env()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_example_survives():
    """Its rank 1 is another program, which dies before the first step."""
    folder = os.environ.get("FT_PYTHON_SOURCE")
    if folder is None:
        pytest.skip("FT_PYTHON_SOURCE does not name the sources")
    example, identity = [folder + "/examples/all_reduce.py"], ftccl.get_unique_id().hex()
    processes = [
        subprocess.Popen(
            [sys.executable, *program],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "3", "FTCCL_UNIQUE_ID": identity},
        )
        for rank, program in enumerate((example, ["-c", VICTIM], example))
    ]
    said = [process.communicate(timeout=WAIT_S)[0] for process in processes]
    for rank, new_rank in ((0, 0), (2, 1)):
        assert "lost rank 1" in said[rank] or "rank 1 is dead" in said[rank], said
        assert "rank %d of 2: 1 steps, sum 1\n" % new_rank in said[rank], said


@pytest.mark.parametrize(
    "launcher, rank, size, local",
    [
        ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    ],
)
def test_meeting_by_file(launcher, rank, size, local):
    got = run_ranks([{rank: number, size: 2, local: 2} for number in range(2)])
    assert got == ["%s %d 2 3" % (launcher, number) for number in range(2)]
    assert not [
        name
        for name in os.listdir(_launch._folder())
        if name.startswith("python-%d-" % os.getpid())
    ]


def test_file_of_a_dead_job_is_not_taken(tmp_path):
    path = str(tmp_path / "id")
    identity = ftccl.get_unique_id()
    _launch._write(path, identity)
    assert _launch._read(path) == identity
    with open(path, encoding="ascii") as file:
        pid, start, text = file.read().split()
    with open(path, "w", encoding="ascii") as file:
        file.write("%s %d %s\n" % (pid, int(start) - 1, text))
    assert _launch._read(path) is None
    assert _launch._read(str(tmp_path / "none")) is None


def test_what_contradicts_itself(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert ftccl.find_launch().launcher == "alone"  # nobody said what would make this a job
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    with pytest.raises(ftccl.InvalidUsage, match="RANK and WORLD_SIZE name no rank"):
        ftccl.init_from_env()
    monkeypatch.setenv("RANK", "x")
    with pytest.raises(ftccl.InvalidUsage, match="RANK=x is not a number"):
        ftccl.init_from_env()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with pytest.raises(ftccl.InvalidUsage, match="several machines: set FTCCL_COMM_ID"):
        ftccl.init_from_env()
    monkeypatch.setenv("FTCCL_UNIQUE_ID", "zz")
    with pytest.raises(ftccl.InvalidUsage, match="not an id in hex"):
        ftccl.init_from_env()


def test_torchrun_on_several_machines(monkeypatch):
    for name, value in (
        ("MASTER_ADDR", "::1"),
        ("MASTER_PORT", "29500"),
        ("FTCCL_SECRET", "sixteen letters!"),
    ):
        monkeypatch.setenv(name, value)
    try:
        assert _launch._take_torchrun_address(ftccl.Launch("torchrun", 0, 4, 2))
        assert os.environ.pop("FTCCL_COMM_ID") == "[::1]:31213"
        assert not _launch._take_torchrun_address(ftccl.Launch("torchrun", 0, 4, 4))
    finally:
        os.environ.pop("FTCCL_COMM_ID", None)
