"""Decoder pool: credit, leases and silence of each decoder. Pure: independent of the units' content.

Silence of a decoder counts only while the dispatcher itself is awake: the gap between two ticks counts as at most
``_LONGEST_GAP_S``, so that a suspended fetcher doesn't take its own sleep for hung decoders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

FENCE_GRACE_S = 5.0
"""Time after a SIGKILL from which a living decoder counts as in uninterruptible sleep: the kill is not trusted."""
_LONGEST_GAP_S = 1.0
"""Longest time between two ticks that counts as silence of the decoders."""


class Silence(Enum):
    """Verdict on a decoder that was silent for too long while it held leases."""

    HUNG = "hung"
    NOT_KILLED = "not killed"
    """The decoder was fenced and is still alive."""


@dataclass
class DecoderState:
    """State of a decoder that sent Hello."""

    credit: int
    silent_s: float = 0.0
    """Time awake without a message from it."""
    leases: dict[int, int] = field(default_factory=dict)
    """Lease -> k, oldest first: a decoder works in this order."""
    zombies: dict[int, int] = field(default_factory=dict)
    """Lease -> slot of units taken from it while it may still write."""
    decoding: int | None = None
    """Lease in work, as reported by the decoder."""
    fenced: bool = False
    excused: bool = False
    """True while its process is suspended: no unit is to blame for its silence."""
    retired: bool = False
    """True once it was asked to leave: it gets no more leases."""

    @property
    def blamed(self) -> int | None:
        """Lease in work. A decoder may die before its Decoding message is sent: then it is the oldest lease."""
        if self.excused:
            return None
        return self.decoding if self.decoding is not None else next(iter(self.leases), None)

    def lease(self, lease: int, k: int) -> None:
        """Record a lease given to it."""
        if not self.leases:
            self.silent_s = 0.0  # an idle decoder sends nothing: its silence counts from now on
        self.leases[lease] = k
        self.credit -= 1

    def finish(self, lease: int) -> None:
        """Record the end of a lease, of any unit and any age."""
        if self.decoding == lease:
            self.decoding = None
        self.fenced = self.excused = False


class DecoderPool:
    """Decoders that sent Hello and are not lost, by name, in the order of arrival."""

    def __init__(self) -> None:
        self.by_name: dict[str, DecoderState] = {}

    def __len__(self) -> int:
        return len(self.by_name)

    @property
    def names(self) -> list[str]:
        """Names of the decoders."""
        return list(self.by_name)

    @property
    def num_staying(self) -> int:
        """Decoders that were not asked to leave."""
        return sum(not decoder.retired for decoder in self.by_name.values())

    @property
    def num_busy(self) -> int:
        """Staying decoders that hold a lease."""
        return sum(bool(decoder.leases) and not decoder.retired for decoder in self.by_name.values())

    @property
    def idle(self) -> str | None:
        """Decoder with the most credit; the name decides among equals."""
        idle = [
            (-decoder.credit, peer)
            for peer, decoder in self.by_name.items()
            if decoder.credit > 0 and not decoder.fenced and not decoder.retired
        ]
        return min(idle)[1] if idle else None

    def retire(self) -> str | None:
        """Retire the newest of the decoders that hold the fewest leases, and return its name; None without one."""
        staying = [(len(d.leases), -i, peer) for i, (peer, d) in enumerate(self.by_name.items()) if not d.retired]
        if not staying:
            return None
        peer = min(staying)[2]
        self.by_name[peer].retired = True
        return peer

    def silent(self, gap_s: float, stall_timeout_s: float) -> Iterator[tuple[str, DecoderState, Silence]]:
        """Decoders with leases that are silent for too long, ``gap_s`` after the former call."""
        counted_s = min(gap_s, _LONGEST_GAP_S)
        for peer, decoder in self.by_name.items():
            decoder.silent_s += counted_s
            if not decoder.leases or decoder.silent_s <= stall_timeout_s:
                continue
            if not decoder.fenced:
                decoder.fenced = True
                yield peer, decoder, Silence.HUNG
            elif decoder.silent_s > stall_timeout_s + FENCE_GRACE_S:
                yield peer, decoder, Silence.NOT_KILLED
