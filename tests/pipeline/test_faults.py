"""Promises 1, 2, 4 and 6 under a matrix of faults: each at an exact instant of a real process's work.

In each case the faults have really happened, the audit, the weights and the counts are those of the run that nobody
disturbed, the run ends, no process held more memory than one arena, and nothing is left behind.
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from faults import Fault, Met, environment, is_stopped, met
from faulty_services import LOSE_PATIENCE_VARIABLE
from runs import SMALL_STREAM, Process, Processes, kill, settings
from showers import Showers, Undisturbed
from watch import Watch

pytestmark = pytest.mark.slow

ARENA_BYTES = 3 << 20  # slots × slot_mib of SMALL_STREAM
GOES_ON_WITHIN_S = 45.0
"""Longest time without any progress after the fault: a wait for somebody who never comes lasts a minute."""
HELD_S = 1.0
"""How long a process that is continued again was stopped."""


@pytest.fixture(scope="module")
def short_command(showers: Showers) -> list[str]:
    """One epoch: 15 units, 57 steps of 105 events, which are 15 microbatches of 7."""
    return [*showers.input, *settings(*SMALL_STREAM, "stream.batch_events=100")]


@pytest.fixture(scope="module")
def undisturbed_epoch(short_command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("epoch")
    processes = Processes(folder / "run", folder)
    try:
        summary = processes.train(*short_command)
        assert summary["steps"] == 57
        return Undisturbed(summary, processes.audit(), processes.checkpoint())
    finally:
        processes.end()


@pytest.fixture
def watch(processes: Processes) -> Watch:
    return Watch(processes, ARENA_BYTES)


VERBS = ("decoder", "trainer", "fetcher")
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
"""Who, at which instant of its work, and at how many-th. Those of one verb in the order in which a run meets them."""

KILLED = {verb: [name for name, moment in MOMENTS.items() if moment[0] == verb] for verb in VERBS}
HUNG = KILLED["decoder"]
CONTINUED = {
    "decoder": HUNG,
    "trainer": [
        "trainer-before-its-first-step",
        "trainer-mid-unit",
        "trainer-between-checkpoint-write-and-rename",
    ],
    "fetcher": ["fetcher-before-a-lease", "fetcher-before-a-delivery"],
}


def fault_of(moment: str, number: str) -> Fault:
    verb, instant, nth = MOMENTS[moment]
    return Fault(verb, instant, number, nth)


def start(processes: Processes, command: list[str], moments: list[str], number: str) -> Process:
    """`icestream run` whose processes meet the signal at these moments, one after the other."""
    faults = [fault_of(moment, number) for moment in moments]
    return processes.start("run", *command, environment=environment_of(processes, faults))


def environment_of(processes: Processes, faults: list[Fault]) -> dict[str, str]:
    """Of processes that meet the faults."""
    return environment(faults, processes.logs) | {LOSE_PATIENCE_VARIABLE: str(lost_patience(processes))}


def lost_patience(processes: Processes) -> Path:
    """File from which on the fetcher fences stopped decoders after two seconds."""
    return processes.logs / "lost-patience"


def await_fault(processes: Processes, watch: Watch, run: Process, index: int = 0) -> Met:
    """Who met that fault."""
    return processes.wait_in(run, watch.until(lambda: met(processes.logs, index)), f"fault {index}")


def assert_as_undisturbed(processes: Processes, run: Process, watch: Watch, undisturbed: Undisturbed) -> None:
    """The run goes on to its end, as if nothing had happened."""
    seen, seen_s = None, time.monotonic()

    def ended() -> bool:
        nonlocal seen, seen_s
        now = (processes.checkpoint_step(), processes.pids())
        if now != seen:
            seen, seen_s = now, time.monotonic()
        assert time.monotonic() - seen_s < GOES_ON_WITHIN_S, processes.report()
        return run.ended()

    processes.wait_for(watch.until(ended), "the end of the run")
    assert run.popen.returncode == 0, f"{run.output()}\n{processes.report()}"
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


@pytest.mark.parametrize("verb", VERBS)
def test_processes_killed_one_after_the_other_each_at_another_moment_change_nothing(
    processes: Processes, command: list[str], undisturbed: Undisturbed, watch: Watch, verb: str
) -> None:
    moments = KILLED[verb]
    run = start(processes, command, moments, "SIGKILL")
    for index in range(len(moments)):
        victim = await_fault(processes, watch, run, index)
        processes.wait_for(lambda pid=victim.pid: pid not in processes.pids(), "the victim's end")
    assert_as_undisturbed(processes, run, watch, undisturbed)
    # A fetcher that dies as it hears of the end is needed again only if the trainer has not ended before it.
    may_be_the_last = moments[-1] == "fetcher-hearing-that-all-is-trained"
    assert restarts(processes) in [{verb: len(moments)}, *([{verb: len(moments) - 1}] if may_be_the_last else [])]


def test_decoders_stopped_for_good_each_at_another_moment_are_fenced_and_change_nothing(
    processes: Processes, command: list[str], undisturbed: Undisturbed, watch: Watch
) -> None:
    lost_patience(processes).touch()
    run = start(processes, command, HUNG, "SIGSTOP")
    victims = [await_fault(processes, watch, run, index) for index in range(len(HUNG))]
    assert_as_undisturbed(processes, run, watch, undisturbed)
    told = [line for line in processes.log("fetcher").splitlines() if " hangs in lease " in line]
    assert len(told) == len(victims)
    assert all(f"decoder {victim.pid}-" in line for victim, line in zip(victims, told, strict=True))
    assert processes.fetcher.decoders_lost == len(victims)
    assert restarts(processes) == {"decoder": len(victims)}


@pytest.mark.parametrize("verb", VERBS)
def test_processes_stopped_for_a_while_at_several_moments_and_continued_change_nothing(
    processes: Processes, command: list[str], undisturbed: Undisturbed, watch: Watch, verb: str
) -> None:
    moments = CONTINUED[verb]
    run = start(processes, command, moments, "SIGSTOP")
    for index in range(len(moments)):
        victim = await_fault(processes, watch, run, index)
        if verb == "decoder":
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
    processes: Processes, watch: Watch, command: list[str], undisturbed_epoch: Undisturbed
) -> tuple[Process, list[int]]:
    """`icestream run` whose trainer is stopped between two microbatches of a unit, and the pids of its services."""
    run = start(processes, command, ["trainer-mid-unit"], "SIGSTOP")
    victim = await_fault(processes, watch, run)
    at = json.loads(victim.told)
    microbatches = Counter(json.loads(line)["unit"] for line in undisturbed_epoch.audit)
    assert 0 < at["microbatch"] < microbatches[at["unit"]] - 1
    pids = [pid for verb in ("fetcher", "decoder", "trainer") for pid in processes.pids(verb)]
    assert len(pids) == 4
    return run, pids


def test_all_processes_killed_at_once_change_nothing(
    processes: Processes, short_command: list[str], undisturbed_epoch: Undisturbed, watch: Watch
) -> None:
    run, pids = start_and_stop_mid_unit(processes, watch, short_command, undisturbed_epoch)
    for pid in pids:
        kill(pid)
    assert_as_undisturbed(processes, run, watch, undisturbed_epoch)
    assert restarts(processes) == {"fetcher": 1, "decoder": 2, "trainer": 1}


def test_all_processes_stopped_at_once_and_continued_change_nothing(
    processes: Processes, short_command: list[str], undisturbed_epoch: Undisturbed, watch: Watch
) -> None:
    run, pids = start_and_stop_mid_unit(processes, watch, short_command, undisturbed_epoch)
    for pid in pids:
        kill(pid, signal.SIGSTOP)
    hold(processes, run, watch, pids)
    assert_as_undisturbed(processes, run, watch, undisturbed_epoch)
    assert restarts(processes) == {}


# ------------------------------------------------------------------ in other terminals, by hand


def start_by_hand(processes: Processes, command: list[str], fault: Fault) -> list[Process]:
    """Fetcher, two decoders and the trainer, each started on its own."""
    how = {"environment": environment_of(processes, [fault])}
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
    undisturbed_epoch: Undisturbed,
    watch: Watch,
    moment: str,
    number: str,
) -> None:
    fault = fault_of(moment, number)
    lost_patience(processes).touch()
    terminals = start_by_hand(processes, short_command, fault)
    trainer = terminals[-1]
    met_by = await_fault(processes, watch, trainer if fault.verb != "trainer" else terminals[0])
    (victim,) = (process for process in terminals if process.pid == met_by.pid)
    processes.wait_for(watch.until(victim.ended), "the victim's end")  # a hung one is fenced
    assert victim.popen.returncode == -signal.SIGKILL
    others = [process for process in terminals if process is not victim]
    assert_ended_well(processes, watch, [*others, processes.start(fault.verb)])
    assert_same(processes, watch, undisturbed_epoch)


def test_all_killed_at_once_and_started_again_by_hand_change_nothing(
    processes: Processes, short_command: list[str], undisturbed_epoch: Undisturbed, watch: Watch
) -> None:
    terminals = start_by_hand(processes, short_command, fault_of("trainer-mid-unit", "SIGSTOP"))
    await_fault(processes, watch, terminals[0])
    processes.kill_all()
    for process in terminals:
        assert processes.finish(process) == -signal.SIGKILL
    again = [processes.start(verb) for verb in ("trainer", "decoder", "fetcher")]
    assert_ended_well(processes, watch, again)
    assert_same(processes, watch, undisturbed_epoch)
