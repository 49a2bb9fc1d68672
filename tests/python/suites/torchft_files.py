"""torchft's own tests of process groups and of reconfigure (process_group_test.py and
reconfigure_test.py of its wheel), unmodified, over the backend ftccl: those that can choose a
backend. Their ranks are threads of one process.

torchft wraps a backend in a process group that it makes anew for every reconfigure (Wrapped), runs
one in a process of its own (Baby), or takes a group of torch that can be reconfigured (Native).
Each of its tests of several ranks runs over all three. What the files name themselves, for example
ProcessGroupGloo, is replaced in them by Wrapped.
"""

import datetime
import os
import unittest

os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing  # noqa: E402
import torchft.process_group_test as group_file  # noqa: E402
import torchft.reconfigure_test as reconfigure_file  # noqa: E402

import ftccl.torch.build  # noqa: E402
import outcomes  # noqa: E402
from torchft_groups import Baby, Native, Wrapped  # noqa: E402


class Ranks(group_file.MultiPgBaseTest):
    WORLD_SIZE = 3
    GROUP = None

    @classmethod
    def setUpClass(cls):
        if cls.GROUP is None:
            raise unittest.SkipTest("no group")
        super().setUpClass()

    @classmethod
    def _create_pg(cls, backend):
        return cls.GROUP(timeout=datetime.timedelta(seconds=10))


def add_tests(case):
    """What the file does for each of its own classes, for all of its collectives."""
    for name in group_file._ALL_COLLECTIVES:
        word = name.replace("/", "_")
        setattr(case, "test_collective_" + word, lambda self, name=name: self._run_parallel(name))
        setattr(
            case,
            "test_collective_with_resiliency_" + word,
            lambda self, name=name: self._run_with_resiliency(name),
        )


class WrappedTest(Ranks):
    GROUP = Wrapped


class BabyTest(Ranks):
    GROUP = Baby


class NativeTest(Ranks):
    GROUP = Native


class ResizeTest(unittest.TestCase):
    """The file's test for gloo and nccl2, whose worker takes the backend's name."""

    def test_resize_and_recover_ftccl(self):
        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        torch.multiprocessing.start_processes(
            reconfigure_file._resize_worker,
            args=(store.port, "ftccl"),
            nprocs=3,
            start_method="fork",
        )


# They want gloo's words, or what is gloo's alone.
SKIPPED = {
    "test_gloo_timeout": "It wants gloo's words; ours say that the process that made the unique "
    "id gave no answer in time.",
}


def cases():
    for case in (WrappedTest, NativeTest, BabyTest):
        add_tests(case)
    for file in (group_file, reconfigure_file):
        file.ProcessGroupGloo = Wrapped
    group_file.ProcessGroupBabyGloo = Baby
    outcomes.expect_skips(group_file.ProcessGroupTest, SKIPPED)
    ftccl.torch.build.load()
    return [
        ResizeTest,
        reconfigure_file.ReconfigureTest,
        group_file.ProcessGroupTest,
        group_file.CreateStoreClientTest,
        WrappedTest,
        NativeTest,
        BabyTest,
    ]
