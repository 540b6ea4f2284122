"""Meeting of nodes, each a thread of this process."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
from federation.free_ports import free_port

from common.errors import BadInputError, TryAgainError
from common.locks import RunAttempt, begin_attempt, newest_number
from common.transport import StopRequested
from services.supervisor.nodes import beats as beats_module
from services.supervisor.nodes import meeting as module
from services.supervisor.nodes.beats import Beats
from services.supervisor.nodes.master import Master
from services.supervisor.nodes.meeting import LivingNode, NodePlace, find_attempt, gather, join, lock_shared
from services.supervisor.nodes.note import NodeNote
from services.supervisor.nodes.notes import read_note, write_note

BOUND_S = 30.0
Meet = Callable[..., "Future[Any]"]


@pytest.fixture(autouse=True)
def haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beats_module, "BEAT_S", 0.01)
    monkeypatch.setattr(module, "_POLL_S", 0.005)
    monkeypatch.setattr(module, "SILENCE_S", 1.0)
    monkeypatch.setattr(module, "SHARED_S", 1.0)


@pytest.fixture
def place(tmp_path: Path) -> NodePlace:
    return NodePlace(0, 2, tmp_path, Master("127.0.0.1", free_port()), BOUND_S, lambda: False, lambda text: None)


@pytest.fixture
def meet() -> Iterator[Meet]:
    """Call a function in a thread; what it returns is closed at the end."""
    with ThreadPoolExecutor(8) as pool:
        futures: list[Future[Any]] = []

        def submit(function: Callable[..., object], *arguments: object) -> Future[Any]:
            futures.append(pool.submit(function, *arguments))
            return futures[-1]

        yield submit
        for future in futures:
            if future.exception(BOUND_S) is None and isinstance(future.result(), tuple):
                future.result()[1].close(0, "")


def comes_true(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def has_ending(beats: Beats) -> bool:
    return beats.ending is not None


def come(place: NodePlace, check: Callable[[], None] = lambda: None) -> object:
    return join(place, find_attempt(place), check)


def at(place: NodePlace, node: int) -> NodePlace:
    return replace(place, node=node)


class Clock:
    """Clock of the meeting: it moves by what is slept, and ``turn`` happens meanwhile."""

    strftime, gmtime = time.strftime, time.gmtime

    def __init__(self) -> None:
        self.now_s = 0.0
        self.turn: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.turn()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "_POLL_S", 0.2)
    return clock


def beating(place: NodePlace, note: NodeNote) -> Callable[[], None]:
    """Function that writes the next beat of a note."""
    beats = itertools.count(note.beat)
    return lambda: write_note(place.shared, note.model_copy(update={"beat": next(beats)}))


def nothing(attempt: RunAttempt) -> tuple[str, str]:
    """A node 0 whose settings are right."""
    return "", ""


def refuse(*_: RunAttempt) -> NoReturn:
    raise BadInputError("stream.seed = 2, but node 0 has 1")


@pytest.mark.parametrize("first_comes_late", [False, True])
def test_all_nodes_meet_in_one_attempt(place: NodePlace, meet: Meet, first_comes_late: bool) -> None:
    place = replace(place, nodes=3)
    begin_attempt(place.shared)
    starts: list[tuple[Any, ...]] = [(gather, place, nothing), (come, at(place, 1)), (come, at(place, 2))]
    futures = [meet(*start) for start in (reversed(starts) if first_comes_late else starts)]
    attempts = {future.result(BOUND_S)[0].number for future in futures}
    assert attempts == {2} == {newest_number(place.shared)}
    note = read_note(place.shared, 0)
    assert note is not None
    assert len(set(note.accepted)) == 3


def test_a_node_alone_waits_for_nobody(place: NodePlace) -> None:
    attempt, beats = gather(replace(place, nodes=1), nothing)
    beats.close(0, "")
    assert attempt.number == 1
    assert LivingNode(place.shared, 0).look() is None


def test_a_mistake_of_one_node_is_the_end_of_all(place: NodePlace, meet: Meet) -> None:
    place = replace(place, nodes=3)
    first = meet(gather, place, nothing)
    right, wrong = meet(come, at(place, 2)), meet(come, at(place, 1), refuse)
    with pytest.raises(BadInputError, match=r"^stream.seed = 2"):
        wrong.result(BOUND_S)
    for other in (first, right):
        with pytest.raises(BadInputError, match=r"node [01] on .*: .*stream.seed = 2, but node 0 has 1"):
            other.result(BOUND_S)


@pytest.mark.parametrize(
    ("state", "exit_code", "kind", "told"),
    [
        ("starting", 2, BadInputError, r"^node 0 on .*: stream.seed = 2"),
        ("gathering", 2, BadInputError, r"^node 0 on .*: stream.seed = 2"),
        ("gathering", 75, TryAgainError, "did not come"),
        ("running", 2, TryAgainError, "did not come"),
    ],
)
def test_a_mistake_is_the_end_of_a_node_that_has_not_seen_node_0_beat(
    place: NodePlace, clock: Clock, state: str, exit_code: int, kind: type[Exception], told: str
) -> None:
    """The attempt began before this node looked. A former start, which is just ending, is not its own."""
    note = place.note(begin_attempt(place.shared).number).model_copy(update={"state": state})
    write_note(place.shared, note)
    ended = note.model_copy(update={"beat": 1, "state": "ended", "exit_code": exit_code, "text": "stream.seed = 2"})
    clock.turn = lambda: write_note(place.shared, ended)
    with pytest.raises(kind, match=told):
        find_attempt(at(place, 1))


def test_a_mistake_of_node_0_is_the_end_of_all(place: NodePlace, meet: Meet) -> None:
    waits = threading.Event()

    def is_asked() -> bool:
        waits.set()
        return False

    other = meet(come, replace(place, node=1, stopped=is_asked))
    assert waits.wait(BOUND_S)
    with pytest.raises(BadInputError, match=r"^stream.seed = 2"):
        gather(place, refuse)
    with pytest.raises(BadInputError, match=r"node 0 on .*: stream.seed = 2"):
        other.result(BOUND_S)


def test_the_others_numbers_have_to_be_the_same(place: NodePlace, meet: Meet) -> None:
    stopped = threading.Event()
    first = meet(gather, replace(place, stopped=stopped.is_set), nothing)
    with pytest.raises(BadInputError, match=r"--nodes 4, but node 0 on .* was started with --nodes 2"):
        find_attempt(replace(place, node=1, nodes=4))
    stopped.set()
    assert isinstance(first.exception(BOUND_S), StopRequested)


def test_two_nodes_of_one_number_are_refused(place: NodePlace, meet: Meet) -> None:
    place = replace(place, nodes=3)
    meet(gather, place, nothing)
    twins = [meet(come, at(place, 1)) for _ in range(2)]
    comes_true(lambda: newest_number(place.shared) > 0)
    meet(come, at(place, 2))
    errors = [twin.exception(BOUND_S) for twin in twins]
    assert sum(error is None for error in errors) == 1, errors
    (error,) = filter(None, errors)
    assert isinstance(error, BadInputError | TryAgainError)


@pytest.mark.parametrize("lives", [True, False])
def test_a_node_that_was_started_in_the_place_of_a_lost_one_is_no_second_one(
    place: NodePlace, clock: Clock, lives: bool
) -> None:
    """Node 0 ran with the former one before it saw this one. Exit code 2 would end the engine's run."""
    other = at(place, 1)
    first, former = place.note(1), other.note(1)
    running = first.model_copy(update={"state": "running", "accepted": (first.token, former.token)})
    write_note(place.shared, first)
    goes_on, former_goes_on = beating(place, running), beating(place, former)

    def turn() -> None:
        goes_on()
        if lives:
            former_goes_on()

    clock.turn = turn
    kind = BadInputError if lives else TryAgainError
    told = r"--node 1: node 1 on .* has this number, too" if lives else "the node 1 that node 0 began with is gone"
    with pytest.raises(kind, match=told):
        join(other, first, lambda: None)


