"""Reading of files outside of a run: for verbs of workloads, and for the validation block."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from muon_files import make_event, make_events, make_table, write_events

from common.errors import BadInputError
from common.plan import Which, is_held_out
from common.schema import EventSchema, UnitArrays
from icestream.cli import cli, remedy_of
from icestream.reading import read_validation_events
from icestream.verbs import FrontDoor
from services.config.root import Config
from workloads import registry
from workloads.base.interface import FileSettings, Verb
from workloads.base.report.evaluation import reading_warnings
from workloads.muons.workload import WORKLOAD


def make_config(*inputs: Path | str, **settings: Any) -> Config:
    validation = {"events": settings.pop("events", 20), "input": [str(one) for one in inputs]}
    return Config.model_validate({**settings, "trainer": {"validation": validation}})


def read(config: Config, run_dir: Path) -> UnitArrays:
    """The only unit of such small files."""
    (arrays,) = read_validation_events(config, run_dir)
    return arrays


def numbers(*pieces: UnitArrays) -> list[int]:
    """Which events these are: see muon_files.make_event."""
    return [round(float(energy)) - 1000 for piece in pieces for energy in piece.event_columns["primary"][:, 0]]


def write_files(folder: Path, number: int, counts: Sequence[int], row_group_rows: int = 1 << 20) -> None:
    """Files of so many muons in each event, whose numbers go on from file to file."""
    folder.mkdir(exist_ok=True)
    for i in range(number):
        write_events(folder / f"{i}.parquet", make_events(counts, first=len(counts) * i), row_group_rows=row_group_rows)


def test_events_come_with_their_own_muons_from_all_over_the_files(tmp_path: Path) -> None:
    counts = [number % 5 for number in range(400)]
    one = write_events(tmp_path / "one.parquet", make_events(counts[:200]), row_group_rows=50)
    two = write_events(tmp_path / "two.parquet", make_events(counts[200:], first=200), row_group_rows=50)
    arrays = read(make_config(one, two), tmp_path)
    chosen = numbers(arrays)
    assert len(chosen) == len(set(chosen)) == 20
    assert len({number // 50 for number in chosen}) > 3, "neighbours may be of one shower"
    assert np.diff(arrays.offsets).tolist() == [counts[number] for number in chosen]
    for index, number in enumerate(chosen):
        muons = arrays.particle_columns["muons"][arrays.offsets[index] : arrays.offsets[index + 1]]
        assert muons.tolist() == [list(muon) for muon in make_event(number, counts[number]).muons]
    assert numbers(read(make_config(one, two), tmp_path)) == chosen
    assert numbers(read(make_config(one, two, seed=1), tmp_path)) != chosen


def test_microbatches_hold_no_more_than_max_particles_and_outliers_are_left_out(tmp_path: Path) -> None:
    path = write_events(tmp_path / "one.parquet", make_events([3] * 30 + [11]))
    config = make_config(path, events=100, stream={"max_particles": 10})
    arrays = read(config, tmp_path)
    assert len(arrays.offsets) - 1 == 30
    assert np.diff(arrays.offsets[arrays.microbatch_bounds]).max() <= 10
    assert not (tmp_path / "outliers").exists(), "they are not the run's"


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
        read(make_config(empty, stream={"where": "muons.count > 0"}), tmp_path)
    with pytest.raises(BadInputError, match=r"no usable event for the validation block: .*text.parquet: .*nor HDF5"):
        read(held_out_config(text), tmp_path)


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
    write_files(tmp_path / "data", 4, [number % 5 for number in range(50)], row_group_rows=10)
    found = numbers(read(held_out_config(tmp_path / "data"), tmp_path))
    assert len(found) == len(set(found)) == 20
    assert set(found) < held_out_numbers(200)
    every = numbers(*read_validation_events(held_out_config(tmp_path / "data", events=1_000), tmp_path))
    assert sorted(every) == sorted(held_out_numbers(200))


def test_more_files_are_read_until_there_are_enough_held_out_events(tmp_path: Path) -> None:
    write_files(tmp_path / "data", 30, [1] * 40)
    config = held_out_config(tmp_path / "data", share=0.02, events=10)
    pieces = list(read_validation_events(config, tmp_path))
    found = numbers(*pieces)
    assert len(pieces) > 1, "ten times sixteen rows were not enough"
    assert len(found) == 10
    assert set(found) < held_out_numbers(1200, 0.02)


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
    found = numbers(read(held_out_config(tmp_path / "data", events=100), tmp_path))
    assert sorted(found) == sorted(held_out_numbers(60))
    assert "left out: " in caplog.text
    assert "torn.parquet" in caplog.text
    assert "energy_gev is -5" in caplog.text
    assert "only " in caplog.text, "there are fewer than asked for"


RUN = json.dumps({"input": ["of-the-run"], "source": {"depth_kind": "slant"}, "stream": {"batch_events": 7}})


def test_settings_of_files_are_those_of_the_run_below_the_toml_file_below_set(tmp_path: Path) -> None:
    toml = tmp_path / "a.toml"
    toml.write_text("[stream]\nbatch_events = 8\nslot_mib = 3.0\n[fetcher]\ntransfers = 5\n")
    found = FrontDoor().file_settings(["x"], toml=toml, assignments=("stream.slot_mib=4",), config_json=RUN)
    assert found.inputs == found.access.inputs == ("x",)
    assert found.source.depth_kind == "slant"
    assert (found.stream.batch_events, found.stream.slot_mib, found.access.transfers) == (8, 4.0, 5)
    plain = FrontDoor().file_settings(["x"], toml=None, assignments=())
    assert (plain.source, plain.stream) == (Config().source, Config().stream)
    assert plain.source.model_fields_set == set()
    with pytest.raises(BadInputError, match=r"unknown configuration key 'stream\.bach_events'"):
        FrontDoor().file_settings(["x"], toml=None, assignments=("stream.bach_events=4",))


def door_to(folder: Path, **settings: Any) -> tuple[FrontDoor, EventSchema, FileSettings]:
    front = FrontDoor()
    found = front.file_settings([str(folder)], **{"toml": None, "assignments": ()} | settings)
    return front, WORKLOAD.schema.stored_as(found.source), found


def test_events_come_from_all_files_with_where_they_come_from(tmp_path: Path) -> None:
    write_files(tmp_path, 3, [1] * 20)
    front, schema, settings = door_to(tmp_path)
    seen = (str(tmp_path / "1.parquet"),)
    with front.read_events(schema, settings, events=30, seed=0, trained_inputs=seen) as found:
        assert len(found.arrays.offsets) == 31
        assert (found.num_files, found.num_sources, tuple(found.trained_on)) == (3, 3, seen)
        assert {path.name for path in found.paths.values()} == {"0.parquet", "1.parquet", "2.parquet"}
        assert set(found.arrays.event_columns["source_file"][:, 0].tolist()) == set(found.paths)
        assert sum(tally.rows_read for tally in found.tallies) == 60


def test_a_bad_file_a_bad_row_group_and_a_bad_event_are_left_out_and_named_as_in_a_run(tmp_path: Path) -> None:
    write_events(tmp_path / "0.parquet", make_events([1] * 20))
    (tmp_path / "1.parquet").write_bytes(b"no parquet")
    bad = [replace(event, primary=(-1.0, 0.5, 4.0, 1500.0)) for event in make_events([1] * 10)]
    write_events(tmp_path / "2.parquet", [*make_events([1] * 9), bad[0], *bad], row_group_rows=10)
    front, schema, settings = door_to(tmp_path)
    with front.read_events(schema, settings, events=0, seed=0, trained_inputs=()) as found:
        assert len(found.arrays.offsets) == 30
        assert (found.num_files, found.num_sources) == (2, 3)
        first, *others = found.left_out
        assert first.startswith(f"{tmp_path / '1.parquet'}: truncated, or neither Parquet nor HDF5")
        assert any(line.startswith(f"{tmp_path / '2.parquet'}: row group 1: 10 of its 10 events") for line in others)
        assert any(f"{tmp_path / '2.parquet'}: row group 0, row 9 of the file: energy" in line for line in others)
        assert tuple(reading_warnings(found)) == (
            f"3 bad inputs (files, row groups, events) left out, as in a run; the first: {first}",
        )


def test_a_verb_of_a_workload_is_given_the_front_door_and_a_mistyped_one_the_nearest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @click.command()
    @click.pass_obj
    def greet(front: object) -> None:
        click.echo(type(front).__name__)

    monkeypatch.setattr(registry, "verbs", lambda name: {"greet": Verb(lambda: greet, "")})
    assert CliRunner().invoke(cli, ["greet"]).output == "FrontDoor\n"
    answer = CliRunner().invoke(cli, ["stauts", "runs/demo"])
    assert answer.exit_code == 2
    assert "No such command 'stauts'; did you mean 'status'?" in answer.output


ASSIGNMENTS = ("stream.unit_events=6", "stream.batch_events=4", "stream.held_out=0.4")
"""Settings of a run that change what is read in training."""


def test_every_event_of_every_file_comes_once_in_the_files_order(tmp_path: Path) -> None:
    write_files(tmp_path, 3, [1, 2, 0, 30] * 5, row_group_rows=6)
    front, schema, settings = door_to(tmp_path, assignments=ASSIGNMENTS)
    found, files, done = [], [], []
    with front.each_unit(schema, settings) as units:
        for unit in units:
            found += numbers(unit.arrays)
            files.append(Path(unit.file).name)
            done.append(unit.done)
    assert found == list(range(60))
    assert list(dict.fromkeys(files)) == ["0.parquet", "1.parquet", "2.parquet"]
    assert len(files) == 12
    assert done == sorted(done)
    assert done[-1] == 1.0


def test_of_files_that_were_trained_on_the_held_out_events_are_read_unless_others_are_asked_for(tmp_path: Path) -> None:
    write_files(tmp_path, 3, [1] * 100, row_group_rows=25)
    own = json.dumps({"stream": {"held_out": 0.9, "unit_events": 100}})  # the share is that of the trained run
    front, schema, settings = door_to(tmp_path, config_json=own)
    held_out = held_out_numbers(300, 0.2)

    def read(events: int, seen: str, which: Which | None = None, share: float = 0.2) -> tuple[list[int], list[str]]:
        reading = front.read_events(
            schema, settings, events=events, seed=0, trained_inputs=(seen,), held_out=share, which=which
        )
        with reading as found:
            return numbers(found.arrays), [Path(one).name for one in found.trained_on]

    chosen, warned = read(0, str(tmp_path))
    assert (sorted(chosen), warned) == (sorted(held_out), [])
    chosen, _ = read(20, str(tmp_path))
    assert len(set(chosen) & held_out) == len(chosen) == 20
    assert len({number // 100 for number in chosen}) == 3, "from all files"
    assert sorted(read(0, "others")[0]) == list(range(300))
    files = ["0.parquet", "1.parquet", "2.parquet"]
    chosen, warned = read(0, str(tmp_path), "train")
    assert (set(chosen), warned) == (set(range(300)) - held_out, files)
    assert read(0, str(tmp_path), "all")[1] == files
    assert read(0, str(tmp_path), share=0.0)[1] == files, "a run that held nothing out was trained on them"


def test_a_place_that_may_not_be_used_and_a_full_disk_are_one_line_each_and_bugs_are_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory") as error:
        (tmp_path / "file" / "out.parquet").open("wb")
    assert remedy_of(error.value) == (
        f"{tmp_path}/file/out.parquet: not a directory; choose another place, or change its permissions"
    )
    assert remedy_of(OSError(errno.ENOSPC, "No space", "/x")).startswith("the disk is full while writing /x")
    assert remedy_of(FileNotFoundError(errno.ENOENT, "No such file", "/x")) == remedy_of(ValueError("x")) == ""
