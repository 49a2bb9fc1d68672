"""Property: under torchrun's elastic restart a job over the backend "ftccl" goes on from its
checkpoint when a worker has killed itself, and ends as a job without deaths does. Method: the
example elastic_torchrun.py by torchrun, three workers on this host, with and without deaths of rank
0 (which makes the communicator's id) and of another."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
ftccl_torch = pytest.importorskip("ftccl.torch")

SOURCE = os.environ.get("FT_PYTHON_SOURCE") or Path(__file__).parents[2] / "python"
EXAMPLE = Path(SOURCE) / "examples" / "elastic_torchrun.py"
LIMIT_S = 100


def torchrun(folder, *options):
    """What the job prints: its starts as (restart, ranks, step), and its last line."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=1",
        "--nproc-per-node=3",
        "--max-restarts=3",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:0",
        "--monitor-interval=0.1",
        str(EXAMPLE),
        "--steps",
        "40",
        "--checkpoint",
        str(folder / "checkpoint.pt"),
        *options,
    ]
    folder.mkdir()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
    )
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.terminate()  # torchrun ends its workers
        process.wait()
    assert process.returncode == 0, out + err
    starts = [
        tuple(map(int, found))
        for found in re.findall(r"start (\d+) with (\d+) ranks at step (\d+)", out)
    ]
    return starts, re.search(r"step 40, loss [0-9.]+", out)[0]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """What the job prints without deaths."""
    ftccl_torch.build.load()  # once, before the processes need it
    return torchrun(tmp_path_factory.mktemp("torchrun") / "quiet")


@pytest.mark.parametrize("kill", ["0@25", "2@17"])
def test_workers_restart_from_the_checkpoint(kill, quiet, tmp_path):
    starts, end = torchrun(tmp_path / "killed", "--kill", kill)
    resumed = int(kill.split("@")[1]) // 10 * 10
    assert starts == [(0, 3, 0), (1, 3, resumed)] and quiet[0] == [(0, 3, 0)]
    assert end == quiet[1], "%s after a death, %s without" % (end, quiet[1])
