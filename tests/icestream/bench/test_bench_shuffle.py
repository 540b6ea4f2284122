"""`icestream bench shuffle`: cost of shuffling through the real decoding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from icestream.commands.bench import shuffle
from icestream.commands.bench.command import bench
from workloads import registry
from workloads.muons.simulator.config import preset
from workloads.muons.simulator.write import DatasetPlan, write_dataset


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle, "_LEAST_S", 0.0)
    monkeypatch.setattr(shuffle, "_FILE_EVENTS", 100)
    monkeypatch.setattr(shuffle, "_SIMULATED_FILES", 2)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """1,200 events in 4 files."""
    write_dataset(tmp_path / "data", preset("bench"), DatasetPlan(1200, 4, seed=1))
    return tmp_path / "data"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(bench, ["shuffle", "--rounds", "2", *arguments])


def answer_of(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_the_first_files_with_so_many_events_are_measured_and_at_most_all(files: Path) -> None:
    answer = answer_of("-i", str(files), "--events", "10,400,5000,9000")
    assert [(one["events"], one["files"]) for one in answer] == [(300, 1), (600, 2), (1200, 4)]
    for one in answer:
        assert one["rounds"] == 2
        assert one["cost_min"] <= one["cost"] <= one["cost_max"]
        assert one["shuffled"]["events_per_s"] > 0


def test_shuffling_mixes_the_files_and_source_order_does_not(files: Path) -> None:
    (one,) = answer_of("-i", str(files), "--events", "1200", "--set", "stream.batch_events=30")
    assert one["in_order"]["mixing_over_epoch"] > 15, "every microbatch is of one file"
    assert 0.5 < one["shuffled"]["mixing_over_epoch"] < 1.5


@pytest.mark.parametrize("workload", registry.names())
def test_simulated_events_stand_in_for_files(workload: str) -> None:
    answer = answer_of("--workload", workload, "--events", "90,450")
    assert [(one["events"], one["files"]) for one in answer] == [(100, 1), (500, 5)]


def test_outliers_are_decoded_in_every_round(files: Path) -> None:
    (one,) = answer_of("-i", str(files), "--events", "1200", "--set", "stream.max_particles_per_event=5")
    assert one["events"] == 1200


def test_the_table_is_for_people(files: Path) -> None:
    lines = run("-i", str(files), "--events", "300,600").output.splitlines()
    assert lines[0] == "cost of shuffling, muons: one decoder, from the inputs, to slots"
    assert [line.split()[0] for line in lines[3:5]] == ["300", "600"]
    assert lines[3].split()[-4:] == ["-;", "-", "-;", "-"], "one file has nothing to mix"
    assert "as by a permutation" in lines[-1]


def test_remote_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("-i", "memory://nowhere/f.parquet")
    assert result.exit_code != 0
    assert "nowhere" in str(result.exception) or "remote" in str(result.exception)
