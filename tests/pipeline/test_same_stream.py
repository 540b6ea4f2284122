"""Promises 1 and 5: what is trained, in which order, does not depend on who works on it or how fast."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from runs import Processes, kill, settings
from showers import EPOCHS, Scene, Undisturbed

pytestmark = pytest.mark.slow


def test_the_undisturbed_audit_covers_every_event_of_every_epoch(scene: Scene) -> None:
    scene.undisturbed.summary.assert_read(EPOCHS * scene.events)
    assert scene.undisturbed.summary["particles_trained"] == EPOCHS * scene.particles
    assert len(set(scene.undisturbed.audit)) == len(scene.undisturbed.audit)
    assert scene.undisturbed.steps > 50


def test_services_started_one_by_one_in_a_long_path_trainer_first_make_the_same_run_with_one_decoder(
    tmp_path: Path, processes: Processes, command: list[str], undisturbed: Undisturbed
) -> None:
    processes.run_dir = tmp_path / ("long" * 20) / ("longer" * 20) / "run"  # a socket's path has 107 bytes
    how = {"environment": {"ICESTREAM_TRANSPORT__SOCKETS": "folder"}}
    trainer, decoder = (processes.start(verb, **how) for verb in ("trainer", "decoder"))
    for process in (trainer, decoder):
        processes.wait_in(
            process, lambda process=process: "waiting for a run to be started in" in process.output(), "its waiting"
        )
    *inputs_and_settings, _, epochs = command
    narrow = settings(f"epochs={epochs}", "fetcher.transfers=1", "fetcher.blocks_ahead=1")
    fetcher = processes.start("fetcher", *inputs_and_settings, *narrow, **how)
    for process in (trainer, fetcher, decoder):
        assert processes.finish(process) == 0, processes.report()
    undisturbed.assert_same(processes)
    assert processes.summary()["exit_status"] == "finished"
    assert "events read" in trainer.output()
    assert not list((processes.run_dir / "sockets").glob("*"))


def test_two_runs_of_different_workloads_at_once_one_with_one_slot_train_what_each_trains_alone(
    processes: Processes, command: list[str], undisturbed: Undisturbed, direction: Scene, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    other = Processes(folder / "run", folder)
    try:
        first = processes.start("run", *command, environment=processes.brake(5))
        one_slot = [*settings("stream.slots=1", "trainer.deterministic=true"), "--decoders", "3"]
        second = other.start("run", *direction.command, *one_slot)
        other.wait_in(second, lambda: other.checkpoint_step() > 0, "a checkpoint")
        both_at_work = not first.ended()
        processes.release()
        assert processes.finish(first) == 0, processes.report()
        assert other.finish(second) == 0, other.report()
        other.assert_nothing_is_left()
    finally:
        other.end()
    assert both_at_work
    undisturbed.assert_same(processes)
    direction.undisturbed.assert_same(other)


def test_a_run_without_a_model_takes_the_same_stream_and_goes_on_where_it_stopped(
    processes: Processes, command: list[str], undisturbed: Undisturbed
) -> None:
    first = processes.train(*command, "--model", "none", "--max-steps", "37")
    assert first["steps"] == processes.checkpoint()["step"] == 37
    assert processes.audit() == undisturbed.audit[: len(processes.audit())]
    summary = processes.train("--max-steps", "0", "--decoders", "1")
    assert "resumes from step-000000037.pt" in processes.log("trainer")
    assert processes.audit() == undisturbed.audit
    assert summary.events == undisturbed.summary.events
    assert summary["steps"] == undisturbed.steps
    assert summary["session_events_per_s"] > 0
    assert processes.checkpoint()["position"] == undisturbed.checkpoint["position"]
    exit_code, output = processes.run("run", "--model", "wgan", "--max-steps", "500")
    assert exit_code == 2
    assert "is of the model 'none', and trainer.model = 'wgan': resume with --model none" in output


# ------------------------------------------------------------------ promise 5: decoders come and go


def test_three_decoders_then_none_then_three_others_change_nothing(
    processes: Processes, command: list[str], undisturbed: Undisturbed
) -> None:
    never_again = settings("local.restart_min_s=300", "stream.slots=8")
    run = processes.start("run", *command, *never_again, "--decoders", "3", environment=processes.brake(5))
    processes.wait_in(run, lambda: processes.checkpoint_step() >= 5, "step 5")
    trainer = processes.the_pid("trainer")
    kill(trainer, signal.SIGSTOP)  # the run stands still
    processes.wait_in(run, lambda: processes.fetcher.decoders == 3, "three decoders")
    *leaving, killed = processes.pids("decoder")
    for pid in leaving:
        kill(pid, signal.SIGTERM)
    processes.wait_in(run, lambda: processes.fetcher.decoders == 1, "one decoder")
    processes.kill(killed)
    kill(trainer, signal.SIGCONT)
    processes.release()

    def starved() -> bool:
        fetcher = processes.fetcher
        is_empty = fetcher.decoders == fetcher.units_ready == fetcher.units_delivered == 0
        return is_empty and fetcher.bottleneck == "decoders"

    processes.wait_in(run, starved, "the trainer's starving")
    assert processes.checkpoint_step() < undisturbed.steps
    joined = [processes.start("decoder") for _ in range(3)]
    assert processes.finish(run) == 0, processes.report()
    for process in joined:
        assert processes.finish(process) == 0
        assert "left the run after" in process.output()
    undisturbed.assert_same(processes)
    assert processes.fetcher.decoders_lost == 1


def test_auto_adds_a_decoder_when_units_wait_for_one_and_lets_an_idle_one_go(
    processes: Processes, command: list[str], undisturbed: Undisturbed
) -> None:
    auto = [*command, *settings("local.max_decoders=2"), "--decoders", "auto"]
    run = processes.start("run", *auto, environment=processes.brake())
    processes.wait_in(run, lambda: processes.fetcher.decoders == 1, "the first decoder's joining")
    only = processes.the_pid("decoder")
    kill(only, signal.SIGSTOP)
    processes.release()  # however fast the trainer is, it waits for this one now
    processes.wait_in(run, lambda: processes.fetcher.decoders_wanted == 2, "the wish for a second decoder")
    processes.wait_in(run, lambda: processes.fetcher.decoders == 2, "the second decoder's joining")
    trainer = processes.the_pid("trainer")
    kill(trainer, signal.SIGSTOP)  # both decoders are idle then, on however busy a machine
    kill(only, signal.SIGCONT)
    processes.wait_in(run, lambda: processes.log("fetcher").count("is asked to leave") == 1, "the retirement")
    processes.wait_in(run, lambda: processes.fetcher.decoders == 1, "the leaving")
    assert processes.fetcher.decoders_wanted == 1
    kill(trainer, signal.SIGCONT)
    assert processes.finish(run) == 0, processes.report()
    assert processes.summary()["restarts"] == {"fetcher": 0, "decoder": 0, "trainer": 0}
    assert processes.fetcher.decoders_lost == 0
    undisturbed.assert_same(processes)
