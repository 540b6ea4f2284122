"""Decoders that leave, and `--decoders auto`, with stand-ins for the processes (stand_ins.py)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from stand_ins import CTRL_C, EVERYONE, Stage, Story, started, started_times

from common.status import FetcherStatus
from common.status_files import write_status

pytestmark = pytest.mark.process


def test_a_decoder_may_leave(stage: Stage) -> None:
    stage.behaviours = {"decoder-0": "leaves once"}
    stage.script = [
        (started(*EVERYONE), lambda: None),
        (lambda story: "decoder-0" not in stage.processes.pids, CTRL_C),
    ]
    assert sum(stage.run().restarts.values()) == 0


@pytest.mark.parametrize("name", ["fetcher", "decoder-0"])
def test_the_fetcher_and_the_last_decoder_may_not_leave(stage: Stage, name: str) -> None:
    stage.behaviours = {name: "leaves once"}
    stage.script = [(started_times(name, 2), lambda: None), (started("fetcher", "decoder-0", "trainer"), CTRL_C)]
    assert sum(stage.run(decoders=1).restarts.values()) == 1


def test_the_last_decoder_may_leave_after_a_fetcher_that_has_finished(stage: Stage) -> None:
    stage.behaviours = dict.fromkeys(("fetcher", "decoder-0", "decoder-1"), "follows")
    stage.script = [
        (started(*EVERYONE), (stage.run_dir / "trainer.done").touch),
        (lambda story: list(stage.processes.pids) == ["trainer"], CTRL_C),
    ]
    assert sum(stage.run().restarts.values()) == 0


ONE_OF_EACH = started("fetcher", "decoder-0", "trainer")


def looks(times: int) -> list[tuple[Callable[[Story], bool], Callable[[], None]]]:
    """Script: let the supervisor look at the run so often."""
    return [(lambda story: True, lambda: None)] * times


def test_auto_begins_with_one_decoder_and_starts_as_many_as_are_wanted(stage: Stage) -> None:
    stage.script = [
        (ONE_OF_EACH, lambda: stage.tell_wanted(1, "decoder-0")),
        *looks(3),
        (lambda story: len(stage.processes.pids) == 3, lambda: stage.tell_wanted(3, "decoder-0")),
        (started("decoder-1", "decoder-2"), lambda: None),
        *looks(3),  # both are on their way: no other is started
        (lambda story: True, CTRL_C),
    ]
    outcome = stage.run(decoders="auto")
    assert stage.seen == {"fetcher", "trainer", "decoder-0", "decoder-1", "decoder-2"}
    assert outcome.restarts["decoder"] == 0
    assert sorted(name for name, what in stage.story() if what == "SIGTERM" and "decoder" in name) == [
        *("decoder-0", "decoder-1", "decoder-2")
    ]


def test_auto_counts_a_decoder_that_somebody_else_started(stage: Stage) -> None:
    def joined_by_hand() -> None:
        pids = (stage.processes.pids["decoder-0"], 1)
        fetcher = stage.processes.pids["fetcher"]
        write_status(stage.run_dir, "fetcher", FetcherStatus(pid=fetcher, decoders_wanted=2, decoder_pids=pids))

    stage.script = [(ONE_OF_EACH, joined_by_hand), *looks(5), (lambda story: True, CTRL_C)]
    stage.run(decoders="auto")
    assert "decoder-1" not in stage.seen


def test_auto_takes_a_retired_decoder_as_left_and_starts_it_again_when_it_is_wanted(stage: Stage) -> None:
    stage.behaviours = {"decoder-1": "leaves when told"}
    leave = stage.run_dir / "decoder-1.leave"
    stage.script = [
        (ONE_OF_EACH, lambda: stage.tell_wanted(2, "decoder-0")),
        (started("decoder-1"), lambda: stage.tell_wanted(1, "decoder-0")),
        (lambda story: True, leave.touch),
        (lambda story: "decoder-1 left" in stage.said, lambda: None),
        *looks(3),
        (lambda story: "decoder-1" not in stage.processes.pids, lambda: stage.tell_wanted(2, "decoder-0")),
        (started_times("decoder-1", 2), CTRL_C),
    ]
    assert stage.run(decoders="auto").restarts["decoder"] == 0
    assert stage.said.count("decoder-1 left") == 1


def test_auto_starts_a_killed_decoder_again_and_no_other_in_its_place(stage: Stage) -> None:
    stage.script = [
        (ONE_OF_EACH, lambda: stage.tell_wanted(1, "decoder-0")),
        (lambda story: True, lambda: os.kill(stage.processes.pids["decoder-0"], signal.SIGKILL)),
        (started_times("decoder-0", 2), lambda: None),
        *looks(3),
        (lambda story: True, CTRL_C),
    ]
    assert stage.run(decoders="auto").restarts["decoder"] == 1
    assert "decoder-1" not in stage.seen


def test_auto_starts_no_other_while_a_killed_decoder_pauses_before_its_restart(stage: Stage) -> None:
    stage.script = [
        (ONE_OF_EACH, lambda: os.kill(stage.processes.pids["decoder-0"], signal.SIGKILL)),
        (lambda story: "decoder-0" not in stage.processes.pids, lambda: stage.tell_wanted(1)),
        *looks(3),
        (lambda story: True, CTRL_C),
    ]
    stage.run(decoders="auto", restart_s=300)
    assert "decoder-1" not in stage.seen


def test_auto_does_not_bring_back_who_left_only_because_the_trainer_is_started_again(stage: Stage) -> None:
    stage.behaviours = {"decoder-1": "leaves when told"}
    stage.script = [
        (ONE_OF_EACH, lambda: stage.tell_wanted(2, "decoder-0")),
        (started("decoder-1"), lambda: stage.tell_wanted(1, "decoder-0")),
        (lambda story: True, (stage.run_dir / "decoder-1.leave").touch),
        (
            lambda story: "decoder-1 left" in stage.said,
            lambda: os.kill(stage.processes.pids["trainer"], signal.SIGKILL),
        ),
        (started_times("trainer", 2), lambda: None),
        *looks(3),
        (lambda story: True, CTRL_C),
    ]
    stage.run(decoders="auto")
    assert stage.story().count(("decoder-1", "started")) == 1


def test_what_a_former_fetcher_wanted_starts_nobody(stage: Stage) -> None:
    write_status(stage.run_dir, "fetcher", FetcherStatus(pid=1, decoders_wanted=5))
    stage.script = [(ONE_OF_EACH, lambda: None), *looks(5), (lambda story: True, CTRL_C)]
    stage.run(decoders="auto")
    assert "decoder-1" not in stage.seen


def test_a_fixed_number_of_decoders_stays_fixed(stage: Stage) -> None:
    stage.script = [
        (started(*EVERYONE), lambda: stage.tell_wanted(5, "decoder-0")),
        *looks(5),
        (lambda story: True, CTRL_C),
    ]
    stage.run(decoders=2)
    assert "decoder-2" not in stage.seen
