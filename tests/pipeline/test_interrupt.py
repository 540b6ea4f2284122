"""Ctrl-C, and what can and can't be changed when a run goes on."""

from __future__ import annotations

import signal

import pytest
from runs import Processes, settings
from showers import Showers, Undisturbed

pytestmark = pytest.mark.slow


@pytest.fixture
def counting(command: list[str]) -> list[str]:
    """The same run without a model: where weights are not the question."""
    return [*command, *settings("trainer.model=none")]


def test_ctrl_c_writes_a_checkpoint_and_the_same_command_goes_on_exactly_there(
    processes: Processes, command: list[str], undisturbed: Undisturbed
) -> None:
    never = settings("trainer.checkpoint_every=1000000")
    run = processes.start("run", *command, *never, environment=processes.brake(5))
    processes.wait_in(run, lambda: processes.trainer.step >= 5, "step 5")
    run.send(signal.SIGINT)
    assert processes.finish(run) == 130, processes.report()
    processes.assert_nothing_is_left()

    summary, checkpoint, audit = processes.summary(), processes.checkpoint(), processes.audit()
    assert summary["exit_status"] == "interrupted"
    assert summary["adds_up"]
    assert 5 <= checkpoint["step"] == summary["steps"] < undisturbed.steps
    assert 0 < len(audit) < len(undisturbed.audit)
    assert audit == undisturbed.audit[: len(audit)]

    processes.train(*command, *never)
    assert f"resumes from step-{checkpoint['step']:09d}.pt" in processes.log("trainer")
    undisturbed.assert_same(processes)


def test_a_directory_that_grows_does_not_change_the_plan_of_a_run_that_goes_on(
    processes: Processes, showers: Showers, counting: list[str], undisturbed: Undisturbed
) -> None:
    run = processes.start_and_reach(5, counting, before=undisturbed.steps)
    newcomer = showers.folder / "bundles_00.parquet"  # sorts between the others
    newcomer.write_bytes((showers.folder / "bundles_1.parquet").read_bytes())
    try:
        run.send(signal.SIGINT)
        assert processes.finish(run) == 130
        processes.train(*counting)
    finally:
        newcomer.unlink()
    undisturbed.assert_same_stream(processes)


def test_going_on_with_another_seed_or_other_files_is_refused_and_nothing_is_lost(
    processes: Processes, showers: Showers, counting: list[str], undisturbed: Undisturbed
) -> None:
    run = processes.start_and_reach(5, counting, before=undisturbed.steps)
    run.send(signal.SIGINT)
    assert processes.finish(run) == 130
    step, audit = processes.checkpoint_step(), processes.audit()

    for change in (["--seed", "5"], ["-i", str(showers.folder / "bundles_0.parquet")], settings("unit_events=200")):
        exit_code, output = processes.run("run", *change)  # all else as it is stored
        assert exit_code == 2
        assert "belongs to another plan" in output.splitlines()[-1]
        assert "Traceback" not in output + processes.log("trainer")
        assert (processes.checkpoint_step(), processes.audit()) == (step, audit)

    processes.train()  # with what is stored: the refused changes are not
    undisturbed.assert_same_stream(processes)


def test_a_second_run_in_the_same_directory_is_refused_and_the_first_goes_on(
    processes: Processes, command: list[str], undisturbed: Undisturbed
) -> None:
    run = processes.start_endless(5, command)
    exit_code, output = processes.run("run", *command)
    assert exit_code == 2
    assert "the run is in use by" in output.splitlines()[-1]
    assert "(icestream run, process" in output.splitlines()[-1]
    exit_code, output = processes.run("fetcher", *command[:-2])
    assert exit_code == 2
    assert "(fetcher, process" in output.splitlines()[-1]
    step = processes.checkpoint_step()
    processes.wait_in(run, lambda: processes.checkpoint_step() > step, "the first run's next checkpoint")
    run.send(signal.SIGINT)
    assert processes.finish(run) == 130


def test_fresh_without_a_terminal_to_ask_on_deletes_nothing_unless_told_yes(
    processes: Processes, counting: list[str], undisturbed: Undisturbed
) -> None:
    short = [*counting, "--max-steps", "5"]
    processes.train(*short)
    exit_code, output = processes.run("run", *short, "--fresh")
    assert exit_code == 2
    assert "add --yes" in output.splitlines()[-1]
    assert processes.checkpoint_step() == 5
    (processes.run_dir / "notes.txt").write_text("mine")
    assert processes.run("run", *short, "--fresh", "--yes", "--max-steps", "4")[0] == 0
    assert processes.checkpoint_step() == 4
    assert (processes.run_dir / "notes.txt").read_text() == "mine"
    assert processes.audit() == undisturbed.audit[: len(processes.audit())]
