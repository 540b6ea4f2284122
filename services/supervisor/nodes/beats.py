"""Thread of a node that writes its note once a second, and watches those of others.

While a node runs, it is the only part of its supervisor that uses the shared folder: a file server that doesn't answer
stops the beats, and nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from common.errors import TRY_AGAIN_EXIT_CODE, IcestreamError
from common.locks import OutdatedAttemptError, RunAttempt
from common.process import Rarely
from services.supervisor.nodes.node_watch import BEAT_S, NodeEnding, NodeWatch
from services.supervisor.nodes.note import NodeNote, NodeState
from services.supervisor.nodes.notes import read_note, write_note

_POLL_S = 0.1
_rarely = Rarely(logging.getLogger(__name__))


class Beats:
    """Beats of one node; close() writes how it ended."""

    def __init__(self, shared: Path, note: NodeNote) -> None:
        """Raises OSError if the first note can't be written."""
        self._shared = shared
        self._note = note
        self._watch: NodeWatch | None = None
        self._watched: tuple[int, ...] = ()
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._closed = self._all_ended = False
        self.ending: NodeEnding | None = None
        """Reason to end because of another node; None while there is none."""
        write_note(shared, note)
        self._thread = threading.Thread(target=self._run, name="beats", daemon=True)
        self._thread.start()

    @property
    def note(self) -> NodeNote:
        """Newest note of this node."""
        return self._note

    def gather(self, settings: str = "", build: str = "") -> None:
        """Be ready to start with the other nodes. Node 0 gives what they compare: see the fields of NodeNote."""
        self._say("gathering", settings=settings, build=build)

    def run(self, accepted: tuple[str, ...], watched: Mapping[int, str]) -> None:
        """Begin to run, and to watch the nodes with these tokens. ``accepted``: of all nodes, on node 0."""
        with self._lock:
            self._watch = NodeWatch(watched)
            self._watched = tuple(watched)
        self._say("running", accepted=accepted)

    def settle(self, wait_s: float) -> NodeEnding | None:
        """Reason to end, once there is one or all watched nodes have ended; None after ``wait_s``.

        The trainers of all nodes end together: why, only the node knows that ended first.
        """
        deadline_s = time.monotonic() + wait_s
        while self.ending is None and time.monotonic() < deadline_s and not self._all_ended:
            self._changed.set()
            time.sleep(_POLL_S)
        return self.ending

    def close(self, exit_code: int, text: str, wait_s: float = BEAT_S) -> None:
        """Write how this node ended; returns after ``wait_s`` also if the shared folder does not answer."""
        self._say("ended", exit_code=exit_code, text=text)
        self._closed = True
        self._changed.set()
        self._thread.join(wait_s)

    def _say(self, state: NodeState, **changes: object) -> None:
        with self._lock:
            self._note = self._note.model_copy(update={"state": state, **changes})
        self._changed.set()

    def _run(self) -> None:
        while True:
            self._changed.clear()
            closed = self._closed
            self._beat()
            if closed:
                return
            self._changed.wait(BEAT_S)

    def _beat(self) -> None:
        with self._lock:
            self._note = note = self._note.model_copy(update={"beat": self._note.beat + 1})
            watch, watched = self._watch, self._watched
        try:
            write_note(self._shared, note)
        except OSError as error:
            _rarely.log("%s: can't write there (%s); the other nodes take this one for lost soon", self._shared, error)
        self.ending = self.ending or self._outdated()
        if watch is not None:
            notes = {node: read_note(self._shared, node) for node in watched}
            self.ending = self.ending or watch.look(notes, time.monotonic())
            self._all_ended = all(note is not None and note.state == "ended" for note in notes.values())

    def _outdated(self) -> NodeEnding | None:
        """Reason to end if all nodes were started again, while this one was frozen."""
        try:
            RunAttempt(self._shared, self._note.attempt).check()
        except OutdatedAttemptError as error:
            return NodeEnding(TRY_AGAIN_EXIT_CODE, str(error))
        except (OSError, IcestreamError):  # it can't be read now
            pass
        return None
