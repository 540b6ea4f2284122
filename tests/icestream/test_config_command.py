"""`icestream config`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from common.errors import BadInputError
from icestream.commands.config import config, toml_value
from services.config.root import Config, known_keys, load_config, store_config

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
    assert printed("stream.part").startswith(
        "stream.part = \"train\"  (the default; one of 'train', 'held_out', 'all')"
    )


def test_a_section_is_shown_with_all_its_keys_and_a_typo_is_refused_with_the_nearest() -> None:
    shown = [line.partition(" ")[0] for line in printed("stream").splitlines()[::2]]
    assert shown == [key for key in known_keys() if key.startswith("stream.")]
    with pytest.raises(BadInputError, match=r"did you mean 'stream\.slots'"):
        printed("stream.slot")


def test_the_settings_of_the_trainer_are_those_of_the_chosen_model_and_a_line_says_how_to_see_others() -> None:
    *lines, last = printed("trainer", "--set", "trainer.model=likelihood").splitlines()
    keys = [line.partition(" ")[0] for line in lines[::2]]
    assert "trainer.likelihood.network.latent" in keys
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


def test_a_value_is_written_as_toml_reads_it() -> None:
    for value in (True, 3, 2.5, 1e-7, "a \"b'\n\x7fü", ["x", "y"], {"a b": [1], "c": {"d": "e"}}):
        assert tomllib.loads(f"value = {toml_value(value)}")["value"] == value
