"""What tokens are answered, by the light federation and by real XRootD alike."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from .federation import Federation
from .fixtures import BOTH_KINDS
from .issuer import Issuer
from .loop import abort_transports

TOKENS: dict[str, tuple[str, float]] = {
    "right": ("storage.read:/sim/testing", 600),
    "whole": ("storage.read:/", 600),
    "other directory": ("storage.read:/sim/production", 600),
    "full path in place of the one below the base path": ("storage.read:/icecube/wipac/sim/testing", 600),
    "no reading": ("storage.create:/", 600),
    "expired": ("storage.read:/", -60),
}


@BOTH_KINDS
@pytest.mark.parametrize("which", [*TOKENS, "none", "opaque", "of another issuer"])
def test_a_token_is_judged_by_scope_below_the_base_path(federation: Federation, which: str) -> None:
    path = "/icecube/wipac/sim/testing/a.bin"
    if not (federation.root / path.lstrip("/")).exists():
        federation.put(path, b"1234")
    tokens = {name: federation.issuer.mint(scope, ttl=ttl_s) for name, (scope, ttl_s) in TOKENS.items()}
    tokens |= {"opaque": "abc", "of another issuer": Issuer("https://localhost:1").mint("storage.read:/")}
    token = tokens.get(which)
    expected = 200 if which in ("right", "whole") else 403
    assert status_of(federation, federation.caches[0].url + path, token) == expected
    assert status_of(federation, federation.origin.url + path, token) == expected
    assert status_of(federation, federation.director.url + path, token) == (401 if which == "expired" else 307)


def status_of(federation: Federation, url: str, token: str | None) -> int:
    async def ask() -> int:
        connector = aiohttp.TCPConnector(ssl=federation.certs.client_context())
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            async with (
                aiohttp.ClientSession(connector=connector, connector_owner=False) as session,
                session.get(url, headers=headers, allow_redirects=False) as answer,
            ):
                return answer.status
        finally:
            await connector.close(abort_ssl=True)
            await abort_transports()

    return asyncio.run(ask())
