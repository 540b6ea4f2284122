"""`icestream config` and `icestream init`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from common.errors import BadInputError
from icestream.commands.config import config
from icestream.commands.init import SETTINGS, init
from icestream.commands.toml_text import toml_line, toml_value
from services.config.root import Config, known_keys, load_config, store_config
from services.config.trainer import model_names

EVERYTHING = {
    "input": ["a ü\x1b\"'\\.parquet"],
    "source": {"fields": {"a.b": ["x"]}},
    "token": {"file": "/t"},
    "stream": {"shuffle": False, "slot_mib": 3.5, "batch_events": 7},
}


def printed(*arguments: object) -> str:
    result = CliRunner().invoke(config, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_key_is_shown_with_its_value_default_and_meaning(tmp_path: Path) -> None:
    store_config(tmp_path, Config.model_validate(EVERYTHING))
    value, meaning = printed("batch_events", "--run-dir", tmp_path).splitlines()
    assert value == "stream.batch_events = 7  (stored by the run; default: 256)"
    assert meaning == "    Events of one optimiser step."
    assert printed(tmp_path, "batch_events").splitlines() == [value, meaning]
    given = printed(tmp_path, "batch_events", "--set", "batch_events=8")
    assert given.startswith("stream.batch_events = 8  (default: 256)")
    assert printed(tmp_path, "slots").startswith("stream.slots = 8  (stored by the run; the default)")
    assert printed("stream.batch_events").startswith("stream.batch_events = 256  (the default)\n")


def test_a_section_is_shown_with_all_its_keys_and_a_typo_is_refused_with_the_nearest() -> None:
    shown = [line.partition(" ")[0] for line in printed("stream").splitlines()[::2]]
    assert shown == [key for key in known_keys() if key.startswith("stream.")]
    with pytest.raises(BadInputError, match=r"did you mean 'stream\.slots'"):
        printed("stream.slot")


def test_the_settings_of_the_trainer_are_those_of_the_chosen_model_and_a_line_says_how_to_see_others() -> None:
    *lines, last = printed("trainer", "--set", "trainer.model=likelihood").splitlines()
    keys = [line.partition(" ")[0] for line in lines[::2]]
    assert "trainer.likelihood.network.count_hidden" in keys
    assert "trainer.precision" in keys
    assert "trainer.wandb.mode" in keys
    assert not [key for key in keys if key.startswith("trainer.wgan.")]
    assert last.startswith("# of other models: icestream config trainer.wgan ")
    assert printed("trainer.wgan").startswith("trainer.wgan.")


def test_what_differs_from_the_defaults_is_toml_that_gives_the_same_configuration(tmp_path: Path) -> None:
    run = Config.model_validate(EVERYTHING)
    store_config(tmp_path, run)
    text = printed("--changed", "--run-dir", tmp_path)
    assert "stream.batch_events = 7  # default: 256" in text.splitlines()
    assert len(text.splitlines()) == 6
    toml = tmp_path / "changed.toml"
    toml.write_text(text)
    assert load_config({}, toml=toml, environment={}) == run
    assert printed("--changed") == "# every setting has its default\n"


def test_changed_with_a_name_is_refused_and_not_ignored() -> None:
    with pytest.raises(BadInputError, match="leave out stream, or name the directory of a run"):
        CliRunner().invoke(config, ["--changed", "stream"], catch_exceptions=False)


def test_everything_is_shown_as_json_and_settings_count(tmp_path: Path) -> None:
    assert json.loads(printed("--set", "stream.slots=3"))["stream"]["slots"] == 3


def test_a_run_directory_that_is_not_there_is_refused_and_the_one_that_nobody_named_need_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInputError, match=r"typo: not a run directory \(no such folder\)"):
        printed("--run-dir", "typo")
    with pytest.raises(BadInputError, match=r"runs/typo: not a run directory \(no such folder\)"):
        printed("runs/typo", "--changed")
    Path("data").mkdir()
    with pytest.raises(BadInputError, match=r"data: not a run directory \(it has no config\.json\)"):
        printed("--run-dir", "data")
    assert json.loads(printed())["epochs"] == 1


@pytest.mark.parametrize("value", [True, 3, 2.5, 1e-7, "a \"b'\n\x7fü", ["x", "y"], {"a b": [1], "c": {"d": "e"}}])
def test_a_value_is_written_as_toml_reads_it(value: object) -> None:
    assert tomllib.loads(f"value = {toml_value(value)}")["value"] == value


def test_none_is_no_toml_value() -> None:
    assert toml_line("token.file", None) == "# token.file is not set"
    with pytest.raises(TypeError):
        toml_value(None)


# ------------------------------------------------------------------ init


@pytest.mark.parametrize("model", model_names())
def test_a_new_file_changes_nothing_but_names_the_workload_and_the_model(tmp_path: Path, model: str) -> None:
    path = tmp_path / "new.toml"
    assert CliRunner().invoke(init, ["--model", model, str(path)]).exit_code == 0
    expected = load_config({}, flags={"trainer.model": model}, environment={})
    assert load_config({}, toml=path, environment={}) == expected


def test_each_line_of_a_new_file_is_valid_without_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    assert CliRunner().invoke(init, [str(path)]).exit_code == 0
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line.removeprefix("#") if line[:2].strip("#").strip() else line for line in lines))
    found = load_config({}, toml=path, environment={})
    assert found.token.file == found.fetcher.cache_dir == Path("PATH")
    unset = {"token": {"file": None}, "fetcher": {"cache_dir": None}}
    changed = {name: getattr(found, name).model_copy(update=value) for name, value in unset.items()}
    assert found.model_copy(update=changed) == Config()
    settings = [line for line in lines if line.startswith("#") and line[1:2].isalpha()]
    assert len(settings) >= len(SETTINGS) + 10


def test_every_setting_of_the_list_exists() -> None:
    assert set(SETTINGS) <= set(known_keys())


def test_an_existing_file_is_not_replaced_and_the_terminal_is_a_dash(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("mine")
    with pytest.raises(BadInputError, match="exists already"):
        CliRunner().invoke(init, [str(path)], catch_exceptions=False)
    assert path.read_text() == "mine"
    assert '\nworkload = "direction"\n' in CliRunner().invoke(init, ["--workload", "direction", "-"]).output
