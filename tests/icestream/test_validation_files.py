"""The validation block's own files: read and checked as a unit is, and never trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from muon_files import make_event, make_events, make_table, write_events

from common.errors import BadInputError
from icestream.reading.validation import read_validation_events
from services.config.root import Config


def make_config(*inputs: Path | str, **settings: Any) -> Config:
    validation = {"events": settings.pop("events", 20), "input": [str(one) for one in inputs]}
    return Config.model_validate({**settings, "trainer": {"validation": validation}})


def numbers(primary: Any) -> list[int]:
    """Which events these are: see muon_files.make_event."""
    return [round(float(energy)) - 1000 for energy in primary[:, 0]]


def test_events_come_with_their_own_muons_from_all_over_the_files(tmp_path: Path) -> None:
    counts = [number % 5 for number in range(400)]
    one = write_events(tmp_path / "one.parquet", make_events(counts[:200]), row_group_rows=50)
    two = write_events(tmp_path / "two.parquet", make_events(counts[200:], first=200), row_group_rows=50)
    arrays = read_validation_events(make_config(one, two), tmp_path)
    chosen = numbers(arrays.event_columns["primary"])
    assert len(chosen) == len(set(chosen)) == 20
    assert len({number // 50 for number in chosen}) > 3, "neighbours may be of one shower"
    assert np.diff(arrays.offsets).tolist() == [counts[number] for number in chosen]
    for index, number in enumerate(chosen):
        muons = arrays.particle_columns["muons"][arrays.offsets[index] : arrays.offsets[index + 1]]
        assert muons.tolist() == [list(muon) for muon in make_event(number, counts[number]).muons]
    again = read_validation_events(make_config(one, two), tmp_path)
    assert numbers(again.event_columns["primary"]) == chosen
    other = read_validation_events(make_config(one, two, seed=1), tmp_path)
    assert numbers(other.event_columns["primary"]) != chosen


def test_few_events_are_all_there_is(tmp_path: Path) -> None:
    path = write_events(tmp_path / "one.parquet", make_events([1, 2, 3]))
    assert sorted(numbers(read_validation_events(make_config(path), tmp_path).event_columns["primary"])) == [0, 1, 2]


def test_microbatches_hold_no_more_than_max_particles_and_outliers_are_left_out(tmp_path: Path) -> None:
    path = write_events(tmp_path / "one.parquet", make_events([3] * 30 + [11]))
    config = make_config(path, events=100, stream={"max_particles": 10})
    arrays = read_validation_events(config, tmp_path)
    assert len(arrays.offsets) - 1 == 30
    assert np.diff(arrays.offsets[arrays.microbatch_bounds]).max() <= 10
    assert not (tmp_path / "outliers").exists(), "they are not the run's"


def test_slant_depths_become_vertical_as_in_the_run(tmp_path: Path) -> None:
    path = write_events(tmp_path / "one.parquet", make_events([1] * 5))
    stored = read_validation_events(make_config(path), tmp_path).event_columns["primary"]
    vertical = read_validation_events(make_config(path, source={"depth_kind": "slant"}), tmp_path)
    assert np.allclose(stored[:, 3], 1500)
    assert np.allclose(vertical.event_columns["primary"][:, 3], 1500 * np.cos(0.5), rtol=1e-3)


def test_a_file_that_is_trained_on_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path = write_events(tmp_path / "data" / "one.parquet", make_events([1] * 5))
    link = tmp_path / "link.parquet"
    link.symlink_to(path)
    listed = tmp_path / "inputs.txt"
    listed.write_text(f"{path}\n")
    for inputs in (path, tmp_path / "data", tmp_path / "data" / "*.parquet", f"@{listed}"):
        with pytest.raises(BadInputError, match=r"link.parquet is one of trainer.validation.input and of the run's"):
            read_validation_events(make_config(link, input=[str(inputs)]), tmp_path)
    other = write_events(tmp_path / "other.parquet", make_events([1] * 5))
    read_validation_events(
        make_config(other, input=[str(tmp_path / "data"), "pelican://host/x/*.parquet", "elsewhere/{range}"]), tmp_path
    )


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"nothing.parquet: no such file"):
        read_validation_events(make_config(tmp_path / "nothing.parquet"), tmp_path)
    with pytest.raises(BadInputError, match="pelican://host/x is not local"):
        read_validation_events(make_config("pelican://host/x"), tmp_path)
    text = tmp_path / "text.parquet"
    text.write_text("hello")
    with pytest.raises(BadInputError, match=r"text.parquet: .*neither Parquet nor HDF5"):
        read_validation_events(make_config(text), tmp_path)
    bad = tmp_path / "bad.parquet"
    events = make_events([1, 1])
    table = make_table([events[0], type(events[1])(1, 1, (-5.0, 0.5, 4.0, 1500.0), events[1].muons)])
    pq.write_table(table, bad)
    with pytest.raises(BadInputError, match=r"bad.parquet: row group 0, column 'primary', row 1: energy_gev is -5"):
        read_validation_events(make_config(bad), tmp_path)
    empty = write_events(tmp_path / "empty.parquet", make_events([0, 0]))
    with pytest.raises(BadInputError, match="no usable event"):
        read_validation_events(make_config(empty, stream={"drop_empty": True}), tmp_path)
