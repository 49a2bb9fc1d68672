"""Property: torchft's Manager and Lighthouse, unmodified, train over the backend "ftccl": when a
replica group is killed by SIGKILL, the others go on; started again, it takes the model from a live
one; at the end all have the same model. Method: the example torchft_ddp.py, whose replica groups
are processes; replica 0 is the one that is killed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchft", reason="torchft is not installed", exc_type=ImportError)
ftccl_torch = pytest.importorskip("ftccl.torch")

SOURCE = os.environ.get("FT_PYTHON_SOURCE") or Path(__file__).parents[2] / "python"
EXAMPLE = Path(SOURCE) / "examples" / "torchft_ddp.py"
LIMIT_S = 105


@pytest.mark.parametrize("replicas, ranks", [(3, 1), (2, 2)])
def test_replica_is_killed_and_comes_back(replicas, ranks):
    ftccl_torch.build.load()  # once, before the processes need it
    done = subprocess.run(
        [
            sys.executable,
            str(EXAMPLE),
            "--replicas",
            str(replicas),
            "--ranks",
            str(ranks),
            "--kills",
            "1",
            "--limit",
            str(LIMIT_S),
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S + 10,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "all replicas have the same model" in done.stdout, said
    killed = int(re.search(r"replica 0 is killed at step (\d+)", said)[1])
    went_on = re.search(r"the others went on after ([0-9.]+) s, with (\d+) replicas", said)
    assert int(went_on[2]) == replicas - 1, said
    together = [int(step) for step in re.findall(r"step (\d+), all %d replicas" % replicas, said)]
    assert len(together) == 2 and together[1] > killed, said
