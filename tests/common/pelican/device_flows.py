"""A device flow against an issuer in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from federation.device_flow import DeviceFlow
from token_places import issuer_here, the_need

from common.pelican.tokens.acquire import TokenRequest, acquire
from common.pelican.tokens.device_flow import DeviceCode
from common.pelican.tokens.oauth import open_session
from common.pelican.tokens.store import StoredToken


class Flow:
    """One run of `acquire`, without waiting."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shown: list[DeviceCode] = []
        self.waited_s: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.waited_s.append(seconds)

    async def __call__(self, issuer: DeviceFlow, client_id: str = "") -> tuple[Path, StoredToken]:
        wanted = TokenRequest(the_need(), issuer.url(), client_id)
        async with open_session() as session:
            return await acquire(session, wanted, self.folder, show=self.shown.append, sleep=self.sleep)


def with_issuer(test: Callable[[DeviceFlow], Awaitable[None]]) -> None:
    async def run() -> None:
        async with issuer_here() as issuer:
            await test(issuer)

    asyncio.run(asyncio.wait_for(run(), 60))
