"""The front door, as verbs of workloads use it."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from muon_files import make_events, write_events

from common.errors import BadInputError
from common.held_out import Which, is_held_out
from icestream.cli import cli, remedy_of
from icestream.front import FrontDoor
from services.config.root import Config
from workloads import registry
from workloads.base.evaluation.files import reading_warnings
from workloads.base.verb import Verb
from workloads.muons.workload import WORKLOAD

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


def test_events_come_from_all_files_with_where_they_come_from(tmp_path: Path) -> None:
    for index in range(3):
        write_events(tmp_path / f"{index}.parquet", make_events([1] * 20, first=20 * index))
    front = FrontDoor()
    settings = front.file_settings([str(tmp_path)], toml=None, assignments=())
    schema, seen = WORKLOAD.schema.stored_as(settings.source), (str(tmp_path / "1.parquet"),)
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
    front = FrontDoor()
    settings = front.file_settings([str(tmp_path)], toml=None, assignments=())
    schema = WORKLOAD.schema.stored_as(settings.source)
    with front.read_events(schema, settings, events=0, seed=0, trained_inputs=()) as found:
        assert len(found.arrays.offsets) == 30
        assert (found.num_files, found.num_sources) == (2, 3)
        first, *others = found.left_out
        assert first.startswith(f"{tmp_path / '1.parquet'}: truncated, or neither Parquet nor HDF5")
        assert any(line.startswith(f"{tmp_path / '2.parquet'}: row group 1: 10 of its 10 events") for line in others)
        assert any(f"{tmp_path / '2.parquet'}: row group 0, row 9 of the file: energy" in line for line in others)
        assert reading_warnings(found) == (
            f"3 bad inputs (files, row groups, events) left out, as in a run; the first: {first}",
        )


def test_files_of_which_none_can_be_used_are_an_error_with_the_reason(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.parquet").write_bytes(b"no parquet")
    front = FrontDoor()
    settings = front.file_settings([str(tmp_path)], toml=None, assignments=())
    schema = WORKLOAD.schema.stored_as(settings.source)
    expected = rf"no file is usable: {tmp_path}/a\.parquet: truncated, .*\(2 of the 2 files for this reason\)"
    reading = front.read_events(schema, settings, events=0, seed=0, trained_inputs=())
    with pytest.raises(BadInputError, match=expected), reading:
        pass


def test_every_verb_of_a_workload_is_given_the_front_door(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    @click.pass_obj
    def greet(front: object) -> None:
        click.echo(type(front).__name__)

    monkeypatch.setattr(registry, "verbs", lambda name: {"greet": Verb("x:y", "")})
    monkeypatch.setattr(registry, "imported", lambda target: greet)
    assert CliRunner().invoke(cli, ["greet"]).output == "FrontDoor\n"


ASSIGNMENTS = ("stream.unit_events=6", "stream.batch_events=4", "stream.held_out=0.4")
"""Settings of a run that change what is read in training."""


def test_every_event_of_every_file_comes_once_in_the_files_order(tmp_path: Path) -> None:
    for index in range(3):
        events = make_events([1, 2, 0, 30] * 5, first=20 * index)
        write_events(tmp_path / f"{index}.parquet", events, row_group_rows=6)
    front = FrontDoor()
    settings = front.file_settings([str(tmp_path)], toml=None, assignments=ASSIGNMENTS)
    found, files, done = [], [], []
    with front.each_unit(WORKLOAD.schema.stored_as(settings.source), settings) as units:
        for unit in units:
            found += (unit.arrays.event_columns["primary"][:, 0].round() - 1000).astype(int).tolist()
            files.append(Path(unit.file).name)
            done.append(unit.done)
    assert found == list(range(60))
    assert list(dict.fromkeys(files)) == ["0.parquet", "1.parquet", "2.parquet"]
    assert len(files) == 12
    assert done == sorted(done)
    assert done[-1] == 1.0


def test_a_damaged_file_is_named_when_its_turn_comes(tmp_path: Path) -> None:
    write_events(tmp_path / "0.parquet", make_events([1, 2]))
    (tmp_path / "1.parquet").write_bytes(b"nothing")
    front = FrontDoor()
    settings = front.file_settings([str(tmp_path)], toml=None, assignments=())
    with front.each_unit(WORKLOAD.schema.stored_as(settings.source), settings) as units:
        assert len(next(units).arrays.offsets) == 3
        with pytest.raises(BadInputError, match=r"1\.parquet"):
            next(units)


@pytest.mark.parametrize("unit_events", [65_536, 30])
def test_of_files_that_were_trained_on_the_held_out_events_are_read_unless_others_are_asked_for(
    tmp_path: Path, unit_events: int
) -> None:
    for index in range(3):
        events = make_events([1] * 100, first=100 * index)
        write_events(tmp_path / f"{index}.parquet", events, row_group_rows=25)
    front = FrontDoor()
    own = json.dumps({"stream": {"held_out": 0.9, "unit_events": unit_events}})  # the share is that of the trained run
    settings = front.file_settings([str(tmp_path)], toml=None, assignments=(), config_json=own)
    schema = WORKLOAD.schema.stored_as(settings.source)
    ids = np.stack([np.arange(300), np.arange(300) % 7], 1)
    held_out = set(np.flatnonzero(is_held_out(ids, 0.2)).tolist())

    def read(events: int, seen: str, which: Which | None = None, share: float = 0.2) -> tuple[list[int], list[str]]:
        reading = front.read_events(
            schema, settings, events=events, seed=0, trained_inputs=(seen,), held_out=share, which=which
        )
        with reading as found:
            primary = found.arrays.event_columns["primary"]
            chosen = [round(float(energy)) - 1000 for energy in primary[:, 0]]
            return chosen, [Path(one).name for one in found.trained_on]

    chosen, warned = read(0, str(tmp_path))
    assert (sorted(chosen), warned) == (sorted(held_out), [])
    chosen, _ = read(20, str(tmp_path))
    assert len(set(chosen) & held_out) == len(chosen) == 20
    assert len({number // 100 for number in chosen}) == 3, "from all files"
    assert sorted(read(0, "others")[0]) == list(range(300))
    files = ["0.parquet", "1.parquet", "2.parquet"]
    chosen, warned = read(0, str(tmp_path), "trained")
    assert (set(chosen), warned) == (set(range(300)) - held_out, files)
    assert read(0, str(tmp_path), "all")[1] == files
    assert read(0, str(tmp_path), share=0.0)[1] == files, "a run that held nothing out was trained on them"


def test_a_mistyped_command_is_answered_with_the_nearest_one() -> None:
    answer = CliRunner().invoke(cli, ["stauts", "runs/demo"])
    assert answer.exit_code == 2
    assert "No such command 'stauts'; did you mean 'status'?" in answer.output


def test_a_place_that_may_not_be_used_and_a_full_disk_are_one_line_each_and_bugs_are_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory") as error:
        (tmp_path / "file" / "out.parquet").open("wb")
    assert remedy_of(error.value) == (
        f"{tmp_path}/file/out.parquet: not a directory; choose another place, or change its permissions"
    )
    assert remedy_of(OSError(errno.ENOSPC, "No space", "/x")).startswith("the disk is full while writing /x")
    assert remedy_of(FileNotFoundError(errno.ENOENT, "No such file", "/x")) == remedy_of(ValueError("x")) == ""
