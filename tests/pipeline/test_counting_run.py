"""`--model none` takes the same stream as a trainer with a model, survives the same faults, and needs no torch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from faults import Fault, environment, met
from runs import ICESTREAM, Processes, settings
from showers import Undisturbed
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from common.run_dir import CONFIG_FILE
from icestream.commands.keys import keys as make_keys
from services.trainer.stream.position import StreamPosition
from services.trainer.telemetry.tensorboard_sink import run_folder

pytestmark = pytest.mark.slow

NONE = ("--model", "none")


@pytest.fixture
def without_torch(tmp_path: Path) -> dict[str, str]:
    """An environment in which whatever imports torch fails."""
    folder = tmp_path / "without-torch"
    folder.mkdir()
    (folder / "torch.py").write_text("raise ImportError('torch was imported')\n")
    return {"PYTHONPATH": str(folder)}


def newest(processes: Processes) -> dict[str, Any]:
    path = sorted((processes.run_dir / "checkpoints").glob("step-*.json"))[-1]
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def position_of(checkpoint: dict[str, Any]) -> StreamPosition:
    return StreamPosition.model_validate_json(checkpoint["position"])


def test_a_run_without_a_model_takes_the_same_stream_and_needs_no_torch(
    processes: Processes, command: list[str], undisturbed: Undisturbed, without_torch: dict[str, str]
) -> None:
    run = processes.start("run", *command, *NONE, environment=without_torch, program=ICESTREAM)
    assert processes.finish(run) == 0, processes.report()
    summary = processes.summary()
    assert processes.audit() == undisturbed.audit
    assert summary.events == undisturbed.summary.events
    assert summary["steps"] == undisturbed.steps
    assert summary["session_events_per_s"] > 0
    assert position_of(newest(processes)) == position_of(undisturbed.checkpoint)
    assert summary["checkpoint"] == f"checkpoints/step-{undisturbed.steps:09d}.json"
    assert len(list((processes.run_dir / "checkpoints").iterdir())) == 3
    told = EventAccumulator(str(run_folder(processes.run_dir))).Reload()
    assert {"trainer/events_per_s", "hop/batches/wait_get_share"} <= set(told.Tags()["scalars"])
    assert "the pipeline alone: " in processes.log("trainer")
    for command, why in (
        (["run"], "is of the model 'none', and trainer.model = 'wgan': resume with --model none"),
        (["trainer"], "is of the model 'none', and trainer.model = 'wgan': resume with --model none"),
    ):
        exit_code, output = processes.run(*command, "--generator", "wgan", "--max-steps", "500")
        assert exit_code == 2
        assert why in output


def test_a_run_without_a_model_goes_on_where_it_stopped(
    processes: Processes, command: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    copies = settings(f"outputs.destination={tmp_path / 'copies'}")
    first = processes.train(*command, *NONE, *copies, "--max-steps", "37")
    assert first["steps"] == newest(processes)["step"] == 37
    assert processes.audit() == undisturbed.audit[: len(processes.audit())]
    shutil.rmtree(processes.run_dir / "checkpoints")  # they come back from where they were copied to
    whole = processes.train("--max-steps", "0", "--decoders", "1")
    assert "checkpoints/step-000000037.json was brought back" in processes.started[-1].output()
    assert "resumes from step-000000037.json" in processes.log("trainer")
    assert processes.audit() == undisturbed.audit
    assert whole.events == undisturbed.summary.events
    exit_code, output = processes.run("run", "--seed", "7")
    assert exit_code == 2
    assert "belongs to another plan" in output
    again = processes.train("--seed", "7", "--new-plan", "--epochs", "1")
    assert again["events_trained"] > whole["events_trained"]
    assert again["adds_up"]


def test_a_run_without_a_model_survives_kills_at_any_time(
    processes: Processes, command: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    faults = (
        Fault("decoder", "after-writing-before-done", nth=3),
        Fault("trainer", "between-checkpoint-write-and-rename", nth=2),
        Fault("trainer", "between-checkpoint-and-commit", nth=2),
        Fault("fetcher", "delivering", nth=2),
    )
    run = processes.start("run", *command, *NONE, environment=environment(faults, tmp_path))
    assert processes.finish(run) == 0, processes.report()
    assert all(met(tmp_path, index) for index in range(len(faults)))
    assert processes.audit() == undisturbed.audit
    assert processes.summary().events == undisturbed.summary.events
    restarts = processes.summary()["restarts"]
    assert (restarts["trainer"], restarts["fetcher"]) == (2, 1)


def test_a_trainer_without_a_model_takes_the_stream_over_tcp(
    processes: Processes, command: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    assert CliRunner().invoke(make_keys, [str(keys)]).exit_code == 0
    *inputs_and_settings, _, epochs = command
    options = settings(f"epochs={epochs}", "transport.listen=tcp://127.0.0.1:*", f"transport.keys={keys}")
    logs = tmp_path / "logs-there"
    logs.mkdir()
    there = Processes(tmp_path / "there", logs)
    try:
        fetcher = processes.start("fetcher", *inputs_and_settings, *options)
        decoder = processes.start("decoder")
        address = processes.wait_in(fetcher, lambda: processes.fetcher.listen, "the fetcher's address")
        there.run_dir.mkdir()
        shutil.copy(processes.run_dir / CONFIG_FILE, there.run_dir)
        trainer = there.start("trainer", "--connect", address, "--keys", str(keys / "for-trainer"), *NONE)
        assert [there.finish(trainer), processes.finish(fetcher), processes.finish(decoder)] == [0, 0, 0]
        assert there.audit() == undisturbed.audit
        assert there.summary().events == undisturbed.summary.events
        there.assert_nothing_is_left()
    finally:
        there.end()
