"""What every test of a node needs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def torchrun_is_sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Signals that a node sends to its torchrun, with which it ends. The tests and their parent live on."""
    sent: list[int] = []
    before = signal.getsignal(signal.SIGTERM)

    def kill(pid: int, number: int) -> None:
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN, "the node has yet to tell the mistake"
        sent.append(number)

    monkeypatch.setattr("icestream.commands.run.end_with", lambda parent, number: None)
    monkeypatch.setattr(os, "kill", kill)
    yield sent
    signal.signal(signal.SIGTERM, before)
