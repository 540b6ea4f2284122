"""Where a token is asked for: issuers, their metadata, the director's header, scopes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from device_flows import Flow, with_issuer
from federation.device_flow import DeviceFlow
from token_places import the_need

from common.errors import BadInputError
from common.pelican.tokens.acquire import wanted_scopes, who_grants
from common.pelican.tokens.device_flow import read_device_code
from common.pelican.tokens.errors import IssuerError, IssuerUnavailable
from common.pelican.tokens.generation import TokenGeneration, parse_token_generation
from common.pelican.tokens.oauth import checked_url, discover, open_session, refresh
from common.pelican.tokens.scopes import Need, Scope
from common.pelican.tokens.store import Client, StoredToken


@pytest.mark.parametrize("well_known", ["openid-configuration", "oauth-authorization-server"])
def test_an_issuer_is_found_by_either_kind_of_metadata(flow: Flow, well_known: str) -> None:
    async def run(issuer: DeviceFlow) -> None:
        issuer.well_known = (well_known,)
        await flow(issuer)

    with_issuer(run)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"issuer": "https://evil.example"}, "those of another issuer"),
        ({"token_endpoint": None}, "no token_endpoint"),
        ({"token_endpoint": "http://evil.example/token"}, "expected an https"),
        ({"device_authorization_endpoint": None}, "has no device flow"),
        ({"registration_endpoint": "file:///etc/passwd"}, "expected an https"),
    ],
)
def test_metadata_that_cant_be_trusted_are_refused(flow: Flow, overrides: dict[str, object], reason: str) -> None:
    async def run(issuer: DeviceFlow) -> None:
        issuer.metadata_overrides = overrides
        with pytest.raises(IssuerError, match=reason):
            await flow(issuer)

    with_issuer(run)


def test_what_is_no_issuer_and_who_isnt_there_are_told_apart(flow: Flow) -> None:
    async def run(issuer: DeviceFlow) -> None:
        issuer.well_known = ()
        with pytest.raises(IssuerError, match="is this the URL of an OAuth2 issuer"):
            await flow(issuer)

    with_issuer(run)

    async def nobody() -> None:
        runner = web.AppRunner(web.Application())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        await runner.cleanup()
        async with open_session() as session:
            with pytest.raises(IssuerUnavailable, match=r"127\.0\.0\.1"):
                await discover(session, f"http://127.0.0.1:{port}/x")

    asyncio.run(nobody())


@pytest.mark.parametrize(
    "url",
    [
        "http://issuer.example/",
        "http://10.0.0.1/",
        "ftp://issuer.example/",
        "https://user:pw@issuer.example/",
        "https://",
        "issuer.example",
        "https://issuer.example/\x1b[2J",
        "http://localhost.evil.example/",
    ],
)
def test_secrets_go_only_to_https_or_this_machine(url: str) -> None:
    with pytest.raises(IssuerError):
        checked_url(url, "issuer")
    assert checked_url("https://issuer.example:8443/x", "issuer")
    assert checked_url("http://[::1]:80/x", "issuer")


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"device_code": "d", "user_code": "u"},
        {"device_code": "d", "user_code": "\x1b[2J", "verification_uri": "https://i.example/"},
        {"device_code": "d", "user_code": "u", "verification_uri": "javascript:alert(1)"},
        {"device_code": "d", "user_code": "\n", "verification_uri": "https://i.example/", "interval": 10**400},
        {"device_code": "d", "user_code": 3, "verification_uri": "https://i.example/"},
    ],
)
def test_what_shouldnt_be_shown_in_a_terminal_is_refused(content: dict[str, object]) -> None:
    with pytest.raises(IssuerError):
        read_device_code("https://i.example", content)


def test_a_certificate_that_isnt_trusted_is_told(tmp_path: Path) -> None:
    from token_places import IssuerThread

    with IssuerThread(tmp_path / "certs") as here:

        async def run() -> None:
            async with open_session() as session:
                with pytest.raises(IssuerError, match=r"certificate isn't trusted.*SSL_CERT_FILE"):
                    await discover(session, here.issuer.url)
            async with open_session(here.certs.client_context()) as session:
                assert (await discover(session, here.issuer.url)).token.startswith("https://localhost")

        asyncio.run(run())


def test_the_directors_header_tells_issuer_depth_and_base_path() -> None:
    header = "issuer=https://I, max-scope-depth=3, strategy=OAuth2, base-path=/ns"
    assert parse_token_generation(header) == TokenGeneration("https://I", "/ns", 3)
    assert parse_token_generation("issuer=https://I") == TokenGeneration("https://I")
    assert parse_token_generation("issuer=https://I, strategy=Vault") is None
    assert parse_token_generation("") is None
    assert parse_token_generation("issuer=https://I, max-scope-depth=-1") == TokenGeneration("https://I")


def test_who_grants_is_given_or_asked_of_the_director_or_an_error() -> None:
    async def director(url: str) -> TokenGeneration | None:
        return TokenGeneration("https://I", "/ns", 3) if "known" in url else None

    async def run() -> None:
        assert await who_grants("pelican://x/known", "https://given", director) == TokenGeneration("https://given")
        assert (await who_grants("pelican://x/known", "", director)).issuer == "https://I"
        for lookup in (director, None):
            with pytest.raises(BadInputError, match="--issuer"):
                await who_grants("pelican://x/other", "", lookup)

    asyncio.run(run())


def test_the_scopes_to_ask_for_are_those_needed_as_deep_as_the_issuer_grants_or_those_given() -> None:
    need = the_need()
    assert wanted_scopes(need, TokenGeneration("https://I")) == need
    assert wanted_scopes(need, TokenGeneration("https://I", "", 2)).scopes == (Scope("storage.read", "/data/sim"),)
    given = wanted_scopes(need, TokenGeneration("https://I"), "storage.read:/x storage.create:/y")
    assert given.scopes == (Scope("storage.create", "/y"), Scope("storage.read", "/x"))
    for text in ("storage.read:/a/../b", "openid", "storage.read:/a openid"):
        with pytest.raises(BadInputError, match="expected storage scopes"):
            wanted_scopes(need, TokenGeneration("https://I"), text)
    many = Need("f", tuple(Scope("storage.read", f"/data/{i:03}/x") for i in range(100)))
    with pytest.raises(BadInputError, match=r"100 directories.*--scope storage.read:/data$"):
        wanted_scopes(many, TokenGeneration("https://I"))


def test_no_answer_of_an_issuer_ends_in_a_traceback() -> None:
    """Whatever stands in the JSON, it is an IssuerError or a token."""
    values: list[object] = [None, 3, True, [], {}, "", "x y", "Bearer x", "\x00", 1e400, 10**400]

    async def run() -> None:
        answers: list[dict[str, object]] = []

        async def token(request: web.Request) -> web.Response:
            return web.json_response(answers[-1])

        app = web.Application()
        app.router.add_post("/token", token)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/token"
        stored = StoredToken(
            access_token="a",
            refresh_token="r",
            scope="s",
            federation="f",
            token_endpoint=url,
            client=Client(issuer="https://i.example", client_id="me"),
        )
        try:
            async with aiohttp.ClientSession() as session:
                for name in ("access_token", "refresh_token", "token_type", "expires_in", "scope"):
                    for value in values:
                        answers.append({"access_token": "good", name: value})
                        try:
                            renewed = await refresh(session, stored, time.time)
                        except IssuerError:
                            continue
                        assert renewed.access_token == "good"
                        assert renewed.claims.describe(time.time())
        finally:
            await runner.cleanup()

    asyncio.run(run())
