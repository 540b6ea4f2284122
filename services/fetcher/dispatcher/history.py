"""The dispatcher's newest events, kept to explain an invariant that fails. Pure."""

from __future__ import annotations

from collections import deque

from common import messages as m

_KEPT = 4096
"""Newest messages, deaths, leases and deliveries."""


class History:
    """What arrived, and the leases and deliveries that followed."""

    def __init__(self) -> None:
        self._events: deque[tuple[float, str, object]] = deque(maxlen=_KEPT)

    def add(self, now_s: float, peer: str, what: m.Message | str) -> None:
        """A message to or from ``peer``, or a word on it."""
        self._events.append((now_s, peer, what))

    def story(self, k: int) -> list[str]:
        """The kept events of unit ``k``: its messages, and what befell the peers that had it. Oldest first."""
        peers = {peer for _, peer, what in self._events if _unit_of(what) == k}
        return [
            f"{now_s:.1f} s {peer}: {what!s:.300}"
            for now_s, peer, what in self._events
            if _unit_of(what) == k or (peer in peers and (isinstance(what, str | m.Hello | m.Attach | m.Bye)))
        ]


def _unit_of(what: object) -> int | None:
    """The unit that a message is about; None if it is about none."""
    return what.unit.k if isinstance(what, m.Lease) else getattr(what, "k", None)
