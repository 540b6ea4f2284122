"""Command `icestream bench shuffle`: cost of shuffling against source order, from files to filled slots."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, RootModel

from common.errors import BadInputError
from common.files.inputs import expand, local_path
from common.files.local_listing import files_below
from common.files.remotes import Remotes
from common.messages import Unit
from common.plan import SlotCapacity, SourceFile
from common.unit_arrays import UnitArrays
from icestream.commands.bench.units import decoded, planned_blocks, simulate_into, staged
from icestream.commands.plan.mixing import ChiSquare, observed
from icestream.reading.workload import load_run_config
from services.config.root import Config
from services.fetcher.inventory.ranges import make_ranges
from services.fetcher.staging.cache import Cache
from services.fetcher.staging.stage import Stage

_FILE_EVENTS = 5_000
"""Events of a simulated file."""
_SIMULATED_FILES = 8
"""Simulated files that differ; more are links to these."""
_LEAST_S = 1.0
"""Time measured in each order at least."""


class ReadingOrder(BaseModel):
    """One order of reading: shuffled, or that of the source."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    units: int
    events_per_s: float
    """Rate of the median round, by the clock."""
    events_per_cpu_s: float
    """Rate of the median round, by the CPU time of this process."""
    mixing_in_block: float | None
    """Ratio chi²/dof of the file id over batches, against a permutation of each block; None: one file."""
    mixing_over_epoch: float | None
    """Same ratio against a permutation of all events."""


