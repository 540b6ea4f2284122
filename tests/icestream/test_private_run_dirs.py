"""Run directories that others can change: refused before anything of them is read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from common.errors import BadInputError
from common.paths import make_run_dir
from icestream.cli import cli
from services.config.root import load_config, require_named_model
from services.supervisor.child import service_command


def refused(verb: str, run_dir: Path, *words: str) -> str:
    """Error of the command."""
    os.umask(0o022)
    result = CliRunner().invoke(cli, [verb, "--run-dir", str(run_dir), *words])
    assert isinstance(result.exception, BadInputError), result.output
    return str(result.exception)


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A run directory with a configuration, by which others could choose what the run reads."""
    (tmp_path / "above" / "run").mkdir(parents=True)
    (tmp_path / "above" / "run" / "config.json").write_text('{"input": ["planted"]}')
    return tmp_path / "above" / "run"


@pytest.mark.parametrize("verb", ["run", "fetcher", "trainer", "decoder", "outputs"])
@pytest.mark.parametrize("part", ["..", ".", "config.json"])
def test_no_command_reads_a_configuration_that_others_can_change(planted: Path, verb: str, part: str) -> None:
    (planted / part).chmod(0o777)
    error = refused(verb, planted)
    assert f"{(planted / part).resolve()} (mode 0777" in error
    assert "can be changed by every user" in error
    assert "chmod go-w" in error


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
@pytest.mark.parametrize("change", [lambda path: path.chmod(0o775), lambda path: os.chown(path, 12345, -1)])
def test_a_run_directory_of_a_group_or_of_somebody_else_is_used_only_if_the_group_is_trusted(
    planted: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    os.chown(planted, -1, 12345)
    change(planted)
    for use in (make_run_dir, load_config):
        with pytest.raises(BadInputError, match="set ICESTREAM_TRUST_GROUP=12345 if you trust"):
            use(planted)
    monkeypatch.setenv("ICESTREAM_TRUST_GROUP", "12345")
    make_run_dir(planted)
    assert load_config(planted).input == ("planted",)


MODEL = "theirs:TRAINING"
NAMED = f"the stored configuration names the model {MODEL}, which is code of your own: .* --model {MODEL}"


@pytest.mark.parametrize("verb", ["run", "trainer"])
def test_no_code_runs_because_a_stored_configuration_names_it(
    planted: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    (planted / "config.json").write_text('{"input": ["planted"], "trainer": {"model": "theirs:TRAINING"}}')
    assert re.fullmatch(NAMED, refused(verb, planted))


def test_a_model_of_the_users_own_is_named_by_an_option_a_file_a_setting_or_a_variable(tmp_path: Path) -> None:
    toml = tmp_path / "settings.toml"
    toml.write_text('trainer.model = "theirs:TRAINING"')
    config = load_config({}, assignments=["trainer.model=theirs:TRAINING"])
    nothing: dict[str, Any] = {"toml": None, "assignments": (), "flags": {}, "environment": {}}
    for given in (
        {"toml": toml},
        {"assignments": ["trainer.model=theirs:TRAINING"]},
        {"flags": {"trainer.model": "theirs:TRAINING"}},
        {"environment": {"ICESTREAM_TRAINER__MODEL": "theirs:TRAINING"}},
    ):
        require_named_model(config, **(nothing | given))
    for other in ({}, {"flags": {"trainer.model": "mine:TRAINING"}}):
        with pytest.raises(BadInputError, match=NAMED):
            require_named_model(config, **(nothing | other))


def test_a_new_run_directory_that_others_can_exchange_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(BadInputError, match=rf"the run directory {tmp_path}/run: {tmp_path} \(mode 0777"):
        make_run_dir(tmp_path / "run")


def test_a_trainer_is_told_the_model_of_the_users_own_by_its_name() -> None:
    assert service_command("trainer", Path("run"), 1, "my:MODEL")[-2:] == ["--model", "my:MODEL"]
    assert "--model" not in service_command("trainer", Path("run"), 1, "wgan")
    assert "--model" not in service_command("decoder-1", Path("run"), 1, "my:MODEL")
