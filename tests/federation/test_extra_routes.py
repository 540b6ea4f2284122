"""Endpoints that a test adds to the issuer."""

from __future__ import annotations

from pathlib import Path

import aiohttp
from aiohttp import web

from .client import with_client
from .federation import Federation
from .issuer import Issuer


def routes(issuer: Issuer) -> list[web.RouteDef]:
    async def metadata(_: web.Request) -> web.Response:
        return web.json_response({**issuer.openid_configuration(), "token_endpoint": issuer.url + "/token"})

    return [web.get("/issuer/.well-known/openid-configuration", metadata)]


def test_added_endpoints_stand_in_place_of_the_issuers_own(tmp_path: Path) -> None:
    with Federation(tmp_path, caches=1, extra_routes=routes) as federation:
        url = federation.issuer.url + "/.well-known/openid-configuration"

        async def ask(session: aiohttp.ClientSession) -> dict[str, str]:
            async with session.get(url) as answer:
                found: dict[str, str] = await answer.json()
                return found

        assert with_client(federation.certs, ask)["token_endpoint"] == federation.director.url + "/issuer/token"
        assert [entry["server"] for entry in federation.log] == ["issuer"]
