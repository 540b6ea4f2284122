"""What a token tells of itself."""

from __future__ import annotations

import base64
import json

import pytest
from federation.issuer import Issuer
from token_places import NOW_S, SCOPE, minted

from common.pelican.tokens.claims import TokenClaims, read_claims, what_is_wrong
from common.pelican.tokens.scopes import Scope


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer("https://issuer.example/x")


def unsigned(payload: object) -> str:
    parts = (json.dumps({"alg": "none"}), payload if isinstance(payload, str) else json.dumps(payload), "")
    return ".".join(base64.urlsafe_b64encode(part.encode()).rstrip(b"=").decode() for part in parts)


def test_a_tokens_claims_are_read_without_its_key(issuer: Issuer) -> None:
    claims = read_claims(minted(issuer, f"openid {SCOPE}", ttl_s=600))
    assert claims.issuer == "https://issuer.example/x"
    assert claims.scopes == {Scope("storage.read", "/data/sim/IceCube/2025/testing")}
    assert claims.audience == ("https://wlcg.cern.ch/jwt/v1/any",)
    assert claims.expires_s == NOW_S + 600
    assert claims.issued_s == NOW_S
    assert claims.describe(NOW_S + 330) == (
        f"{SCOPE}; for any server, by https://issuer.example/x; expires in 4 min 30 s"
    )
    assert claims.describe(NOW_S + 607).endswith("; expired 7 s ago")


def test_a_description_names_nobody_and_holds_no_part_of_the_token(issuer: Issuer) -> None:
    token = minted(issuer, subject="jane.doe@example.org", aud=["https://one.org"])
    text = read_claims(token).describe(NOW_S)
    assert "jane" not in text
    assert "for https://one.org" in text
    assert not any(part in text for part in token.split("."))


def test_an_opaque_token_tells_nothing_and_counts_as_valid() -> None:
    claims = read_claims("s3cret-opaque")
    assert claims == TokenClaims()
    assert claims.is_valid(NOW_S)
    assert "opaque" in claims.describe(NOW_S)


@pytest.mark.parametrize("payload", ["{", "[]", '"x"', "\x00"])
def test_a_jwt_that_cant_be_read_is_taken_as_opaque(payload: str) -> None:
    assert read_claims(unsigned(payload)) == TokenClaims()


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": "soon", "scope": 7, "aud": {"a": 1}, "iss": [1], "iat": True, "nbf": None},
        {"exp": 1e300, "iat": -1e300},
        {},
    ],
)
def test_claims_of_wrong_kinds_are_no_crash(claims: dict[str, object]) -> None:
    found = read_claims(unsigned(claims))
    assert found.expires_s is None
    assert found.scopes == frozenset()
    assert found.describe(NOW_S)


def test_scopes_may_come_as_a_list_and_audiences_too() -> None:
    found = read_claims(unsigned({"scope": ["storage.read:/a", 3], "aud": ["x", "ANY"]}))
    assert found.scopes == {Scope("storage.read", "/a")}
    assert "for any server" in found.describe(NOW_S)


def test_control_characters_of_claims_dont_reach_the_terminal() -> None:
    text = read_claims(unsigned({"iss": "\x1b[2J\nx", "aud": "\x07", "scope": ""})).describe(NOW_S)
    assert text.isprintable()


def test_a_token_is_renewed_a_minute_before_its_end_or_at_nine_tenths_of_its_life() -> None:
    assert TokenClaims(issued_s=0, expires_s=86_400).margin_s(60) == 60
    assert TokenClaims(issued_s=0, expires_s=100).margin_s(60) == 10
    assert TokenClaims(expires_s=100).margin_s(60) == 60
    claims = TokenClaims(issued_s=0, expires_s=100)
    assert claims.is_valid(89, 10)
    assert not claims.is_valid(90, 10)
    assert not claims.is_valid(100)


def test_a_token_of_the_future_points_at_the_clock() -> None:
    assert "is the clock right?" in TokenClaims(not_before_s=NOW_S + 100, expires_s=NOW_S + 900).describe(NOW_S)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("Bearer abc", "Bearer"),
        ("two words", "spaces"),
        ("a\nb", "spaces nor control"),
        ("nul\x00", "control"),
        ("schlüssel", "control"),
        ("<html>", "HTML"),
        ('{"a":1}', "JSON"),
        ("x" * 20_000, "longer"),
    ],
)
def test_what_can_be_no_token_is_told_without_quoting_it(text: str, reason: str) -> None:
    wrong = what_is_wrong(text)
    assert wrong is not None
    assert reason in wrong
    assert "abc" not in wrong


def test_jwts_and_opaque_tokens_are_tokens(issuer: Issuer) -> None:
    assert what_is_wrong(minted(issuer)) is None
    assert what_is_wrong("opaque-._~+/=") is None
