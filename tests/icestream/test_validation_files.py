"""The validation block's own files: read and checked as a unit is, and never trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from muon_files import make_event, make_events, make_table, write_events

from common.errors import BadInputError
from common.held_out import is_held_out
from common.unit_arrays import UnitArrays
from icestream.reading.validation import read_validation_events
from services.config.root import Config


def make_config(*inputs: Path | str, **settings: Any) -> Config:
    validation = {"events": settings.pop("events", 20), "input": [str(one) for one in inputs]}
    return Config.model_validate({**settings, "trainer": {"validation": validation}})


def read(config: Config, run_dir: Path) -> UnitArrays:
    """The only unit of such small files."""
    (arrays,) = read_validation_events(config, run_dir)
    return arrays


def numbers(primary: Any) -> list[int]:
    """Which events these are: see muon_files.make_event."""
    return [round(float(energy)) - 1000 for energy in primary[:, 0]]


def test_events_come_with_their_own_muons_from_all_over_the_files(tmp_path: Path) -> None:
    counts = [number % 5 for number in range(400)]
    one = write_events(tmp_path / "one.parquet", make_events(counts[:200]), row_group_rows=50)
    two = write_events(tmp_path / "two.parquet", make_events(counts[200:], first=200), row_group_rows=50)
    arrays = read(make_config(one, two), tmp_path)
    chosen = numbers(arrays.event_columns["primary"])
    assert len(chosen) == len(set(chosen)) == 20
    assert len({number // 50 for number in chosen}) > 3, "neighbours may be of one shower"
    assert np.diff(arrays.offsets).tolist() == [counts[number] for number in chosen]
    for index, number in enumerate(chosen):
        muons = arrays.particle_columns["muons"][arrays.offsets[index] : arrays.offsets[index + 1]]
        assert muons.tolist() == [list(muon) for muon in make_event(number, counts[number]).muons]
    again = read(make_config(one, two), tmp_path)
    assert numbers(again.event_columns["primary"]) == chosen
    other = read(make_config(one, two, seed=1), tmp_path)
    assert numbers(other.event_columns["primary"]) != chosen


def test_few_events_are_all_there_is(tmp_path: Path) -> None:
    path = write_events(tmp_path / "one.parquet", make_events([1, 2, 3]))
    assert sorted(numbers(read(make_config(path), tmp_path).event_columns["primary"])) == [0, 1, 2]


def test_microbatches_hold_no_more_than_max_particles_and_outliers_are_left_out(tmp_path: Path) -> None:
    path = write_events(tmp_path / "one.parquet", make_events([3] * 30 + [11]))
    config = make_config(path, events=100, stream={"max_particles": 10})
    arrays = read(config, tmp_path)
    assert len(arrays.offsets) - 1 == 30
    assert np.diff(arrays.offsets[arrays.microbatch_bounds]).max() <= 10
    assert not (tmp_path / "outliers").exists(), "they are not the run's"


def test_slant_depths_become_vertical_as_in_the_run(tmp_path: Path) -> None:
    path = write_events(tmp_path / "one.parquet", make_events([1] * 5))
    stored = read(make_config(path), tmp_path).event_columns["primary"]
    vertical = read(make_config(path, source={"depth_kind": "slant"}), tmp_path)
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
            read(make_config(link, input=[str(inputs)]), tmp_path)
    other = write_events(tmp_path / "other.parquet", make_events([1] * 5))
    read(
        make_config(other, input=[str(tmp_path / "data"), "pelican://host/x/*.parquet", "elsewhere/{range}"]), tmp_path
    )


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"nothing.parquet: no such file"):
        read(make_config(tmp_path / "nothing.parquet"), tmp_path)
    with pytest.raises(BadInputError, match="pelican://host/x is not local"):
        read(make_config("pelican://host/x"), tmp_path)
    text = tmp_path / "text.parquet"
    text.write_text("hello")
    with pytest.raises(BadInputError, match=r"text.parquet: .*neither Parquet nor HDF5"):
        read(make_config(text), tmp_path)
    bad = tmp_path / "bad.parquet"
    events = make_events([1, 1])
    table = make_table([events[0], type(events[1])(1, 1, (-5.0, 0.5, 4.0, 1500.0), events[1].muons)])
    pq.write_table(table, bad)
    with pytest.raises(BadInputError, match=r"bad.parquet: row group 0, row 1 of the file: energy_gev is -5"):
        read(make_config(bad), tmp_path)
    empty = write_events(tmp_path / "empty.parquet", make_events([0, 0]))
    with pytest.raises(BadInputError, match="no usable event"):
        read(make_config(empty, stream={"drop_empty": True}), tmp_path)


# ------------------------------------------------------------------ events held out of training


def held_out_config(*inputs: Path | str, share: float = 0.3, events: int = 20, **validation: Any) -> Config:
    return Config.model_validate(
        {
            "input": [str(one) for one in inputs],
            "stream": {"held_out": share},
            "trainer": {"validation": {"events": events, **validation}},
        }
    )


def held_out_numbers(count: int, share: float = 0.3) -> set[int]:
    """Of the events 0, 1, …: see muon_files.make_event."""
    ids = np.stack([np.arange(count), np.arange(count) % 7], 1)
    return set(np.flatnonzero(is_held_out(ids, share)).tolist())


def test_without_files_of_its_own_the_block_is_of_the_runs_held_out_events(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for i in range(4):
        events = make_events([number % 5 for number in range(50)], first=50 * i)
        write_events(tmp_path / "data" / f"{i}.parquet", events, row_group_rows=10)
    found = numbers(read(held_out_config(tmp_path / "data"), tmp_path).event_columns["primary"])
    assert len(found) == len(set(found)) == 20
    assert set(found) < held_out_numbers(200)
    pieces = list(read_validation_events(held_out_config(tmp_path / "data", events=1_000), tmp_path))
    every = [number for piece in pieces for number in numbers(piece.event_columns["primary"])]
    assert sorted(every) == sorted(held_out_numbers(200))


def test_more_files_are_read_until_there_are_enough_held_out_events(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for i in range(30):
        write_events(tmp_path / "data" / f"{i}.parquet", make_events([1] * 40, first=40 * i))
    config = held_out_config(tmp_path / "data", share=0.02, events=10)
    pieces = list(read_validation_events(config, tmp_path))
    found = [number for piece in pieces for number in numbers(piece.event_columns["primary"])]
    assert len(pieces) > 1, "ten times sixteen rows were not enough"
    assert len(found) == 10
    assert set(found) < held_out_numbers(1200, 0.02)


def test_of_files_of_its_own_too_only_the_held_out_events_are_taken(tmp_path: Path) -> None:
    path = write_events(tmp_path / "copy.parquet", make_events([1] * 60))
    config = held_out_config("pelican://host/data", events=60, input=[str(path)])
    assert sorted(numbers(read(config, tmp_path).event_columns["primary"])) == sorted(held_out_numbers(60))
    of_the_run = held_out_config(path, events=60, input=[str(path)])
    assert sorted(numbers(read(of_the_run, tmp_path).event_columns["primary"])) == sorted(held_out_numbers(60))


def test_remote_inputs_have_no_held_out_events_here_and_the_ways_out_are_told(tmp_path: Path) -> None:
    config = held_out_config("pelican://host/data", str(tmp_path / "elsewhere" / "{range}"))
    with pytest.raises(
        BadInputError, match=r"none here\. Copy some .*trainer\.validation\.input.*validation\.events=0"
    ):
        list(read_validation_events(config, tmp_path))


def test_bad_files_of_the_run_are_left_out_of_the_block_as_of_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "data").mkdir()
    good = write_events(tmp_path / "data" / "good.parquet", make_events([1] * 60))
    (tmp_path / "data" / "torn.parquet").write_bytes(good.read_bytes()[:-9])
    bad = make_table([type(one)(one.major, one.minor, (-5.0, *one.primary[1:]), one.muons) for one in make_events([1])])
    pq.write_table(bad, tmp_path / "data" / "negative.parquet")
    found = numbers(read(held_out_config(tmp_path / "data", events=100), tmp_path).event_columns["primary"])
    assert sorted(found) == sorted(held_out_numbers(60))
    assert "left out: " in caplog.text
    assert "torn.parquet" in caplog.text
    assert "energy_gev is -5" in caplog.text
    assert "only " in caplog.text, "there are fewer than asked for"
