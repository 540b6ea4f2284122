"""What every test of a node needs."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _outlives_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node ends with its torchrun; the process of the tests must not."""
    monkeypatch.setattr("icestream.commands.run.end_with", lambda parent, number: None)
