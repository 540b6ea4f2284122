"""Versions, sections of the help, and completion by the shell."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from click.testing import CliRunner

from icestream import version
from icestream.cli import VERBS, cli, listed
from workloads import registry
from workloads.base.verb import Section

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.process
def test_the_version_names_python_torch_and_its_cuda() -> None:
    first, python, of_torch = CliRunner().invoke(cli, ["--version"]).output.splitlines()
    assert first.startswith("icestream 0.1.0")
    assert python == f"Python {platform.python_version()}"
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    assert of_torch == f"torch {torch.__version__} ({cuda})"


def test_a_built_package_names_the_commit_that_it_was_built_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "_HERE", tmp_path / "icestream")
    assert version.commit() == ""
    (tmp_path / "icestream").mkdir()
    (tmp_path / "icestream/commit.json").write_text(json.dumps("0123456789ab"))
    assert version.version_lines()[0] == "icestream 0.1.0 (commit 0123456789ab)"


@pytest.mark.process
def test_a_checkout_names_its_commit_and_says_if_files_were_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.org")
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert version.commit_of(tmp_path) == ""
    (tmp_path / "a").write_text("a")
    for arguments in (("init", "-q"), ("add", "a"), ("commit", "-q", "-m", "a"), ("tag", "v9")):
        git(*arguments)
    assert version.commit_of(tmp_path) == git("rev-parse", "HEAD")[:12]
    (tmp_path / "a").write_text("b")
    assert version.commit_of(tmp_path).endswith("-dirty")


@pytest.mark.process
def test_a_machine_without_torch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "find_spec", lambda name: None)
    assert version.version_lines()[2] == "torch: not installed"
    monkeypatch.setattr(version, "find_spec", lambda name: SimpleNamespace(origin=None))
    assert version.torch_version() is None


def test_every_command_is_listed_once_under_one_of_the_sections() -> None:
    output = CliRunner().invoke(cli, ["--help"]).output
    assert [line[:-1] for line in output.splitlines() if line[:-1] in get_args(Section)] == list(get_args(Section))
    names = [name for name, _, _ in listed()]
    assert len(names) == len(set(names))
    assert set(names) == {*VERBS, *(verb for name in registry.names() for verb in registry.verbs(name))}
    assert all(f"\n  {name} " in output for name in names)


def test_a_command_of_several_workloads_is_listed_with_each_of_them() -> None:
    (text,) = [text for name, text, _ in listed() if name == "simulate"]
    assert "(muons)" in text
    assert "(direction)" in text


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "expected"), [("icestream st", ["status", "stop"]), ("icestream run --dec", ["--decoders"])]
)
def test_the_shell_completes_commands_and_options_without_loading_what_takes_long(
    words: str, expected: list[str]
) -> None:
    probe = (
        "import sys; from icestream.cli import main\n"
        "try: main()\n"
        "finally: print('LOADED', *sorted(name for name in sys.modules if '.' not in name))"
    )
    environment = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_ICESTREAM_COMPLETE": "bash_complete"}
    result = subprocess.run(
        [sys.executable, "-c", probe],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    completed, _, loaded = result.stdout.partition("LOADED ")
    assert sorted(line.partition(",")[2] for line in completed.splitlines()) == expected, result.stderr
    assert {"torch", "pyarrow", "zmq", "matplotlib"}.isdisjoint(loaded.split())


@pytest.mark.process
def test_the_lines_for_each_shell_are_printed() -> None:
    for shell in ("bash", "zsh", "fish"):
        result = CliRunner().invoke(cli, ["completion", shell])
        assert result.exit_code == 0, result.output
        assert f"_ICESTREAM_COMPLETE={shell}_complete" in result.output
