"""Microbatches of one lane: out of the slots of its units, to the device, in order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from services.trainer.stream.audit import audit_line
from services.trainer.stream.fed_batch import FedMicrobatch
from services.trainer.stream.lane import Lane
from services.trainer.stream.microbatch_copy import ids_of, num_bytes
from services.trainer.stream.shard_link import ShardLink
from services.trainer.stream.waits import BatchWaits

logger = logging.getLogger(__name__)

NO_EVENT: Any = object()
"""Item in place of a microbatch, after a whole epoch without one."""


class Kept(NamedTuple):
    """What the host keeps of microbatches on the device."""

    audit: bool
    """Lines of the audit."""
    identity: str | None
    """Column of the events' ids; None: not needed."""


def microbatches(
    link: ShardLink, lane: Lane, epoch: int | None, stops: Callable[[], bool], waits: BatchWaits, kept: Kept
) -> Iterator[FedMicrobatch | None]:
    """Microbatches of a lane on the device; None while the next unit has not arrived, NO_EVENT for the end of a turn.

    Ends with the lane's data, or those of ``epoch``, or once ``stops()`` is true. Advances the position of the link.
    """
    number = link.lane_of_run(lane.number)
    seen: int | None = None  # epoch of the last event, or passed since without one
    while True:
        while not lane.arrived and not lane.ended and not stops():
            yield None
        if lane.used_up(epoch) or stops():
            return
        next_epoch = lane.arrived[0][0].epoch
        seen = next_epoch if seen is None else seen
        if next_epoch > seen + 1:
            seen = next_epoch - 1
            yield NO_EVENT
            continue
        unit, arrays = lane.arrived.popleft()
        at = link.taken.lane_of(unit).cursor
        if unit.k != at.unit:
            raise RuntimeError(f"unit {unit.k} was delivered where {at.unit} was due")
        taken: FedMicrobatch | None = None
        changed = link.taken.is_changed(unit)
        if link.taken.is_unchecked(unit):
            logger.info("the checkpoint of a former version can't show that unit %d is the same", unit.k)
        if at.microbatch < unit.layout.microbatches and not changed:
            assert arrays is not None
            copy = link.copier.begin(arrays, unit.epoch, unit.k)
            for index in range(at.microbatch, unit.layout.microbatches):
                if taken is not None:
                    yield taken
                microbatch = replace(copy.microbatch(index), lane=number)
                waits.copied_bytes += num_bytes(microbatch)
                line = audit_line(arrays, number, unit.epoch, unit.k, index) if kept.audit else ""
                taken = FedMicrobatch(microbatch, line, ids_of(arrays, index, kept.identity))
                link.taken = link.taken.after_microbatch(unit, index, microbatch.num_events, microbatch.num_particles)
            # The slot is released before the last microbatch is trained. The copy is awaited, not polled for: the
            # next poll may be a step away.
            copy.wait()
            del copy
        del arrays
        link.release(unit.k, lane.number)
        link.taken = link.taken.after_unit(unit)
        if changed:
            logger.warning("%s", link.taken.changed_units[-1])
        if taken is not None:
            seen = unit.epoch
            yield taken
