"""Property: a builder of the C++ part that was killed keeps nobody from loading it. Method: torch's
lock file, as such a builder leaves it, lies beside the built part; another process loads it within
a bound."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")


def test_a_killed_builder_leaves_no_lock():
    from ftccl.torch.build import load

    lock = Path(load().__file__).parent / "lock"
    lock.touch()
    try:
        subprocess.run([sys.executable, "-c", "from ftccl.torch.build import load; load()"],
                       check=True, timeout=120)
    finally:
        lock.unlink(missing_ok=True)
