"""Tokens, token files and answers of issuers with any content: read or refused, without a traceback."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

from hostile_values import ANY, DEEP, FEW, FUZZ, URLS, objects
from hypothesis import given
from hypothesis import strategies as st
from token_places import token_file

from common.errors import IcestreamError
from common.pelican.answers import json_object
from common.pelican.tokens.claims import read_claims, what_is_wrong
from common.pelican.tokens.device_flow import read_device_code
from common.pelican.tokens.errors import BadTokenError, IssuerError
from common.pelican.tokens.files import read_token
from common.pelican.tokens.oauth import _endpoints, _refusal, ask_token, checked_url, register
from common.pelican.tokens.recipient import Consent, Recipient, why_not
from common.pelican.tokens.store import Client, load_token


def jwt_of(header: str, payload: str) -> str:
    parts = (
        base64.urlsafe_b64encode(text.encode(errors="surrogatepass")).rstrip(b"=").decode()
        for text in (header, payload)
    )
    return ".".join([*parts, "c2ln"])


CLAIMS = objects("iss", "aud", "scope", "exp", "iat", "nbf").map(json.dumps)
TOKENS = st.one_of(
    st.builds(jwt_of, st.just("{}") | ANY, CLAIMS | ANY | st.just(DEEP[:9000]) | st.just('{"exp":' + "9" * 5000 + "}")),
    st.builds("{}.{}.{}".format, ANY, ANY, ANY),
    ANY,
)


@FUZZ
@given(TOKENS)
def test_a_tokens_claims_are_read_shown_and_judged_whatever_they_are(token: str) -> None:
    what_is_wrong(token)
    claims = read_claims(token)
    assert claims.describe(1e9).isprintable()
    why_not(claims, Recipient("fed.org", "https://h", "/d", ("https://i",)), Consent())
    claims.margin_s(60)
    claims.is_valid(1e9)


FILES = st.one_of(
    st.binary(max_size=200),
    TOKENS.map(lambda text: text.encode(errors="surrogatepass")),
    objects("access_token").map(lambda content: json.dumps(content).encode()),
    st.just(b'{"access_token":' + DEEP.encode()),
)


@FEW
@given(FILES)
def test_a_token_file_holds_a_token_or_is_named(tmp_path: Path, content: bytes) -> None:
    path = token_file(tmp_path / "token", "x")
    path.write_bytes(content)
    for read in (read_token, load_token):
        try:
            read(path)
        except BadTokenError as error:
            assert str(path) in str(error)  # noqa: PT017


@FUZZ
@given(URLS)
def test_a_url_of_an_issuer_is_checked(url: str) -> None:
    try:
        assert checked_url(url, "x") == url
    except IssuerError as error:
        str(error).encode()


class _Content:
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def iter_chunked(self, size: int) -> Any:
        yield self._body


class _Issuer:
    """A session whose every answer is the same."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status, self.content = status, _Content(body)

    def request(self, *_: object, **__: object) -> _Issuer:
        return self

    async def __aenter__(self) -> _Issuer:
        return self

    async def __aexit__(self, *_: object) -> None:
        return


GRANTS = objects(
    "access_token", "refresh_token", "scope", "expires_in", "token_type", "error", "error_description", "client_id",
    "client_secret", "device_code", "user_code", "verification_uri", "verification_uri_complete", "interval", "issuer",
    "token_endpoint", "device_authorization_endpoint", "registration_endpoint", "scopes_supported",
)  # fmt: skip


@FUZZ
@given(GRANTS)
def test_an_issuers_answers_are_read_or_refused(content: dict[str, Any]) -> None:
    for read in (
        lambda: _endpoints("https://i", content | {"issuer": "https://i"}),
        lambda: read_device_code("https://i", content),
        lambda: _refusal("https://i", "token", 400, content),
    ):
        try:
            read()
        except IssuerError as error:
            str(error).encode()


@FEW
@given(GRANTS.map(json.dumps) | ANY | st.just(DEEP), st.sampled_from([200, 201, 400, 500]))
def test_what_an_issuer_grants_can_be_stored_and_used(text: str, status: int) -> None:
    from common.pelican.tokens.oauth import Endpoints

    session: Any = _Issuer(status, text.encode(errors="surrogatepass"))
    endpoints = Endpoints("https://i", "https://i/t", "https://i/d", "https://i/r")

    async def ask() -> None:
        client = Client(issuer="https://i", client_id="me")
        try:
            client = await register(session, endpoints, "storage.read:/")
            client.model_dump_json()
        except IcestreamError:
            pass
        try:
            granted = await ask_token(session, "https://i/t", client, {"a": "b"}, "storage.read:/")
            json.dumps([granted.access_token, granted.refresh_token, granted.scope]).encode()
            f"{granted.access_token}{granted.refresh_token}{granted.scope}".encode()
        except IcestreamError:
            pass

    asyncio.run(ask())


def test_json_of_any_depth_is_no_object() -> None:
    assert json_object(DEEP) is None
    assert json_object('{"a":' * 50_000) is None
    assert json_object("9" * 5000) is None
    assert json_object(b"\xff\xfe") is None
