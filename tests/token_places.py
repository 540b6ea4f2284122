"""Places for tokens that a test owns, an issuer on this machine, and a clock that is set by hand."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from aiohttp import web
from federation.certs import Certs
from federation.device_flow import DeviceFlow
from federation.issuer import Issuer

from common.pelican.tokens import find, source
from common.pelican.tokens.config import TokenConfig
from common.pelican.tokens.scopes import Need, needs
from common.pelican.tokens.source import FoundTokens

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
    monkeypatch.setattr(find, "SHARED_FOLDER", tmp_path / "shared")
    monkeypatch.setattr("common.pelican.tokens.files._warned", set())
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


def a_source(
    environment: Mapping[str, str],
    clock: Clock,
    *,
    renew: source.Renew | None = None,
    **config: object,
) -> FoundTokens:
    """For INPUT. Without ``renew`` no issuer is asked: a test that does fails."""

    async def never(stored: object) -> object:
        raise AssertionError("no issuer was to be asked")

    return FoundTokens(
        the_need(),
        TokenConfig.model_validate(config),
        environment=environment,
        clock=clock,
        renew=renew or never,  # type: ignore[arg-type]
    )


def minted(issuer: Issuer, scope: str = SCOPE, ttl_s: float = 600, now_s: float = NOW_S, **claims: object) -> str:
    """A signed token of the test's own time."""
    return issuer.mint(scope, ttl=ttl_s, iat=now_s, **claims)


@asynccontextmanager
async def issuer_here(path: str = "/issuer") -> AsyncIterator[DeviceFlow]:
    """An issuer on the running loop, without TLS: it is on loopback."""
    issuer = Issuer()
    flow = DeviceFlow(mint=issuer.mint, url=lambda: issuer.url)
    app = web.Application()
    app.add_routes(flow.routes(path))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        issuer.url = f"http://127.0.0.1:{runner.addresses[0][1]}{path}"
        yield flow
    finally:
        await runner.cleanup()


class IssuerThread:
    """An issuer with TLS on a loop of its own, for other processes."""

    def __init__(self, folder: Path) -> None:
        self.certs = Certs(folder)
        self.issuer = Issuer()
        self.flow = DeviceFlow(mint=self.issuer.mint, url=lambda: self.issuer.url)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="issuer")

    def environment(self) -> dict[str, str]:
        """What makes a process trust it."""
        return self.certs.client_env()

    async def _start(self) -> web.AppRunner:
        app = web.Application()
        app.add_routes(self.flow.routes("/issuer"))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self.certs.server_context()).start()
        self.issuer.url = f"https://localhost:{runner.addresses[0][1]}/issuer"
        return runner

    def __enter__(self) -> IssuerThread:
        self._thread.start()
        self._runner = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(20)
        return self

    def __exit__(self, *exception: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()


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
