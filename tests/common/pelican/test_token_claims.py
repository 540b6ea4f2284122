"""What a token allows, what a run needs, and who gets the token."""

from __future__ import annotations

import base64
import json

import pytest
from federation.issuer import Issuer
from hostile_values import ANY, DEEP, FUZZ, objects
from hypothesis import given
from hypothesis import strategies as st
from token_places import NOW_S, SCOPE, minted

from common.errors import BadInputError
from common.pelican import token_claims


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer("https://issuer.example/x")


def unsigned(payload: object) -> str:
    parts = (json.dumps({"alg": "none"}), payload if isinstance(payload, str) else json.dumps(payload), "")
    return ".".join(base64.urlsafe_b64encode(part.encode()).rstrip(b"=").decode() for part in parts)


def test_a_tokens_claims_are_read_without_its_key(issuer: Issuer) -> None:
    claims = token_claims.read_claims(minted(issuer, f"openid {SCOPE}", ttl_s=600))
    assert claims.issuer == "https://issuer.example/x"
    assert claims.scopes == {token_claims.Scope("storage.read", "/data/sim/IceCube/2025/testing")}
    assert claims.audience == ("https://wlcg.cern.ch/jwt/v1/any",)
    assert claims.expires_s == NOW_S + 600
    assert claims.describe(NOW_S + 330) == (
        f"{SCOPE}; for any server, by https://issuer.example/x; expires in 4 min 30 s"
    )
    assert claims.describe(NOW_S + 607).endswith("; expired 7 s ago")


def test_a_description_names_nobody_and_holds_no_part_of_the_token(issuer: Issuer) -> None:
    token = minted(issuer, subject="jane.doe@example.org", aud=["https://one.org"])
    text = token_claims.read_claims(token).describe(NOW_S)
    assert "jane" not in text
    assert "for https://one.org" in text
    assert not any(part in text for part in token.split("."))


@pytest.mark.parametrize("token", ["s3cret-opaque", *map(unsigned, ["{", "[]", '"x"', "\x00"])])
def test_an_opaque_token_and_a_jwt_that_cant_be_read_tell_nothing_and_count_as_valid(token: str) -> None:
    claims = token_claims.read_claims(token)
    assert claims == token_claims.TokenClaims()
    assert claims.is_valid(NOW_S)
    assert "opaque" in claims.describe(NOW_S)


def test_scopes_may_come_as_a_list_and_audiences_too() -> None:
    found = token_claims.read_claims(unsigned({"scope": ["storage.read:/a", 3], "aud": ["x", "ANY"]}))
    assert found.scopes == {token_claims.Scope("storage.read", "/a")}
    assert "for any server" in found.describe(NOW_S)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("Bearer abc", "Bearer"),
        ("a\nb", "spaces nor control"),
        ("schlüssel", "control"),
        ("<html>", "HTML"),
        ('{"a":1}', "JSON"),
        ("x" * 20_000, "longer"),
    ],
)
def test_what_can_be_no_token_is_told_without_quoting_it(text: str, reason: str) -> None:
    wrong = token_claims.what_is_wrong(text)
    assert wrong is not None
    assert reason in wrong
    assert "abc" not in wrong


TESTING = "pelican://osg-htc.org/icecube/wipac/data/sim/IceCube/2025/testing"
PREFIX = "/icecube/wipac"


def scopes(*texts: str) -> tuple[token_claims.Scope, ...]:
    return tuple(token_claims.Scope(*text.split(":")) for text in texts)


@pytest.mark.parametrize(
    ("granted", "needed", "covered"),
    [
        ("storage.read:/a", "storage.read:/a", True),
        ("storage.read:/a", "storage.read:/a/b", True),
        ("storage.read://a//", "storage.read:/a/b", True),
        ("storage.read:/a", "storage.read:/ab", False),
        ("storage.read:/a", "storage.read:/", False),
        ("storage.read:/", "storage.read:/a/b", True),
        ("storage.read", "storage.read:/a/b", True),
        ("storage.stage:/a", "storage.read:/a", True),
        ("storage.modify:/a", "storage.create:/a", True),
        ("storage.create:/a", "storage.modify:/a", False),
        ("storage.modify:/a", "storage.read:/a", False),
        ("storage.read:/x storage.read:/a", "storage.read:/a/b", True),
        ("read:/a", "storage.read:/a/b", True),
        ("write:/a", "storage.create:/a", True),
        ("storage.read:/a/../b", "storage.read:/a", False),
    ],
)
def test_a_scope_covers_its_directory_and_all_below_it_for_what_it_permits(
    granted: str, needed: str, covered: bool
) -> None:
    assert (not token_claims.missing(token_claims.parse_scopes(granted), scopes(needed))) == covered


