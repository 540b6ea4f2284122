"""Meeting of the nodes of a run, which torchrun starts together, by notes in the folder that they share.

Each start of all nodes is an attempt with a number that was never used before, so that a note which names it is of this
start, whatever lies in the folder. Node 0 takes the number and writes it into its note; the others answer with it; once
all have, node 0 writes that they run.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from common.errors import USER_ERROR_EXIT_CODE, BadInputError, TryAgainError
from common.locks import RunAttempt
from common.process import LAUNCH_VARIABLE
from common.transport import StopRequested

NODES_FOLDER = "nodes"
"""Folder of the notes in the shared folder, by the number of the node."""
MEETING_S = 180.0
"""Longest wait for the other nodes. One that is lost while all meet is dropped by torchrun at the next start."""
BEAT_S = 5.0
"""Time between two changes of the note's time, while node 0 lives."""
SILENT_S = 60.0
"""Time without such a change after which node 0 counts as lost for those that have nothing else to tell it by."""
_NOTE_BYTES = 16384
"""Length of the file: a note replaces the former one in place, in one piece, so that NFS never shows an old file."""
_TEXT_LENGTH = 1000
_POLL_S = 0.2
_TELL_S = 10.0


@dataclass(frozen=True)
class NodePlace:
    """Place of this process among those that torchrun has started; torchrun's names are in the comments."""

    node: int
    """GROUP_RANK"""
    nodes: int
    """GROUP_WORLD_SIZE"""
    local_rank: int
    """LOCAL_RANK: the first process of a machine stands for it, and starts what belongs there"""
    trainers: int
    """LOCAL_WORLD_SIZE: trainers of each node"""
    address: str
    """MASTER_ADDR: address of node 0; trainers listen at the interface that leads there"""
    launch: str
    """TORCHELASTIC_RUN_ID, the same at all starts"""
    port: str = ""
    """MASTER_PORT, the same for all nodes of a start"""
    keeps_port: bool = False
    """TORCHELASTIC_USE_AGENT_STORE: all starts have that port; else each has another one"""


def place_of_node(environment: Mapping[str, str]) -> NodePlace | None:
    """Return the place that torchrun gave to this process; None without torchrun. Raises BadInputError."""
    if LAUNCH_VARIABLE not in environment:
        return None
    try:
        return NodePlace(
            node=int(environment["GROUP_RANK"]),
            nodes=int(environment["GROUP_WORLD_SIZE"]),
            local_rank=int(environment["LOCAL_RANK"]),
            trainers=int(environment["LOCAL_WORLD_SIZE"]),
            address=environment["MASTER_ADDR"],
            launch=environment[LAUNCH_VARIABLE],
            port=environment["MASTER_PORT"],
            keeps_port=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )
    except (KeyError, ValueError) as error:
        raise BadInputError(f"{LAUNCH_VARIABLE} is set, but torchrun's other variables are not: {error}") from None


class NodeNote(BaseModel):
    """Note of node 0, the only one that others read for more than its attempt."""

    model_config = ConfigDict(frozen=True)

    attempt: int
    state: Literal["gathering", "running", "ended"]
    launch: str
    port: str
    nodes: int
    used: int
    """Number of nodes, of all, that share the run's shards; the others are spare."""
    host: str
    pid: int
    since: str
    run_dir: str
    """Its own run directory, on its host."""
    settings: str = ""
    """Digest of the run's config.json in the shared folder."""
    build: str = ""
    """Version of icestream and plan hash: they must be the same everywhere."""
    exit_code: int = 0
    """Exit code, once it has ended."""
    text: str = ""
    """Reason of its end, if that is an error."""

    def __str__(self) -> str:
        return f"node 0 on {self.host} since {self.since} (process {self.pid})"


