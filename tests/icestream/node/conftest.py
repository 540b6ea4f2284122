"""What every test of a node needs."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def torchrun_is_sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Signals that a node sends to its torchrun, with which it ends. The tests and their parent live on."""
    sent: list[int] = []
    monkeypatch.setattr("icestream.commands.run.end_with", lambda parent, number: None)
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number) if pid == os.getppid() else None)
    return sent
