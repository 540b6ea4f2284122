"""All mistakes of a configuration are reported at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from common.errors import BadInputError, BadInputsError
from services.config.root import Config, known_keys, load_config


def load(folder: Path, assignments: Sequence[str]) -> Config:
    return load_config(folder, assignments=assignments, environment={})


def test_mistakes_of_a_file_of_the_environment_and_of_flags_are_reported_together(tmp_path: Path) -> None:
    toml = tmp_path / "run.toml"
    toml.write_text("epoch = 3\n[stream]\nslots = 2.5\n")
    with pytest.raises(BadInputsError) as told:
        load_config(tmp_path, toml=toml, environment={"ICESTREAM_SEAD": "1"}, flags={"epochs": -1})
    assert [line.partition(" = ")[0] for line in told.value.lines] == [
        f"{toml}: unknown configuration key 'epoch'; did you mean 'epochs'?",
        "environment variable ICESTREAM_SEAD: unknown configuration key 'sead'; did you mean 'seed'?",
        "epochs",
        "stream.slots",
    ]


def test_a_value_of_which_two_types_are_allowed_is_one_mistake(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"^source\.columns\.muons = 3: expected a text, or a list, for example"):
        load(tmp_path, assignments=("source.columns.muons=3",))


def test_a_check_between_fields_is_made_although_another_value_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(BadInputsError) as told:
        load(tmp_path, assignments=("epochs=-1", "trainer.model=none", "trainer.start_from=x"))
    assert len(told.value.lines) == 2
    assert "has no weights" in told.value.lines[1]


def test_a_default_in_the_place_of_a_wrong_value_is_not_blamed(tmp_path: Path) -> None:
    with pytest.raises(BadInputError) as told:  # with the default of 65,536 particles, such an event would be too large
        load(tmp_path, assignments=("stream.max_particles=-1", "stream.max_particles_per_event=1000000"))
    assert str(told.value).startswith("stream.max_particles = -1")


@pytest.mark.parametrize(
    ("assignment", "line"),
    [
        ("trainer.device=gpu", "trainer.device = 'gpu': expected auto, cpu, cuda or cuda:N"),
        ("stream.batch_events=0", "stream.batch_events = 0: expected a number of at least 1"),
        ("stream.slot_mib=0", "stream.slot_mib = 0: expected a number above 0"),
        ("stream.held_out=1", "stream.held_out = 1: expected a number below 1"),
        ("stream.slots=2.5", "stream.slots = 2.5: expected a whole number"),
        ("stream.slots=many", "stream.slots = 'many': expected a whole number"),
        ("stream.slot_mib=much", "stream.slot_mib = 'much': expected a number"),
        ("stream.slot_mib=inf", "stream.slot_mib = inf: expected a finite number"),
        ("stream.shuffle=perhaps", "stream.shuffle = 'perhaps': expected true or false"),
        ("trainer.precision=fp8", "trainer.precision = 'fp8': expected 'auto', 'float32', 'tf32' or 'bf16'"),
        ("seed=[1]", "seed = [1]: expected a whole number"),
    ],
)
def test_a_wrong_value_is_refused_in_plain_words(tmp_path: Path, assignment: str, line: str) -> None:
    with pytest.raises(BadInputError) as error:
        load(tmp_path, [assignment])
    assert str(error.value) == line


def test_no_words_of_pydantic_reach_a_user_for_any_setting(tmp_path: Path) -> None:
    for key in known_keys():
        for value in ("-1e99", '"no such value"', "[[]]", "true"):
            try:
                load(tmp_path, [f"{key}={value}"])
            except BadInputError as error:
                for line in getattr(error, "lines", (str(error),)):
                    assert not re.search(r"Input should|Value error|String should|valid \w+,", line), line


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("lr", "did you mean 'trainer.wgan.generator_lr' or 'trainer.wgan.critic_lr' or 'trainer.wgan.count_lr' or "),
        ("strem.slots", "did you mean 'stream.slots'?"),
        ("batch_event", "did you mean 'stream.batch_events'"),
        ("zzzzz", "; `icestream config --keys` lists all keys"),
    ],
)
def test_an_unknown_key_names_those_that_are_meant(tmp_path: Path, key: str, hint: str) -> None:
    with pytest.raises(BadInputError) as error:
        load(tmp_path, [f"{key}=1"])
    assert hint in str(error.value)
