"""PyTorch's tests of reconfigure (test/distributed/test_c10d_fault_tolerance.py of its repository,
which no wheel has), unmodified, over the backend ftccl. FT_PYTORCH_TESTS: the folder that has the
file."""

import importlib.util
import os
import sys

import ftccl.torch.build
import outcomes

NAME = "test_c10d_fault_tolerance"
SKIPPED = {
    "test_reconfigure_after_timeout": "It is for nccl2 alone, which revokes a group after a "
    "timeout by itself."
}


def load():
    path = os.path.join(os.environ["FT_PYTORCH_TESTS"], NAME + ".py")
    spec = importlib.util.spec_from_file_location(NAME, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    return module


def cases():
    case = load()._make_fault_tolerance_test_class("ftccl", "cpu")
    case._spawn_processes = outcomes.fork
    outcomes.expect_skips(case, SKIPPED)
    ftccl.torch.build.load()
    return [case]