class ShuffleCost(BaseModel):
    """Cost of shuffling one number of events. The costs are medians over rounds, in each of which both orders ran."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    events: int
    files: int
    rounds: int
    cost: float
    """Part by which a round takes longer with shuffling."""
    cost_min: float
    cost_max: float
    cpu_cost: float
    """The same of the CPU time."""
    in_order: ReadingOrder
    shuffled: ReadingOrder


def bench_shuffle(
    *,
    toml: Path | None,
    assignments: Sequence[str],
    flags: Mapping[str, Any],
    numbers: Sequence[int],
    rounds: int,
    as_json: bool,
) -> str:
    """Measured result, for people or as JSON. Raises BadInputError."""
    config = load_run_config({}, toml=toml, assignments=assignments, flags=flags)
    with ExitStack() as stack:
        remotes = stack.enter_context(Remotes(config.remote_access()))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="icestream-bench-")))
        inputs = make_ranges(config.input, config.fetcher.ranges)[0].inputs if config.input else None
        files = _simulated(folder / "files", config, max(numbers)) if inputs is None else expand(inputs, remotes)
        if any(local_path(file.url) is None for file in files):
            raise BadInputError("remote inputs: bench shuffle reads its files several times; name local files with -i")
        cache = stack.enter_context(closing(Cache(folder, folder)))
        chosen = _first_files(config, files, sorted(set(numbers)), cache)
        costs = [_measure(config, of_number, rounds, cache, folder) for of_number in chosen]
    if as_json:
        return RootModel[list[ShuffleCost]](costs).model_dump_json(indent=2)
    source = "the inputs" if inputs else f"files linked from {_SIMULATED_FILES} simulated ones, whose events so repeat"
    return "\n".join(_lines(costs, config, source))


def _simulated(folder: Path, config: Config, num_events: int) -> list[SourceFile]:
    """Files of _FILE_EVENTS events each with ``num_events`` in all: links to the first _SIMULATED_FILES.

    They are listed here, since a listing of inputs reads a file once however many names it has.
    """
    num_files = -(-num_events // _FILE_EVENTS)
    for file in range(num_files):
        own = folder / f"{file:06d}"
        if file < _SIMULATED_FILES:
            own.mkdir(parents=True)
            simulate_into(own, config, min(_FILE_EVENTS, num_events), config.seed + file)
            continue
        original = folder / f"{file % _SIMULATED_FILES:06d}"
        for path in original.rglob("*"):
            if path.is_file():
                link = own / path.relative_to(original)
                link.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, link)
    return [SourceFile(str(path), path.stat().st_size) for path in sorted(files_below(folder))]


def _first_files(
    config: Config, files: Sequence[SourceFile], numbers: Sequence[int], cache: Cache
) -> list[list[SourceFile]]:
    """First files that hold at least so many events, for each of the ascending ``numbers``; all files at the end."""
    capacity = SlotCapacity(config.stored_workload(), config.stream)
    stage = Stage(cache, config.stored_workload(), config.stream, capacity)
    found: list[list[SourceFile]] = []
    num_events = 0
    for number, file in enumerate(files):
        footer = staged(stage, number, file).footer
        num_events += footer.rows if footer is not None else 0
        is_last = number == len(files) - 1
        if len(found) < len(numbers) and (num_events >= numbers[len(found)] or is_last):
            found.append(list(files[: number + 1]))
            while len(found) < len(numbers) and num_events >= numbers[len(found)]:
                numbers = [*numbers[: len(found)], *numbers[len(found) + 1 :]]  # the same files
    if not num_events:
        raise BadInputError(f"{', '.join(config.input)}: no event in any file")
    return found


def _measure(config: Config, files: Sequence[SourceFile], rounds: int, cache: Cache, folder: Path) -> ShuffleCost:
    """Cost for these files. Each round reads all of them in both orders, which take turns."""
    in_order, shuffled = (_Order(config, files, cache, folder, shuffle=shuffle) for shuffle in (False, True))
    for order in (in_order, shuffled):
        order.look()  # also the round to warm up: files come into the page cache
    while len(in_order.wall_s) < rounds or sum(in_order.wall_s) < _LEAST_S:
        turn = (in_order, shuffled) if len(in_order.wall_s) % 2 else (shuffled, in_order)
        for order in turn:
            order.decode()
    costs = [shuffled_s / s - 1 for s, shuffled_s in zip(in_order.wall_s, shuffled.wall_s, strict=True)]
    cpu_costs = [shuffled_s / s - 1 for s, shuffled_s in zip(in_order.cpu_s, shuffled.cpu_s, strict=True)]
    return ShuffleCost(
        events=in_order.num_events,
        files=len(files),
        rounds=len(costs),
        cost=statistics.median(costs),
        cost_min=min(costs),
        cost_max=max(costs),
        cpu_cost=statistics.median(cpu_costs),
        in_order=in_order.result(),
        shuffled=shuffled.result(),
    )


class _Order:
    """Plan of files in one order, and the times of its rounds."""

    def __init__(
        self, config: Config, files: Sequence[SourceFile], cache: Cache, folder: Path, *, shuffle: bool
    ) -> None:
        stream = config.stream.model_copy(update={"shuffle": shuffle})
        self._config = config.model_copy(update={"stream": stream})
        self._folder = folder
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []
        capacity = SlotCapacity(config.stored_workload(), stream)
        stage = Stage(cache, config.stored_workload(), stream, capacity)
        self._blocks = list(planned_blocks(self._config, files, stage, capacity))
        self.num_events = sum(unit.rows for units in self._blocks for unit in units)
        self._in_block, self._over_epoch = ChiSquare(), ChiSquare()

    def look(self) -> None:
        """Decode everything once, and measure the mixing."""
        everything: list[Counter[int]] = []
        for units in self._blocks:
            of_block = [
                one
                for arrays in self._decoded(units)
                for one in _files_of_batches(arrays, self._config.stream.batch_events)
            ]
            self._in_block += observed(of_block, _total(of_block))
            everything += of_block
        self._over_epoch = observed(everything, _total(everything))

    def decode(self) -> None:
        """Decode everything once, and note the time."""
        units = [unit for units in self._blocks for unit in units]
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        for _ in self._decoded(units):
            pass
        self.wall_s.append(time.perf_counter() - wall_s)
        self.cpu_s.append(time.process_time() - cpu_s)

    def result(self) -> ReadingOrder:
        """Rates of the rounds so far, and the mixing."""
        return ReadingOrder(
            units=sum(len(units) for units in self._blocks),
            events_per_s=self.num_events / statistics.median(self.wall_s),
            events_per_cpu_s=self.num_events / statistics.median(self.cpu_s),
            mixing_in_block=self._in_block.per_dof,
            mixing_over_epoch=self._over_epoch.per_dof,
        )

    def _decoded(self, units: Sequence[Unit]) -> Iterator[UnitArrays]:
        with tempfile.TemporaryDirectory(dir=self._folder) as outliers:  # a run writes those of a unit once
            for _, arrays in decoded(self._config, units, Path(outliers)):
                yield arrays


def _files_of_batches(arrays: UnitArrays, batch_events: int) -> list[Counter[int]]:
    """Events by file of each batch that the unit alone would make."""
    files = arrays.event_columns["source_file"][:, 0]
    found = []
    for first in range(0, len(files), batch_events):
        numbers, events = np.unique(files[first : first + batch_events], return_counts=True)
        found.append(Counter(dict(zip(numbers.tolist(), events.tolist(), strict=True))))
    return found


def _total(batches: Iterable[Counter[int]]) -> Counter[int]:
    total: Counter[int] = Counter()
    for batch in batches:
        total.update(batch)
    return total


def _lines(costs: Sequence[ShuffleCost], config: Config, source: str) -> list[str]:
    def ratio(value: float | None) -> str:
        return "-" if value is None else f"{value:,.2f}"

    titles = f"{'cost':>8}{'from':>8}{'to':>8}{'CPU':>8}   {'chi²/dof in a block; over the epoch':>36}"
    return [
        f"cost of shuffling, {config.workload}: one decoder, from {source}, to slots",
        f"{'':>10}{'events/s':>23}{titles}",
        f"{'events':>10}{'in order':>12}{'shuffled':>11}{'':>32}   {'in order':>18}{'shuffled':>18}",
        *(
            f"{one.events:>10,}{one.in_order.events_per_s:>12,.0f}{one.shuffled.events_per_s:>11,.0f}"
            f"{one.cost:>+8.1%}{one.cost_min:>+8.1%}{one.cost_max:>+8.1%}{one.cpu_cost:>+8.1%}   "
            + "".join(
                f"{ratio(order.mixing_in_block) + '; ' + ratio(order.mixing_over_epoch):>18}"
                for order in (one.in_order, one.shuffled)
            )
            for one in costs
        ),
        "chi²/dof of the file id over microbatches is 1 where files are mixed as by a permutation of all events",
    ]
