"""Units with and without the library in C++: the same bytes in the slot, and the same outliers' files."""

from __future__ import annotations

import ctypes
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from decoded_files import decoded, planned
from muon_files import Event, make_table
from native_layers import compiled, files_in_cpp

from common.config import StreamConfig
from common.files.rows import FILES
from workloads.muons.columns import MUONS

pytestmark = pytest.mark.process  # a compiler


def random_events(number: int, first: int, most: int = 40) -> list[Event]:
    rng = np.random.default_rng(first)
    events = []
    for i, count in enumerate(np.where(rng.random(number) < 0.4, 0, rng.integers(1, most, number))):
        muons = np.float32(rng.normal(1, 1, (count, 3)))
        primary = tuple(np.float32(rng.uniform(0.1, 1000, 4)).tolist())
        events.append(Event(first + i, i % 7, primary, tuple(map(tuple, muons.tolist()))))
    return events


class Spied:
    """Library that notes the functions which are called."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.called: set[str] = set()
        self._library = library

    def __getattr__(self, name: str) -> Any:
        self.called.add(name)
        return getattr(self._library, name)


@pytest.mark.parametrize("kind", ["parquet", "dictionary"])
@pytest.mark.parametrize(("shuffle", "particles", "held_out"), [(False, 0, 0.0), (True, 30, 0.0), (True, 0, 0.3)])
def test_a_unit_has_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, shuffle: bool, particles: int, held_out: float
) -> None:
    spied = Spied(compiled(FILES))
    stream = StreamConfig(
        unit_events=500,
        batch_events=50,
        max_particles=2000,
        slot_mib=1,
        shuffle=shuffle,
        max_particles_per_event=particles,
        held_out=held_out,
    )
    paths = []
    for i in range(3):
        events, path = random_events(700, 1000 * i), tmp_path / f"{i}.{kind}"
        options: dict[str, Any] = {"use_dictionary": kind == "dictionary", "row_group_size": 150}
        pq.write_table(make_table(events), path, data_page_size=900, **options)
        paths.append(path)
    units, run_dir = planned(paths, MUONS, stream), tmp_path / "run"
    outcomes = []
    for context in (nullcontext(), files_in_cpp()):
        with context:
            monkeypatch.setattr(FILES, "used", FILES.used and spied)
            found = decoded(units, MUONS, stream, run_dir)
        files = {path.name: path.read_bytes() for path in run_dir.rglob("*.parquet")}
        outcomes.append(([(one.slot.tobytes(), one.layout, one.tally) for one in found], files))
        shutil.rmtree(run_dir, ignore_errors=True)
    assert outcomes[0] == outcomes[1]
    assert bool(outcomes[0][1]) == (particles > 0)
    moved = {"take_rows", "take_particles"} if shuffle or held_out or particles else set()
    read = {"declared_size", "read_page"} if kind == "parquet" else set()
    assert spied.called - {"parse_page_header"} == read | moved
