"""Rank and size from the environment of whoever started the process, and one unique id for all."""

import os
import stat
import time
from typing import Any, NamedTuple, Optional, Tuple

from ._communicator import Communicator, UniqueId, get_unique_id
from ._config import Config
from ._errors import InvalidUsage

# Most specific first: ftccl-run or torchrun inside a Slurm job takes precedence over Slurm. The
# last is needed too.
_LAUNCHERS = (
    ("ftccl-run", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "FTCCL_UNIQUE_ID"),
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"),
    (
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        None,
    ),
    ("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", None),
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", None, "SLURM_STEP_ID"),
    ("environment", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "FTCCL_COMM_ID"),
)
_LAUNCHER_PROGRAMS = (
    "hydra_pmi_proxy",
    "slurmstepd",
    "orted",
    "prted",
    "mpirun",
    "mpiexec",
    "orterun",
)
_WAIT_S = 60


class Launch(NamedTuple):
    """Who started this process, and its place. local_size: ranks on this machine; 0: not known."""

    launcher: str
    rank: int
    size: int
    local_size: int


def _number(name: Optional[str], lowest: int, missing: int) -> int:
    text = os.environ.get(name) if name else None
    if not text:
        return missing
    if not text.isdecimal() or int(text) < lowest:
        raise InvalidUsage("%s=%s is not a number from %d" % (name, text, lowest))
    return int(text)


def find_launch() -> Launch:
    """Rank and size as ftccl-run, torchrun, Open MPI, MPICH or Slurm tell them; rank 0 of 1 if
    nobody does."""
    for launcher, rank, size, local_size, needs in _LAUNCHERS:
        if rank in os.environ and size in os.environ and (needs is None or needs in os.environ):
            found = Launch(
                launcher, _number(rank, 0, -1), _number(size, 1, -1), _number(local_size, 1, 0)
            )
            if not 0 <= found.rank < found.size:
                raise InvalidUsage("%s and %s name no rank of a job" % (rank, size))
            return found
    return Launch("alone", 0, 1, 1)


def init_from_env(config: Optional[Config] = None, **options: Any) -> Communicator:
    """The communicator of all ranks that ftccl-run, torchrun, mpiexec or srun started; alone, of
    one rank.

    On several machines FTCCL_COMM_ID (host:port, the same on all) and FTCCL_SECRET tell the ranks
    where to meet; torchrun needs FTCCL_SECRET alone. Blocks until all ranks have come, at most
    init_timeout_ms. config and options are as for Communicator().
    """
    launch = find_launch()
    identity, path = _find_id(launch)
    try:
        return Communicator(launch.size, identity, launch.rank, config, **options)
    finally:
        if path:
            os.unlink(path)


def _find_id(launch: Launch) -> Tuple[UniqueId, Optional[str]]:
    """The id, and the file that rank 0 wrote, which is to be removed when all have read it."""
    if launch.size == 1:
        return get_unique_id(), None
    if launch.launcher == "ftccl-run":
        try:
            return UniqueId.fromhex(os.environ["FTCCL_UNIQUE_ID"]), None
        except ValueError as error:
            raise InvalidUsage("FTCCL_UNIQUE_ID is not an id in hex") from error
    if (
        "FTCCL_COMM_ID" in os.environ
        or "NCCL_COMM_ID" in os.environ
        or _take_torchrun_address(launch)
    ):
        return get_unique_id(), None
    if launch.local_size and launch.local_size != launch.size:
        raise InvalidUsage(
            "%s started ranks on several machines: set FTCCL_COMM_ID=HOST:PORT and FTCCL_SECRET "
            "for all of"
            " them" % launch.launcher
        )
    return _meet_by_file(launch)


def _take_torchrun_address(launch: Launch) -> bool:
    """torchrun's store uses MASTER_PORT; this uses another port that is derived from it."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if (
        launch.launcher != "torchrun"
        or not host
        or launch.local_size == launch.size
        or not port.isdecimal()
    ):
        return False
    if "FTCCL_SECRET" not in os.environ and "FTCCL_SECRET_FILE" not in os.environ:
        return False
    number = int(port)
    os.environ["FTCCL_COMM_ID"] = ("[%s]:%d" if ":" in host else "%s:%d") % (
        host,
        number - 1713 if number > 60000 else number + 1713,
    )
    return True


# ---- ranks of one machine meet in a file that is named after their launcher's process ------------


def _process(pid: int) -> Optional[Tuple[int, str, int, int]]:
    """pid, name, parent and start time; None if there is no such process."""
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as file:
            name, _, rest = file.read().partition("(")[2].rpartition(") ")
    except OSError:
        return None
    fields = rest.split()
    return pid, name, int(fields[1]), int(fields[19])


def _launcher() -> Tuple[int, int]:
    """pid and start time of a launcher among the ancestors (a shell may be in between), or else of
    the parent."""
    found = parent = _process(os.getppid())
    for _ in range(16):
        if found is None or found[0] <= 1:
            break
        if found[1].startswith(_LAUNCHER_PROGRAMS):
            return found[0], found[3]
        found = _process(found[2])
    if parent is None:
        raise InvalidUsage("the process that started this one is gone")
    return parent[0], parent[3]


def _folder() -> str:
    """A folder that only this user can access."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = runtime.startswith("/") and os.access(runtime, os.W_OK)
    folder = os.path.join(runtime, "ftccl") if usable else "/tmp/ftccl-%d" % os.getuid()
    os.makedirs(folder, mode=0o700, exist_ok=True)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o77:
        raise InvalidUsage("%s is not a folder of this user alone (mode 0700)" % folder)
    return folder


def _meet_by_file(launch: Launch) -> Tuple[UniqueId, Optional[str]]:
    path = os.path.join(_folder(), "python-%d-%d" % _launcher())
    if launch.rank == 0:
        identity = get_unique_id()
        _write(path, identity)
        return identity, path
    end = time.monotonic() + _WAIT_S
    while time.monotonic() < end:
        found = _read(path)
        if found is not None:
            return found, None
        time.sleep(0.005)
    raise InvalidUsage("rank 0 left no unique id in %s within %d s" % (path, _WAIT_S))


def _write(path: str, identity: UniqueId) -> None:
    own = _process(os.getpid())
    assert own is not None
    temporary = "%s.%d" % (path, own[0])
    if os.path.lexists(temporary):
        os.unlink(temporary)  # of a dead process that had our number
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    with open(descriptor, "w", encoding="ascii") as file:
        file.write("%d %d %s\n" % (own[0], own[3], identity.hex()))
    os.rename(temporary, path)


def _read(path: str) -> Optional[UniqueId]:
    """None if the file does not exist or belongs to a job that is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, encoding="ascii", errors="replace") as file:
        status = os.fstat(descriptor)
        words = file.read().split()
    if status.st_uid != os.getuid() or status.st_mode & 0o77 or len(words) != 3:
        return None
    writer = _process(int(words[0]))
    return UniqueId.fromhex(words[2]) if writer and writer[3] == int(words[1]) else None
