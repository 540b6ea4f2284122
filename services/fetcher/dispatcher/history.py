"""History of the dispatcher's newest events, kept to explain an invariant that fails. Pure."""

from __future__ import annotations

from collections import deque

from common import messages as m

_KEPT = 4096
"""Number of newest events kept: messages, deaths, leases and deliveries."""


class History:
    """Newest messages and deaths, and the leases and deliveries that followed."""

    def __init__(self) -> None:
        self._events: deque[tuple[float, str, object]] = deque(maxlen=_KEPT)

    def add(self, now_s: float, peer: str, what: m.Message | str) -> None:
        """Add a message to or from ``peer``, or a remark on it."""
        self._events.append((now_s, peer, what))

    def story(self, k: int) -> list[str]:
        """Kept events of unit ``k``: its messages, and events of the peers that had it. Oldest first."""
        peers = {peer for _, peer, what in self._events if _unit_of(what) == k}
        return [
            f"{now_s:.1f} s {peer}: {what!s:.300}"
            for now_s, peer, what in self._events
            if _unit_of(what) == k or (peer in peers and (isinstance(what, str | m.Hello | m.Attach | m.Bye)))
        ]


def _unit_of(what: object) -> int | None:
    """Unit that a message concerns; None if it concerns none."""
    return what.unit.k if isinstance(what, m.Lease) else getattr(what, "k", None)
