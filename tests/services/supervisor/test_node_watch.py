"""Watch over other nodes: what their notes, or their silence, mean here."""

from __future__ import annotations

import pytest

from services.supervisor.nodes.node_watch import SILENCE_S, NodeEnding, NodeWatch
from services.supervisor.nodes.note import NodeNote


def note(node: int, beat: int = 0, **changes: object) -> NodeNote:
    first = NodeNote(
        attempt=3, token=f"token-{node}", node=node, nodes=3, host=f"host-{node}", pid=9, since="then", state="running"
    )
    return first.model_copy(update={"beat": beat, **changes})


class Clock:
    """A watch over nodes 1 and 2 that looks once a second."""

    def __init__(self) -> None:
        self.watch = NodeWatch({1: "token-1", 2: "token-2"})
        self.now_s = 100.0
        self.beat = 0

    def look(self, one: NodeNote | None, other: NodeNote | None, after_s: float = 1.0) -> NodeEnding | None:
        self.now_s += after_s
        return self.watch.look({1: one, 2: other}, self.now_s)

    def beats(self, seconds: int) -> None:
        for _ in range(seconds):
            self.beat += 1
            assert self.look(note(1, self.beat), note(2, self.beat)) is None


def test_nodes_that_beat_are_there() -> None:
    Clock().beats(100)


@pytest.mark.parametrize("last", [note(2, 5), None, note(2, 99, token="of a former start")])
def test_a_silent_node_is_lost_after_its_patience_and_not_before(last: NodeNote | None) -> None:
    clock = Clock()
    clock.beats(5)
    for second in range(int(SILENCE_S)):
        assert clock.look(note(1, 6 + second), last) is None
    ending = clock.look(note(1, 99), last)
    assert ending is not None
    assert ending.exit_code == 75
    assert ending.text.startswith("node 2")
    assert "silent for 10 s: its machine is lost, frozen or without the shared folder" in ending.text


def test_one_beat_ends_the_silence() -> None:
    clock = Clock()
    clock.beats(1)
    for beat in range(2, 8):
        for _ in range(int(SILENCE_S)):
            assert clock.look(note(1, beat), note(2, beat)) is None


def test_the_silence_of_all_means_nothing_while_this_process_stood_still() -> None:
    clock = Clock()
    clock.beats(3)
    assert clock.look(note(1, 3), note(2, 3), after_s=1000.0) is None
    clock.beats(3)


@pytest.mark.parametrize(("exit_code", "text"), [(75, "node 0 is gone"), (2, "no such file: demo"), (1, "a bug")])
def test_the_error_of_another_node_is_that_of_all(exit_code: int, text: str) -> None:
    clock = Clock()
    clock.beats(1)
    ended = note(2, 2, state="ended", exit_code=exit_code, text=text)
    assert clock.look(note(1, 2), ended) == NodeEnding(exit_code, f"node 2 on host-2: {text}")


def test_a_node_that_is_done_is_silent_for_ever() -> None:
    clock = Clock()
    clock.beats(1)
    for beat in range(2, 50):
        assert clock.look(note(1, beat), note(2, 2, state="ended")) is None


def test_trainers_stop_each_other_and_a_node_without_any_stops_after_its_patience() -> None:
    clock = Clock()
    clock.beats(1)
    stopped = note(2, 2, state="ended", exit_code=130)
    for beat in range(int(SILENCE_S)):
        assert clock.look(note(1, 2 + beat), stopped) is None
    assert clock.look(note(1, 99), stopped) == NodeEnding(130, "node 2 was stopped")


def test_a_mistake_of_the_user_comes_before_the_loss_that_it_caused() -> None:
    clock = Clock()
    clock.beats(1)
    lost = note(1, 2, state="ended", exit_code=75, text="node 2 is gone")
    wrong = note(2, 2, state="ended", exit_code=2, text="no such file")
    assert clock.look(lost, wrong) == NodeEnding(2, "node 2 on host-2: no such file")
