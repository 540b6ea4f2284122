"""Watch over other nodes by their notes: which of them is gone, and what that means here. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import TRY_AGAIN_EXIT_CODE, USER_ERROR_EXIT_CODE
from services.supervisor.nodes.note import NodeNote

SILENCE_S = 10.0
"""Silence after which a node counts as lost. An engine's driver has to be more patient: 20 s."""
BEAT_S = 1.0
"""Time between two beats."""
INTERRUPTED_EXIT_CODE = 130

_LONGEST_GAP_S = 2 * BEAT_S
"""Longest time between two looks that counts: if this process, or the file server of all, stands still, nobody's
silence means anything."""


@dataclass(frozen=True)
class NodeEnding:
    """End of this node because of another one."""

    exit_code: int
    text: str


class NodeWatch:
    """Watch over the nodes of one attempt, by their tokens."""

    def __init__(self, tokens: Mapping[int, str]) -> None:
        self._tokens = dict(tokens)
        self._beats: dict[int, int] = {}
        self._heard_s = dict.fromkeys(self._tokens, 0.0)
        self._awake_s = 0.0
        self._looked_s: float | None = None

    def look(self, notes: Mapping[int, NodeNote | None], now_s: float) -> NodeEnding | None:
        """Reason to end, from the newest notes; None while there is none."""
        if self._looked_s is not None:
            self._awake_s += min(now_s - self._looked_s, _LONGEST_GAP_S)
        self._looked_s = now_s
        found = [self._judge(node, notes.get(node)) for node in self._tokens]
        endings = [ending for ending in found if ending is not None]
        return min(endings, key=_weight, default=None)

    def _judge(self, node: int, note: NodeNote | None) -> NodeEnding | None:
        silent_s = self._awake_s - self._heard_s[node]
        if note is not None and note.token == self._tokens[node]:
            if note.state == "ended":
                return self._judge_end(note, silent_s)
            if self._beats.get(node) != note.beat:
                self._beats[node] = note.beat
                self._heard_s[node] = self._awake_s
                return None
        if silent_s <= SILENCE_S:
            return None
        who = f"node {node} on {note.host}" if note is not None else f"node {node}"
        return NodeEnding(
            TRY_AGAIN_EXIT_CODE,
            f"{who} has been silent for {SILENCE_S:g} s: its machine is lost, frozen or without the shared folder",
        )

    def _judge_end(self, note: NodeNote, silent_s: float) -> NodeEnding | None:
        """Return what the end of another node means: None if it is done, or while this one may be about to end."""
        if note.exit_code == 0:
            self._heard_s[note.node] = self._awake_s
            return None
        if note.exit_code == INTERRUPTED_EXIT_CODE:
            # Its trainers have stopped those of this node, unless it was still before their start.
            return NodeEnding(note.exit_code, f"node {note.node} was stopped") if silent_s > SILENCE_S else None
        return NodeEnding(note.exit_code, f"node {note.node} on {note.host}: {note.text}")


def _weight(ending: NodeEnding) -> int:
    """A user's mistake and a fatal error come before the loss of a node, which may be its consequence."""
    order = (USER_ERROR_EXIT_CODE, 1, TRY_AGAIN_EXIT_CODE)
    return order.index(ending.exit_code) if ending.exit_code in order else len(order)
