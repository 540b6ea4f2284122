"""Meeting of the nodes of a run before their trainers start, by notes in the shared folder.

Node 0 begins an attempt, and runs once all others have joined it. Another node joins only an attempt that gathers and
whose node 0 lives: its beat changes while it is watched. Each start takes a new token, so that a node that is still
there from a former start is not taken for its successor.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from common.errors import (
    TRY_AGAIN_EXIT_CODE,
    USER_ERROR_EXIT_CODE,
    BadInputError,
    IcestreamError,
    TryAgainError,
)
from common.locks import RunAttempt, RunLock, begin_attempt, holder_of, newest_number
from common.summary import FAILED_EXIT_CODE
from common.transport import StopRequested
from services.supervisor.nodes.beats import Beats
from services.supervisor.nodes.master import Master, Presence
from services.supervisor.nodes.node_watch import BEAT_S, INTERRUPTED_EXIT_CODE, SILENCE_S
from services.supervisor.nodes.note import NodeNote
from services.supervisor.nodes.notes import read_note

SHARED_S = 30.0
"""Longest time until a file of node 0 is seen by another one: NFS may show a folder as it was this long ago."""
_POLL_S = 0.2
_TELL_S = 10.0


@dataclass(frozen=True)
class NodePlace:
    """Place of this node among those of a run."""

    node: int
    nodes: int
    shared: Path
    master: Master
    patience_s: float
    """Longest wait for the other nodes."""
    stopped: Callable[[], bool]
    """True once this process was asked to stop."""
    say: Callable[[str], None]
    """Shows a line."""
    run_dir: Path = Path()
    """Run directory of this node, for people."""

    def note(self, attempt: int) -> NodeNote:
        """First note of this process."""
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        return NodeNote(
            attempt=attempt,
            token=secrets.token_hex(8),
            node=self.node,
            nodes=self.nodes,
            host=os.uname().nodename,
            pid=os.getpid(),
            since=since,
            run_dir=str(self.run_dir),
        )


class LivingNode:
    """Another node, as far as this process has seen it live."""

    def __init__(self, shared: Path, node: int) -> None:
        self._shared = shared
        self._node = node
        self._first: NodeNote | None = None
        self._changed_s: float | None = None

    def look(self) -> NodeNote | None:
        """Newest note, if its process has beaten within the last seconds while it was watched."""
        note = read_note(self._shared, self._node)
        if note is None or note.state == "ended":
            self._first = self._changed_s = None
            return None
        if self._first is None or note.token != self._first.token:
            self._first, self._changed_s = note, None
        elif note.beat != self._first.beat:
            self._first, self._changed_s = note, time.monotonic()
        if self._changed_s is None or time.monotonic() - self._changed_s > SILENCE_S:
            return None
        return note


def lock_shared(place: NodePlace) -> RunLock | None:
    """Lock of the shared folder for node 0; None if a frozen process has it, whose attempt is over then.

    A node 0 that lives may be that of a former start, which is just ending. Raises BadInputError if it goes on,
    StopRequested.
    """
    other, lives, until_s = LivingNode(place.shared, 0), _Patience(SHARED_S), time.monotonic() + SILENCE_S
    holder, is_silent, is_told = holder_of(place.shared, "run"), False, False

    def goes_on() -> NodeNote | None:
        """Note of a living node 0, once it has been waited for in vain."""
        nonlocal until_s, is_told
        if place.stopped():
            raise StopRequested
        time.sleep(_POLL_S)
        note = other.look()
        if note is not None:
            until_s = max(until_s, time.monotonic() + 3 * BEAT_S)
            if not is_told:
                place.say(f"waiting for the end of {note}")
            is_told = True
        return note if lives.over(note is not None) else None

    def wait() -> bool:
        nonlocal is_silent
        if goes_on() is not None:
            return False
        is_silent = time.monotonic() > until_s
        return not is_silent

    in_use = f"{place.shared}: in use by {{}}; stop it, or choose another --shared"
    try:
        lock = RunLock(place.shared, "run", "icestream node", wait)
    except BadInputError:
        note = read_note(place.shared, 0)
        if is_silent:
            place.say(f"{note} is silent: it takes no more part")
            return None
        raise BadInputError(in_use.format(note or "another run")) from None
    note = read_note(place.shared, 0)
    if note is not None and (holder is None or (holder.host, holder.pid) != (note.host, note.pid)):
        # It began while a frozen process had the lock: that the lock is free now does not mean that it is dead.
        until_s = time.monotonic() + 3 * BEAT_S
        try:
            while not _has_ended(place, 0) and time.monotonic() < until_s:
                if (note := goes_on()) is not None:
                    raise BadInputError(in_use.format(note))
        except BaseException:
            lock.close()
            raise
    return lock


def gather(place: NodePlace, prepare: Callable[[RunAttempt], tuple[str, str]]) -> tuple[RunAttempt, Beats]:
    """Begin an attempt as node 0, and wait for all others. ``prepare`` is called before these join, and returns the
    fields ``settings`` and ``build`` of the note.

    Raises the error of another node, TryAgainError if some do not come, StopRequested.
    """
    attempt = begin_attempt(place.shared)
    beats = Beats(place.shared, place.note(attempt.number))
    try:
        beats.gather(*prepare(attempt))
        others = {node: LivingNode(place.shared, node) for node in range(1, place.nodes)}
        joined: dict[int, str] = {}
        for _ in _waiting(place, lambda: f"node {_listed(set(others) - set(joined))} of {place.nodes}"):
            joined.clear()
            for node, other in others.items():
                raise_end_of(read_note(place.shared, node), attempt.number)
                note = other.look()
                if note is not None and note.state == "gathering" and note.attempt == attempt.number:
                    joined[node] = note.token
            if len(joined) == len(others):
                break
        beats.run((beats.note.token, *(joined[node] for node in sorted(joined))), joined)
    except BaseException as error:
        beats.close(*end_of(error))
        raise
    return attempt, beats


def find_attempt(place: NodePlace) -> NodeNote:
    """Note of the node 0 whose attempt this node may join.

    Raises BadInputError if the folder is not shared with node 0 or is in use, TryAgainError, StopRequested.
    """
    before, met = newest_number(place.shared), ""
    first, unseen, former = LivingNode(place.shared, 0), _Patience(SHARED_S), _Patience(SHARED_S)
    with Presence(place.master) as presence:
        for _ in _waiting(place, lambda: f"node 0 (all meet in {place.shared})"):
            note = first.look()
            newest = read_note(place.shared, 0)
            if newest is not None:
                is_met = newest.token == met and newest.exit_code == USER_ERROR_EXIT_CODE
                if newest.attempt > before or is_met:
                    raise_end_of(newest, newest.attempt)
                if newest.state in ("starting", "gathering"):
                    met = newest.token  # its mistake is told also if it ends before its beat is seen to change
            if note is None:
                if unseen.over(presence.is_there()):
                    raise BadInputError(
                        f"node 0 is at {place.master}, but has left no note in {place.shared} for {SHARED_S:g} s:"
                        " --shared must be one folder that all nodes see"
                    )
            elif note.state == "gathering" and note.nodes == place.nodes:
                return note
            elif note.state == "gathering":
                raise BadInputError(
                    f"--nodes {place.nodes}, but {note} was started with --nodes {note.nodes}: give all the same"
                )
            elif former.over(note.state == "running"):
                # The node in whose place this one was started would be missed there by now.
                raise BadInputError(
                    f"{place.shared}: in use by {note.nodes} nodes, of {note}; stop them, or choose another --shared"
                )
    raise AssertionError("the wait has no other end")


def join(place: NodePlace, first: NodeNote, check: Callable[[], None]) -> tuple[RunAttempt, Beats]:
    """Join the attempt of node 0, and wait until it runs.

    ``check`` raises BadInputError if this node does not fit: all nodes end with it then. Raises the error of another
    node likewise, TryAgainError if node 0 is gone, StopRequested.
    """
    attempt = RunAttempt(place.shared, first.attempt)
    beats = Beats(place.shared, place.note(first.attempt))
    node_0, gone = LivingNode(place.shared, 0), _Patience(SILENCE_S)
    try:
        check()
        beats.gather()
        for _ in _waiting(place, lambda: "the other nodes"):
            raise_end_of(read_note(place.shared, 0), attempt.number)
            note = node_0.look()
            if note is not None and note.token == first.token and note.state == "running":
                if note.accepted[place.node] != beats.note.token:
                    beats.close(TRY_AGAIN_EXIT_CODE, "")  # its notes would hide those of the other one
                    raise _not_accepted(place)
                break
            if gone.over(note is None or note.token != first.token):
                raise TryAgainError(f"{first} is gone")
        beats.run((), {0: first.token})
    except BaseException as error:
        beats.close(*end_of(error))
        raise
    return attempt, beats


def _not_accepted(place: NodePlace) -> IcestreamError:
    """Error of a node in whose place node 0 runs with another one.

    If that one lives on, two nodes have one number. It is lost, or just ending, if this node was started in its place.
    """
    other, lives, silent = LivingNode(place.shared, place.node), _Patience(SHARED_S), _Patience(SILENCE_S)
    while not lives.over((note := other.look()) is not None):
        if silent.over(note is None):
            return TryAgainError(f"the node {place.node} that node 0 began with is gone")
        if place.stopped():
            raise StopRequested
        time.sleep(_POLL_S)
    return BadInputError(f"--node {place.node}: {note} has this number, too; give each node its own")


def raise_end_of(note: NodeNote | None, attempt: int) -> None:
    """Raise the error with which another node of this attempt has ended; StopRequested if it was stopped."""
    if note is None or note.attempt != attempt or note.state != "ended":
        return
    if note.exit_code == INTERRUPTED_EXIT_CODE:
        raise StopRequested
    kind = BadInputError if note.exit_code == USER_ERROR_EXIT_CODE else TryAgainError
    raise kind(f"node {note.node} on {note.host}: {note.text}")


def end_of(error: BaseException) -> tuple[int, str]:
    """Exit code and text, for the other nodes, of a node that ends by this error."""
    if isinstance(error, StopRequested):
        return INTERRUPTED_EXIT_CODE, ""
    if isinstance(error, TryAgainError):
        return TRY_AGAIN_EXIT_CODE, str(error)
    if isinstance(error, IcestreamError):
        return USER_ERROR_EXIT_CODE, str(error)
    return FAILED_EXIT_CODE, f"{type(error).__name__}: {error}"


class _Patience:
    """Time for which a condition may hold without a break."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since_s: float | None = None

    def over(self, holds: bool) -> bool:
        """True once the condition has held for longer."""
        if not holds:
            self._since_s = None
            return False
        self._since_s = self._since_s if self._since_s is not None else time.monotonic()
        return time.monotonic() - self._since_s > self._seconds


def _has_ended(place: NodePlace, node: int) -> bool:
    note = read_note(place.shared, node)
    return note is None or note.state == "ended"


def _listed(nodes: set[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))


def _waiting(place: NodePlace, whom: Callable[[], str]) -> Iterator[None]:
    """A turn every moment, until the caller breaks. Raises StopRequested, and TryAgainError after ``patience_s``."""
    began_s = told_s = time.monotonic()
    while True:
        yield
        if place.stopped():
            raise StopRequested
        now_s = time.monotonic()
        if now_s - began_s > place.patience_s:
            raise TryAgainError(f"{whom()} did not come for {place.patience_s:g} s")
        if now_s - told_s > _TELL_S:
            told_s = now_s
            place.say(f"waiting for {whom()}")
        time.sleep(_POLL_S)
