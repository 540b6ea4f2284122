"""A whole run, as in the README: simulate, run, look at what came out."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from runs import SMALL_STREAM, TINY_MODEL, Processes, settings
from showers import Showers
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from workloads.muons.commands.simulate import simulate

CORSIKA = Path(__file__).parent.parent / "data" / "corsika" / "bundles.parquet"


@pytest.mark.slow
def test_a_demo_run_ends_with_a_checkpoint_scalars_and_a_summary_that_adds_up(
    processes: Processes, tmp_path: Path
) -> None:
    demo = tmp_path / "demo"
    simulated = CliRunner().invoke(simulate, [str(demo), "--preset", "corsika", "--events", "5000", "--files", "3"])
    assert simulated.exit_code == 0
    files = [pq.read_table(path) for path in sorted(demo.rglob("*.parquet"))]

    summary = processes.train("-i", str(demo), *settings(*TINY_MODEL))

    summary.assert_read(sum(file.num_rows for file in files))
    assert summary["exit_status"] == "finished"
    assert summary["particles_trained"] == sum(len(muons) for file in files for muons in file["muons"])
    assert summary["checkpoint"] == f"checkpoints/step-{summary['steps']:09d}.pt"
    assert processes.checkpoint()["step"] == summary["steps"] >= 10
    (folder,) = (processes.run_dir / "tensorboard").iterdir()
    scalars = EventAccumulator(str(folder)).Reload()
    for name in ("c_loss", "g_loss", "m_loss", "w_gap", "w_gap_ma_500"):
        points = scalars.Scalars(f"train/{name}")
        assert [point.step for point in points] == [1, *range(10, summary["steps"] + 1, 10)]
        assert all(math.isfinite(point.value) for point in points)


@pytest.mark.slow
def test_real_corsika_showers_are_trained_on(processes: Processes) -> None:
    summary = processes.train("-i", str(CORSIKA), *settings(*TINY_MODEL))
    summary.assert_read(11)
    assert summary.events == {"trained": 11}
    assert summary["particles_trained"] == 1_398


@pytest.mark.slow
def test_weights_do_not_get_another_meaning_when_a_run_goes_on(processes: Processes) -> None:
    cut, command = "trainer.likelihood.network.energy_cut_gev", ("-i", str(CORSIKA), "--model", "likelihood")
    tiny = settings("trainer.device=cpu", "trainer.threads=1", f"{cut}=0")
    processes.train(*command, *tiny)
    before = (processes.run_dir / "checkpoints" / "step-000000001.pt").read_bytes()

    exit_code, output = processes.run("run", *command, *tiny, *settings(f"{cut}=100"))

    assert exit_code == 2, output
    told = f"step-000000001.pt: its weights were learned with {cut} = 0.0, it is 100.0 now: set it to 0.0, or use"
    assert told in output
    assert (processes.run_dir / "checkpoints" / "step-000000001.pt").read_bytes() == before
    processes.train(*command, *tiny)


@pytest.mark.slow
def test_a_real_shower_of_1335_muons_above_the_limit_is_set_aside_whole_with_its_origin(processes: Processes) -> None:
    summary = processes.train("-i", str(CORSIKA), *settings(*TINY_MODEL, "max_particles_per_event=1000"))
    summary.assert_read(11)
    assert summary.events == {"trained": 10, "outlier": 1}
    assert summary["particles_trained"] == 1_398 - 1_335

    (path,) = (processes.run_dir / "outliers").iterdir()
    (outlier,) = pq.read_table(path).to_pylist()
    source_file, source_row = outlier.pop("source_file"), outlier.pop("source_row")
    assert Path(source_file) == CORSIKA
    assert outlier.pop("num_particles") == 1_335
    assert outlier == pq.read_table(CORSIKA).to_pylist()[source_row]
    assert len(outlier["muons"]) == 1_335


@pytest.mark.slow
def test_a_run_that_is_profiled_and_replayed_tells_both_and_its_checkpoint_has_not_seen_the_replay(
    processes: Processes, showers: Showers
) -> None:
    measured = ("trainer.replay_batches=4", "trainer.replay_s=0.2")
    plain = processes.train(*showers.input, *settings(*SMALL_STREAM), "--fresh", "--yes")
    weights = processes.checkpoint()["task"]["networks"]["critic"]

    summary = processes.train(
        *showers.input, *settings(*SMALL_STREAM, *measured), "--profile-steps", "3", "--fresh", "--yes"
    )

    assert summary["steps"] == plain["steps"]
    after = processes.checkpoint()["task"]["networks"]["critic"]
    assert all(torch.equal(after[name], weights[name]) for name in weights)
    assert summary["replay_fraction"] == pytest.approx(
        summary["session_events_per_s"] / summary["replay_events_per_s"], abs=0.001
    )
    ceiling = json.loads((processes.run_dir / "ceiling.json").read_text())
    assert ceiling["events_per_s"] == pytest.approx(summary["replay_events_per_s"], abs=0.001)
    assert ceiling["events_per_batch"] == pytest.approx(200, rel=0.3)
    names = [path.name for path in (processes.run_dir / "profile").iterdir()]
    assert sorted(names) == ["steps-00000011-00000013.trace.json.gz", "steps-00000011-00000013.txt"]
