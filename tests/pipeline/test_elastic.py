"""Promise 5, and the hint at the bottleneck: decoders come and go; a trainer far slower or faster than they are."""

from __future__ import annotations

import signal
import time

import pytest
from faulty_services import DECODER_PAUSE_VARIABLE, PACE_VARIABLE
from runs import Process, Processes, kill, settings
from showers import Undisturbed
from watch import Watch

from common.status import FetcherStatus

pytestmark = pytest.mark.slow

ARENA_BYTES = 3 << 20  # slots × slot_mib of SMALL_STREAM
NEVER_AGAIN = settings("local.restart_min_s=300", "local.restart_max_s=300")
TIMES = 100
SLOW_S = 6.0
"""How long the slow trainer keeps the dispatcher waiting."""


@pytest.fixture
def watch(processes: Processes) -> Watch:
    return Watch(processes, ARENA_BYTES)


def stop_the_trainer_at(processes: Processes, run: Process, step: int) -> int:
    """Its pid; the run stands still in a known place."""
    processes.wait_in(run, lambda: processes.checkpoint_step() >= step, f"step {step}")
    pid = processes.the_pid("trainer")
    kill(pid, signal.SIGSTOP)
    return pid


def stalled(processes: Processes, reason: str) -> FetcherStatus | None:
    """The fetcher's status, once the dispatcher could not lease for this reason in most of the last seconds."""
    status = processes.fetcher
    return status if status.stall_shares.get(reason, 0.0) > 0.6 else None


def finish(processes: Processes, run: Process, watch: Watch) -> None:
    processes.wait_for(watch.until(run.ended), "the end of the run")
    assert run.popen.returncode == 0, f"{run.output()}\n{processes.report()}"


def assert_undisturbed(processes: Processes, watch: Watch, undisturbed: Undisturbed) -> None:
    undisturbed.assert_same(processes)
    assert processes.summary()["exit_status"] == "finished"
    processes.summary().assert_read(undisturbed.summary["events_read"])
    processes.assert_nothing_is_left()
    watch.assert_looked()
    watch.assert_gone()


def test_three_decoders_then_one_then_four_change_nothing(
    processes: Processes, command: list[str], undisturbed: Undisturbed, watch: Watch
) -> None:
    arguments = [*command, *NEVER_AGAIN, "--decoders", "3"]
    run = processes.start("run", *arguments, environment=processes.brake(5))
    trainer = stop_the_trainer_at(processes, run, 5)
    processes.wait_in(run, lambda: processes.fetcher.decoders == 3, "three decoders")
    processes.wait_in(run, lambda: processes.fetcher.events_decoded > 0, "their work")

    for pid in processes.pids("decoder")[:2]:
        kill(pid, signal.SIGTERM)
    processes.wait_in(run, watch.until(lambda: processes.fetcher.decoders == 1), "one decoder")
    decoded = processes.fetcher.events_decoded
    kill(trainer, signal.SIGCONT)
    processes.wait_in(run, watch.until(lambda: processes.fetcher.events_decoded > decoded), "its work")
    stop_the_trainer_at(processes, run, processes.checkpoint_step() + 5)

    joined = [processes.start("decoder") for _ in range(3)]
    processes.wait_in(run, watch.until(lambda: processes.fetcher.decoders == 4), "four decoders")
    assert processes.checkpoint_step() < undisturbed.steps - 20, "the run went on too fast to be disturbed"
    processes.release()
    kill(trainer, signal.SIGCONT)
    finish(processes, run, watch)
    for process in joined:
        assert processes.finish(process) == 0
        assert "left the run after" in process.output()
    assert_undisturbed(processes, watch, undisturbed)
    assert processes.fetcher.decoders_lost == 0


def test_no_decoder_at_all_for_ten_seconds_changes_nothing(
    processes: Processes, command: list[str], undisturbed: Undisturbed, watch: Watch
) -> None:
    late = settings("local.restart_min_s=10", "local.restart_max_s=10")
    run = processes.start_and_reach(5, [*command, *late], before=undisturbed.steps)
    for pid in processes.pids("decoder"):
        kill(pid)
    gone_s = time.monotonic()
    processes.release()

    def starved() -> bool:
        fetcher = processes.fetcher
        is_empty = fetcher.decoders == fetcher.units_ready == fetcher.units_delivered == 0
        return is_empty and fetcher.bottleneck == "decoders"

    processes.wait_in(run, watch.until(starved), "the trainer's starving")
    step = processes.checkpoint_step()
    assert step < undisturbed.steps
    assert not processes.pids("decoder")
    processes.wait_in(run, watch.until(lambda: processes.pids("decoder") != []), "a decoder")
    assert time.monotonic() - gone_s >= 10
    assert processes.checkpoint_step() == step
    finish(processes, run, watch)
    assert_undisturbed(processes, watch, undisturbed)
    assert processes.summary()["restarts"] == {"fetcher": 0, "decoder": 2, "trainer": 0}


def test_a_trainer_a_hundred_times_slower_is_named_as_the_bottleneck_and_changes_nothing(
    processes: Processes, command: list[str], undisturbed: Undisturbed, watch: Watch
) -> None:
    step_s = undisturbed.summary["seconds_total"] / undisturbed.steps
    run = processes.start("run", *command, environment=processes.brake(pause_s=TIMES * step_s))
    slow = processes.wait_in(run, watch.until(lambda: stalled(processes, "no_free_slot")), "the hint at the trainer")
    assert slow.bottleneck == "trainer"
    processes.wait_in(
        run, watch.until(lambda: processes.fetcher.stalled_s.get("no_free_slot", 0.0) > SLOW_S), "what it has cost"
    )
    processes.release()
    finish(processes, run, watch)
    assert_undisturbed(processes, watch, undisturbed)


def test_a_trainer_a_hundred_times_faster_is_not_named_as_the_bottleneck_and_changes_nothing(
    processes: Processes, command: list[str], undisturbed: Undisturbed, watch: Watch
) -> None:
    only_stream = settings("trainer.checkpoint_every=1000000", "trainer.log_every=1000000")
    endless = [*command, "--epochs", "0", "--decoders", "1", *only_stream]
    run = processes.start("run", *endless, environment={PACE_VARIABLE: "0", DECODER_PAUSE_VARIABLE: "0.05"})
    processes.wait_in(run, watch.until(lambda: processes.trainer.step > undisturbed.steps), "the fourth epoch's end")
    fast = processes.wait_in(run, watch.until(lambda: stalled(processes, "no_credit")), "the hint at the decoders")
    assert fast.bottleneck == "decoders"
    run.send(signal.SIGINT)
    processes.wait_for(watch.until(run.ended), "the end of the run")
    assert run.popen.returncode == 130, processes.report()
    assert processes.audit()[: len(undisturbed.audit)] == undisturbed.audit
    assert processes.summary()["adds_up"]
    processes.assert_nothing_is_left()
    watch.assert_looked()
    watch.assert_gone()
