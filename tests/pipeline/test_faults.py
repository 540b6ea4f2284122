"""Promises 1, 2, 4 and 6 under a matrix of faults: each at an exact instant of a real process's work.

In each case the fault has really happened, the audit, the weights and the counts are those of the run that nobody
disturbed, the run ends, no process held more memory than one arena, and nothing is left behind.
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter

import pytest
from faults import Fault, Met, met
from runs import FAULTY_ICESTREAM, SMALL_STREAM, Process, Processes, kill, settings
from showers import Showers, Undisturbed
from watch import Watch, is_stopped

pytestmark = pytest.mark.slow

ARENA_BYTES = 3 << 20  # slots × slot_mib of SMALL_STREAM
STALL_TIMEOUT_S = 2.0
ENDS_WITHIN_S = 45.0
"""After the fault; five seconds are usual, and a wait for somebody who never comes lasts a minute."""
HELD_S = 1.0
"""How long a process that is continued again was stopped."""


@pytest.fixture(scope="module")
def short_command(showers: Showers) -> list[str]:
    """One epoch: 15 units, 60 steps."""
    return [*showers.input, *settings(*SMALL_STREAM)]


@pytest.fixture(scope="module")
def undisturbed(short_command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("undisturbed")
    processes = Processes(folder / "run", folder)
    try:
        summary = processes.train(*short_command)
        assert summary["steps"] == 60
        return Undisturbed(summary, processes.audit(), processes.checkpoint())
    finally:
        processes.end()


@pytest.fixture
def watch(processes: Processes) -> Watch:
    return Watch(processes, ARENA_BYTES)


MOMENTS = {
    "idle-decoder": ("decoder", "idle", 1),
    "decoder-decoding": ("decoder", "decoding", 3),
    "decoder-after-writing-before-done": ("decoder", "after-writing-before-done", 3),
    "trainer-before-its-first-step": ("trainer", "step", 1),
    "trainer-mid-unit": ("trainer", "step", 22),
    "trainer-between-checkpoint-write-and-rename": ("trainer", "between-checkpoint-write-and-rename", 3),
    "trainer-between-checkpoint-and-commit": ("trainer", "between-checkpoint-and-commit", 4),
    "trainer-before-it-says-finished": ("trainer", "before-finished", 1),
    "fetcher-staging": ("fetcher", "staging", 2),
    "fetcher-before-a-lease": ("fetcher", "leasing", 7),
    "fetcher-before-a-delivery": ("fetcher", "delivering", 7),
    "fetcher-hearing-that-all-is-trained": ("fetcher", "hearing-that-all-is-trained", 1),
}
"""Who, at which instant of its work, and at how many-th."""

KILLED = tuple(MOMENTS)
HUNG = tuple(name for name, (verb, _, _) in MOMENTS.items() if verb == "decoder")
CONTINUED = (
    *HUNG,
    "trainer-before-its-first-step",
    "trainer-mid-unit",
    "trainer-between-checkpoint-write-and-rename",
    "fetcher-before-a-lease",
    "fetcher-before-a-delivery",
)


def fault_of(moment: str, number: str) -> Fault:
    verb, instant, nth = MOMENTS[moment]
    return Fault(verb, instant, number, nth)


def start(processes: Processes, watch: Watch, command: list[str], fault: Fault) -> tuple[Process, Met]:
    """`icestream run`, returned when the fault has happened."""
    run = processes.start("run", *command, program=FAULTY_ICESTREAM, environment=fault.environment(processes.logs))
    return run, await_fault(processes, watch, run)


def await_fault(processes: Processes, watch: Watch, run: Process) -> Met:
    """Who met the fault."""
    return processes.wait_in(run, watch.until(lambda: met(processes.logs)), "the fault")


def assert_as_undisturbed(processes: Processes, run: Process, watch: Watch, undisturbed: Undisturbed) -> None:
    """The run ends soon, as if nothing had happened."""
    began_s = time.monotonic()
    processes.wait_for(watch.until(run.ended), "the end of the run")
    assert run.popen.returncode == 0, f"{run.output()}\n{processes.report()}"
    assert time.monotonic() - began_s < ENDS_WITHIN_S
    assert_same(processes, watch, undisturbed)


def assert_same(processes: Processes, watch: Watch, undisturbed: Undisturbed) -> None:
    """Everything but the time is as it was in the run that nobody disturbed, and nothing is left."""
    undisturbed.assert_same(processes)
    assert processes.summary()["exit_status"] == "finished"
    processes.summary().assert_read(undisturbed.summary["events_read"])
    processes.assert_nothing_is_left()
    watch.assert_looked()
    watch.assert_gone()


def restarts(processes: Processes) -> dict[str, int]:
    """Of the services that were started again."""
    return {verb: number for verb, number in processes.summary()["restarts"].items() if number}


@pytest.mark.parametrize("moment", KILLED, ids=[f"sigkill-{name}" for name in KILLED])
def test_a_process_that_is_killed_changes_nothing(
    processes: Processes, short_command: list[str], undisturbed: Undisturbed, watch: Watch, moment: str
) -> None:
    fault = fault_of(moment, "SIGKILL")
    run, victim = start(processes, watch, short_command, fault)
    processes.wait_for(lambda: victim.pid not in processes.pids(), "the victim's end")
    assert_as_undisturbed(processes, run, watch, undisturbed)
    assert restarts(processes) == {fault.verb: 1}


@pytest.mark.parametrize("moment", HUNG, ids=[f"sigstop-{name}" for name in HUNG])
def test_a_decoder_that_is_stopped_for_good_is_fenced_and_changes_nothing(
    processes: Processes, short_command: list[str], undisturbed: Undisturbed, watch: Watch, moment: str
) -> None:
    impatient = [*short_command, *settings(f"fetcher.stall_timeout_s={STALL_TIMEOUT_S:g}")]
    run, victim = start(processes, watch, impatient, fault_of(moment, "SIGSTOP"))
    assert_as_undisturbed(processes, run, watch, undisturbed)
    assert f"decoder {victim.pid}-" in processes.log("fetcher").partition(" hangs in lease ")[0].splitlines()[-1]
    assert processes.fetcher.decoders_lost == 1
    assert restarts(processes) == {"decoder": 1}


@pytest.mark.parametrize("moment", CONTINUED, ids=[f"sigstop-sigcont-{name}" for name in CONTINUED])
def test_a_process_that_is_stopped_for_a_while_and_continued_changes_nothing(
    processes: Processes, short_command: list[str], undisturbed: Undisturbed, watch: Watch, moment: str
) -> None:
    fault = fault_of(moment, "SIGSTOP")
    run, victim = start(processes, watch, short_command, fault)
    if fault.verb == "decoder":
        processes.wait_in(run, lambda: processes.fetcher.units_leased > 0, "leases")
    hold(processes, run, watch, [victim.pid])
    assert_as_undisturbed(processes, run, watch, undisturbed)
    assert processes.fetcher.decoders_lost == 0
    assert restarts(processes) == {}


def hold(processes: Processes, run: Process, watch: Watch, pids: list[int]) -> None:
    """Continue processes that were stopped, after HELD_S in which they did nothing."""
    processes.wait_in(run, lambda: all(is_stopped(pid) for pid in pids), "the stop")
    until_s = time.monotonic() + HELD_S
    processes.wait_in(run, watch.until(lambda: time.monotonic() > until_s), "the end of the pause")
    assert all(is_stopped(pid) for pid in pids)
    for pid in pids:
        kill(pid, signal.SIGCONT)


# ------------------------------------------------------------------ all at once


def start_and_stop_mid_unit(
    processes: Processes, watch: Watch, command: list[str], undisturbed: Undisturbed
) -> tuple[Process, list[int]]:
    """`icestream run` whose trainer is stopped between two microbatches of a unit, and the pids of its services."""
    run, victim = start(processes, watch, command, fault_of("trainer-mid-unit", "SIGSTOP"))
    at = json.loads(victim.told)
    microbatches = Counter(json.loads(line)["unit"] for line in undisturbed.audit)
    assert 0 < at["microbatch"] < microbatches[at["unit"]] - 1
    pids = [pid for verb in ("fetcher", "decoder", "trainer") for pid in processes.pids(verb)]
    assert len(pids) == 4
    return run, pids


def test_all_processes_killed_at_once_change_nothing(
    processes: Processes, short_command: list[str], undisturbed: Undisturbed, watch: Watch
) -> None:
    run, pids = start_and_stop_mid_unit(processes, watch, short_command, undisturbed)
    for pid in pids:
        kill(pid)
    assert_as_undisturbed(processes, run, watch, undisturbed)
    assert restarts(processes) == {"fetcher": 1, "decoder": 2, "trainer": 1}


def test_all_processes_stopped_at_once_and_continued_change_nothing(
    processes: Processes, short_command: list[str], undisturbed: Undisturbed, watch: Watch
) -> None:
    run, pids = start_and_stop_mid_unit(processes, watch, short_command, undisturbed)
    for pid in pids:
        kill(pid, signal.SIGSTOP)
    hold(processes, run, watch, pids)
    assert_as_undisturbed(processes, run, watch, undisturbed)
    assert restarts(processes) == {}


# ------------------------------------------------------------------ in other terminals, by hand


def start_by_hand(processes: Processes, command: list[str], fault: Fault) -> list[Process]:
    """Fetcher, two decoders and the trainer, each started on its own."""
    how = {"program": FAULTY_ICESTREAM, "environment": fault.environment(processes.logs)}
    return [
        processes.start("fetcher", *command, **how),
        *(processes.start("decoder", **how) for _ in range(2)),
        processes.start("trainer", **how),
    ]


def assert_ended_well(processes: Processes, watch: Watch, terminals: list[Process]) -> None:
    processes.wait_for(watch.until(lambda: all(process.ended() for process in terminals)), "the end of all")
    for process in terminals:
        assert process.popen.returncode == 0, f"{process.output_path.name}: {process.popen.returncode}"


BY_HAND = (
    ("decoder-after-writing-before-done", "SIGKILL"),
    ("decoder-decoding", "SIGSTOP"),
    ("trainer-between-checkpoint-write-and-rename", "SIGKILL"),
    ("fetcher-before-a-delivery", "SIGKILL"),
)


@pytest.mark.parametrize(
    ("moment", "number"), BY_HAND, ids=[f"{number.lower()}-{moment}" for moment, number in BY_HAND]
)
def test_a_victim_started_again_by_hand_in_another_terminal_changes_nothing(
    processes: Processes,
    short_command: list[str],
    undisturbed: Undisturbed,
    watch: Watch,
    moment: str,
    number: str,
) -> None:
    fault = fault_of(moment, number)
    impatient = [*short_command, *settings(f"fetcher.stall_timeout_s={STALL_TIMEOUT_S:g}")]
    terminals = start_by_hand(processes, impatient, fault)
    trainer = terminals[-1]
    met_by = await_fault(processes, watch, trainer if fault.verb != "trainer" else terminals[0])
    (victim,) = (process for process in terminals if process.pid == met_by.pid)
    processes.wait_for(watch.until(victim.ended), "the victim's end")  # a hung one is fenced
    assert victim.popen.returncode == -signal.SIGKILL
    others = [process for process in terminals if process is not victim]
    assert_ended_well(processes, watch, [*others, processes.start(fault.verb)])
    assert_same(processes, watch, undisturbed)


def test_all_killed_at_once_and_started_again_by_hand_change_nothing(
    processes: Processes, short_command: list[str], undisturbed: Undisturbed, watch: Watch
) -> None:
    terminals = start_by_hand(processes, short_command, fault_of("trainer-mid-unit", "SIGSTOP"))
    await_fault(processes, watch, terminals[0])
    processes.kill_all()
    for process in terminals:
        assert processes.finish(process) == -signal.SIGKILL
    again = [processes.start(verb) for verb in ("trainer", "decoder", "fetcher")]
    assert_ended_well(processes, watch, again)
    assert_same(processes, watch, undisturbed)
