"""`icestream tensorboard RUN`: what TensorBoard is started with."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from common.process import python_command
from icestream.cli import cli
from icestream.commands.tensorboard import PREFIX_VARIABLE

PREFIXES: list[str] = []
"""Paths of the addresses so far."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    commands: list[list[str]] = []

    def start(path: str, command: list[str], environment: dict[str, str]) -> None:
        commands.append(command)
        PREFIXES.append(environment[PREFIX_VARIABLE])

    monkeypatch.setattr("os.execve", start)
    return commands


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        folder = tmp_path / "runs" / name / "tensorboard" / "2026-11-21T12-00-05"
        folder.mkdir(parents=True)
        (folder / "events.out.tfevents.1.host.1.0").touch()
    return tmp_path / "runs"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["tensorboard", *map(str, arguments)], catch_exceptions=True)


def test_a_run_is_shown_on_this_machine_only_and_the_chart_of_losses_is_named(
    runs: Path, started: list[list[str]]
) -> None:
    for _ in range(2):
        result = call(runs / "a", "--port", "6007")
        assert result.exit_code == 0, result.output
        assert f"http://localhost:6007{PREFIXES[-1]}/#custom_scalars" in result.output
        expected = ["--logdir", str(runs / "a"), "--host", "127.0.0.1", "--port", "6007"]
        assert started.pop() == python_command("icestream.commands.tensorboard", *expected)
    assert len(set(PREFIXES[-2:])) == 2
    assert all(re.fullmatch("/[A-Za-z0-9_-]{22}", prefix) for prefix in PREFIXES)


@pytest.mark.process
def test_other_users_of_the_machine_see_nothing_without_the_path_which_they_can_not_read(
    runs: Path, tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "icestream", "tensorboard", str(runs), "--port", str(port)]
    environment = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stderr is not None
            address = next(line for line in server.stderr if "http://" in line).split()[-1].partition("#")[0]
            for line in server.stderr:
                if "Press CTRL+C" in line:
                    assert address.partition(str(port))[2] in line
                    break
            with urllib.request.urlopen(f"{address}data/environment", timeout=60) as page:
                assert str(runs) in page.read().decode()
            for path in ("", "data/runs", "data/environment"):
                with pytest.raises(urllib.error.HTTPError, match="404"):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=60)
            secret = address.rstrip("/").rpartition("/")[2]
            assert secret not in Path(f"/proc/{server.pid}/cmdline").read_text()
            written = [path for path in (tmp_path / "tmp").rglob("*") if path.is_file()]
            assert not any(secret in path.read_text(errors="replace") for path in written)
        finally:
            server.kill()  # TensorBoard, once in a while and on a busy machine, goes on after SIGTERM


def test_several_runs_are_shown_under_their_paths(runs: Path, started: list[list[str]]) -> None:
    assert call(runs / "a", runs / "b").exit_code == 0
    (command,) = started
    spec = command[command.index("--logdir_spec") + 1]
    assert spec == f"{runs / 'a'}:{runs / 'a'},{runs / 'b'}:{runs / 'b'}"


def test_a_place_without_event_files_is_named_and_nothing_is_started(tmp_path: Path, started: list[list[str]]) -> None:
    result = call(tmp_path)
    assert "no TensorBoard files" in str(result.exception)
    assert "no such directory" in str(call(tmp_path / "typo").exception)
    assert started == []
