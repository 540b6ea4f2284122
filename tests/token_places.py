"""Places for tokens that a test owns, and a clock that is set by hand."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from federation.issuer import Issuer

from common.config import TokenConfig
from common.pelican import tokens
from common.pelican.token_claims import Need, needs
from common.pelican.tokens import FoundTokens

INPUT = "pelican://osg-htc.org/icecube/wipac/data/sim/IceCube/2025/testing/0000000-0000999/*.parquet"
SCOPE = "storage.read:/data/sim/IceCube/2025/testing"
NOW_S = 1_800_000_000.0
VARIABLES = ("BEARER_TOKEN", "BEARER_TOKEN_FILE", "TOKEN", "_CONDOR_CREDS", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME")


class Clock:
    """Seconds since 1970, as the test wants them."""

    def __init__(self, now_s: float = NOW_S) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """An environment in which no token of this machine is seen; the shared folder is ``tmp_path/shared``."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "shared").mkdir()
    monkeypatch.setattr(tokens, "SHARED_FOLDER", tmp_path / "shared")
    monkeypatch.setattr(tokens, "_warned", set())
    return {"HOME": str(tmp_path / "home")}


def token_file(path: Path, text: str, mode: int = 0o600) -> Path:
    """Written as a careful user does: aside, then renamed."""
    part = path.with_name(path.name + ".new")
    part.write_text(text)
    part.chmod(mode)
    part.replace(path)
    return path


def the_need() -> Need:
    """Of INPUT, with the usual prefix."""
    return needs([INPUT], storage_prefix="/icecube/wipac")[0]


def a_source(environment: Mapping[str, str], clock: Clock, **config: object) -> FoundTokens:
    """Tokens for INPUT."""
    return FoundTokens(the_need(), TokenConfig.model_validate(config), environment=environment, clock=clock)


def minted(issuer: Issuer, scope: str = SCOPE, ttl_s: float = 600, now_s: float = NOW_S, **claims: object) -> str:
    """A signed token of the test's own time."""
    return issuer.mint(scope, ttl=ttl_s, iat=now_s, **claims)


@contextmanager
def another_user(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> Iterator[None]:
    """While it lasts the paths belong to somebody else: by chown where we may, else by being somebody else."""
    if os.geteuid() == 0:
        for path in paths:
            os.chown(path, 12345, 12345)
        yield
        for path in paths:
            os.chown(path, 0, 0)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
            yield
