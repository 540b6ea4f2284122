"""Arguments of `icestream.stream`: each mistake is one clear error before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from muon_files import make_events, write_events

import icestream
from icestream.streaming.settings import StreamState, stream_config
from services.config.root import Config
from services.trainer.stream.position import StreamPosition
from services.trainer.stream.sharded_position import start_of

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"decoders": 0}, r"local.decoders = 0: expected a number from 1 to 1024, or auto"),
    ({"device": "gpu"}, r"device = 'gpu': expected auto, cpu, cuda or cuda:N"),
    ({"seed": -1}, r"seed = -1: "),
    ({"seed": True}, r"seed = True: expected a whole number$"),
    ({"settings": {"seed": False}}, r"seed = False: expected a whole number$"),
    ({"workload": "jets"}, r"workload = 'jets': expected one of muons"),
    ({"settings": {"stream.batch_event": 3}}, r"unknown configuration key 'stream.batch_event'; did you mean"),
    ({"settings": {"trainer.model": "wgan"}}, r"trainer.model, which has no effect here: your own loop is the trainer"),
    ({"settings": {"epochs": 3}}, r"each loop over it ends with an epoch"),
    ({"settings": {"seed": 3}, "seed": 4}, r"settings has seed, which is an argument of its own, too"),
    ({"config": "missing.toml"}, r"missing.toml: no such configuration file"),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_events(tmp_path / "one.parquet", make_events([1, 2]))


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=[next(iter(one)) for one, _ in MISTAKES])
def test_a_wrong_argument_is_one_clear_error_before_anything_starts(
    file: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(icestream.BadInputError, match=message):
        icestream.stream(file, **{"device": "cpu"} | arguments)


def test_inputs_are_paths_in_any_form_and_are_looked_for_at_once(file: Path) -> None:
    for inputs in (file, str(file), [file], (str(file),), iter([file]), {"a": file}.values(), file.parent):
        assert made(inputs).input[0].startswith(str(file.parent))
    assert made(path for path in file.parent.glob("*.parquet")).input == (str(file),)
    nothing: list[Any] = [[], file.parent.glob("*.h5"), iter(())]
    for empty in nothing:
        with pytest.raises(icestream.BadInputError, match=r"inputs has no path in it \(a generator gives its paths"):
            icestream.stream(empty)
    with pytest.raises(icestream.BadInputError, match="no input given: name files, directories, globs or URLs"):
        icestream.stream()
    with pytest.raises(icestream.BadInputError, match="inputs = 3: expected a path, or several"):
        icestream.stream(3)  # type: ignore[arg-type]
    for wrong, why in (
        ({"a": file}, r"inputs is a mapping, of which only the keys would be read: give list\(inputs.values\(\)\)"),
        ({file, file.parent}, r"inputs is a set, which has another order in each process: give sorted\(inputs\)"),
        ([file, 3], "inputs has 3 in it: expected paths"),
        (b"a.parquet", r"inputs = b'a.parquet': expected a path, or several"),
    ):
        with pytest.raises(icestream.BadInputError, match=why):
            icestream.stream(wrong)  # type: ignore[arg-type]
    with pytest.raises(icestream.BadInputError, match=r"missing.parquet: no such file"):
        icestream.stream(file.with_name("missing.parquet"))


def made(inputs: Any, **flags: object) -> Config:
    return stream_config(inputs, run_dir=None, config=None, settings={}, flags=flags)


def test_a_state_is_that_of_one_order_whatever_the_number_of_decoders(file: Path) -> None:
    state = StreamState(StreamPosition(), 3).saved(made(file, **{"local.decoders": 2}))
    assert StreamState.read(state, made(file, **{"local.decoders": 5})) == (StreamPosition(), 3)
    with pytest.raises(icestream.BadInputError, match=r"the state is of another stream .seed was 0, now 4."):
        StreamState.read(state, made(file, seed=4))
    with pytest.raises(icestream.BadInputError, match="has format 9; expected 1"):
        StreamState.read(state | {"format": 9}, made(file))
    two_shards = start_of(2).model_dump_json()
    for damaged in (
        *({}, {"format": 1}, state | {"position": "{"}, state | {"epoch": None}, state | {"epoch": -1}),
        *(state | {"position": two_shards}, state | {"plan_hash": "", "settings": "[]"}),
    ):
        with pytest.raises(icestream.BadInputError, match="not the state of a stream"):
            StreamState.read(damaged, made(file))


def test_no_secret_of_an_input_is_in_a_state(file: Path) -> None:
    url = "https://host/data.parquet?access_token=hidden"
    assert "hidden" not in str(StreamState(StreamPosition(), 0).saved(made([url, str(file)])))
