"""Renewal of stored tokens by a token source."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
from federation.issuer import Issuer
from stored_tokens import keep
from token_places import Clock, a_source, minted

from common.pelican.tokens.errors import IssuerError, IssuerUnavailable, TokenExpired
from common.pelican.tokens.source import REFUSED_RETRY_S, RETRY_S, Renew
from common.pelican.tokens.store import StoredToken, load_token, locked


def renewing(mint: Callable[[], str], answers: list[Exception | None], asked: list[str]) -> Renew:
    """An issuer that rotates refresh tokens, and fails as it is told to."""

    async def renew(stored: StoredToken) -> StoredToken:
        asked.append(stored.refresh_token)
        answer = answers.pop(0) if answers else None
        if answer is not None:
            raise answer
        return stored.model_copy(update={"access_token": mint(), "refresh_token": f"r{len(asked)}"})

    return renew


def test_a_stored_token_is_renewed_before_its_end_and_kept(
    environment: dict[str, str], clock: Clock, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []
    first = minted(issuer, ttl_s=600)
    path = keep(environment, first)
    source = a_source(
        environment, clock, renew=renewing(lambda: minted(issuer, ttl_s=600, now_s=clock.now_s), [], asked)
    )

    async def look() -> None:
        assert await source.current() == first
        clock.now_s += 539
        assert await source.current() == first
        clock.now_s += 2
        second = await source.current()
        assert second != first
        assert load_token(path).access_token == second
        assert load_token(path).refresh_token == "r1"
        clock.now_s += 539
        assert await source.current() == second
        clock.now_s += 2
        assert await source.current() != second

    with caplog.at_level(logging.DEBUG):
        asyncio.run(look())
    assert asked == ["r0", "r1"]
    assert "token renewed" in caplog.text
    assert first not in caplog.text


def test_many_transfers_at_once_renew_once(environment: dict[str, str], clock: Clock, issuer: Issuer) -> None:
    asked: list[str] = []
    keep(environment, minted(issuer, ttl_s=-5))
    source = a_source(environment, clock, renew=renewing(lambda: minted(issuer), [], asked))

    async def look() -> set[str | None]:
        return set(await asyncio.gather(*(source.current() for _ in range(20))))

    assert len(asyncio.run(look())) == 1
    assert asked == ["r0"]


def test_what_another_process_renewed_is_taken_over(environment: dict[str, str], clock: Clock, issuer: Issuer) -> None:
    path = keep(environment, minted(issuer, ttl_s=-5))
    source = a_source(environment, clock)  # that asks no issuer
    newer = minted(issuer, ttl_s=6000)

    async def other_process() -> None:
        await asyncio.sleep(0)
        keep(environment, newer, "r1")

    async def look() -> None:
        with locked(path) as is_ours:
            assert is_ours
            waiting = asyncio.create_task(source.current())
            await other_process()
        assert await asyncio.wait_for(waiting, 20) == newer

    asyncio.run(look())


def test_an_issuer_that_is_away_costs_nothing_while_the_token_lasts_and_is_asked_rarely(
    environment: dict[str, str], clock: Clock, issuer: Issuer
) -> None:
    asked: list[str] = []
    first = minted(issuer, ttl_s=600)
    keep(environment, first)
    away = [IssuerUnavailable("issuer at x: HTTP 503") for _ in range(3)]
    source = a_source(environment, clock, renew=renewing(lambda: minted(issuer, now_s=clock.now_s), list(away), asked))

    async def look() -> None:
        clock.now_s += 550
        for _ in range(5):
            assert await source.current() == first
        assert len(asked) == 1
        clock.now_s += RETRY_S
        assert await source.current() == first
        assert len(asked) == 2
        clock.now_s += 60
        with pytest.raises(TokenExpired, match=r"icestream token.*HTTP 503"):
            await source.current()
        with pytest.raises(TokenExpired):
            await source.current()
        assert len(asked) == 3
        clock.now_s += RETRY_S
        assert await source.current() != first

    asyncio.run(look())


def test_a_worthless_refresh_token_is_tried_once_and_a_new_one_goes_on(
    environment: dict[str, str], clock: Clock, issuer: Issuer
) -> None:
    asked: list[str] = []
    keep(environment, minted(issuer, ttl_s=-5))
    source = a_source(environment, clock, renew=renewing(str, [IssuerError("invalid_grant")] * 9, asked))

    async def look() -> None:
        for _ in range(4):
            with pytest.raises(TokenExpired, match="run `icestream token` again"):
                await source.current()
            clock.now_s += 100
        assert asked == ["r0"]
        newer = minted(issuer, ttl_s=6000)
        keep(environment, newer, "r5")
        assert await source.current() == newer

    asyncio.run(look())


def test_a_renewed_token_that_cant_be_stored_is_used_and_renewed_again(
    environment: dict[str, str],
    clock: Clock,
    issuer: Issuer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[str] = []
    keep(environment, minted(issuer, ttl_s=-5))
    source = a_source(environment, clock, renew=renewing(lambda: minted(issuer, now_s=clock.now_s), [], asked))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def look() -> None:
        monkeypatch.setattr("common.pelican.tokens.source.save", full)
        second = await source.current()
        assert "No space left" in caplog.text
        assert await source.current() == second
        clock.now_s += 595
        assert await source.current() != second

    asyncio.run(look())
    assert asked == ["r0", "r1"]


def test_a_stored_token_that_servers_refuse_is_renewed_but_not_again_and_again(
    environment: dict[str, str], clock: Clock, issuer: Issuer
) -> None:
    asked: list[str] = []
    first = minted(issuer, ttl_s=100_000)
    keep(environment, first)
    source = a_source(
        environment, clock, renew=renewing(lambda: minted(issuer, ttl_s=100_000, now_s=clock.now_s), [], asked)
    )

    async def look() -> None:
        assert await source.current() == first
        assert await source.refused(first)
        second = await source.current()
        assert second != first
        for _ in range(5):
            assert not await source.refused(second)
        assert len(asked) == 1
        clock.now_s += REFUSED_RETRY_S
        assert await source.refused(second)
        assert len(asked) == 2

    asyncio.run(look())
