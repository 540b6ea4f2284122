"""Meeting of nodes: whatever lies in the folder, and whoever dies or comes late, those that run are of one attempt."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest
from proc import wait_for

from common.errors import BadInputError, TryAgainError
from common.locks import RunAttempt, begin_attempt
from common.transport import StopRequested
from services.supervisor import meeting as module
from services.supervisor.meeting import Meeting, NodeNote, NodePlace, read_note

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL_S", 0.001)


def note(attempt: int, nodes: int, **changes: object) -> NodeNote:
    of_all = {"host": "gpu-a", "pid": 7, "since": "today", "run_dir": "/local", "settings": "s", "build": "b"}
    return NodeNote(
        attempt=attempt, state="gathering", launch="x", port="", nodes=nodes, used=nodes, **of_all
    ).model_copy(update=changes)


class Node(threading.Thread):
    """One node of a start, until it runs, is stopped, or gives up."""

    def __init__(self, shared: Path, node: int, nodes: int, delay_s: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.node, self.nodes, self.shared, self.delay_s = node, nodes, shared, delay_s
        self.stop = False
        self.attempt: RunAttempt | None = None
        self.ran = False
        self.error: BaseException | None = None
        place = NodePlace(node, nodes, 0, 1, "gpu-a", "x", keeps_port=True)
        self.meeting = Meeting(place, shared, lambda: self.stop, lambda text: None)
        self.start()

    def run(self) -> None:
        try:
            time.sleep(self.delay_s)
            if self.node == 0:
                self.attempt = begin_attempt(self.shared)
                self.meeting.gather(self.attempt, note(self.attempt.number, self.nodes))
            else:
                self.attempt = self.meeting.join(self.nodes, lambda note: None)
            self.ran = True
        except (StopRequested, TryAgainError, BadInputError) as error:
            self.error = error


@pytest.mark.parametrize("seed", range(20))
def test_nodes_of_one_start_run_in_the_same_attempt_whatever_former_starts_have_left(tmp_path: Path, seed: int) -> None:
    """Of each former start some nodes die, at any moment; torchrun ends all others before the next one."""
    draw = random.Random(seed)
    nodes = draw.randint(2, 4)
    for _ in range(draw.randint(0, 3)):
        there = draw.sample(range(nodes), draw.randint(1, nodes))
        former = [Node(tmp_path, node, nodes, draw.uniform(0, 0.02)) for node in there]
        time.sleep(draw.uniform(0, 0.04))
        for one in former:
            one.stop = True
        for one in former:
            one.join(PATIENCE_S)
            assert not one.is_alive()
        nodes = max(2, nodes + draw.randint(-1, 1))
    started = [Node(tmp_path, node, nodes, draw.uniform(0, 0.02)) for node in draw.sample(range(nodes), nodes)]
    for one in started:
        one.join(PATIENCE_S)
        assert one.ran, one.error
    assert len({one.attempt for one in started}) == 1
    newest = read_note(tmp_path)
    assert newest is not None
    assert (newest.attempt, newest.state) == (started[0].attempt.number, "running")  # type: ignore[union-attr]


def test_nobody_runs_before_all_are_there(tmp_path: Path) -> None:
    first, second = Node(tmp_path, 0, 3), Node(tmp_path, 1, 3)
    time.sleep(0.1)
    assert not first.ran
    assert not second.ran
    third = Node(tmp_path, 2, 3)
    for one in (first, second, third):
        one.join(PATIENCE_S)
        assert one.ran


def test_a_node_that_did_not_come_is_named_at_the_end_of_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.Meeting.gather.__globals__["Meeting"]._turns, "__defaults__", (0.05,))
    first = Node(tmp_path, 0, 3)
    first.join(PATIENCE_S)
    assert str(first.error) == "node 1, 2 did not come for 0.05 s"


def test_an_end_of_node_0_is_told_to_those_that_wait(tmp_path: Path) -> None:
    attempt = begin_attempt(tmp_path)
    meeting = Meeting(NodePlace(0, 2, 0, 1, "gpu-a", "x"), tmp_path, lambda: False, lambda text: None)
    meeting.tell(attempt, note(attempt.number, 2))
    second = Node(tmp_path, 1, 2)
    wait_for((tmp_path / "nodes" / "1").exists, "the second node")
    meeting.tell(attempt, note(attempt.number, 2, state="ended", exit_code=2, text="no such file"))
    second.join(PATIENCE_S)
    assert isinstance(second.error, BadInputError), "its torchrun ends, too"
    assert str(second.error).endswith(": no such file")
    late = Meeting(NodePlace(1, 2, 0, 1, "gpu-a", "x"), tmp_path, lambda: False, lambda text: None)
    with pytest.raises(BadInputError, match="no such file"):
        late.join(2, lambda note: None)


def test_an_end_that_was_told_at_a_former_start_is_not_believed(tmp_path: Path) -> None:
    """The user has mended the mistake, and gives the launch the same name."""
    attempt = begin_attempt(tmp_path)
    first = Meeting(NodePlace(0, 2, 0, 1, "gpu-a", "x"), tmp_path, lambda: False, lambda text: None)
    for how in ({"port": "7"}, {"keeps_port": True}):
        place = NodePlace(1, 2, 0, 1, "gpu-a", "x", **how)  # type: ignore[arg-type]
        first.tell(attempt, note(attempt.number, 2, state="ended", exit_code=2, text="no such file"))
        waits = iter((False, False, True))
        with pytest.raises(StopRequested):
            Meeting(place, tmp_path, lambda waits=waits: next(waits), lambda text: None).join(2, lambda note: None)


def test_a_node_with_other_settings_is_told_so_and_tells_node_0(tmp_path: Path) -> None:
    first = Node(tmp_path, 0, 2)
    second = Meeting(NodePlace(1, 2, 0, 1, "gpu-a", "x"), tmp_path, lambda: False, lambda text: None)
    with pytest.raises(BadInputError, match="1 nodes can share the shards by the settings of this one, but 2 by"):
        second.join(1, lambda note: None)
    first.join(PATIENCE_S)
    assert str(first.error).startswith("node 1: 1 nodes can share the shards by the settings of this one")


def test_a_spare_node_gives_up_a_node_0_that_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.5)
    monkeypatch.setattr(module, "BEAT_S", 0.01)
    attempt, ended = begin_attempt(tmp_path), threading.Event()
    meeting = Meeting(NodePlace(0, 2, 0, 1, "gpu-a", "x"), tmp_path, lambda: False, lambda text: None)
    meeting.tell(attempt, note(attempt.number, 2, state="running"))
    beat = threading.Thread(target=meeting.beat, args=(ended,))
    beat.start()
    found: list[str] = []

    def wait() -> None:
        with pytest.raises(TryAgainError) as error:
            meeting.until_the_end(attempt)
        found.append(str(error.value))

    spare = threading.Thread(target=wait)
    spare.start()
    spare.join(1.5)
    assert spare.is_alive(), "node 0 beats"
    ended.set()
    spare.join(PATIENCE_S)
    beat.join(PATIENCE_S)
    assert found == ["node 0 has been silent for 0.5 s"]


def test_a_spare_node_waits_for_the_end_of_its_attempt(tmp_path: Path) -> None:
    attempt = begin_attempt(tmp_path)
    meeting = Meeting(NodePlace(0, 2, 0, 1, "gpu-a", "x"), tmp_path, lambda: False, lambda text: None)
    meeting.tell(attempt, note(attempt.number, 2, state="ended", exit_code=130))
    assert meeting.until_the_end(attempt).exit_code == 130
    begin_attempt(tmp_path)
    with pytest.raises(TryAgainError, match="attempt 2 has begun"):
        meeting.until_the_end(attempt)
    with pytest.raises(TryAgainError, match="attempt 2 has begun"):
        meeting.tell(attempt, note(attempt.number, 2))
