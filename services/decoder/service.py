"""The decoder process: takes leases, fills slots. It has no state and may be killed at any instant."""

from __future__ import annotations

import logging
from collections import deque
from pathlib import Path

import pyarrow as pa

from common import messages as m
from common.errors import BadInputError
from common.process import StopFlag
from common.ragged import SlotHeader, SlotMismatch, write_header
from common.schema import WORKLOADS
from common.transport import FetcherLost, PeerTransport, StopRequested
from services.config import Config
from services.decoder.decode import Decode
from services.decoder.readers.parquet import ParquetReader

logger = logging.getLogger(__name__)

_POLL_S = 0.2


def serve(run_dir: Path, config: Config, stop: StopFlag) -> None:
    """Decode until the run is over or until asked to stop; joins again if the fetcher comes back."""
    pa.set_cpu_count(config.decoder.threads)
    pa.set_io_thread_count(config.decoder.threads)
    reader = ParquetReader(WORKLOADS[config.workload])
    decode = Decode(WORKLOADS[config.workload], config.stream, config.seed, run_dir, reader)
    try:
        while not stop:
            transport = PeerTransport(run_dir, config.transport, writable=True, stopped=lambda: bool(stop))
            try:
                _take_leases(transport, config.decoder.credit, decode, stop)
                return
            except FetcherLost:
                logger.warning("the fetcher is gone; waiting for it to come back")
            finally:
                transport.close()
    except StopRequested:
        return
    finally:
        reader.close()


def _take_leases(transport: PeerTransport, credit: int, decode: Decode, stop: StopFlag) -> None:
    leases: deque[m.Lease] = deque()
    retiring = False
    transport.send(m.Hello(credit))
    while not stop and not (retiring and not leases):
        match transport.receive(0.0 if leases else _POLL_S):
            case m.Lease() as lease:
                leases.append(lease)
                continue  # take all that has arrived before the next unit
            case m.Retire():
                retiring = True
                continue
            case m.Stop():
                logger.info("the run is over")
                break
            case m.Refuse(reason):
                raise BadInputError(f"the dispatcher refused this decoder: {reason}")
        if leases:
            _fill(transport, leases.popleft(), decode)
    transport.send(m.Bye())


def _fill(transport: PeerTransport, lease: m.Lease, decode: Decode) -> None:
    k = lease.unit.k
    transport.send(m.Decoding(k, lease.lease))
    slot = transport.arena.slot(lease.slot)
    try:
        layout, tally = decode(lease.unit, slot, beat=lambda: transport.send(m.Beat()))
    except SlotMismatch as error:
        transport.send(m.Failed(k, lease.lease, str(error)[:2000]))
        return
    write_header(slot, SlotHeader(transport.plan_hash, k, lease.lease, layout))
    transport.send(m.Done(k, lease.lease, layout, tally))
