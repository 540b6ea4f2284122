"""Promise 2 and 6: kill -9 of anything, at any time, changes nothing in what is trained, and leaves nothing."""

from __future__ import annotations

import signal

import pytest
from faults import Fault, environment, met
from faulty_services import LOSE_PATIENCE_VARIABLE
from runs import Processes, kill, settings
from showers import Scene, Undisturbed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("verb", ["decoder", "trainer", "fetcher"])
def test_a_killed_process_is_started_again_and_changes_nothing(
    processes: Processes, direction: Scene, verb: str
) -> None:
    """Of the workload muons each is killed at one moment after the other in test_faults.py."""
    run = processes.start_and_reach(5, direction.command, before=direction.undisturbed.steps)
    pids = processes.pids(verb)
    processes.kill(pids[0])
    processes.wait_in(run, lambda: len(processes.pids(verb)) == len(pids), "its restart")
    processes.release()
    assert processes.finish(run) == 0, processes.report()
    assert processes.summary()["restarts"] == {"fetcher": 0, "decoder": 0, "trainer": 0} | {verb: 1}
    direction.undisturbed.assert_same(processes)


def test_the_units_of_a_decoder_that_was_killed_in_its_work_are_decoded_by_another(
    processes: Processes, command: list[str], undisturbed: Undisturbed
) -> None:
    faults = environment([Fault("decoder", "decoding")], processes.logs)
    run = processes.start("run", *command, environment=faults)
    assert processes.finish(run) == 0, processes.report()
    victim = met(processes.logs)
    assert victim
    assert f"failed 1 time(s): decoder {victim.pid}-" in processes.log("fetcher")
    assert processes.fetcher.decoders_lost == 1
    undisturbed.assert_same(processes)


def test_a_decoder_that_hangs_is_fenced_and_changes_nothing(
    processes: Processes, command: list[str], undisturbed: Undisturbed
) -> None:
    lost_patience = processes.logs / "lost-patience"
    faults = environment([Fault("decoder", "decoding", "SIGSTOP")], processes.logs)
    run = processes.start("run", *command, environment=faults | {LOSE_PATIENCE_VARIABLE: str(lost_patience)})
    victim = processes.wait_in(run, lambda: met(processes.logs), "the stop")
    processes.wait_in(run, lambda: processes.fetcher.bottleneck == "decoders", "the hint at the decoders")
    lost_patience.touch()
    assert processes.finish(run) == 0, processes.report()
    assert f"decoder {victim.pid}-" in processes.log("fetcher").partition(" hangs in lease ")[0].splitlines()[-1]
    assert processes.summary()["restarts"]["decoder"] == 1
    undisturbed.assert_same(processes)


def test_after_a_kill_of_everything_the_same_command_goes_on_from_the_last_checkpoint(
    processes: Processes, scene: Scene
) -> None:
    seldom = settings("trainer.checkpoint_every=20")
    # What was trained since the checkpoint comes to the disk a page at a time, not long before the end.
    run = processes.start("run", *scene.command, *seldom, environment=processes.brake(35))
    processes.wait_in(run, lambda: processes.checkpoint_step() >= 20, "a checkpoint")
    committed_bytes = processes.checkpoint()["audit_bytes"][0]
    audit = processes.run_dir / "audit.jsonl"
    processes.wait_in(run, lambda: audit.stat().st_size > committed_bytes, "what the checkpoint doesn't know of")
    processes.kill_all()
    processes.assert_nothing_is_left()
    step = processes.checkpoint_step()
    assert 20 <= step < scene.undisturbed.steps

    processes.train(*scene.command, *seldom)

    assert f"resumes from step-{step:09d}.pt: step {step}," in processes.log("trainer")
    scene.undisturbed.assert_same(processes)


def test_when_the_supervisor_is_killed_its_children_end_and_the_same_command_goes_on(
    processes: Processes, command: list[str], undisturbed: Undisturbed
) -> None:
    run = processes.start_and_reach(5, command, before=undisturbed.steps)
    kill(run.pid)
    processes.assert_nothing_is_left()
    assert 5 <= processes.checkpoint_step() < undisturbed.steps
    processes.train(*command)
    undisturbed.assert_same(processes)


def test_a_run_whose_processes_are_killed_one_after_the_other_trains_the_undisturbed_stream(
    processes: Processes, command: list[str], undisturbed: Undisturbed
) -> None:
    run = processes.start("run", *command, "--epochs", "0")  # it can't end before it was disturbed
    victims = ["decoder", "fetcher", "decoder", "trainer", "fetcher", "decoder", "decoder", "trainer"]
    for verb in victims:
        step = processes.checkpoint_step()
        processes.wait_in(run, lambda step=step: processes.checkpoint_step() > step, "the next checkpoint")
        pids = processes.wait_in(run, lambda verb=verb: processes.pids(verb), f"a {verb}")
        processes.kill(pids[0])
    step = processes.checkpoint_step()
    processes.wait_in(run, lambda: processes.checkpoint_step() > step, "a checkpoint after all kills")
    run.send(signal.SIGINT)
    assert processes.finish(run) == 130
    restarts = processes.summary()["restarts"]
    assert restarts == {verb: victims.count(verb) for verb in ("fetcher", "decoder", "trainer")}
    assert processes.summary()["adds_up"]
    length = min(len(processes.audit()), len(undisturbed.audit))
    assert length > 20
    assert processes.audit()[:length] == undisturbed.audit[:length]


def test_a_trainer_that_is_killed_ten_times_ends_with_the_weights_of_an_undisturbed_run_bit_for_bit(
    processes: Processes, scene: Scene
) -> None:
    kills, often = 10, settings("trainer.checkpoint_every=3")
    run = processes.start("run", *scene.command, *often, environment=processes.brake(3))
    for _ in range(kills):
        step = processes.checkpoint_step()
        processes.wait_in(run, lambda step=step: processes.checkpoint_step() > step, "the next checkpoint")
        pids = processes.wait_in(run, lambda: processes.pids("trainer"), "a trainer")
        processes.kill(pids[0])
    processes.release()
    assert processes.finish(run) == 0, processes.report()
    assert processes.summary()["restarts"]["trainer"] == kills
    scene.undisturbed.assert_same(processes)
