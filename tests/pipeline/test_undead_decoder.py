"""A decoder that SIGKILL doesn't end, as in uninterruptible sleep: the run goes on without it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_services import LOSE_PATIENCE_VARIABLE
from runs import Process, Processes, kill, settings
from showers import EPOCHS, Undisturbed
from undead import NOT_PERMITTED

pytestmark = pytest.mark.slow

UNDEAD = (str(Path(__file__).with_name("undead.py")),)


@pytest.fixture
def undead(processes: Processes, command: list[str]) -> Iterator[Process]:
    """A decoder that accepts SIGKILL and doesn't end, in a run whose fetcher gives it 2 s."""
    epochs, lost_patience = settings(f"epochs={EPOCHS}"), processes.logs / "lost-patience"
    lost_patience.touch()
    processes.start("fetcher", *command[:-2], *epochs, environment={LOSE_PATIENCE_VARIABLE: str(lost_patience)})
    undead = processes.start("decoder", program=UNDEAD)
    try:
        processes.wait_for(lambda: undead.ended() or processes.fetcher.decoders, "its joining")
        if undead.ended() and undead.popen.returncode == NOT_PERMITTED:
            processes.end()
            pytest.skip("this machine permits no tracing")
        yield undead
    finally:
        undead.popen.kill()  # its tracer, and with it the decoder


def test_a_decoder_that_a_kill_does_not_end_holds_nobody_up_and_its_slots_come_back_with_its_end(
    processes: Processes, undead: Process, undisturbed: Undisturbed
) -> None:
    fetcher = processes.started[0]
    kill(processes.the_pid("decoder"), signal.SIGSTOP)
    others = [processes.start("trainer", environment=processes.brake(5))]
    processes.wait_in(fetcher, lambda: processes.fetcher.units_leased > 0, "leases of who sleeps")
    others.append(processes.start("decoder"))

    processes.wait_in(fetcher, lambda: processes.checkpoint_step() > 0, "the first checkpoint")
    assert " hangs in lease " in fetcher.output()
    assert not undead.ended()
    trainer = processes.the_pid("trainer")
    kill(trainer, signal.SIGSTOP)  # else the run may end before the fetcher's status file shows the slots
    processes.wait_in(fetcher, lambda: slots_in_service(processes) < processes.fetcher.slots, "slots out of service")

    undead.send(signal.SIGTERM)
    processes.wait_in(fetcher, lambda: slots_in_service(processes) == processes.fetcher.slots, "the slots of the dead")
    assert processes.fetcher.decoders_lost == 1
    processes.release()
    kill(trainer, signal.SIGCONT)
    for process in (*others, fetcher):
        assert processes.finish(process) == 0, processes.report()
    undisturbed.assert_same(processes)


def slots_in_service(processes: Processes) -> int:
    """Slots that are free, or hold a unit that somebody still wants."""
    fetcher = processes.fetcher
    return fetcher.slots_free + fetcher.units_leased + fetcher.units_ready + fetcher.units_delivered
