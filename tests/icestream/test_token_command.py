"""`icestream token`, and no token anywhere but in its own file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from federation.issuer import Issuer
from token_places import INPUT, SCOPE, VARIABLES, token_file

from common.pelican import tokens
from icestream.commands.config import config
from icestream.commands.token import token

ROOT = Path(__file__).resolve().parents[2]
FETCH = """
import asyncio, logging, pathlib, sys
from common.pelican import tokens as t
t.SHARED_FOLDER = pathlib.Path(sys.argv.pop(1))
from common.process import start_logging
start_logging("fetcher")
logging.getLogger().setLevel(logging.DEBUG)
import aiohttp
from common.config import TokenConfig
from common.pelican.token_claims import needs
source = t.FoundTokens(needs([sys.argv[1]], storage_prefix="/icecube/wipac")[0], TokenConfig())
token = source.current()
logging.info("going to use %s with %s", token, source.describe())
headers = {"Authorization": "Bearer " + token}
async def fetch():
    async with aiohttp.ClientSession() as session:
        try:
            await session.get("http://127.0.0.1:9/?authz=" + token, headers=headers)
        except aiohttp.ClientError:
            logging.exception("request with %r failed", headers)
asyncio.run(fetch())
raise RuntimeError(f"ended with {headers}")
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's own places, without a token; the working directory."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tokens, "SHARED_FOLDER", tmp_path / "shared")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(*arguments: str, command: click.Command = token) -> tuple[int, str]:
    result = CliRunner().invoke(command, arguments)
    return result.exit_code, result.output or str(result.exception)


@pytest.mark.process
def test_a_token_is_found_shown_and_used_and_stands_nowhere_but_in_its_file(home: Path) -> None:
    token = Issuer("https://issuer.example").mint(SCOPE)
    own = token_file(home / "shared" / f"bt_u{os.geteuid()}", token)
    code, text = shown("-i", INPUT)
    assert code == 0, text
    assert f"{SCOPE}; for any server, by https://issuer.example; expires in" in text
    assert "suffices    yes" in text

    arguments = [sys.executable, "-c", FETCH, str(home / "shared"), INPUT]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    used = subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=100, check=False)
    assert used.returncode == 1
    assert "going to use" in used.stderr
    assert "RuntimeError: ended with" in used.stderr

    _, stored = shown("--set", f"token.file={token_file(home / 'token', 'opaque')}", command=config)
    assert json.loads(stored)["token"]["file"].endswith("/token")

    written = [path for path in home.rglob("*") if path.is_file() and path != own]
    texts = [text, stored, used.stdout, used.stderr, *(path.read_bytes().decode(errors="replace") for path in written)]
    assert not any(secret in text for secret in (token, token.rpartition(".")[2]) for text in texts)


def test_whether_a_token_suffices_is_the_exit_code_and_what_gets_one_is_told(home: Path) -> None:
    code, text = shown("-i", INPUT)
    assert (code, "no token" in text) == (2, True)
    assert "pelican credentials token get read pelican://osg-htc.org/icecube/wipac/data/sim" in text
    mint = Issuer("https://issuer.example").mint
    for scope, ttl_s, wanted, told in (
        (SCOPE, 600, 0, "suffices    yes"),
        ("storage.read:/other", 600, 2, f"needed: {SCOPE}"),
        (SCOPE, -60, 2, "expired"),
    ):
        path = token_file(home / "token", mint(scope, ttl=ttl_s))
        code, text = shown("-i", INPUT, "--token-file", str(path))
        assert code == wanted
        assert told in text
    assert "no token is needed" in shown("-i", "/data/*.parquet")[1]
    assert "-i/--input" in shown()[1]
