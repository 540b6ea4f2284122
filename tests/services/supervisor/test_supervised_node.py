"""One of several nodes under the supervisor, with stand-ins for the processes (stand_ins.py)."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from stand_ins import CTRL_C, EVERYONE, Stage, started

from common.attempt import RunAttempt
from services.supervisor.trainer_group import NodeGroup

pytestmark = pytest.mark.process

GROUP = (*EVERYONE, "trainer-1")


class FakeNode:
    """Second of two nodes, which ends when it is told to."""

    def __init__(self, folder: Path) -> None:
        self.group = NodeGroup(2, 1, 2, "node-0", 29500, RunAttempt(folder, 3), end_s=0.05)
        self.reason: tuple[int, str] | None = None
        self.exit_code = 75

    @property
    def environment(self) -> Mapping[str, str]:
        return self.group.attempt.environment

    def ending(self) -> tuple[int, str] | None:
        return self.reason

    def end_after_trainers(self, exit_code: int, how: str, error: str) -> tuple[int, str]:
        return self.exit_code, how


@pytest.fixture
def node(stage: Stage, tmp_path: Path) -> FakeNode:
    node = FakeNode(tmp_path)
    stage.node = node
    return node


def test_its_trainers_are_ranks_of_all_nodes_and_all_processes_know_the_attempt(stage: Stage, node: FakeNode) -> None:
    stage.behaviours = dict.fromkeys(("trainer", "trainer-1"), "shows its place among nodes") | {
        "fetcher": "shows its attempt"
    }

    def told(story: list[tuple[str, str]]) -> bool:
        return len([what for _, what in story if "_" in what]) == 3

    stage.script = [(told, CTRL_C)]
    stage.run(trainers=2)
    assert {("trainer", "2_4_0_29500_3"), ("trainer-1", "3_4_1_29500_3"), ("fetcher", "_3")} <= set(stage.story())


def test_a_trainer_that_dies_ends_the_node_and_is_not_started_again(stage: Stage, node: FakeNode) -> None:
    stage.script = [(started(*GROUP), lambda: os.kill(stage.processes.pids["trainer-1"], signal.SIGKILL))]
    outcome = stage.run(trainers=2)
    assert (outcome.exit_status, outcome.exit_code) == ("failed", 75)
    assert outcome.error is not None
    assert outcome.error.endswith("was killed by SIGKILL")
    assert outcome.restarts["trainer"] == 0
    assert ("trainer", "SIGTERM") not in stage.story(), "nothing can be saved without the others"


def test_a_trainer_that_fails_in_each_start_ends_them(stage: Stage, node: FakeNode) -> None:
    node.exit_code = 1
    stage.script = [(started(*GROUP), lambda: os.kill(stage.processes.pids["trainer"], signal.SIGKILL))]
    outcome = stage.run(trainers=2)
    assert (outcome.exit_status, outcome.exit_code) == ("failed", 1)
    assert outcome.error == "trainer was killed by SIGKILL"


def test_a_decoder_that_dies_is_started_again(stage: Stage, node: FakeNode) -> None:
    stage.behaviours = {"decoder-0": "crashes once"}
    stage.script = [(lambda story: story.count(("decoder-0", "started")) == 2, CTRL_C)]
    assert stage.run().restarts["decoder"] == 1


@pytest.mark.parametrize("exit_code", [75, 2, 1])
def test_it_ends_with_the_error_of_another_node(stage: Stage, node: FakeNode, exit_code: int) -> None:
    stage.script = [(started(*GROUP), lambda: setattr(node, "reason", (exit_code, "node 0 on gpu-a: a reason")))]
    outcome = stage.run(trainers=2)
    assert (outcome.exit_code, outcome.error) == (exit_code, "node 0 on gpu-a: a reason")
    assert (("trainer", "SIGTERM") in stage.story()) is (exit_code != 75)


def test_it_ends_in_time_though_its_processes_are_stubborn(
    stage: Stage, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.supervisor.supervisor.NODE_END_S", 0.05)
    stage.behaviours = dict.fromkeys(GROUP, "stubborn")
    stage.script = [(started(*GROUP), lambda: setattr(node, "reason", (75, "node 0 is lost")))]
    assert stage.run(trainers=2).exit_code == 75  # and not after PATIENCE_S


def test_it_stops_as_if_asked_to_when_another_node_was_stopped(stage: Stage, node: FakeNode) -> None:
    stage.script = [(started(*GROUP), lambda: setattr(node, "reason", (130, "node 0 was stopped")))]
    outcome = stage.run(trainers=2)
    assert (outcome.exit_status, outcome.exit_code) == ("interrupted", 130)
    assert ("trainer", "SIGTERM") in stage.story()


def test_a_stop_waits_for_no_trainer_when_another_node_is_lost_meanwhile(stage: Stage, node: FakeNode) -> None:
    stage.behaviours = {"trainer": "stubborn"}
    lost = (75, "node 0 is lost")
    stage.script = [
        (started(*EVERYONE), CTRL_C),
        (lambda story: ("trainer", "SIGTERM") in story, lambda: setattr(node, "reason", lost)),
    ]
    outcome = stage.run()  # its timeout is the test's patience
    assert (outcome.exit_status, outcome.exit_code) == ("interrupted", 130)
