"""Environment, issuer and clock of the tests of tokens, and connections to the local federation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from federation.federation import Federation
from federation.issuer import Issuer
from token_places import Clock, own_places

from common.config import PelicanConfig
from common.pelican.threads import PelicanThread


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    return own_places(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer("https://issuer.example")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def connect(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., PelicanThread]]:
    """Makes threads that trust the federation, and are closed at the end."""
    for name, value in federation.certs.client_env().items():
        monkeypatch.setenv(name, value)
    with ExitStack() as made:

        def connect(config: PelicanConfig | None = None, *arguments: object, **options: object) -> PelicanThread:
            thread = PelicanThread(config or PelicanConfig(), *arguments, **options)  # type: ignore[arg-type]
            made.callback(thread.close)
            return thread

        yield connect
