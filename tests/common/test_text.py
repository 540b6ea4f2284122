"""Text from outside and of errors, made fit for a terminal and for a log; lengths of time."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.text import duration, printable, printable_lines, without_secrets


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(), max_size=200), st.integers(1, 100))
def test_whatever_comes_is_one_bounded_printable_line(text: str, most: int) -> None:
    shown = printable(text, most)
    assert shown.isprintable()
    assert len(shown) <= most
    shown.encode()  # no surrogate is left
    assert all(line.isprintable() for line in printable_lines(text).split("\n"))


def test_lines_stay_lines_and_a_long_text_is_cut() -> None:
    assert printable_lines("a\n  b\n") == "a\n  b\n"
    assert printable("a\n\t b") == "a b"
    assert printable("x" * 5000, 10) == "xxxxxxxxx…"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (97_200, "1 d 3 h")]
)
def test_a_duration_is_shown_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


JWT = "eyJhbGciOiJFUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJqYW5lIn0.c2lnbmF0dXJl-_x"


@pytest.mark.parametrize(
    "text",
    [
        JWT,
        f"token {JWT}.",
        f"https://cache:8443/ns/a.b?authz=Bearer%20{JWT}&x=1",
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
        "grant_type=refresh_token&refresh_token=s3cret&client_secret=s3cret",
        "api_key=s3cret",
        "apikey%3Ds3cret",
        '{"password": "s3cret"}',
        "MYSQL_PASSWD=s3cret",
        "X-Auth-Token: s3cret",
        "{'Set-Cookie': 'session=s3cret; Path=/'}",
        "secret_key='s3cret'",
        "mysql --password s3cret -h host",
        r'{"body": "{\"access_token\": \"s3cret\"}"}',
        "hf_s3cretabcdefghijklmnop",
        "ghp_s3cretabcdefghijklmnopqrstuvw",
    ],
)
def test_a_secret_is_left_out_by_what_stands_before_it(text: str) -> None:
    shown = without_secrets(text)
    assert "s3cret" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "the bearer token has expired",
        'WWW-Authenticate: Bearer error="invalid_token", error_description="token has expired"',
        "pelican://osg-htc.org/icecube/0000000-0000999/*.parquet",
        "data/muons-?.parquet",
        "set BEARER_TOKEN_FILE to a file",
        "a.b.c 1.2.3 eye.level.x",
        "no token: BEARER_TOKEN, and the token is expired",
        "--set token.federation=osg-htc.org",
        "https://cache:8443/ns/a@b.parquet",
        "pelican://osg-htc.org/d/muons-?.parquet",
        'Bearer realm="x", error="invalid_token"',
        '{"access_token": null}',
        '{"token": {"federation": "osg-htc.org"}, "password": null}',
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
    "{{'Authorization': 'Bearer {}', 'x': 1}}",
    '{{"Authorization":"Bearer {}","x":1}}',
    "b'Bearer {}'",
    "curl -H 'Authorization: Bearer {}' https://h/p",
    "Bearer {}",
    "Proxy-Authorization: Token {}",
    "Bearer%20{}",
    '{{"access_token": "{}", "token_type": "bearer"}}',
    "{{'refresh_token': '{}'}}",
    "BEARER_TOKEN={} icestream run",
    "client_secret={}",
    "token={}",
    "WANDB_API_KEY={} icestream run",
    "{{'Authorization': ['Bearer {}']}}",
    "Cookie: a={}",
]
QUERIES = [
    "https://h/p?{}",
    "GET https://h/p?authz={} HTTP/1.1",
    "https://h/p?a=1&authz=Bearer%20{}&b=2",
    "pelican://h/p?authz={}",
    "<https://h/p?{}>; rel=duplicate",
    "https://h/cb#access_token={}",
]
USERS = ["https://{}@h/p", "https://me:{}@h:8443/p", "proxy http://me:{}@proxy:3128", "s3://{}:x@b/k"]


@settings(max_examples=100, deadline=None)
@given(SECRETS, st.sampled_from(HEADERS + QUERIES), st.sampled_from(["", "it failed: ", "a b\n"]))
def test_no_secret_in_any_known_carrier_survives(secret: str, carrier: str, before: str) -> None:
    text = without_secrets(before + carrier.format(secret))
    assert secret not in text
    assert secret[-8:] not in text
    assert before in text


@settings(max_examples=40, deadline=None)
@given(st.from_regex(r"[A-Za-z0-9!$&'()*+,;=._~-]{6,40}", fullmatch=True), st.sampled_from(USERS))
def test_no_password_in_an_address_survives(secret: str, carrier: str) -> None:
    assert secret not in without_secrets(carrier.format(secret))


@settings(max_examples=40, deadline=None)
@given(
    st.text(st.characters(categories=["L", "N"], exclude_characters=":"), min_size=1, max_size=20),
    st.text(min_size=1, max_size=20),
    st.sampled_from(["Basic", "basic", "BASIC"]),
)
def test_no_user_and_password_after_the_word_basic_survive(user: str, password: str, word: str) -> None:
    encoded = base64.b64encode(f"{user}:{password}".encode(errors="replace")).decode()
    assert encoded not in without_secrets(f"{word} {encoded}")


@settings(max_examples=30, deadline=None)
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
