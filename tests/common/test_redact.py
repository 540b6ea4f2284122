"""Texts as they may be shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
    ],
)
def test_everything_else_stays(text: str) -> None:
    assert without_secrets(text) == text


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


def test_no_log_of_any_library_and_no_traceback_shows_a_token() -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, cwd=root)
    assert done.returncode == 1
    for expected in ("library says headers", "it failed with", "ValueError: request with", "in a thread", "uncaught"):
        assert expected in done.stderr
    assert not any(part in done.stderr + done.stdout for part in JWT.split("."))
