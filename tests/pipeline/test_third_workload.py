"""What users add: the workload of docs/development/extending.md, outside of the repository, and their own model."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from runs import ICESTREAM, PACKAGE_ROOT, SMALL_STREAM, Processes, same, settings
from showers import Showers, Undisturbed, undisturbed_run

import icestream

pytestmark = pytest.mark.slow

FACTOR = 2.5
EVENTS = 2_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for PYTHONPATH, with the files of the page."""
    folder = tmp_path_factory.mktemp("toys")
    page = (PACKAGE_ROOT / "docs/development/extending.md").read_text()
    blocks = re.findall(r"```python\n# (workloads/\S+)\n(.*?)```", page, re.S)
    assert len(blocks) == 4
    for name, code in blocks:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    return folder


@pytest.fixture(scope="module")
def hits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Events with a known factor."""
    random = np.random.default_rng(1)
    hits = [
        [
            {"time": 10.0 * hit, "charge": random.uniform(0.0, 0.5), "sensor": hit, "noise": random.random() < 0.3}
            for hit in range(number)
        ]
        for number in random.integers(0, 6, EVENTS)
    ]
    energies = [FACTOR * sum(hit["charge"] for hit in of_event if not hit["noise"]) for of_event in hits]
    hit = pa.struct({"time": pa.float32(), "charge": pa.float32(), "sensor": pa.int16(), "noise": pa.bool_()})
    table = pa.table({"energy": energies, "hits": hits}, pa.schema({"energy": pa.float64(), "hits": pa.list_(hit)}))
    path = tmp_path_factory.mktemp("hits") / "hits.parquet"
    pq.write_table(table, path, row_group_size=250)
    return path


def test_a_workload_that_is_one_folder_trains_end_to_end(processes: Processes, folder: Path, hits: Path) -> None:
    environment = {"PYTHONPATH": os.pathsep.join([str(folder), str(PACKAGE_ROOT)])}
    small = ("stream.unit_events=400", "stream.batch_events=50", "stream.slot_mib=1", "trainer.device=cpu")
    at_the_end = ("trainer.validation.events=100", "trainer.validation.every=1000", "trainer.checkpoint_every=50")
    arguments = ["-i", str(hits), "--epochs", "5", *settings(*small, *at_the_end)]
    run = processes.start("run", *arguments, environment=environment, program=ICESTREAM)
    assert processes.finish(run) == 0, processes.report()
    summary = processes.summary()

    assert summary.events["trained"] == 5 * EVENTS
    assert processes.checkpoint()["task"]["factor"] == pytest.approx(FACTOR, rel=0.01)
    stored = torch.load(processes.run_dir / "checkpoints" / "best.pt", weights_only=True)
    assert stored["step"] == processes.checkpoint_step(), "the last weights are looked at, too"
    assert {"loss", "factor", "loss_ma_500"} <= processes.trainer.losses.keys()
    checkpoint = processes.run_dir / "checkpoints" / f"step-{processes.checkpoint_step():09d}.pt"
    command = [sys.executable, *ICESTREAM, "factor", str(checkpoint)]
    done = subprocess.run(command, cwd=PACKAGE_ROOT, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(done.stdout) == pytest.approx(FACTOR, rel=0.01)


# ------------------------------------------------------------------ a user's own model in the full trainer

STREAM = [one for one in SMALL_STREAM if not one.startswith("trainer.wgan.")]
MODEL = "examples.count_muons:TRAINING"


@pytest.fixture(scope="module")
def own(showers: Showers) -> list[str]:
    return [*showers.input, "--epochs", "6", "--model", MODEL, *settings(*STREAM, "trainer.own.learning_rate=0.01")]


@pytest.fixture(scope="module")
def undisturbed_own(own: list[str], tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return undisturbed_run(tmp_path_factory.mktemp("undisturbed-own"), own)


def test_the_example_learns_and_is_the_same_to_the_bit_after_ctrl_c(
    processes: Processes, own: list[str], undisturbed_own: Undisturbed
) -> None:
    run = processes.start_and_reach(5, own, before=undisturbed_own.steps)
    run.send(signal.SIGINT)
    processes.finish(run)
    assert processes.checkpoint_step() < undisturbed_own.steps

    exit_code, output = processes.run("run")
    assert exit_code == 2, "no code runs because a stored file names it"
    assert f"if you trust it, name it in this start, too: --model {MODEL}" in output
    processes.train("--model", MODEL)  # its settings are those that are stored
    undisturbed_own.assert_same(processes)
    assert processes.log("trainer").count("new run") == 1, "all later trainers went on from a checkpoint"

    newest = processes.run_dir / "checkpoints" / f"step-{processes.checkpoint_step():09d}.pt"
    found = icestream.load(newest, model=MODEL, device="cpu").state_dict()
    assert same(dict(found), dict(processes.checkpoint()["task"]["networks"]["network"]))
    with pytest.raises(icestream.BadInputError, match="if you trust its code, name it: model='examples"):
        icestream.load(processes.run_dir)
    with pytest.raises(icestream.BadInputError, match="of a model of your own"):
        icestream.evaluate(processes.run_dir, "held-out", device="cpu")

    watched = processes.checkpoint()["loss"]
    assert watched, "the mean of the headline metric is stored"
    scores = processes.trainer.losses
    assert scores["loss_ma_500"] < 1.0  # minus the logarithm of a probability: bundles have 4 to 5 muons in the mean


def test_a_model_with_the_section_of_another_trains_resumes_and_is_evaluated(
    processes: Processes, tmp_path: Path
) -> None:
    """`flat`, with the settings of `transformer`."""
    icestream.simulate(tmp_path / "events", workload="direction", events=300, files=2)
    small = settings("stream.batch_events=32", "trainer.transformer.warmup_steps=2", "trainer.validation.events=0")
    arguments = ["-i", str(tmp_path / "events"), "--model", "flat", *small, "--decoders", "1"]
    assert processes.train(*arguments, "--max-steps", "3")["steps"] == 3
    assert processes.train("--max-steps", "5")["steps"] == 5
    report = icestream.evaluate(processes.run_dir, str(tmp_path / "events"), device="cpu")
    assert 0 < report["angle_mean_deg"].value < 180