def test_a_node_that_does_not_come_is_named(place: NodePlace) -> None:
    with pytest.raises(TryAgainError, match=r"node 1, 2 of 3 did not come for 0 s"):
        gather(replace(place, nodes=3, patience_s=0.0), nothing)
    note = read_note(place.shared, 0)
    assert note is not None
    assert (note.state, note.exit_code) == ("ended", 75)


def test_the_note_of_a_dead_node_is_no_invitation(place: NodePlace, meet: Meet) -> None:
    write_note(place.shared, place.note(7))
    with pytest.raises(TryAgainError, match=r"^node 0 \(all meet in .*\) did not come"):
        find_attempt(replace(place, node=1, patience_s=0.1))
    other = meet(come, at(place, 1))
    attempt, beats = gather(place, nothing)
    assert other.result(BOUND_S)[0] == attempt
    beats.close(0, "")


def test_a_folder_that_node_0_does_not_see_is_named(place: NodePlace, tmp_path: Path, clock: Clock) -> None:
    with place.master.listen(0), pytest.raises(BadInputError, match="--shared must be one folder that all nodes see"):
        find_attempt(replace(place, node=1, shared=tmp_path / "another"))


def test_a_second_run_in_the_folder_is_refused_on_every_node(
    place: NodePlace, meet: Meet, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = lock_shared(place)
    assert lock is not None
    try:
        others = meet(come, at(place, 1))
        _, beats = gather(place, nothing)
        others.result(BOUND_S)
        monkeypatch.setattr(module, "SHARED_S", 0.0)
        with pytest.raises(BadInputError, match=r"in use by node 0 on .*; stop it, or choose another --shared"):
            lock_shared(place)
        with pytest.raises(BadInputError, match=r"in use by 2 nodes, of node 0 on"):
            find_attempt(at(place, 1))
        assert newest_number(place.shared) == 1
        beats.close(0, "")
    finally:
        lock.close()
    again = lock_shared(place)
    assert again is not None
    again.close()


@pytest.mark.parametrize("has_lock", [True, False])
def test_a_former_node_0_that_is_just_ending_is_waited_for(
    place: NodePlace, meet: Meet, monkeypatch: pytest.MonkeyPatch, has_lock: bool
) -> None:
    """An engine starts all again as soon as one is lost: another machine's node 0 may still be writing."""
    monkeypatch.setattr(module, "SHARED_S", BOUND_S)
    former = lock_shared(place) if has_lock else None
    begin_attempt(place.shared)
    beats = Beats(place.shared, place.note(1))
    waits = threading.Event()
    again = meet(lock_shared, replace(place, say=lambda text: waits.set()))
    comes_true(lambda: waits.is_set() or again.done())
    beats.close(75, "")
    if former is not None:
        former.close()
    lock = again.result(BOUND_S)
    assert lock is not None
    lock.close()


def test_a_frozen_node_0_keeps_nobody_out(place: NodePlace, clock: Clock) -> None:
    lock = lock_shared(place)
    assert lock is not None
    write_note(place.shared, place.note(1))  # and no more
    assert lock_shared(place) is None
    lock.close()


def test_a_run_that_began_beside_a_frozen_node_0_is_in_use_though_the_lock_is_free(
    place: NodePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHARED_S", 0.0)
    begin_attempt(place.shared)
    beats = Beats(place.shared, place.note(1))
    with pytest.raises(BadInputError, match=r"in use by node 0 on"):
        lock_shared(place)
    beats.close(0, "")
    lock = lock_shared(place)
    assert lock is not None
    lock.close()


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_node_of_an_older_attempt_ends_when_it_wakes_up(place: NodePlace, meet: Meet, nodes: int) -> None:
    others = [meet(come, at(place, node)) for node in range(1, nodes)]
    _, beats = gather(replace(place, nodes=nodes), nothing)
    of_all = [beats, *(other.result(BOUND_S)[1] for other in others)]
    assert [one.ending for one in of_all] == [None] * nodes
    begin_attempt(place.shared)
    for one in of_all:
        comes_true(partial(has_ending, one))
        assert one.ending is not None
        assert one.ending.exit_code == 75
        assert "this is attempt 1 of the run in" in one.ending.text
        assert "attempt 2 has begun" in one.ending.text
    beats.close(75, "")


def test_a_stop_ends_the_wait(place: NodePlace) -> None:
    stopped = threading.Event()
    stopped.set()
    stopping = replace(place, stopped=stopped.is_set)
    for wait in (lambda: gather(stopping, nothing), lambda: find_attempt(replace(stopping, node=1))):
        with pytest.raises(StopRequested):
            wait()
    note = read_note(place.shared, 0)
    assert note is not None
    assert (note.state, note.exit_code) == ("ended", 130)


def test_a_node_0_that_is_gone_is_no_reason_to_wait(place: NodePlace, clock: Clock) -> None:
    first = place.note(1).model_copy(update={"state": "gathering"})
    write_note(place.shared, first)  # and no more: killed
    with pytest.raises(TryAgainError, match=r"node 0 on .* is gone"):
        join(at(place, 1), first, lambda: None)
    assert clock.now_s < BOUND_S
