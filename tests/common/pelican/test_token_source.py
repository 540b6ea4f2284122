"""The token that is valid now: watched, renewed, refused, expired."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from federation.issuer import Issuer
from stored_tokens import NAME
from token_places import SCOPE, Clock, a_source, minted, token_file

from common.pelican.tokens.errors import BadTokenError, TokenExpired


def test_without_a_token_one_goes_without_and_is_told_where_none_was(environment: dict[str, str], clock: Clock) -> None:
    source = a_source(environment, clock)

    async def look() -> None:
        assert await source.current() is None
        assert not await source.refused(None)

    asyncio.run(look())
    assert f"shared/{NAME}); `icestream token` gets one" in source.describe()
    assert source.describe().startswith("no token found (searched: ")
    assert f"needed: {SCOPE}" in source.describe()


def test_a_token_that_comes_later_is_taken_up(
    environment: dict[str, str], clock: Clock, issuer: Issuer, tmp_path: Path
) -> None:
    source = a_source(environment, clock)

    async def look() -> None:
        assert await source.current() is None
        token = minted(issuer)
        token_file(tmp_path / "shared" / NAME, token)
        assert await source.refused(None)
        assert await source.current() == token

    asyncio.run(look())


def test_a_file_that_changes_is_read_again_while_the_old_token_still_lasts(
    environment: dict[str, str], clock: Clock, issuer: Issuer, tmp_path: Path
) -> None:
    first, second = minted(issuer), minted(issuer, ttl_s=6000)
    path = token_file(tmp_path / "token", first)
    source = a_source(environment, clock, file=path)

    async def look() -> None:
        assert await source.current() == first
        ends_s = source.expires_s
        token_file(path, second)
        assert await source.current() == second
        assert ends_s is not None
        assert source.expires_s == pytest.approx(ends_s + 6000 - 600, abs=5)

    assert source.expires_s is None, "none was found yet"
    asyncio.run(look())


@pytest.mark.parametrize("broken", ["", "half a tok", "{", None])
def test_a_file_that_is_away_or_half_written_costs_nothing_while_its_token_lasts(
    environment: dict[str, str], clock: Clock, issuer: Issuer, tmp_path: Path, broken: str | None
) -> None:
    first, second = minted(issuer), minted(issuer, ttl_s=6000)
    path = token_file(tmp_path / "token", first)
    source = a_source(environment, clock, file=path)

    async def look() -> None:
        assert await source.current() == first
        if broken is None:
            path.unlink()
        else:
            token_file(path, broken)
        assert await source.current() == first
        clock.now_s += 601
        with pytest.raises(TokenExpired, match=str(path)):
            await source.current()
        token_file(path, second)
        assert await source.current() == second

    asyncio.run(look())


def test_an_expired_token_pauses_with_guidance_and_a_new_one_goes_on_at_once(
    environment: dict[str, str], clock: Clock, issuer: Issuer, tmp_path: Path
) -> None:
    first, second = minted(issuer), minted(issuer, ttl_s=6000)
    path = token_file(tmp_path / "token", first)
    source = a_source(environment, clock, file=path)

    async def look() -> None:
        assert await source.current() == first
        clock.now_s += 600 + 250
        for _ in range(3):  # as often as it is retried
            with pytest.raises(TokenExpired) as caught:
                await source.current()
        text = str(caught.value)
        assert f"the token of {path} expired 4 min 10 s ago" in text
        assert SCOPE in text
        assert "put a new token into this file" in text
        assert first not in text
        token_file(path, second)
        assert await source.current() == second

    asyncio.run(look())


def test_before_the_start_an_expired_token_is_an_error(
    environment: dict[str, str], clock: Clock, issuer: Issuer, tmp_path: Path
) -> None:
    expired = minted(issuer, ttl_s=-100)
    source = a_source(environment | {"BEARER_TOKEN": expired}, clock)
    with pytest.raises(
        BadTokenError, match=r"BEARER_TOKEN \(environment\) expired 1 min 40 s ago.*--token-file"
    ) as caught:
        asyncio.run(source.check())
    assert expired not in str(caught.value)
    good = a_source(environment | {"BEARER_TOKEN": minted(issuer)}, clock)
    assert asyncio.run(good.check()) == (
        f"BEARER_TOKEN (environment): {SCOPE}; for any server, by https://issuer.example; expires in 10 min"
    )
    other = a_source(environment | {"BEARER_TOKEN": minted(issuer, "storage.read:/other")}, clock)
    assert asyncio.run(other.check()).endswith(f"needed: {SCOPE}")


def test_a_broken_place_that_was_named_stops_at_the_start_and_another_is_passed_over(
    environment: dict[str, str], clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = token_file(tmp_path / "shared" / NAME, "two words")
    source = a_source(environment, clock, file=broken)

    async def look() -> None:
        for _ in range(2):
            with pytest.raises(BadTokenError, match="no token"):
                await source.current()

    asyncio.run(look())
    by_chance = a_source(environment, clock)
    with caplog.at_level(logging.WARNING):
        assert asyncio.run(by_chance.current()) is None
    assert "this is no token" in by_chance.describe()
    assert "this is no token" in caplog.text


def test_an_expired_token_of_an_earlier_place_gives_way_to_a_valid_one(
    environment: dict[str, str], clock: Clock, issuer: Issuer, tmp_path: Path
) -> None:
    good = minted(issuer)
    token_file(tmp_path / "shared" / NAME, good)
    source = a_source(environment | {"BEARER_TOKEN": minted(issuer, ttl_s=-5)}, clock)
    assert asyncio.run(source.current()) == good


def test_a_refused_token_gives_way_to_each_other_one_once(
    environment: dict[str, str], clock: Clock, issuer: Issuer, tmp_path: Path
) -> None:
    first, second = minted(issuer), minted(issuer)
    path = token_file(tmp_path / "shared" / NAME, second)
    source = a_source(environment | {"BEARER_TOKEN": first}, clock)

    async def look() -> None:
        assert await source.current() == first
        assert await source.refused(first)
        assert await source.current() == second
        assert await source.refused(first)  # another transfer comes late with the old one
        assert not await source.refused(second)
        assert not await source.refused(first)
        assert not await source.refused(second)
        assert await source.current() in (first, second)
        third = minted(issuer)
        token_file(path, third)
        assert await source.refused(first)
        assert await source.current() == third

    asyncio.run(look())


def test_a_new_token_is_logged_without_itself(
    environment: dict[str, str], clock: Clock, issuer: Issuer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = minted(issuer), minted(issuer, ttl_s=6000)
    path = token_file(tmp_path / "token", first)
    source = a_source(environment, clock, file=path)

    async def look() -> None:
        await source.current()
        token_file(path, second)
        await source.current()

    with caplog.at_level(logging.INFO):
        asyncio.run(look())
    assert f"new token from {path}" in caplog.text
    assert second not in caplog.text
    assert all(token not in repr(vars(source)) for token in (first, second))


def test_an_opaque_token_is_used_until_it_is_refused(environment: dict[str, str], clock: Clock, tmp_path: Path) -> None:
    path = token_file(tmp_path / "token", "opaque-1")
    source = a_source(environment, clock, file=path, federation="osg-htc.org")

    async def look() -> None:
        clock.now_s += 1e9
        assert await source.current() == "opaque-1"
        assert not await source.refused("opaque-1")
        token_file(path, "opaque-2")
        assert await source.refused("opaque-1")
        assert await source.current() == "opaque-2"

    asyncio.run(look())
    assert source.not_covered() == ""
