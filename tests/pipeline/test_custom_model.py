"""The example of a user's own model in the full trainer: killed, stopped and resumed, it ends with the same bytes."""

from __future__ import annotations

import signal

import pytest
from runs import SMALL_STREAM, Processes, kill, same, settings
from showers import Showers, Undisturbed

import icestream

pytestmark = pytest.mark.slow

STREAM = [one for one in SMALL_STREAM if not one.startswith("trainer.wgan.")]
MODEL = "examples.count_muons:TRAINING"


@pytest.fixture(scope="module")
def own(showers: Showers) -> list[str]:
    return [*showers.input, "--epochs", "6", "--model", MODEL, *settings(*STREAM, "trainer.own.learning_rate=0.01")]


@pytest.fixture(scope="module")
def undisturbed_own(own: list[str], tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("undisturbed-own")
    processes = Processes(folder / "run", folder)
    try:
        return Undisturbed(processes.train(*own), processes.audit(), processes.checkpoint())
    finally:
        processes.end()


def test_the_example_learns_and_is_the_same_to_the_bit_after_a_kill_and_ctrl_c(
    processes: Processes, own: list[str], undisturbed_own: Undisturbed
) -> None:
    run = processes.start_and_reach(5, own, before=undisturbed_own.steps)
    killed = processes.the_pid("trainer")
    kill(killed)
    processes.wait_in(run, lambda: processes.pids("trainer") not in ([], [killed]), "another trainer")
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


def test_a_model_whose_code_fails_ends_the_run_with_its_line(processes: Processes, own: list[str]) -> None:
    exit_code, output = processes.run("run", *own, *settings("trainer.own.hidden=-1"))
    assert exit_code == 2
    (line,) = [one for one in output.splitlines() if one.startswith("Error: ")]
    assert "examples/count_muons.py, line " in line
    assert "Traceback" not in output


def test_a_model_that_is_not_there_is_refused_before_anything_starts(processes: Processes, own: list[str]) -> None:
    exit_code, output = processes.run("run", *own, "--model", "no_such_model:TRAINING")
    assert exit_code == 2
    assert "there is no module 'no_such_model' in the current folder" in output
    assert not processes.run_dir.exists()
