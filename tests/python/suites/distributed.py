"""PyTorch's own tests of a c10d backend (torch/testing/_internal/distributed/distributed_test.py of
the wheel), unmodified, over the backend ftccl; WORLD_SIZE in the environment is the number of
processes.

The file asks for the backend's name in three ways. Decorators ask when it is imported, and most
tests for the CPU are for "gloo" alone; so they are told "gloo". Tests ask when they run, and get
"ftccl". The decorator that skips groups of two ranks below a world size of eight asks the
environment when a test runs, and lets "mpi" pass. Ranks are forked, not spawned: a test takes a
fraction of a second rather than ten."""

import os

os.environ.update(
    BACKEND="gloo",
    INIT_METHOD="file://",
    CUDA_VISIBLE_DEVICES="",
    OMP_NUM_THREADS="1",
    DISTRIBUTED_TESTS_DEFAULT_TIMEOUT="60",
)

import torch.testing._internal.distributed.distributed_test as suite  # noqa: E402

import ftccl.torch.build  # noqa: E402
import outcomes  # noqa: E402

suite.PROFILING_SUPPORTED_BACKENDS.append("ftccl")
suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.append("ftccl")

# They take the CPU's path only if the backend is called gloo or mpi; their group is ftccl's all the
# same.
BY_NAME = ("test_accumulate_gradients_",)

# Tests that are for MPI by name; ftccl has what they test.
FOR_MPI = ("test_all_to_all",)

# They fail for a reason that is not the backend's.
SKIPPED = {
    "test_ddp_logging_data_cpu": "It wants the backend's name from ProcessGroup, which calls "
    "every backend of a plugin \"custom\".",
    "test_sparse_all_reduce_sum": "Sparse tensors are refused with a sentence; see "
    "python/README.md.",
    "test_sparse_all_reduce_sum_cuda": "Sparse tensors are refused with a sentence; see "
    "python/README.md.",
}


class FtcclTest(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        suite.INIT_METHOD = os.environ["INIT_METHOD"]  # a file of this test
        suite.BACKEND = "ftccl"
        os.environ["BACKEND"] = "mpi" if int(self.world_size) > 2 else "ftccl"
        outcomes.fork(self)

    def run_test(self, test_name, parent_pipe):
        """In a rank, when it has its group."""
        assert suite.dist.get_backend() == "ftccl", suite.dist.get_backend()
        if test_name.startswith(BY_NAME):
            suite.BACKEND = "gloo"
        super().run_test(test_name, parent_pipe)


def allow_tests_for_mpi():
    """Their decorator only marks the function."""
    for name in dir(FtcclTest):
        test = getattr(FtcclTest, name)
        if name.startswith(FOR_MPI) and "Only MPI" in getattr(test, "__unittest_skip_why__", ""):
            test.__unittest_skip__ = False


def cases():
    allow_tests_for_mpi()
    outcomes.expect_skips(FtcclTest, SKIPPED)
    ftccl.torch.build.load()
    return [FtcclTest]
