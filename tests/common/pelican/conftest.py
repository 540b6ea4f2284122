"""Environment, issuer and clock of the tests of tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from federation.issuer import Issuer
from token_places import Clock, own_places


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    return own_places(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer("https://issuer.example")


@pytest.fixture
def clock() -> Clock:
    return Clock()
