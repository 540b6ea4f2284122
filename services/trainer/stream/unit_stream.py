"""Microbatches of a shard's stream: out of the slots of its units, in order; this trainer's share to the device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from common.config import StreamConfig
from common.messages import DeliveredUnit
from common.unit_arrays import UnitArrays
from services.trainer.stream.audit import audit_line
from services.trainer.stream.fed_batch import FedMicrobatch
from services.trainer.stream.microbatch_copy import UnitCopy, ids_of, num_bytes
from services.trainer.stream.shard_link import ShardLink
from services.trainer.stream.shares import runs_of
from services.trainer.stream.waits import BatchWaits

logger = logging.getLogger(__name__)

Taken = tuple[FedMicrobatch, ...]
"""This trainer's part of what a unit adds to a batch; it may be empty."""
NO_EVENT: Any = object()
"""Item after a whole epoch without an event."""


class Kept(NamedTuple):
    """Data of microbatches on the device that the host keeps, too."""

    audit: bool
    """Lines of the audit."""
    identity: str | None
    """Column of the events' ids; None: not needed."""


def microbatches(
    link: ShardLink,
    stream: StreamConfig,
    epoch: int | None,
    stops: Callable[[], bool],
    waits: BatchWaits,
    kept: Kept,
) -> Iterator[Taken | None]:
    """Microbatches of a shard on the device, as each unit adds them to a batch; None while the next unit has not
    arrived, NO_EVENT for the end of a turn.

    Ends with the stream, or that of ``epoch``, or once ``stops()`` is true. Advances the position of the link, and
    deals by its `dealing`, which the caller begins anew with each batch.
    """
    seen: int | None = None  # epoch of the last event, or passed since without one
    while True:
        while not link.arrived and not link.ended and not stops():
            yield None
        if link.used_up(epoch) or stops():
            return
        next_epoch = link.arrived[0][0].epoch
        seen = next_epoch if seen is None else seen
        if next_epoch > seen + 1:
            seen = next_epoch - 1
            yield NO_EVENT
            continue
        unit, arrays = link.arrived.popleft()
        at = link.taken.cursor
        if unit.k != at.unit:
            raise RuntimeError(f"unit {unit.k} was delivered where {at.unit} was due")
        taken: Taken | None = None
        changed = link.taken.is_changed(unit)
        if link.taken.is_unchecked(unit):
            logger.info("the checkpoint of a former version can't show that unit %d is the same", unit.k)
        if at.microbatch < unit.layout.microbatches and not changed:
            assert arrays is not None
            reading = _Reading(link, stream, unit, arrays, waits, kept)
            first = at.microbatch
            while first < unit.layout.microbatches:
                if taken is not None:
                    yield taken
                taken, first = reading.part(first)
            # The slot is released before the last microbatch is trained. The copy is awaited, not polled for: the
            # next poll may be a step away.
            reading.close()
            del reading
        del arrays
        link.release(unit.k)
        link.taken = link.taken.after_unit(unit)
        if changed:
            logger.warning("%s", link.taken.changed_units[-1])
        if taken is not None:
            seen = unit.epoch
            yield taken


class _Reading:
    """Reading of one unit out of its slot."""

    def __init__(
        self,
        link: ShardLink,
        stream: StreamConfig,
        unit: DeliveredUnit,
        arrays: UnitArrays,
        waits: BatchWaits,
        kept: Kept,
    ) -> None:
        self._link = link
        self._unit = unit
        self._arrays = arrays
        self._waits = waits
        self._kept = kept
        self._copy: UnitCopy | None = None
        bounds = arrays.microbatch_bounds
        costs = [np.diff(bounds), np.diff(arrays.offsets[bounds])]
        self._most = [stream.batch_events, stream.max_particles]
        if stream.max_squared_particles:
            squares = np.zeros(len(arrays.offsets), np.int64)
            np.cumsum(np.diff(arrays.offsets) ** 2, out=squares[1:])
            costs.append(np.diff(squares[bounds]))
            self._most.append(stream.max_squared_particles)
        self._costs: list[tuple[int, ...]] = list(zip(*(cost.tolist() for cost in costs), strict=True))

    def part(self, first: int) -> tuple[Taken, int]:
        """Return what the microbatches from ``first`` on add to the batch that is being made, and the first one behind
        them. Advances the link's position."""
        link = self._link
        number = link.dealing.num_dealt
        ranks = link.dealing.deal(islice(self._costs, first, None))
        end = first + len(ranks)
        costs = self._costs[first:end]
        runs = runs_of(link.share.rank, ranks, costs, self._most)
        taken = tuple(self._taken(first + run.start, first + run.stop, number + run.start) for run in runs)
        num_events, num_particles = (sum(cost[place] for cost in costs) for place in (0, 1))
        link.taken = link.taken.after_microbatches(self._unit, end, num_events, num_particles)
        return taken, end

    def close(self) -> None:
        """Wait until the copies are complete."""
        if self._copy is not None:
            self._copy.wait()

    def _taken(self, first: int, end: int, number: int) -> FedMicrobatch:
        unit, arrays, link = self._unit, self._arrays, self._link
        self._copy = self._copy or link.copier.begin(arrays, unit.epoch, unit.k)
        microbatch = replace(self._copy.microbatch(first, end), shard=link.shard, number=number)
        self._waits.copied_bytes += num_bytes(microbatch)
        indices = range(first, end) if self._kept.audit else ()
        lines = tuple(audit_line(arrays, link.shard, unit.epoch, unit.k, index) for index in indices)
        ids = ids_of(arrays, first, end, self._kept.identity)
        return FedMicrobatch(microbatch, lines, ids)
