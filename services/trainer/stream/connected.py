"""Connection of a trainer to its fetcher, on this host or another one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from common.config import StreamConfig, TransportConfig
from common.ragged import slot_bytes_needed
from common.schema import EventSchema
from common.transport import PeerTransport, RemotePeerTransport


def connected(
    run_dir: Path,
    workload: EventSchema,
    stream: StreamConfig,
    config: TransportConfig,
    *,
    slots: int,
    writable: bool,
    stopped: Callable[[], bool],
) -> PeerTransport | RemotePeerTransport:
    """Transport that has connected; waits until the fetcher has started.

    ``slots``: number in the arena of a trainer on another host. ``writable``: see Copiers. Raises BadInputError after
    `transport.connect_timeout_s`, StopRequested once ``stopped()`` is true.
    """
    if not config.connect:
        return PeerTransport(run_dir, config, writable=writable, stopped=stopped)
    bytes_needed = partial(slot_bytes_needed, workload)
    return RemotePeerTransport(config, bytes_needed, slots=slots, slot_bytes=stream.slot_bytes, stopped=stopped)
