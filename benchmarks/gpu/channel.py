"""Channel from a stage to the page: what it found so far is kept, even if it is ended at its limit or crashes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Value = str | int | float | bool | None
Row = dict[str, Value]
Message = tuple[Literal["say", "row", "leave_out", "fail"], Any]


class Channel:
    """Sending end, in the process of a stage."""

    def __init__(self, send: Callable[[Message], None], deadline_s: float) -> None:
        """``deadline_s``: on the monotonic clock, which all processes of a machine share."""
        self._send = send
        self._deadline_s = deadline_s

    def say(self, text: str) -> None:
        """Line of progress: before anything that takes longer than two seconds."""
        self._send(("say", text))

    def row(self, **values: Value) -> None:
        """Row of the stage's table."""
        self._send(("row", values))

    def leave_out(self, text: str) -> None:
        """Part that was not measured, with the reason."""
        self._send(("leave_out", text))

    def fail(self, text: str) -> None:
        """Check that failed; the stage goes on."""
        self._send(("fail", text))

    @property
    def left_s(self) -> float:
        """Seconds until the stage is ended."""
        return self._deadline_s - time.monotonic()

    def has(self, seconds: float, what: str) -> bool:
        """True if the stage has that long for ``what``; otherwise it is left out."""
        if self.left_s >= seconds:
            return True
        self.leave_out(f"{what}: it takes about {seconds:.0f} s, and {max(self.left_s, 0.0):.0f} s were left")
        return False


@dataclass
class Finding:
    """Receiving end: what became of a stage."""

    name: str
    state: Literal["done", "failed", "skipped", "cut off", "interrupted"] = "done"
    reason: str = ""
    """Last line of the error, or why it was skipped or ended."""
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Checks that failed."""
    traceback: str = ""

    @property
    def is_bad(self) -> bool:
        """True if something is wrong: an error, or a check that failed. What was skipped or cut off is not."""
        return self.state == "failed" or bool(self.failures)

    def take(self, message: Message, say: Callable[[str], None]) -> None:
        """Record a message of the stage."""
        kind, content = message
        match kind:
            case "say":
                say(content)
            case "row":
                self.rows.append(content)
            case "leave_out":
                self.left_out.append(content)
                say(f"left out: {content}")
            case "fail":
                self.failures.append(content)
                say(f"FAILED: {content}")
