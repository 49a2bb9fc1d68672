"""torchft's kinds of process groups over the backend ftccl. A file of its own, because Baby's
processes import it."""

import datetime

import torch
import torch.distributed as dist
import torchft.process_group as groups

import ftccl.torch.build

CPU = torch.device("cpu")
SECOND = datetime.timedelta(seconds=1)


def make_group(store, rank, size, timeout, reconfigurable=False):
    group = dist.ProcessGroup(store, rank, size)
    backend = ftccl.torch.build.load().create(store, rank, size, "torchft", timeout, reconfigurable)
    group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    group._register_backend(CPU, dist.ProcessGroup.BackendType.CUSTOM, backend)
    return group


class Wrapped(groups.ProcessGroupWrapper):
    def _create_pg(self, store, rank, world_size):
        return make_group(store, rank, world_size, self._timeout)

    def getBackendName(self):
        return "torchft-ftccl"

    def errored(self):
        return None


class Baby(groups.ProcessGroupBaby):
    def __init__(self, timeout=60 * SECOND):
        # Its process imports torch, which takes longer than the tests allow where others work on
        # the machine, too.
        super().__init__(timeout if timeout < SECOND else max(timeout, 60 * SECOND))

    @classmethod
    def _create_pg(cls, store, rank, world_size):
        return make_group(store, rank, world_size, 60 * SECOND)

    def getBackendName(self):
        return "torchft-baby-ftccl"


class Native(groups.ProcessGroupWrapper):
    """The wrapper's calls over one group that is reconfigured as torch does it, by the backend's
    own handles."""

    def __init__(self, timeout):
        super().__init__(timeout, make_group(None, 0, 1, timeout, reconfigurable=True))
        self.group = self._pg

    def getBackendName(self):
        return "ftccl"

    def get_reconfigure_handle(self):
        return self.group.get_reconfigure_handle()

    def reconfigure(self, opts):
        self._pg = self.group
        return self.group.reconfigure(opts)

    def set_timeout(self, timeout):
        super().set_timeout(timeout)
        self.group._get_backend(CPU).set_timeout(timeout)

    def shutdown(self):
        self.group.shutdown()
        super().shutdown()

    def errored(self):
        return None
