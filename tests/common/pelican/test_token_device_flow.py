"""The device flow and renewal, against an issuer on this machine."""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from federation.device_flow import DeviceFlow
from token_places import SCOPE, a_source, issuer_here, own_places, the_need

from common.errors import BadInputError
from common.pelican.tokens.acquire import Wanted, acquire, wanted_scopes, who_grants
from common.pelican.tokens.device_flow import DeviceCode, read_device_code
from common.pelican.tokens.errors import IssuerError, IssuerUnavailable, TokenExpired
from common.pelican.tokens.generation import TokenGeneration, parse_token_generation
from common.pelican.tokens.oauth import checked_url, discover, open_session, refresh
from common.pelican.tokens.scopes import Need, Scope
from common.pelican.tokens.store import Client, StoredToken, load_token, save, token_folder


class Flow:
    """One run of `acquire`, without waiting."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shown: list[DeviceCode] = []
        self.waited_s: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.waited_s.append(seconds)

    async def __call__(self, issuer: DeviceFlow, client_id: str = "") -> tuple[Path, StoredToken]:
        wanted = Wanted(the_need(), issuer.url(), client_id)
        async with open_session() as session:
            return await acquire(session, wanted, self.folder, show=self.shown.append, sleep=self.sleep)


@pytest.fixture
def flow(tmp_path: Path) -> Flow:
    return Flow(tmp_path / "tokens")


def with_issuer(test: Callable[[DeviceFlow], Awaitable[None]]) -> None:
    async def run() -> None:
        async with issuer_here() as issuer:
            await test(issuer)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_an_approved_code_becomes_a_stored_token(flow: Flow) -> None:
    async def run(issuer: DeviceFlow) -> None:
        issuer.answers = ["pending", "pending"]
        path, stored = await flow(issuer)
        assert load_token(path) == stored
        assert stored.access_token == issuer.tokens[0]
        assert stored.refresh_token in issuer.refresh_tokens
        assert stored.federation == "osg-htc.org"
        assert stored.claims.scopes == {Scope("storage.read", "/data/sim/IceCube/2025/testing")}
        assert [stat.S_IMODE(file.stat().st_mode) for file in sorted(flow.folder.iterdir())] == [0o600, 0o600]
        assert stat.S_IMODE(flow.folder.stat().st_mode) == 0o700
        endpoint, form = issuer.log[2]
        assert endpoint == "device_authorization"
        assert form["scope"] == f"wlcg offline_access {SCOPE}"

    with_issuer(run)
    assert flow.waited_s == [1, 1, 1]
    assert len(flow.shown) == 1
    assert flow.shown[0].code not in repr(flow.shown[0])


def test_a_client_is_registered_once_for_each_issuer(flow: Flow) -> None:
    async def run(issuer: DeviceFlow) -> None:
        await flow(issuer)
        await flow(issuer)
        assert issuer.requests("register") == 1
        issuer.clients.clear()  # the issuer forgets it
        await flow(issuer)
        assert issuer.requests("register") == 2
        assert len(list(flow.folder.glob("client-*"))) == 1
        assert len(list(flow.folder.glob("token-*"))) == 1

    with_issuer(run)


def test_a_client_id_of_ones_own_needs_no_registration(flow: Flow) -> None:
    async def run(issuer: DeviceFlow) -> None:
        issuer.metadata_overrides = {"registration_endpoint": None}
        with pytest.raises(IssuerError, match="--client-id"):
            await flow(issuer)
        issuer.clients["mine"] = ""
        await flow(issuer, "mine")
        assert issuer.requests("register") == 0
        with pytest.raises(IssuerError, match="invalid_client"):
            await flow(issuer, "unknown")

    with_issuer(run)


def test_slow_down_adds_five_seconds_for_good_and_a_server_that_is_away_doubles(flow: Flow) -> None:
    async def run(issuer: DeviceFlow) -> None:
        issuer.answers = ["pending", "slow_down", "pending", "slow_down", "unavailable", "pending"]
        await flow(issuer)

    with_issuer(run)
    assert flow.waited_s == [1, 1, 6, 6, 11, 22, 22]


def test_without_an_interval_five_seconds_are_waited(flow: Flow) -> None:
    async def run(issuer: DeviceFlow) -> None:
        issuer.interval_s = None
        await flow(issuer)

    with_issuer(run)
    assert flow.waited_s == [5]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("denied", "denied in the browser"),
        ("expired", "nobody approved within 600 s"),
        ("garbage", "no JSON object"),
        ("huge", "more than 1048576 bytes"),
        ("redirect", "HTTP 307"),
    ],
)
def test_a_flow_that_fails_says_why_and_stores_no_token(flow: Flow, answer: str, reason: str) -> None:
    async def run(issuer: DeviceFlow) -> None:
        issuer.answers = ["pending", answer]
        with pytest.raises(IssuerError, match=reason) as caught:
            await flow(issuer)
        assert not any(secret in str(caught.value) for secret in issuer.handed_out)

    with_issuer(run)
    assert not list(flow.folder.glob("token-*"))


def test_a_code_that_nobody_approves_is_given_up_at_its_end(tmp_path: Path) -> None:
    from common.pelican.tokens.device_flow import grant_by_device

    now_s = [0.0]

    async def sleep(seconds: float) -> None:
        now_s[0] += seconds

    async def run(issuer: DeviceFlow) -> None:
        issuer.answers = ["pending"] * 1000
        issuer.expires_in_s = 100
        issuer.interval_s = 7
        issuer.clients["me"] = ""
        async with open_session() as session:
            endpoints = await discover(session, issuer.url())
            client = Client(issuer=issuer.url(), client_id="me")
            with pytest.raises(IssuerError, match="nobody approved within 100 s"):
                await grant_by_device(
                    session, endpoints, client, SCOPE, show=lambda code: None, sleep=sleep, clock=lambda: now_s[0]
                )
        assert issuer.requests("token") == 14

    with_issuer(run)


def test_a_token_for_less_than_was_asked_is_refused_and_not_stored(flow: Flow) -> None:
    async def run(issuer: DeviceFlow) -> None:
        issuer.granted = "storage.read:/data/other"
        with pytest.raises(IssuerError, match=f"granted storage.read:/data/other, but not {SCOPE}"):
            await flow(issuer)
        issuer.granted = "wlcg storage.read:/data"
        await flow(issuer)

    with_issuer(run)
    assert len(list(flow.folder.glob("token-*"))) == 1


def test_an_opaque_token_has_the_end_and_scope_that_the_issuer_told(flow: Flow) -> None:
    async def run(issuer: DeviceFlow) -> None:
        issuer.opaque = True
        _, stored = await flow(issuer)
        assert stored.claims.expires_s == pytest.approx(time.time() + 600, abs=60)
        assert stored.claims.scopes == {Scope("storage.read", "/data/sim/IceCube/2025/testing")}

    with_issuer(run)


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


def test_an_issuer_without_offline_access_isnt_asked_for_it(flow: Flow) -> None:
    async def run(issuer: DeviceFlow) -> None:
        issuer.metadata_overrides = {"scopes_supported": ["openid"]}
        issuer.refreshable = False
        _, stored = await flow(issuer)
        assert issuer.log[2][1]["scope"] == SCOPE
        assert stored.refresh_token == ""

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


def test_a_stored_token_is_renewed_at_the_issuer_with_rotation_in_mid_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment = own_places(monkeypatch, tmp_path)
    flow = Flow(token_folder(environment))

    async def run(issuer: DeviceFlow) -> None:
        from common.pelican.tokens.source import renew_at_issuer

        issuer.ttl_s = 20
        path, _ = await flow(issuer)
        now_s = time.time() + 18.5  # beyond its nine tenths
        source = a_source(environment, lambda: now_s, renew=renew_at_issuer)  # type: ignore[arg-type]
        issuer.refresh_answers = ["unavailable"]
        assert await source.current() == issuer.tokens[0]
        now_s += 11
        token = await source.current()
        assert token == issuer.tokens[1]
        assert load_token(path).refresh_token in issuer.refresh_tokens
        issuer.refresh_ttl_s = 700  # from the wall clock, which does not know how late it is here
        now_s += 600
        assert await source.current() == issuer.tokens[2]
        issuer.refresh_tokens.clear()
        now_s += 1200
        with pytest.raises(TokenExpired, match="run `icestream token` again") as caught:
            await source.current()
        assert "this refresh token is worthless" in str(caught.value)
        assert not any(secret in str(caught.value) for secret in issuer.handed_out)
        asked = issuer.requests("refresh")
        with pytest.raises(TokenExpired):
            await source.current()
        assert issuer.requests("refresh") == asked

    with_issuer(run)


def test_two_runs_share_one_refresh_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment = own_places(monkeypatch, tmp_path)
    flow = Flow(token_folder(environment))

    async def run(issuer: DeviceFlow) -> None:
        from common.pelican.tokens.source import renew_at_issuer

        issuer.ttl_s = 2
        await flow(issuer)
        now_s = time.time() + 30
        sources = [a_source(environment, lambda: now_s, renew=renew_at_issuer) for _ in range(4)]  # type: ignore[arg-type]
        found = await asyncio.gather(*(source.current() for source in sources))
        assert set(found) == {issuer.tokens[1]}
        assert issuer.requests("refresh") == 1

    with_issuer(run)


def test_renewal_asks_only_where_secrets_may_go(tmp_path: Path) -> None:
    stored = StoredToken(
        access_token="a",
        refresh_token="r",
        scope="",
        federation="f",
        token_endpoint="http://evil.example/token",
        client=Client(issuer="https://i.example", client_id="me"),
    )
    save(tmp_path / "t" / "token-x.json", stored)

    async def run() -> None:
        async with open_session() as session:
            with pytest.raises(IssuerError, match="expected an https"):
                await refresh(session, stored, time.time)

    asyncio.run(run())


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
