"""Receiving end of a stage of benchmarks/gpu, for tests in one process."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.channel import Channel, Row
from benchmarks.gpu.setting import Setting, quick

TINY = Setting("cpu", events=(16,), network=quick("cpu").network, repeats=1)


class Page:
    """Receiving end of a channel."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.failures: list[str] = []
        self.left_out: list[str] = []
        self.channel = Channel(self._take, 1e12)

    def _take(self, message: tuple[str, Any]) -> None:
        lists: dict[str, list[Any]] = {"row": self.rows, "fail": self.failures, "leave_out": self.left_out}
        lists.get(message[0], []).append(message[1])
