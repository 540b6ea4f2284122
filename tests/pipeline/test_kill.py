"""Promises 1, 2, 4 and 6: kill -9 or SIGSTOP of anything, at an exact instant of its work, changes nothing.

The faults have really happened, the audit, the weights and the counts are those of the run that nobody disturbed, no
process holds more memory than one arena, and nothing is left behind.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from pathlib import Path

import pytest
from faulty_services import LOSE_PATIENCE_VARIABLE, Fault, Met, environment, is_stopped, met
from runs import Process, Processes, kill, settings
from showers import Undisturbed

pytestmark = pytest.mark.slow

ARENA_BYTES = 3 << 20  # slots × slot_mib of SMALL_STREAM
HELD_S = 1.0
"""How long a process that is continued again was stopped."""


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
CONTINUED = ["trainer-before-its-first-step", "decoder-decoding", "fetcher-before-a-lease", "trainer-mid-unit"]


def start(processes: Processes, command: list[str], moments: list[str], number: str) -> Process:
    """`icestream run` whose processes meet the signal at these moments, one after the other."""
    faults = [Fault(verb, instant, number, nth) for verb, instant, nth in map(MOMENTS.__getitem__, moments)]
    patience = {LOSE_PATIENCE_VARIABLE: str(lost_patience(processes))}
    return processes.start("run", *command, environment=environment(faults, processes.logs) | patience)


def lost_patience(processes: Processes) -> Path:
    """File from which on the fetcher fences stopped decoders after two seconds."""
    return processes.logs / "lost-patience"


def await_fault(processes: Processes, run: Process, index: int = 0) -> Met:
    """Who met that fault."""
    return processes.wait_in(run, lambda: met(processes.logs, index), f"fault {index}")


def assert_as_undisturbed(processes: Processes, run: Process, undisturbed: Undisturbed) -> None:
    """The run goes on to its end, as if nothing had happened."""
    assert processes.finish(run) == 0, f"{run.output()}\n{processes.report()}"
    undisturbed.assert_same(processes)
    assert processes.summary()["exit_status"] == "finished"
    processes.summary().assert_read(undisturbed.summary["events_read"])
    processes.assert_nothing_is_left()


def restarts(processes: Processes) -> dict[str, int]:
    """Of the services that were started again."""
    return {verb: number for verb, number in processes.summary()["restarts"].items() if number}


@pytest.mark.parametrize("verb", VERBS)
def test_processes_killed_one_after_the_other_each_at_another_moment_change_nothing(
    processes: Processes, command: list[str], undisturbed: Undisturbed, verb: str
) -> None:
    moments = KILLED[verb]
    run = start(processes, command, moments, "SIGKILL")
    for index in range(len(moments)):
        victim = await_fault(processes, run, index)
        processes.wait_for(lambda pid=victim.pid: pid not in processes.pids(), "the victim's end")
        look_at_arenas(processes, ARENA_BYTES)
    assert_as_undisturbed(processes, run, undisturbed)
    # A fetcher that dies as it hears of the end is needed again only if the trainer has not ended before it.
    may_be_the_last = moments[-1] == "fetcher-hearing-that-all-is-trained"
    assert restarts(processes) in [{verb: len(moments)}, *([{verb: len(moments) - 1}] if may_be_the_last else [])]


def test_decoders_stopped_for_good_each_at_another_moment_are_fenced_and_change_nothing(
    processes: Processes, command: list[str], undisturbed: Undisturbed
) -> None:
    lost_patience(processes).touch()
    run = start(processes, command, HUNG, "SIGSTOP")
    victims = [await_fault(processes, run, index) for index in range(len(HUNG))]
    assert_as_undisturbed(processes, run, undisturbed)
    told = [line for line in processes.log("fetcher").splitlines() if " hangs in lease " in line]
    assert len(told) == len(victims)
    assert all(f"decoder {victim.pid}-" in line for victim, line in zip(victims, told, strict=True))
    assert processes.fetcher.decoders_lost == len(victims)
    assert restarts(processes) == {"decoder": len(victims)}


def test_processes_of_every_kind_stopped_for_a_while_and_continued_change_nothing(
    processes: Processes, command: list[str], undisturbed: Undisturbed
) -> None:
    run = start(processes, command, CONTINUED, "SIGSTOP")
    seen: set[str] = set()
    for index in range(len(CONTINUED)):
        pid = await_fault(processes, run, index).pid
        processes.wait_in(run, lambda pid=pid: is_stopped(pid), "the stop")
        seen |= look_at_arenas(processes, ARENA_BYTES)
        time.sleep(HELD_S)  # in which it does nothing
        assert is_stopped(pid)
        kill(pid, signal.SIGCONT)
    assert_as_undisturbed(processes, run, undisturbed)
    assert seen == set(VERBS), "the arena was seen in a process of each kind"
    assert processes.fetcher.decoders_lost == 0
    assert restarts(processes) == {}


# ------------------------------------------------------------------ everything, and the supervisor


def test_after_a_kill_of_the_supervisor_and_then_of_everything_the_same_command_goes_on(
    processes: Processes, command: list[str], undisturbed: Undisturbed
) -> None:
    run = processes.start_and_reach(5, command, before=undisturbed.steps)
    kill(run.pid)
    processes.assert_nothing_is_left()
    step = processes.checkpoint_step()
    assert 5 <= step < undisturbed.steps

    seldom = settings("trainer.checkpoint_every=20")
    # What was trained since the checkpoint comes to the disk a page at a time, not long before the end.
    run = processes.start("run", *command, *seldom, environment=processes.brake(40 - step))
    processes.wait_in(run, lambda: processes.checkpoint_step() >= 20, "a checkpoint")
    committed_bytes = processes.checkpoint()["audit_bytes"]["audit.jsonl"]
    audit = processes.run_dir / "audit.jsonl"
    processes.wait_in(run, lambda: audit.stat().st_size > committed_bytes, "what the checkpoint doesn't know of")
    processes.kill_all()
    processes.assert_nothing_is_left()
    step = processes.checkpoint_step()
    assert 20 <= step < undisturbed.steps

    processes.train(*command, *seldom)

    assert f"resumes from step-{step:09d}.pt: step {step}," in processes.log("trainer")
    undisturbed.assert_same(processes)


# ------------------------------------------------------------------ the arena's memory, seen from outside

_ARENA = "/memfd:icestream-arena"
_DESCRIPTORS = 2  # the arena's own, and the copy that Python's mmap keeps


def look_at_arenas(processes: Processes, arena_bytes: int) -> set[str]:
    """Look at each process of a run: it has one arena at most, of the size that was agreed on; who has one."""
    seen = set()
    for verb in VERBS:
        for pid in processes.pids(verb):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                if _has_one_arena(f"{verb} {pid}", Path(f"/proc/{pid}"), arena_bytes):
                    seen.add(verb)
    return seen


def _has_one_arena(who: str, process: Path, arena_bytes: int) -> bool:
    maps, before = _arena_maps(process), None
    while maps != before:  # it is read in pieces: one that went while another came would be seen beside it
        maps, before = _arena_maps(process), maps
    status = (process / "status").read_text()
    if not maps or re.search(r"^State:\s+[ZX]", status, re.M):
        return False
    bounds = [line.split()[0].split("-") for line in maps]
    mapped_bytes = [int(end, 16) - int(start, 16) for start, end in bounds]
    open_bytes = _open_arenas_bytes(process)
    assert mapped_bytes == [arena_bytes], f"{who} maps {mapped_bytes}"
    assert set(open_bytes) <= {arena_bytes}, f"{who} has open {open_bytes}"
    assert len(open_bytes) <= _DESCRIPTORS, f"{who} has open {open_bytes}"
    return True


def _arena_maps(process: Path) -> list[str]:
    return [line for line in (process / "maps").read_text().splitlines() if _ARENA in line]


def _open_arenas_bytes(process: Path) -> list[int]:
    """Sizes of the arenas behind a process's descriptors."""
    sizes = []
    for descriptor in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it is closed meanwhile
            if str(descriptor.readlink()).startswith(_ARENA):
                sizes.append(descriptor.stat().st_size)
    return sizes
