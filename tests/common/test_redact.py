"""Texts as they may be shown."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.redact import without_secrets

JWT = "eyJhbGciOiJFUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJqYW5lIn0.c2lnbmF0dXJl-_x"


@pytest.mark.parametrize(
    "text",
    [
        JWT,
        f"token {JWT}.",
        f"'{JWT}'",
        f"Authorization: Bearer {JWT}",
        f"{{'Authorization': 'Bearer {JWT}'}}",
        f"https://cache:8443/ns/a.b?authz={JWT}",
        f"https://cache:8443/ns/a.b?authz=Bearer%20{JWT}&x=1",
        f"GET /ns/a.b?authz={JWT} HTTP/1.1",
        f"BEARER_TOKEN={JWT}",
        f"a{JWT}",
        f"x/{JWT}/y",
        JWT.removesuffix(".c2lnbmF0dXJl-_x") + ".",
    ],
)
def test_whatever_looks_like_a_jwt_is_left_out(text: str) -> None:
    shown = without_secrets(text)
    assert not any(part in shown for part in JWT.split("."))
    assert "…" in shown


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer s3cret",
        "authorization: bearer s3cret",
        "{'Authorization': 'Bearer s3cret', 'x': 1}",
        "b'Bearer s3cret'",
        "Bearer%20s3cret",
        "/path?authz=s3cret",
        "/path?a=1&authz=Bearer%20s3cret&b=2",
        "authz: s3cret",
        '{"access_token": "s3cret", "refresh_token":"s3cret"}',
        "{'access_token': 's3cret'}",
        "grant_type=refresh_token&refresh_token=s3cret&client_secret=s3cret",
        "device_code=s3cret",
        "BEARER_TOKEN=s3cret",
        "Authorization: Basic czNjcmV0OnMzY3JldA==",
        "https://me:s3cret@host/x",
        "{'Authorization': ['Bearer s3cret']}",
        "{'Authorization': ('Bearer s3cret',)}",
        "Authorization: (Bearer s3cret)",
        "token=s3cret",
        "HF_TOKEN='s3cret'",
        "api_key=s3cret",
        "apikey%3Ds3cret",
        "password=s3cret",
        '{"password": "s3cret"}',
        "MYSQL_PASSWD=s3cret",
        "X-Api-Key: s3cret",
        "X-Auth-Token: s3cret",
        "Cookie: a=1; session=s3cret",
        "{'Set-Cookie': 'session=s3cret; Path=/'}",
        "AWS_SECRET_ACCESS_KEY=s3cret",
        "secret_key='s3cret'",
        "account_key: s3cret",
        "mysql --password s3cret -h host",
        r'{"body": "{\"access_token\": \"s3cret\"}"}',
        "hf_s3cretabcdefghijklmnop",
        "ghp_s3cretabcdefghijklmnopqrstuvw",
        "glpat-s3cretabcdefghij",
    ],
)
def test_a_secret_is_left_out_by_what_stands_before_it(text: str) -> None:
    shown = without_secrets(text)
    assert "s3cret" not in shown
    assert "czNjcmV0" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "the bearer token has expired",
        'WWW-Authenticate: Bearer error="invalid_token", error_description="token has expired"',
        "pelican://osg-htc.org/icecube/0000000-0000999/*.parquet",
        "data/muons-?.parquet",
        "storage.read:/data/sim",
        "set BEARER_TOKEN_FILE to a file",
        "a.b.c 1.2.3 eye.level.x",
        "no token: BEARER_TOKEN, and the token is expired",
        "--set token.federation=osg-htc.org",
        "require-token=false",
    ],
)
def test_everything_else_stays(text: str) -> None:
    assert without_secrets(text) == text


_TOKEN_CHARS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~+/=!$*|^%#@:?&"
SECRETS = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "auth-", "token.", "error", "scope", "null-", "a", "Zz", "-", "tokens."]),
    st.text(_TOKEN_CHARS, min_size=8, max_size=60),
    st.sampled_from(["x", "9", "=", ""]),
)
HEADERS = [
    "Authorization: Bearer {}",
    "authorization: bearer {}",
    "{{'Authorization': 'Bearer {}', 'x': 1}}",
    '{{"Authorization":"Bearer {}","x":1}}',
    "b'Bearer {}'",
    "curl -H 'Authorization: Bearer {}' https://h/p",
    "Bearer {}",
    "refused: Bearer {} (403)",
    "Authorization: {}",
    "Proxy-Authorization: Token {}",
    "Bearer%20{}",
    '{{"access_token": "{}", "token_type": "bearer"}}',
    "{{'refresh_token': '{}'}}",
    "BEARER_TOKEN={} icestream run",
    "client_secret={}",
    "device_code: {}",
    "token={}",
    "WANDB_API_KEY={} icestream run",
    "{{'Authorization': ['Bearer {}']}}",
    "Cookie: a={}",
]
QUERIES = [
    "https://h/p?{}",
    "HTTPS://h:8443/p?{} was refused",
    "GET https://h/p?authz={} HTTP/1.1",
    "https://h/p?a=1&authz=Bearer%20{}&b=2",
    "pelican://h/p?authz={}",
    "s3://b/k?X-Amz-Signature={}",
    "/p?authz={}",
    "<https://h/p?{}>; rel=duplicate",
    "https://h/cb#access_token={}",
]
USERS = ["https://{}@h/p", "https://me:{}@h:8443/p", "proxy http://me:{}@proxy:3128", "s3://{}:x@b/k"]


@settings(max_examples=150, deadline=None)
@given(SECRETS, st.sampled_from(HEADERS + QUERIES), st.sampled_from(["", "it failed: ", "a b\n"]))
def test_no_secret_in_any_known_carrier_survives(secret: str, carrier: str, before: str) -> None:
    text = without_secrets(before + carrier.format(secret))
    assert secret not in text
    assert secret[-8:] not in text
    assert before in text


@settings(max_examples=80, deadline=None)
@given(st.from_regex(r"[A-Za-z0-9!$&'()*+,;=._~-]{6,40}", fullmatch=True), st.sampled_from(USERS))
def test_no_password_in_an_address_survives(secret: str, carrier: str) -> None:
    assert secret not in without_secrets(carrier.format(secret))


@settings(max_examples=80, deadline=None)
@given(
    st.text(st.characters(categories=["L", "N"], exclude_characters=":"), min_size=1, max_size=20),
    st.text(min_size=1, max_size=20),
    st.sampled_from(["Basic", "basic", "BASIC"]),
)
def test_no_user_and_password_after_the_word_basic_survive(user: str, password: str, word: str) -> None:
    encoded = base64.b64encode(f"{user}:{password}".encode(errors="replace")).decode()
    assert encoded not in without_secrets(f"{word} {encoded}")


WORDS = [
    "basic",
    "bearer",
    "token",
    "scope",
    "403",
    "cache0:8443",
    "/ns/a@b.parquet",
    "storage.read:/data",
    "(404)",
    "x=1",
]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from([word for word in WORDS if word != "bearer"]), max_size=8))
def test_ordinary_words_stay(words: list[str]) -> None:
    assert without_secrets(" ".join(words)) == " ".join(words)


@pytest.mark.parametrize(
    "text",
    [
        "https://cache:8443/ns/a@b.parquet",
        "https://[::1]:8443/ns/a@b.parquet",
        "pelican://osg-htc.org/d/muons-?.parquet",
        "s3://bucket/x-[0-9]?.parquet",
        "a basic recipe, and Basic hyperparameters",
        "a bearer token, the Bearer token has expired",
        'Bearer realm="x", error="invalid_token"',
        '{"access_token": null}',
        '{"token": {"federation": "osg-htc.org"}, "password": null}',
    ],
)
def test_addresses_and_prose_that_only_look_alike_stay(text: str) -> None:
    assert without_secrets(text) == text


@settings(max_examples=60, deadline=None)
@given(SECRETS, st.sampled_from(["Bearer {}", "https://h/p?{}", "authz={}", "https://u:{}@h/", "token={}"]))
def test_json_is_json_afterwards(secret: str, carrier: str) -> None:
    content = {
        "a": carrier.format(secret),
        "b": [carrier.format(secret), 1],
        "c": {"authz": secret, "token": secret, "Cookie": secret},
        "d": None,
    }
    for text in (json.dumps(content), json.dumps(content, separators=(",", ":"))):
        found = json.loads(without_secrets(text))
        assert found["d"] is None
        assert secret not in str(found)


SCRIPT = f"""
import logging, threading
from common.process import start_logging
start_logging("test")
token = {JWT!r}
own = logging.getLogger("library")
own.setLevel(logging.DEBUG)
handler = logging.StreamHandler()
handler.setFormatter(logging.Formatter("library says %(message)s"))
own.addHandler(handler)
own.debug("headers %s", {{"Authorization": "Bearer " + token}})
own.warning("headers " + token)
try:
    raise ValueError("request with " + token)
except ValueError:
    logging.exception("it failed with %r", token)
thread = threading.Thread(target=lambda: (_ for _ in ()).throw(KeyError("in a thread " + token)))
thread.start()
thread.join()
raise RuntimeError("uncaught " + token)
"""


@pytest.mark.process
def test_no_log_of_any_library_and_no_traceback_shows_a_token() -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, cwd=root)
    assert done.returncode == 1
    for expected in ("library says headers", "it failed with", "ValueError: request with", "in a thread", "uncaught"):
        assert expected in done.stderr
    assert not any(part in done.stderr + done.stdout for part in JWT.split("."))