@pytest.mark.parametrize(
    "inputs",
    [
        [f"{TESTING}/0000000-0000999/*.parquet"],
        [f"{TESTING}/{{range}}/*.parquet"],
        [f"{TESTING}/000000?-000099[89]/x.parquet"],
        [f"{TESTING}/{{0000000-0000999,0001000-0001999}}/x.parquet"],
        [f"{TESTING}/0000000-0000999/muons 1.parquet", f"{TESTING}/0001000-0001999/a.h5"],
        [f"{TESTING}/0000000-0000999/", f"{TESTING}/0001000-0001999"],
        [f"{TESTING}/muons.parquet", f"{TESTING}/"],
        [f"{TESTING}/./0000000-0000999//a.parquet"],
        ["osdf:///icecube/wipac/data/sim/IceCube/2025/testing/0000000-0000999/*.parquet"],
        ["osdf://icecube/wipac/data/sim/IceCube/2025/testing/*"],
        [f"{TESTING}/{start:07d}-{start + 999:07d}/*.parquet" for start in range(0, 100_000, 1000)],
    ],
)
def test_one_scope_serves_all_ranges(inputs: list[str]) -> None:
    expected = token_claims.Need("osg-htc.org", scopes("storage.read:/data/sim/IceCube/2025/testing"))
    (need,) = token_claims.needs(inputs, storage_prefix=PREFIX)
    assert need == expected
    assert need.path == "/icecube/wipac/data/sim/IceCube/2025/testing"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        (f"{TESTING}/2025-01/a.parquet", "/data/sim/IceCube/2025/testing/2025-01"),  # a month is no range
        (f"{TESTING}/level2/", "/data/sim/IceCube/2025/testing/level2"),
        (f"{TESTING}/notes.txt", "/data/sim/IceCube/2025/testing/notes.txt"),
        (f"{TESTING}/dir.parquet/", "/data/sim/IceCube/2025/testing/dir.parquet"),
        (f"{TESTING}/größe/a.parquet", "/data/sim/IceCube/2025/testing"),  # no scope can hold it
        ("pelican://osg-htc.org/icecube/wipacx/a.parquet", "/icecube/wipacx"),
        ("pelican://osg-htc.org", "/"),
        ("pelican://osg-htc.org/icecube/wipac/*", "/"),
        ("pelican://osg-htc.org/icecube/*/x", "/icecube"),
    ],
)
def test_a_scope_is_only_as_wide_as_needed(url: str, path: str) -> None:
    assert token_claims.directory(url, PREFIX) == ("osg-htc.org", path)


def test_several_inputs_have_a_set_of_scopes_by_federation() -> None:
    found = token_claims.needs(
        [
            "pelican://a.org/x/1/*.parquet",
            "pelican://A.org:8443/x/*",
            "pelican://a.org/x/2/*.parquet",
            "pelican://a.org/x/2/deep/*.parquet",
            "/local/*.parquet",
            "https://elsewhere.org/x/*.parquet",
            "s3://bucket/x",
        ]
    )
    assert found == (
        token_claims.Need("a.org", scopes("storage.read:/x/1", "storage.read:/x/2")),
        token_claims.Need("a.org:8443", scopes("storage.read:/x")),
    )
    assert token_claims.federation_of("pelican://A.org/x") == "a.org"
    assert token_claims.federation_of("/pelican/x") is None


def test_only_outputs_in_a_federation_need_to_write() -> None:
    assert token_claims.needs([], ["/local/checkpoints", "s3://bucket/x"]) == ()
    found = token_claims.needs([f"{TESTING}/*"], [f"{TESTING}/out", "/local"], storage_prefix=PREFIX)
    assert found[0].scopes == scopes(
        "storage.create:/data/sim/IceCube/2025/testing/out",
        "storage.modify:/data/sim/IceCube/2025/testing/out",
        "storage.read:/data/sim/IceCube/2025/testing",
    )


def test_a_path_with_dots_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"'\.\.' is not allowed"):
        token_claims.needs([f"{TESTING}/../other/*.parquet"])


def jwt_of(header: str, payload: str) -> str:
    texts = [text.encode(errors="surrogatepass") for text in (header, payload)]
    return ".".join([*(base64.urlsafe_b64encode(text).rstrip(b"=").decode() for text in texts), "c2ln"])


CLAIMS = objects("iss", "aud", "scope", "exp", "iat", "nbf").map(json.dumps)
TOKENS = st.one_of(
    st.builds(jwt_of, st.just("{}") | ANY, CLAIMS | ANY | st.just(DEEP[:9000]) | st.just('{"exp":' + "9" * 5000 + "}")),
    st.builds("{}.{}.{}".format, ANY, ANY, ANY),
    ANY,
)


@FUZZ
@given(TOKENS)
def test_a_tokens_claims_are_read_shown_and_judged_whatever_they_are(token: str) -> None:
    token_claims.what_is_wrong(token)
    claims = token_claims.read_claims(token)
    assert claims.describe(1e9).isprintable()
    token_claims.why_not(
        claims, token_claims.Recipient("fed.org", "https://h", "/d", ("https://i",)), token_claims.Consent()
    )
    claims.is_valid(1e9)