@dataclass(frozen=True)
class Meeting:
    """Meeting of the nodes of one launch, as seen by one of them."""

    place: NodePlace
    shared: Path
    stopped: Callable[[], bool]
    """True once this process was asked to stop."""
    say: Callable[[str], None]
    """Shows a line."""

    def gather(self, attempt: RunAttempt, note: NodeNote) -> None:
        """Wait until all nodes have answered. For node 0. Raises TryAgainError, also for a refusal, StopRequested."""
        self.tell(attempt, note)
        missing = set(range(1, self.place.nodes))
        for _ in self._turns(lambda: f"node {', '.join(map(str, sorted(missing)))}"):
            for node in sorted(missing):
                answer, _, refusal = self._answer(node).partition(" ")
                if answer == str(attempt.number):
                    if refusal:
                        raise TryAgainError(f"node {node}: {refusal}")
                    missing.discard(node)
            if not missing:
                break
        self.tell(attempt, note.model_copy(update={"state": "running"}))

    def join(self, used: int, check: Callable[[NodeNote], None]) -> RunAttempt:
        """Answer node 0 and wait until it runs; return the attempt. ``check`` raises if this node doesn't fit.

        ``used``: nodes that share the shards, by the settings of this one. Raises BadInputError, also for a mistake of
        which node 0 tells, TryAgainError, StopRequested.
        """
        answered = 0
        former = read_note(self.shared) if self.place.keeps_port else None
        place = (self.place.launch, self.place.port, self.place.nodes)
        for _ in self._turns(lambda: f"node 0 (all meet in {self.shared})"):
            note = read_note(self.shared)
            if note is None or (note.launch, note.port, note.nodes) != place:
                continue
            if note.state == "ended":
                if note == former:  # told at an earlier start
                    continue
                is_mistake = note.exit_code == USER_ERROR_EXIT_CODE
                raise (BadInputError if is_mistake else TryAgainError)(f"{note}: {note.text or 'it has ended'}")
            if note.attempt == answered and note.state == "running":
                break
            if note.attempt != answered and note.state == "gathering":
                try:
                    if note.used != used:
                        raise BadInputError(
                            f"{used} nodes can share the shards by the settings of this one, but {note.used} by those"
                            " of node 0: give all nodes the same settings"
                        )
                    check(note)
                except BadInputError as error:
                    _write(self._path(self.place.node), f"{note.attempt} {error!s:.{_TEXT_LENGTH}}")
                    raise
                _write(self._path(self.place.node), str(note.attempt))
                answered = note.attempt
        return RunAttempt(self.shared, answered)

    def until_the_end(self, attempt: RunAttempt) -> NodeNote:
        """Wait until node 0 has ended, as a node that has nothing to do. Raises TryAgainError, StopRequested."""
        heard_s, beat = time.monotonic(), 0.0
        for _ in self._turns(lambda: "", patience_s=float("inf")):
            attempt.check()
            with suppress(OSError):  # the machine can't read it now
                if beat != (beat := self._path(0).stat().st_mtime):
                    heard_s = time.monotonic()
            if time.monotonic() - heard_s > SILENT_S:
                raise TryAgainError(f"node 0 has been silent for {SILENT_S:g} s")
            note = read_note(self.shared)
            if note is not None and note.attempt == attempt.number and note.state == "ended":
                return note
        raise AssertionError("the wait has no other end")

    def beat(self, ended: threading.Event) -> None:
        """Show others that node 0 lives, until ``ended``: in a thread, so that a hanging file server blocks no more."""
        while not ended.wait(BEAT_S):
            with suppress(OSError):
                os.utime(self._path(0))

    def tell(self, attempt: RunAttempt, note: NodeNote) -> None:
        """Replace the note of node 0. Raises TryAgainError if a later attempt has begun."""
        short = note.model_copy(update={"text": note.text[:_TEXT_LENGTH]})
        with attempt.publishing():
            _write(self._path(0), short.model_dump_json())

    def _path(self, node: int) -> Path:
        return self.shared / NODES_FOLDER / str(node)

    def _answer(self, node: int) -> str:
        """Return the attempt that another node has joined last, or has refused, with a space and the reason; empty:
        none, or the machine can't read it now."""
        try:
            return self._path(node).read_text(errors="replace").strip("\0 ")  # opened again: NFS asks the server
        except OSError:
            return ""

    def _turns(self, whom: Callable[[], str], patience_s: float = MEETING_S) -> Iterator[None]:
        """Take a turn every moment, until the caller breaks."""
        began_s = told_s = time.monotonic()
        while True:
            yield
            if self.stopped():
                raise StopRequested
            now_s = time.monotonic()
            if now_s - began_s > patience_s:
                raise TryAgainError(f"{whom()} did not come for {patience_s:g} s")
            if now_s - told_s > _TELL_S and whom():
                told_s = now_s
                self.say(f"waiting for {whom()}")
            time.sleep(_POLL_S)


def read_note(shared: Path) -> NodeNote | None:
    """Return the newest note of node 0; None if there is none, or the machine can't read it now."""
    try:
        return NodeNote.model_validate_json((shared / NODES_FOLDER / "0").read_bytes())
    except (OSError, ValidationError):
        return None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.pwrite(descriptor, text.encode().ljust(_NOTE_BYTES), 0)
        os.fsync(descriptor)  # other hosts must see it
    finally:
        os.close(descriptor)
