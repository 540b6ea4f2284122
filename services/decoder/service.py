"""Decoder process: takes leases, fills slots. It has no state and may be killed at any instant."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pyarrow as pa

from common import messages as m
from common.errors import BadInputError, MachineError
from common.files.by_content import ContentReader, start_arrow
from common.files.rows import FILES, BadRowsError, Beat
from common.locks import attempt_of, publishing_of
from common.memory import asked_for_too_much, limit_memory, too_much
from common.messages import Part
from common.paths import shard_dir
from common.plan import plan_hash, working_bytes
from common.process import CopyEnded, Say, StopFlag, apart
from common.text import shown
from common.transport import FetcherLost, PeerTransport, StopRequested
from common.unit_arrays import SlotHeader, SlotMismatch, content_digest, unit_arrays, write_header
from services.config.root import Config
from services.decoder.decode import NO_PARTS, Decode

_IS_READ = "read"
_BEAT = "beat"

logger = logging.getLogger(__name__)
_CREDIT = 2
"""Units leased to a decoder at a time: the one in work, and the next, so that a decoder never waits for a message."""
_POLL_S = 0.2
_MACHINE_PAUSE_S = 1.0
"""Pause after an error of this machine, before the next unit: the error may have passed then."""


class TrialEnded(Exception):
    """Error: the copy was ended from outside, which says nothing of a part."""


def parts_that_end_a_process(parts: Sequence[Part], decode: Decode, beat: Beat) -> dict[Part, str]:
    """Return the parts that end a process which reads them, with the reason. Raises TrialEnded, OSError."""
    found: dict[Part, str] = {}
    waiting = deque(parts)
    while waiting:
        how = "without a word"
        try:
            for said in apart(lambda say: _read_each(list(waiting), decode, say)):
                if said == _IS_READ and waiting:
                    waiting.popleft()
                beat()
        except CopyEnded as ended:
            if not ended.is_own:
                raise TrialEnded(f"the process that tries its parts was ended by {ended}") from None
            how = str(ended)
        if waiting:
            part = waiting.popleft()
            found[part] = f"{part.name}: row group {part.row_group} ends the process that decodes it ({how})"
    return found


def _read_each(parts: Sequence[Part], decode: Decode, say: Say) -> None:
    """Read the parts in the copy of the process: with a reader of its own, since it shares the open files."""
    with closing(ContentReader(decode.workload)) as reader:
        for part in parts:
            with suppress(BadRowsError, MachineError, MemoryError, OSError):
                reader.read([part], lambda: say(_BEAT), large_above=decode.stream.outlier_above)
            say(_IS_READ)


def serve(run_dir: Path, config: Config, load: Callable[[], Config], stop: StopFlag) -> None:
    """Decode until the run is over or ``stop`` is set; rejoins after a restart of the fetcher.

    ``load`` reads the run's configuration again: a restarted fetcher may have another one. Raises BadInputError if
    this decoder's settings differ from those of the run.
    """
    pa.set_cpu_count(config.decoder.threads)
    pa.set_io_thread_count(config.decoder.threads)
    FILES.use()  # before the limit of memory, which a compiler would inherit
    start_arrow()
    while not stop:
        try:
            transport = PeerTransport(run_dir, config.transport, writable=True, stopped=lambda: bool(stop))
        except StopRequested:
            return
        config = load()
        limit_memory(working_bytes(config.stream))
        workload = config.stored_workload()
        reader = ContentReader(workload)
        try:
            if transport.plan_hash != plan_hash(workload, config.stream, config.seed):
                raise BadInputError(
                    f"this decoder's seed or stream settings are not those of the run in {run_dir}: leave out its own "
                    "--set, -c and environment"
                )
            attempt = attempt_of(os.environ)
            folder = run_dir if attempt is None else shard_dir(attempt.shared, config.stream.shard)
            decode = Decode(workload, config.stream, config.seed, folder, reader, publishing=publishing_of(attempt))
            _take_leases(transport, decode, stop)
            return
        except FetcherLost:
            logger.warning("the fetcher is gone; waiting for it to come back")
        finally:
            reader.close()
            transport.close()


def _take_leases(transport: PeerTransport, decode: Decode, stop: StopFlag) -> None:
    leases: deque[m.Lease] = deque()
    retiring = False
    transport.send(m.Hello(_CREDIT))
    logger.info("joined the run, plan %.12s", transport.plan_hash)
    num_units = 0
    while not stop and not (retiring and not leases):
        match transport.receive(0.0 if leases else _POLL_S):
            case m.Lease() as lease:
                leases.append(lease)
                continue  # handle all messages that have arrived before the next unit
            case m.Retire():
                retiring = True
                continue
            case m.Stop():
                logger.info("the run is over")
                break
            case m.Refuse(reason):
                raise BadInputError(f"the dispatcher refused this decoder: {reason}")
        if leases:
            lease = leases.popleft()
            try:
                _fill(transport, lease, decode)
                num_units += 1
            except (MachineError, OSError, MemoryError) as error:
                failed = _failed(lease, error)
                transport.send(failed)
                if failed.machine:
                    logger.warning("unit %d is given back: %s", failed.k, failed.reason)
                    until_s = time.monotonic() + _MACHINE_PAUSE_S
                    while not stop and time.monotonic() < until_s:
                        transport.send(m.Beat())
                        time.sleep(_POLL_S)
    transport.send(m.Bye())
    logger.info("left the run after %d units", num_units)


def _failed(lease: m.Lease, error: Exception) -> m.Failed:
    """Report of an error of this machine, while reading or while writing outliers. No unit is to blame, except one
    that reaches this process's own memory limit."""
    k, unit = lease.unit.k, lease.unit
    if isinstance(error, MemoryError) and asked_for_too_much():
        return m.Failed(k, lease.lease, f"it needs {too_much()} to decode")  # the unit is to blame, not the machine
    missing = error.path if isinstance(error, MachineError) and error.number == errno.ENOENT else ""
    if missing and any(part.remote and part.path == missing for part in unit.parts):
        # The cache directory was removed: the fetcher brings its files again.
        return m.Failed(k, lease.lease, shown(str(error)), gone=True)
    return m.Failed(k, lease.lease, shown(str(error)) or type(error).__name__, machine=True)


def _fill(transport: PeerTransport, lease: m.Lease, decode: Decode) -> None:
    k = lease.unit.k
    transport.send(m.Decoding(k, lease.lease))
    slot = transport.arena.slot(lease.slot)

    def beat() -> None:
        transport.send(m.Beat())

    try:
        bad = parts_that_end_a_process(lease.unit.parts, decode, beat) if lease.failures else NO_PARTS
        layout, tally = decode(lease.unit, slot, beat, bad=bad)
    except (SlotMismatch, TrialEnded) as error:
        transport.send(m.Failed(k, lease.lease, str(error)[:2000]))
        return
    write_header(slot, SlotHeader(transport.plan_hash, k, lease.lease, layout))
    content = content_digest(unit_arrays(slot, decode.workload, layout))
    transport.send(m.Done(k, lease.lease, layout, tally, content))
