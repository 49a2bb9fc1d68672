"""Settings of a communicator."""

import dataclasses
from typing import Any, Dict, List, Optional

from ._lib import ffi, lib


@dataclasses.dataclass
class Config:
    """Settings of a communicator; None takes the value of the parameter (`ftccl-info -p` lists
    them), or the parent's.

    Times are in milliseconds. op_timeout_ms: deadline of one operation from the moment when it
    runs; 0: none. init_timeout_ms: time limit of init, split, shrink, grow and destroy. transports:
    ordered list, "shm,tcp". preserve_input: buffers that are both input and output are restored
    after a failure. verify: checksums, and ranks compare results. rank_key: orders the ranks of a
    shrunk or grown communicator. min_ranks: with fewer live ranks a shrink fails for good.
    heartbeat_ms, suspect_ms: interval, and silence after which a host is suspected. silence_ms:
    silence of a rank's heartbeats after which operations under way fail; 0: never. retry: a
    communicator that loses a rank repeats the operation without it. hold_streams: what streams of a
    GPU do on a failure. concurrent_p2p: the communicator is for sends and receives only, and those
    on different streams do not wait for each other. name: in logs. net_name: the only transport
    between machines. traffic_class: TOS byte of TCP.
    """

    op_timeout_ms: Optional[int] = None
    init_timeout_ms: Optional[int] = None
    transports: Optional[str] = None
    preserve_input: Optional[bool] = None
    verify: Optional[bool] = None
    rank_key: Optional[int] = None
    min_ranks: Optional[int] = None
    heartbeat_ms: Optional[int] = None
    suspect_ms: Optional[int] = None
    retry: Optional[bool] = None
    hold_streams: Optional[bool] = None
    concurrent_p2p: Optional[bool] = None
    silence_ms: Optional[int] = None
    name: Optional[str] = None
    net_name: Optional[str] = None
    traffic_class: Optional[int] = None


_options = {
    "op_timeout_ms": "opTimeoutMs",
    "init_timeout_ms": "initTimeoutMs",
    "preserve_input": "preserveInput",
    "verify": "verify",
    "rank_key": "rankKey",
    "min_ranks": "minRanks",
    "heartbeat_ms": "heartbeatMs",
    "suspect_ms": "suspectMs",
    "retry": "failurePolicy",
    "hold_streams": "onFailure",
    "concurrent_p2p": "concurrentP2p",
    "silence_ms": "silenceMs",
}


class Struct:
    """The C struct of a Config, with the memory that it points to."""

    def __init__(self, pointer: Any, kept: List[Any]) -> None:
        self.pointer, self.kept = pointer, kept


def make(config: Optional[Config], options: Dict[str, Any]) -> Struct:
    """Of a Config with some of its fields given by name."""
    config = dataclasses.replace(config or Config(), **options)
    made, fields = ffi.new("ftcclConfig_t *"), ffi.new("ftcclOptions_t *")
    lib.ftpy_config_init(made)
    lib.ftpy_options_init(fields)
    keep: List[Any] = [fields]

    def text(value: str) -> Any:
        keep.append(ffi.new("char[]", value.encode()))
        return keep[-1]

    for name, field in _options.items():
        if getattr(config, name) is not None:
            setattr(fields, field, int(getattr(config, name)))
    if config.transports is not None:
        fields.transports = text(config.transports)
    if config.name is not None:
        made.commName = text(config.name)
    if config.net_name is not None:
        made.netName = text(config.net_name)
    if config.traffic_class is not None:
        made.trafficClass = config.traffic_class
    made.options = fields
    return Struct(made, keep)
