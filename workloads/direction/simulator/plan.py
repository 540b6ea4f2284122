"""Plan of a data set of simulated neutrino events, and the events of each of its files.

A file depends only on the seed, its index and its numbers of events: each can be made alone and in any order. Its
events of one kind are the same whether or not there are others. E events, P pulses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from common.errors import BadInputError
from common.files.gather import offsets_of
from workloads.base.dataset import check_request, share
from workloads.base.random_streams import file_stream
from workloads.direction.geometry import ARRAYS, Geometry
from workloads.direction.simulator.events import BRIGHT, CASCADES, NATURAL, EndlessEvents, SimulatedEvents, joined

ROW_GROUP_EVENTS = 4000
MOST_BRIGHT_A_ROW_GROUP = 100

KINDS = (NATURAL, CASCADES, BRIGHT)
_ORDER = len(KINDS)
"""Key of the random numbers that mix a file's kinds, behind those of the kinds."""

# An event id is seed, file and place in it, of these numbers of bits: 53 in all, exact also as a float64.
_FILE_BITS, _PLACE_BITS = 16, 21
_SEEDS = 2**16
MOST_FILES, MOST_EVENTS_A_FILE = 2**_FILE_BITS, 2**_PLACE_BITS


@dataclass(frozen=True)
class EventsPlan:
    """Numbers of events and files of a data set. Raises BadInputError."""

    num_events: int
    """Events of the natural mixture: tracks and cascades."""
    num_files: int
    seed: int
    num_cascades: int = 0
    """Cascades of high energy added to these, at random places of every file."""
    num_bright: int = 0
    """Events of 5,000 to 170,000 pulses added to these, at random places of every file."""
    array: str = "icecube"
    """Sensors of the detector: a key of ARRAYS."""

    def __post_init__(self) -> None:
        check_request(self.num_events, self.num_files, self.seed)
        for name, number in (("cascades", self.num_cascades), ("bright", self.num_bright)):
            if number < 0:
                raise BadInputError(f"{name} = {number}: must not be negative")
        if self.array not in ARRAYS:
            raise BadInputError(f"array = {self.array!r}: use one of {', '.join(ARRAYS)}")
        if self.num_files > MOST_FILES:
            raise BadInputError(f"files = {self.num_files}: event ids allow at most {MOST_FILES:,}")
        if self.num_rows(0) > MOST_EVENTS_A_FILE:
            raise BadInputError(
                f"{self.num_rows(0):,} events a file: event ids allow at most {MOST_EVENTS_A_FILE:,}; use more files"
            )

    @cached_property
    def geometry(self) -> Geometry:
        """Positions of the sensors."""
        return ARRAYS[self.array]()

    def numbers(self, file_index: int) -> tuple[int, ...]:
        """Events of each kind in one file."""
        return tuple(
            share(total, self.num_files, file_index) for total in (self.num_events, self.num_cascades, self.num_bright)
        )

    def num_rows(self, file_index: int) -> int:
        """Events in one file."""
        return sum(self.numbers(file_index))


@dataclass(frozen=True)
class EventRows:
    """Consecutive events of a file."""

    event_id_E: npt.NDArray[np.int64]
    added_E: npt.NDArray[np.bool_]
    """True for events that are not of the natural mixture."""
    events: SimulatedEvents

    def __len__(self) -> int:
        return len(self.event_id_E)


def file_rows(plan: EventsPlan, file_index: int) -> Iterator[EventRows]:
    """Events of one file, a row group at a time: the kinds mixed, all orders being equally likely."""
    position_S3 = plan.geometry.position_S3
    sources = [EndlessEvents(kind, position_S3, _generator(plan, file_index, key)) for key, kind in enumerate(KINDS)]
    kind_E = np.repeat(np.arange(len(KINDS)), plan.numbers(file_index))
    _generator(plan, file_index, _ORDER).shuffle(kind_E)
    first_id = (((plan.seed % _SEEDS) << _FILE_BITS) + file_index) << _PLACE_BITS
    start = 0
    for here_E in _row_groups(kind_E):
        pieces = [sources[key].take(int(number)) for key, number in enumerate(np.bincount(here_E)) if number]
        events = joined(pieces)
        if len(pieces) > 1:
            # Row i is the next event of its kind.
            place_E = np.empty(len(here_E), np.int64)
            place_E[np.argsort(here_E, kind="stable")] = np.arange(len(here_E))
            events = reordered(events, place_E)
        event_id_E = first_id + np.arange(start, start + len(here_E), dtype=np.int64)
        yield EventRows(event_id_E, here_E != KINDS.index(NATURAL), events)
        start += len(here_E)


def _row_groups(kind_E: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Kinds of the events of each row group. A bright event counts as many: a row group is held in memory."""
    counted_E = np.cumsum(np.where(kind_E == KINDS.index(BRIGHT), ROW_GROUP_EVENTS // MOST_BRIGHT_A_ROW_GROUP, 1))
    return np.split(kind_E, np.flatnonzero(np.diff((counted_E - 1) // ROW_GROUP_EVENTS)) + 1)


def reordered(events: SimulatedEvents, order_E: npt.NDArray[np.int64]) -> SimulatedEvents:
    """Events in the given order, each with its pulses."""
    counts_E = events.counts_E[order_E]
    shift_E = offsets_of(events.counts_E)[:-1][order_E] - offsets_of(counts_E)[:-1]
    pulse_P = np.arange(int(counts_E.sum())) + np.repeat(shift_E, counts_E)
    of_pulses = [one.name for one in fields(events) if one.name.endswith("_P")]
    return replace(
        events,
        truth=events.truth.take(order_E),
        vertex_ns_E=events.vertex_ns_E[order_E],
        counts_E=counts_E,
        **{name: getattr(events, name)[pulse_P] for name in of_pulses},
    )


def _generator(plan: EventsPlan, file_index: int, key: int) -> np.random.Generator:
    return file_stream(plan.seed, file_index, key)
