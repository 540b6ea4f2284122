"""What can go wrong at a server, and when (pure)."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

KINDS = frozenset(
    ("status", "hang", "disconnect", "short", "lie", "corrupt", "stall", "reset", "names", "html", "no-director", "raw")
)

HOSTILE_NAMES = (
    *("../../etc/x", "/etc/passwd", "", "%00", "..", "%2e%2e/x"),
    *("with space.parquet", "100%.parquet", "a,b.parquet", "ü-µ-∇.parquet"),
)
"""What `names` adds to a listing."""


@dataclass
class Fault:
    """One injected failure; tests/federation/__init__.py has the table of kinds."""

    kind: str
    value: float = 0
    """status: code. hang: seconds, 0 for ever. short, stall, reset, lie: bytes of the body that are
    sent. corrupt: offset in the file, bytes."""
    match: str = ""
    """Regular expression, searched in the decoded path."""
    methods: tuple[str, ...] = ("GET",)
    times: int | None = None
    """How often; None: until healed."""
    chance: float = 1.0
    """Probability that it hits a request that it fits, for tests with faults at random."""
    seed: int = 0
    raw: bytes = b""
    """What `raw` sends in place of an answer, before it closes the connection: no server would."""
    hits: int = 0
    happened: threading.Event = field(default_factory=threading.Event, repr=False)
    """Set at the first hit."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"fault {self.kind!r}: one of {', '.join(sorted(KINDS))}")
        self._random = random.Random(self.seed)

    def applies(self, method: str, path: str) -> bool:
        """Whether it hits this request; counts the hit."""
        if method not in self.methods or (self.times is not None and self.hits >= self.times):
            return False
        if not re.search(self.match, path) or self._random.random() >= self.chance:
            return False
        self.hits += 1
        self.happened.set()
        return True


def first_that_applies(faults: Sequence[Fault], method: str, path: str) -> Fault | None:
    return next((fault for fault in list(faults) if fault.applies(method, path)), None)
