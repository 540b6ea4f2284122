from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from decoded_files import SEED, planned_in_order
from decoded_files import decoded as decode_all
from hypothesis import given, settings
from hypothesis import strategies as st
from muon_files import make_events, write_events

from common.config import MOST_TRAINERS, StreamConfig
from common.plan import Blocks
from icestream.commands.plan.mixing import ChiSquare, FileRows, events_of_files, expected, in_source_order, observed
from workloads.muons.columns import MUONS

BATCH = 32
parts = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=3)


def cut(files: np.ndarray, size: int) -> list[Counter[int]]:
    """Microbatches (file -> events) of consecutive events."""
    return [Counter(files[i : i + size].tolist()) for i in range(0, len(files), size)]


def file_ids(unit: FileRows) -> np.ndarray:
    return np.repeat([file for file, _ in unit], [rows for _, rows in unit])


def test_the_statistic_is_pearsons() -> None:
    table = np.array([[5, 1, 2], [0, 7, 1]])
    share = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
    pearson = ((table - share) ** 2 / share).sum()
    microbatches = [{file: int(n) for file, n in enumerate(row) if n} for row in table]
    found = observed(microbatches, {0: 5, 1: 8, 2: 3})
    assert found.statistic == pytest.approx(pearson)
    assert found.dof == 2


@settings(deadline=None, max_examples=15)
@given(st.lists(parts, min_size=1, max_size=3), st.integers(1, 6))
def test_the_expectation_is_the_mean_over_permutations_inside_the_units(units: list[FileRows], size: int) -> None:
    file_events = events_of_files(units)
    exact = expected(units, size)
    rng = np.random.default_rng(1)
    drawn = []
    for _ in range(2000):
        microbatches = [one for unit in units for one in cut(rng.permutation(file_ids(unit)), size)]
        drawn.append(observed(microbatches, file_events))
    assert {one.dof for one in drawn} == {exact.dof}
    statistics = [one.statistic for one in drawn]
    error = np.std(statistics) / np.sqrt(len(drawn))
    assert np.mean(statistics) == pytest.approx(exact.statistic, abs=5 * error + 1e-9)


def test_one_unit_of_all_events_is_a_perfect_shuffle() -> None:
    unit = [(file, 1000) for file in range(16)]
    perfect = expected([unit], 256).per_dof
    assert perfect == pytest.approx(16_000 / 15_999)


def test_units_of_one_file_each_are_none() -> None:
    units = [[(file, 2560)] for file in range(50)]
    assert expected(units, 256).per_dof == pytest.approx(256, rel=0.01)


def test_one_file_and_one_microbatch_can_not_be_mixed() -> None:
    assert expected([[(0, 1000)]], 10).per_dof is None
    assert expected([[(0, 10), (1, 10)]], 20).per_dof is None
    assert expected([], 20).per_dof is None


def test_microbatches_in_source_order_are_consecutive_events_of_a_unit() -> None:
    units = [[(0, 5), (1, 2)], [(1, 4)]]
    found = list(in_source_order(units, 3))
    assert found == [{0: 3}, {0: 2, 1: 1}, {1: 1}, {1: 3}, {1: 1}]


# ------------------------------------------------------------------ on decoded microbatches

NUM_FILES, ROW_GROUPS, ROW_GROUP_ROWS = 12, 4, 120


def decoded(folder: Path, *, shuffle: bool, unit_events: int) -> tuple[list[Counter[int]], list[FileRows]]:
    """The real microbatches of one epoch as the decoder cuts them, and what the plan says of the units."""
    stream = StreamConfig(
        block_files=NUM_FILES,
        unit_events=unit_events,
        batch_events=BATCH * MOST_TRAINERS,
        shuffle=shuffle,
        max_particles=4096,
    )
    paths = [folder / f"{file}.parquet" for file in range(NUM_FILES)]
    for file, path in enumerate(paths):
        events = make_events([file % 3] * (ROW_GROUPS * ROW_GROUP_ROWS))
        write_events(path, events, row_group_rows=ROW_GROUP_ROWS)
    units = planned_in_order(paths, Blocks(NUM_FILES, stream, SEED, 1).files(0), MUONS, stream)
    microbatches = []
    for one in decode_all(units, MUONS, stream, folder):
        arrays = one.arrays
        files = arrays.event_columns["source_file"][:, 0]
        for first, last in itertools.pairwise(arrays.microbatch_bounds.tolist()):
            microbatches.append(Counter(files[first:last].tolist()))
    return microbatches, [[(part.file, part.rows) for part in unit.parts] for unit in units]


def global_permutations(units: list[FileRows], num: int) -> list[float]:
    """chi²/dof of microbatches of BATCH events cut from permutations of all events."""
    files = np.concatenate([file_ids(unit) for unit in units])
    rng = np.random.default_rng(2)
    found = [observed(cut(rng.permutation(files), BATCH), events_of_files(units)).per_dof for _ in range(num)]
    return [value for value in found if value is not None]


def per_dof(chi_square: ChiSquare) -> float:
    assert chi_square.per_dof is not None
    return chi_square.per_dof


def test_a_shuffled_block_in_one_unit_mixes_like_a_global_permutation(tmp_path: Path) -> None:
    microbatches, units = decoded(tmp_path, shuffle=True, unit_events=NUM_FILES * ROW_GROUPS * ROW_GROUP_ROWS)
    assert len(units) == 1
    found = per_dof(observed(microbatches, events_of_files(units)))
    reference = global_permutations(units, 200)
    assert np.mean(reference) == pytest.approx(1.0, abs=0.02)
    assert found == pytest.approx(np.mean(reference), abs=5 * np.std(reference))


def test_what_the_plan_expects_of_several_units_is_what_their_microbatches_show(tmp_path: Path) -> None:
    microbatches, units = decoded(tmp_path, shuffle=True, unit_events=12 * ROW_GROUP_ROWS)
    assert len(units) == 4
    found = per_dof(observed(microbatches, events_of_files(units)))
    spread = np.std(global_permutations(units, 200))
    assert found == pytest.approx(per_dof(expected(units, BATCH)), abs=5 * spread)
    assert found > 1 + 5 * spread, "four units of 12 row groups are not one of 48"


def test_without_shuffle_microbatches_are_far_from_a_permutation(tmp_path: Path) -> None:
    microbatches, units = decoded(tmp_path, shuffle=False, unit_events=12 * ROW_GROUP_ROWS)
    found = per_dof(observed(microbatches, events_of_files(units)))
    assert found > 0.9 * BATCH
    assert found == pytest.approx(per_dof(observed(in_source_order(units, BATCH), events_of_files(units))))
