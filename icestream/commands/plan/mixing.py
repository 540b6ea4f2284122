"""Mixing of the files by microbatches, against a permutation of all events: chi² of the file id per degree of freedom.

The table has one row for each of M microbatches (n_m events) and one column for each of F files (n_f of N events);
O_mf events of microbatch m come from file f:

    chi² = Σ_mf (O_mf - n_m n_f / N)² / (n_m n_f / N) = N (Σ_mf O_mf² / (n_m n_f) - 1),    dof = (M - 1)(F - 1)

Under a permutation of all events its expectation is dof × N / (N - 1): chi²/dof is 1. Where each microbatch comes from
one file, it is about the size of a microbatch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

FileRows: TypeAlias = Sequence[tuple[int, int]]
"""File and rows of a unit's parts, in reading order."""


@dataclass(frozen=True)
class ChiSquare:
    """Statistic chi² of one table, or of several independent ones."""

    statistic: float = 0.0
    dof: int = 0

    def __add__(self, other: ChiSquare) -> ChiSquare:
        return ChiSquare(self.statistic + other.statistic, self.dof + other.dof)

    @property
    def per_dof(self) -> float | None:
        """Ratio chi²/dof; None for one microbatch or one file: there is nothing to mix."""
        return self.statistic / self.dof if self.dof else None


def events_of_files(units: Iterable[FileRows]) -> Counter[int]:
    """Number of events by file in these units."""
    events: Counter[int] = Counter()
    for unit in units:
        for file, rows in unit:
            events[file] += rows
    return events


def observed(microbatches: Iterable[Mapping[int, int]], file_events: Mapping[int, int]) -> ChiSquare:
    """Statistic of given microbatches (events by file), which together hold ``file_events``."""
    num_microbatches = 0
    total = 0.0
    for microbatch in microbatches:
        size = sum(microbatch.values())
        num_microbatches += 1
        total += sum(events * events / (size * file_events[file]) for file, events in microbatch.items())
    return _chi_square(sum(file_events.values()) * (total - 1), num_microbatches, file_events)


def expected(units: Sequence[FileRows], batch_events: int) -> ChiSquare:
    """Exact expectation over all permutations of events inside each unit.

    Microbatches are assumed to end at every ``batch_events`` events of a unit: outliers, dropped events and cuts by
    max_particles are ignored.
    """
    file_events = events_of_files(units)
    num_events = sum(file_events.values())
    num_microbatches = 0
    statistic = 0.0
    for unit in units:
        rows = sum(n for _, n in unit)
        if not rows:
            continue
        # q: share of a file in the unit, p: in all. O_mf is hypergeometric, so that with n events in a microbatch
        # E (O - n p)² = n q (1 - q) (rows - n) / (rows - 1) + n² (q - p)², here divided by n p and summed over files.
        sum_q_p = sum_qq_p = 0.0
        for file, n in events_of_files([unit]).items():
            q, p = n / rows, file_events[file] / num_events
            sum_q_p += q / p
            sum_qq_p += q * q / p
        full, last = divmod(rows, batch_events)
        for count, size in ((full, batch_events), (1, last)):
            if count and size:
                spread = (rows - size) / (rows - 1) if rows > 1 else 0.0
                statistic += count * (spread * (sum_q_p - sum_qq_p) + size * (sum_qq_p - 1))
                num_microbatches += count
    return _chi_square(statistic, num_microbatches, file_events)


def in_source_order(units: Iterable[FileRows], batch_events: int) -> Iterator[Counter[int]]:
    """Microbatches (events by file) of units with unpermuted events."""
    for unit in units:
        microbatch: Counter[int] = Counter()
        room = batch_events
        for file, rows in unit:
            while rows:
                taken = min(rows, room)
                microbatch[file] += taken
                rows, room = rows - taken, room - taken
                if not room:
                    yield microbatch
                    microbatch, room = Counter(), batch_events
        if microbatch:
            yield microbatch


def _chi_square(statistic: float, num_microbatches: int, file_events: Mapping[int, int]) -> ChiSquare:
    num_files = sum(events > 0 for events in file_events.values())
    dof = max(num_microbatches - 1, 0) * max(num_files - 1, 0)
    return ChiSquare(statistic if dof else 0.0, dof)
