"""The device flow and renewal, against an issuer on this machine."""

from __future__ import annotations

import asyncio
import stat
import time
from pathlib import Path

import pytest
from device_flows import Flow, with_issuer
from federation.device_flow import DeviceFlow
from token_places import SCOPE, a_source, own_places

from common.pelican.tokens.errors import IssuerError, TokenExpired
from common.pelican.tokens.oauth import discover, open_session, refresh
from common.pelican.tokens.scopes import Scope
from common.pelican.tokens.store import Client, StoredToken, load_token, save, token_folder


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


def test_an_issuer_without_offline_access_isnt_asked_for_it(flow: Flow) -> None:
    async def run(issuer: DeviceFlow) -> None:
        issuer.metadata_overrides = {"scopes_supported": ["openid"]}
        issuer.refreshable = False
        _, stored = await flow(issuer)
        assert issuer.log[2][1]["scope"] == SCOPE
        assert stored.refresh_token == ""

    with_issuer(run)


def test_a_stored_token_is_renewed_at_the_issuer_with_rotation_in_mid_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment = own_places(monkeypatch, tmp_path)
    flow = Flow(token_folder(environment))

    async def run(issuer: DeviceFlow) -> None:
        from common.pelican.tokens.source import renew_at_issuer

        issuer.ttl_s = 20
        path, stored = await flow(issuer)
        assert stored.claims.expires_s is not None
        now_s = stored.claims.expires_s - 1.5  # beyond its nine tenths
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
