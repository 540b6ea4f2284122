"""`icestream bench trainer`: batches without a run, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from common.config import StreamConfig
from common.errors import BadInputError
from icestream.commands.bench import bench
from icestream.replay import batches_from_files
from services.config.root import Config, store_config
from services.trainer import speed
from services.trainer.speed import Ceiling
from workloads.base.batch import Batch
from workloads.muons.simulator.config import preset
from workloads.muons.simulator.write import DatasetPlan, write_dataset

CPU = torch.device("cpu")
STREAM = StreamConfig(batch_events=64, unit_events=150, max_particles=300, slot_mib=1, block_files=2)
SMALL = (
    "trainer.device=cpu",
    "trainer.threads=1",
    "trainer.wgan.critic_steps=1",
    "trainer.wgan.network.hidden=8",
)

QUICK = ("--device", "cpu", "--model", "likelihood", "--batches", "2", "--seconds", "0", "--set", "trainer.threads=1")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """500 events in 3 files."""
    write_dataset(tmp_path / "data", preset("bench"), DatasetPlan(500, 3, seed=1))
    return tmp_path / "data"


def rows(batches: list[Batch]) -> list[tuple[int, ...]]:
    """Where the events came from."""
    return [
        (int(file), int(row))
        for batch in batches
        for part in batch.microbatches
        for file, row in zip(
            part.event_columns["source_file"].ravel(), part.event_columns["source_row"].ravel(), strict=True
        )
    ]


def run(*arguments: str) -> Result:
    settings = [word for assignment in SMALL for word in ("--set", assignment)]
    return CliRunner().invoke(bench, ["trainer", *arguments, "--seconds", "0", *settings], catch_exceptions=False)


def test_batches_hold_every_event_once_as_many_a_batch_as_a_step_has(files: Path) -> None:
    config = Config(input=(str(files),), stream=STREAM.model_copy(update={"max_particles_per_event": 300}))
    batches = batches_from_files(config, 1000, CPU)
    found = rows(batches)
    assert len(set(found)) == len(found)
    assert len(found) > 450, "but for outliers"
    assert all(batch.num_events >= STREAM.batch_events for batch in batches[:-1])
    assert all(part.num_particles <= 300 for batch in batches for part in batch.microbatches)
    places = [(part.unit, part.index) for batch in batches for part in batch.microbatches]
    assert places == sorted(places), "in the plan's order"
    assert [unit for unit, index in places if index == 0] == sorted({unit for unit, _ in places})
    assert rows(batches_from_files(config, 2, CPU)) == found[: sum(batch.num_events for batch in batches[:2])]


def test_files_without_an_event_to_train_on_are_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", preset("bench"), DatasetPlan(20, 1, seed=1))
    config = Config(
        input=(str(tmp_path / "data"),), stream=STREAM.model_copy(update={"max_particles": 1, "drop_empty": True})
    )
    assert all(batch.num_particles for batch in batches_from_files(config, 9, CPU))
    (file,) = (tmp_path / "data").rglob("*.parquet")
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(BadInputError, match="no event is fit for training"):
        batches_from_files(config, 9, CPU)


def test_the_ceiling_is_told_for_people_and_for_programs(files: Path) -> None:
    text = run("-i", str(files), "--events", "50", "--batches", "3", "--steps", "12").output
    assert "3 batches of the inputs" in text
    assert "median of 4 rounds" in text
    answer = json.loads(run("--events", "50", "--batches", "2", "--json").output)
    assert (answer["batches"], answer["rounds"], answer["device"]) == (2, 3, "cpu")
    assert answer["events_per_s"] > 0


def test_a_runs_own_settings_are_measured_and_compared_with_its_summary(files: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    store_config(run_dir, Config(input=(str(files),), stream=STREAM))
    assert "no summary with a pace yet" in run("--run-dir", str(run_dir), "--batches", "2").output
    (run_dir / "summary.json").write_text('{"session_events_per_s": 12.5}')
    text = run("--run-dir", str(run_dir), "--batches", "2").output
    ceiling = json.loads((run_dir / "ceiling.json").read_text())
    assert ceiling["events_per_batch"] == pytest.approx(STREAM.batch_events, rel=0.3)
    assert text.splitlines()[-1].split() == ["pipeline", "÷", "ceiling", f"{12.5 / ceiling['events_per_s']:.2f}"]


# ------------------------------------------------------------------ several sizes


def sweep(sizes: str, *more: str) -> Result:
    return CliRunner().invoke(bench, ["trainer", "--events", sizes, *QUICK, *more])


def test_every_size_is_measured_once_from_the_smallest_on() -> None:
    answer = json.loads(sweep("32,16,32", "--json").output)
    assert [trial["batch_events"] for trial in answer] == [16, 32]
    for trial in answer:
        assert trial["ceiling"]["events_per_batch"] >= trial["batch_events"]
        assert min(trial["ceiling"]["events_per_s"], trial["peak_memory_bytes"] / (1 << 20)) > 0
    for sizes in ("0", "8,", "a", "8,-1", "99999999999", "", "1.5"):
        result = sweep(sizes)
        assert result.exit_code == 2
        assert "expected whole numbers from 1" in result.output


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("scripted"), MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate")]
)
def test_the_table_ends_at_the_size_that_does_not_fit_the_memory(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    tried: list[object] = []

    def measured(task: object, batches: list[object], *args: object, **options: object) -> Ceiling | None:
        tried.append(batches)
        if len(tried) == 2:
            raise error
        return speed.measure(task, batches, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("icestream.replay.measure", measured)
    lines = sweep("8,16,24").output.splitlines()
    assert len(tried) == 2
    assert lines[-1].split()[:4] == ["16", "out", "of", "memory:"]
    assert lines[-2].split()[0] == "8"
