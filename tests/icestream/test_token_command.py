"""`icestream token` as a process, and no token anywhere but in its own file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from token_places import INPUT, SCOPE, VARIABLES, IssuerThread, token_file

from common.files.list_files import expand_lists

ROOT = Path(__file__).resolve().parents[2]
START = (
    "import sys, pathlib; from common.pelican.tokens import find; find.SHARED_FOLDER = pathlib.Path(sys.argv.pop(1))"
)
FETCH = f"""{START}
import asyncio, logging, time
from common.process import start_logging
start_logging("fetcher")
logging.getLogger().setLevel(logging.DEBUG)
import aiohttp
from common.pelican.tokens.config import TokenConfig
from common.pelican.tokens.scopes import needs
from common.pelican.tokens.source import FoundTokens
async def fetch():
    need = needs([sys.argv[1]], storage_prefix="/icecube/wipac")[0]
    source = FoundTokens(need, TokenConfig(), clock=lambda: time.time() + 570)
    token = await source.current()
    logging.info("going to use %s with %s", token, source.describe())
    async with aiohttp.ClientSession() as session:
        headers = {{"Authorization": "Bearer " + token}}
        async with session.get(sys.argv[2] + "?authz=" + token, headers=headers) as response:
            try:
                response.raise_for_status()
            except aiohttp.ClientResponseError as error:
                logging.exception("request %r failed", error.request_info)
    raise RuntimeError(f"ended with {{headers}}")
asyncio.run(fetch())
"""


class Home:
    """A user's environment, and all that the processes in it wrote."""

    def __init__(self, folder: Path, here: IssuerThread) -> None:
        self.folder, self.here = folder, here
        (folder / "shared").mkdir()
        environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        self.environment = environment | here.environment() | {"HOME": str(folder / "home"), "PYTHONPATH": str(ROOT)}
        self.outputs: list[str] = []
        self.command_lines: list[bytes] = []

    def run(self, code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, str(self.folder / "shared"), *arguments]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment | variables,
        )
        self.command_lines.append(Path(f"/proc/{process.pid}/cmdline").read_bytes())
        try:
            out, err = process.communicate(timeout=100)
        finally:
            process.kill()
            process.wait()
        self.outputs += [out, err]
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def icestream(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run(f"{START}\nfrom icestream.cli import main; main()", *arguments, **variables)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    folder = tmp_path / "user"
    folder.mkdir()
    with IssuerThread(tmp_path / "certs") as here:
        yield Home(folder, here)


@pytest.mark.process
def test_a_token_is_got_shown_renewed_and_used_and_stands_nowhere_but_in_its_file(home: Home) -> None:
    home.here.flow.answers = ["pending"]
    got = home.icestream("token", "-i", INPUT, "--issuer", home.here.issuer.url)
    assert got.returncode == 0, got.stderr
    assert SCOPE in got.stdout
    assert "/device?user_code=" in got.stdout
    assert "expires in" in got.stdout

    shown = home.icestream("token", "--show", "-i", INPUT)
    assert shown.returncode == 0, shown.stderr
    assert "suffices    yes" in shown.stdout

    used = home.run(FETCH, INPUT, home.here.issuer.url + "/nowhere")
    assert used.returncode == 1
    assert "token renewed" in used.stderr  # its clock is ahead
    assert "404" in used.stderr
    assert "RuntimeError: ended with" in used.stderr

    stored = home.icestream("config", "--set", f"token.file={token_file(home.folder / 'token', 'opaque')}")
    assert json.loads(stored.stdout)["token"]["file"].endswith("/token")

    secrets = home.here.flow.handed_out
    assert len(secrets) >= 5
    [own] = home.folder.glob("home/.cache/icestream/tokens/token-*.json")
    assert any(secret in own.read_text() for secret in secrets)
    written = [path for path in home.folder.rglob("*") if path.is_file() and path.parent != own.parent]
    texts = [*home.outputs, *(path.read_bytes().decode(errors="replace") for path in written)]
    texts += [line.decode(errors="replace") for line in home.command_lines]
    texts += [thread.name for thread in threading.enumerate()]
    for secret in secrets:
        assert not any(secret in text for text in texts)


@pytest.mark.process
def test_whether_a_token_suffices_is_the_exit_code(home: Home) -> None:
    none = home.icestream("token", "--show", "-i", INPUT)
    assert (none.returncode, "no token" in none.stdout) == (2, True)
    mint = home.here.issuer.mint
    for scope, ttl_s, code, told in (
        (SCOPE, 600, 0, "suffices    yes"),
        ("storage.read:/other", 600, 2, f"needed: {SCOPE}"),
        (SCOPE, -60, 2, "expired"),
    ):
        path = token_file(home.folder / "token", mint(scope, ttl=ttl_s))
        shown = home.icestream("token", "--show", "-i", INPUT, "--token-file", str(path))
        assert shown.returncode == code, shown.stderr
        assert told in shown.stdout
    local = home.icestream("token", "--show", "-i", "/data/*.parquet")
    assert (local.returncode, "no token is needed" in local.stdout) == (0, True)


@pytest.mark.process
def test_what_is_missing_is_asked_for_in_one_line(home: Home) -> None:
    for arguments, told in (
        ([], "-i/--input"),
        (["-i", INPUT, "--issuer", "http://issuer.example"], "expected an https:// URL"),
        (["-i", INPUT, "--issuer", home.here.issuer.url, "--scope", "all"], "expected storage scopes"),
    ):
        done = home.icestream("token", *arguments)
        assert done.returncode == 2
        assert told in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_list_file_is_read_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "files.txt").write_text("# ours\npelican://f/a\n\n  pelican://f/b  \n")
    assert list(expand_lists(["x", f"@{tmp_path / 'files.txt'}"])) == ["x", "pelican://f/a", "pelican://f/b"]
