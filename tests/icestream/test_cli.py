"""The command line itself: verbs, options, help, versions, completion, and the packages that it needs."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib.machinery import BuiltinImporter
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import click
import pytest
import torch
from click.testing import CliRunner
from muon_files import make_events, write_events

import icestream
from common.errors import BadInputError
from common.options import OutputPath
from icestream import OWN_PACKAGES, check_own_packages, version
from icestream.cli import VERBS, cli, listed, without_workload, workload_of_run
from icestream.run_config import load_run_config
from workloads import registry
from workloads.base.interface import Section

CONTEXT = click.Context(cli)
COMMANDS = [(name, command) for name in cli.list_commands(CONTEXT) if (command := cli.get_command(CONTEXT, name))]


def test_every_output_is_checked_before_any_work() -> None:
    found = {
        name
        for name, command in COMMANDS
        for parameter in command.params
        if (parameter.name == "out" or "--output" in parameter.opts) and isinstance(parameter.type, click.Path)
        if isinstance(parameter.type, OutputPath)
    }
    assert found == {"convert", "evaluate", "export", "generate", "predict", "seeds", "simulate"}


ABOUT_A_RUN = ("status", "logs", "ranges", "doctor", "plan", "stop")


@pytest.mark.parametrize("name", ABOUT_A_RUN)
def test_a_command_about_a_run_takes_it_as_its_argument_and_the_option_of_run_is_understood(name: str) -> None:
    command = dict(COMMANDS)[name]
    for given in (["x"], ["--run-dir", "x"], ["--run-dir=x"]):
        assert str(command.make_context(name, given).params["run_dir"]) == "x"
    assert not [option for option in command.params if "--run-dir" in option.opts], "not in the help"
    if name in ("status", "logs", "stop"):
        with pytest.raises(click.UsageError, match=r"Missing argument 'RUN'\. `icestream ls runs/` lists runs"):
            command.make_context(name, [])


ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.process
def test_the_version_names_python_torch_and_its_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    first, python, of_torch = CliRunner().invoke(cli, ["--version"]).output.splitlines()
    assert first.startswith("icestream 0.1.0")
    assert python == f"Python {platform.python_version()}"
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    assert of_torch == f"torch {torch.__version__} ({cuda})"
    monkeypatch.setattr(version, "find_spec", lambda name: None)
    assert version.version_lines()[2] == "torch: not installed"
    monkeypatch.setattr(version, "find_spec", lambda name: SimpleNamespace(origin=None))
    assert version.torch_version() is None


@pytest.mark.process
def test_a_checkout_or_a_built_package_names_its_commit_and_says_if_files_were_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setattr(version, "_HERE", tmp_path / "built" / "icestream")
    assert version.commit() == ""
    (tmp_path / "built" / "icestream").mkdir(parents=True)
    (tmp_path / "built" / "icestream" / "commit.json").write_text(json.dumps("0123456789ab"))
    assert version.version_lines()[0] == "icestream 0.1.0 (commit 0123456789ab)"


def test_every_command_is_listed_once_under_one_of_the_sections() -> None:
    output = CliRunner().invoke(cli, ["--help"]).output
    assert [line[:-1] for line in output.splitlines() if line[:-1] in get_args(Section)] == list(get_args(Section))
    names = [name for name, _, _ in listed()]
    assert len(names) == len(set(names))
    assert set(names) == {*VERBS, *(verb for name in registry.names() for verb in registry.verbs(name))}
    assert all(f"\n  {name} " in output for name in names)
    assert "Example: icestream simulate demo" in output


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
    for shell in ("zsh", "fish"):
        result = CliRunner().invoke(cli, env={"_ICESTREAM_COMPLETE": f"{shell}_source"}, prog_name="icestream")
        assert result.exit_code == 0, result.output
        assert f"_ICESTREAM_COMPLETE={shell}_complete" in result.output


def test_the_option_for_a_model_names_those_of_every_workload() -> None:
    for verb in ("run", "trainer"):
        told = " ".join(CliRunner().invoke(cli, [verb, "--help"]).output.split())
        for workload in registry.every_workload():
            assert f"{workload.name}: {', '.join(workload.models)}" in told


def test_the_workload_is_an_option_before_two_dashes_only() -> None:
    assert without_workload(["a", "--workload", "muons", "b"]) == ("muons", ["a", "b"])
    assert without_workload(["--workload=muons"]) == ("muons", [])
    assert without_workload(["--", "--workload=muons"]) == (None, ["--", "--workload=muons"])
    assert without_workload(["--workload", "muons", "--", "--workload"]) == ("muons", ["--", "--workload"])


def test_a_run_directory_or_its_checkpoint_shows_the_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("run", '{"workload": "direction"}'), ("other", '{"workload": "muons"}'), ("data", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    (tmp_path / "run" / "checkpoints").mkdir()
    (tmp_path / "run" / "checkpoints" / "best.pt").touch()
    monkeypatch.chdir(tmp_path / "other")
    # Neither options nor data with a file of that name hide the run.
    assert workload_of_run(["--events", "5", "-i", "../data", "../run"]) == "direction"
    assert workload_of_run(["-i", "x", "../run/checkpoints/best.pt"]) == "direction"
    for damaged in ("", "[]", '{"workload": 3}', "\udc80", "[" * 200_000):
        (tmp_path / "data" / "config.json").write_bytes(damaged.encode(errors="surrogateescape"))
        assert workload_of_run(["../data", "a\0b"]) is None


def test_a_model_of_another_workload_than_the_files_is_refused_with_the_models_that_fit(tmp_path: Path) -> None:
    write_events(tmp_path / "a.parquet", make_events([3, 4]))
    flags = {"input": (str(tmp_path),), "trainer.model": "sets"}
    words = (
        r"a\.parquet has the columns of the workload muons, but this run is of the workload direction \(model sets\)"
    )
    with pytest.raises(BadInputError, match=words + r": use a model of muons \(wgan, likelihood\)"):
        load_run_config({}, toml=None, assignments=(), flags=flags)
    assert load_run_config({}, toml=None, assignments=(), flags=flags | {"trainer.model": "wgan"}).workload == "muons"


@pytest.mark.parametrize("name", OWN_PACKAGES)
def test_a_package_that_is_hidden_or_missing_is_named_with_the_remedy(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, name, raising=False)
    for hidden in (tmp_path / "a" / name / "__init__.py", tmp_path / "b" / f"{name}.py"):
        hidden.parent.mkdir(parents=True)
        hidden.touch()
        monkeypatch.syspath_prepend(tmp_path / hidden.relative_to(tmp_path).parts[0])
        with pytest.raises(
            ImportError, match=f"'{name}' is hidden by {hidden}, .*: rename that, or take its directory"
        ):
            check_own_packages()
    monkeypatch.setattr(icestream, "OWN_PACKAGES", (name,))
    monkeypatch.setattr(sys, "meta_path", [BuiltinImporter])
    with pytest.raises(ImportError, match=rf"'{name}' is missing in .*: install icestream again"):
        check_own_packages()
