"""Decoders: credit, leases and silence of each. Pure: the part of the dispatcher that knows no unit's content.

Silence of a decoder counts only while the dispatcher itself is awake: the gap between two ticks counts as at most
``_LONGEST_GAP_S``, so that a suspended fetcher doesn't take its own sleep for hung decoders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

FENCE_GRACE_S = 5.0
"""An accepted SIGKILL that has not ended the decoder by then is not trusted: a process in uninterruptible sleep."""
_LONGEST_GAP_S = 1.0
"""Most of the time between two ticks that counts as silence of the decoders."""


class Silence(Enum):
    """Verdict on a decoder that was silent for too long with leases in work."""

    HUNG = "hung"
    NOT_KILLED = "not killed"
    """It was fenced, and lives on."""


@dataclass
class DecoderState:
    """A decoder that said Hello."""

    credit: int
    silent_s: float = 0.0
    """Time awake without a message of it."""
    leases: dict[int, int] = field(default_factory=dict)
    """Lease -> k, oldest first: a decoder works in this order."""
    zombies: dict[int, int] = field(default_factory=dict)
    """Lease -> slot of units that were taken from it while it may still write."""
    decoding: int | None = None
    """Lease in work, as far as it said."""
    fenced: bool = False
    excused: bool = False
    """Its process is suspended: no unit is to blame for its silence."""
    retired: bool = False
    """It was asked to leave and gets no more leases."""

    @property
    def blamed(self) -> int | None:
        """The lease in work. A decoder may die before its Decoding got out: then it is the oldest."""
        if self.excused:
            return None
        return self.decoding if self.decoding is not None else next(iter(self.leases), None)

    def lease(self, lease: int, k: int) -> None:
        """Give it a lease."""
        if not self.leases:
            self.silent_s = 0.0  # an idle decoder says nothing: it is late from now on
        self.leases[lease] = k
        self.credit -= 1

    def finish(self, lease: int) -> None:
        """It has said that it is through with a lease, of whichever unit and however old."""
        if self.decoding == lease:
            self.decoding = None
        self.fenced = self.excused = False


class DecoderPool:
    """The decoders that said Hello and are not lost, by name, in the order in which they came."""

    def __init__(self) -> None:
        self.by_name: dict[str, DecoderState] = {}

    def __len__(self) -> int:
        return len(self.by_name)

    @property
    def names(self) -> list[str]:
        """Their names."""
        return list(self.by_name)

    @property
    def num_staying(self) -> int:
        """Decoders that were not asked to leave."""
        return sum(not decoder.retired for decoder in self.by_name.values())

    @property
    def num_busy(self) -> int:
        """Those of them that hold a lease."""
        return sum(bool(decoder.leases) and not decoder.retired for decoder in self.by_name.values())

    @property
    def idle(self) -> str | None:
        """The decoder with the most credit; the name decides among equals."""
        idle = [
            (-decoder.credit, peer)
            for peer, decoder in self.by_name.items()
            if decoder.credit > 0 and not decoder.fenced and not decoder.retired
        ]
        return min(idle)[1] if idle else None

    def retire(self) -> str | None:
        """The newest of the decoders that hold least, which gets no more leases; None without one."""
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
