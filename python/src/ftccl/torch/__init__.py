"""The c10d backend "ftccl" for tensors on the CPU.

    import torch.distributed as dist
    import ftccl.torch                       # not needed where torch finds backends by entry point
    dist.init_process_group("ftccl")         # or "cpu:ftccl,cuda:nccl"

The backend is a C++ extension that fits one version of torch. It is built when it is needed first,
by torch's own tools (a C++17 compiler and ninja are needed), and kept in the user's cache; see
`ftccl.torch.build`. Failures are raised as `torch.distributed.DistBackendError`, with a sentence
that names the rank, the operation, and the rank to blame.
"""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from ftccl.torch.build import load

__all__ = ["register"]


def _create(options, _) -> object:
    timeout = options.timeout
    if not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=timeout)
    return load().create(
        options.store,
        options.group_rank,
        options.group_size,
        options.group_id,
        timeout,
        getattr(options, "enable_reconfigure", False),
    )


def register() -> None:
    """Registers the backend with torch.distributed. Called again, it does nothing."""
    if "FTCCL" not in dist.Backend._plugins:
        dist.Backend.register_backend("ftccl", _create, extended_api=True, devices=["cpu"])


register()
