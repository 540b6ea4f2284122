"""`icestream.stream`: its arguments, errors, saved states and batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import torch
from muon_files import make_events, write_events
from toy_events import split, toy_batch

import icestream
from common.config import StreamConfig
from common.errors import BadInputError
from icestream.stream_session import StreamState, stream_config
from icestream.streaming import RaggedBatch
from icestream.verbs import in_python
from services.config.root import Config
from services.trainer.position import StreamPosition, start_of
from workloads import registry
from workloads.base.batch import Batch

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"decoders": 0}, r"local.decoders = 0: expected a number from 1 to 1024, or auto"),
    ({"device": "gpu"}, r"device = 'gpu': expected auto, cpu, cuda or cuda:N"),
    ({"seed": -1}, r"seed = -1: "),
    ({"seed": True}, r"seed = True: expected a whole number$"),
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


def test_a_wrong_argument_is_one_clear_error_before_anything_starts(file: Path) -> None:
    for arguments, message in MISTAKES:
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
    assert StreamState.read(state, made(file, **{"local.decoders": 5})) == StreamState(StreamPosition(), 3)
    with pytest.raises(icestream.BadInputError, match=r"the state is of another stream .seed was 0, now 4."):
        StreamState.read(state, made(file, seed=4))
    with pytest.raises(icestream.BadInputError, match="has format 9; expected 1"):
        StreamState.read(state | {"format": 9}, made(file))
    url = "https://host/data.parquet?access_token=hidden"
    assert "hidden" not in str(StreamState(StreamPosition(), 0).saved(made([url, str(file)])))
    two_shards = start_of(StreamConfig(shards=2)).model_dump_json()
    for damaged in (
        *({}, {"format": 1}, state | {"position": "{"}, state | {"epoch": None}, state | {"epoch": -1}),
        *(state | {"position": two_shards}, state | {"plan_hash": "", "settings": "[]"}),
    ):
        with pytest.raises(icestream.BadInputError, match="not the state of a stream"):
            StreamState.read(damaged, made(file))


def test_options_are_shown_as_arguments_and_commands_stay() -> None:
    for text, expected in [
        ("name files with -i/--input, or -i", "name files with inputs, or inputs"),
        ("restore it, or use --fresh", "restore it, or use another run_dir"),
        ("add some with --decoders", "add some with decoders"),
        ("use --device cpu", "use device cpu"),
        ("then --set source.ids=rows; or", "then settings={'source.ids': 'rows'}; or"),
        ('--set \'source.columns.x=["a b", "c"]\'', "settings={'source.columns.x': ['a b', 'c']}"),
        ("--set source.columns.a=b --set 'x.y=[1]'. No", "settings={'source.columns.a': 'b', 'x.y': [1]}. No"),
        ("`icestream token t`, --set token.file=t", "`icestream token t`, settings={'token.file': 't'}"),
        ("`icestream config --keys`, `icestream run -i x`", "`icestream config --keys`, `icestream run -i x`"),
        ("/data/x-i/--run-dirs/a -in", "/data/x-i/--run-dirs/a -in"),
    ]:
        assert in_python(text) == expected


def test_errors_of_a_stream_name_arguments(tmp_path: Path) -> None:
    with pytest.raises(icestream.BadInputError, match=r"\{range\} needs fetcher\.ranges FIRST:LAST:STEP"):
        icestream.stream(f"{tmp_path}/{{range}}/*.parquet")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(icestream.BadInputError, match="restore it, or use another run_dir"):
        icestream.stream(tmp_path, run_dir=tmp_path)


MUONS = registry.workload("muons").schema
CPU = torch.device("cpu")
COUNTS = [3, 0, 1, 5, 0, 2]


def ragged(*sizes: int) -> RaggedBatch:
    """Six events, in microbatches of these sizes."""
    batch = toy_batch(len(COUNTS), counts=COUNTS)
    parts = (split(batch, list(sizes)) if sizes else batch).microbatches
    for part in parts:
        part.event_columns["primary_id"] = torch.arange(2 * part.num_events).reshape(-1, 2)
    return RaggedBatch(Batch(parts), MUONS, 2, StreamPosition(), device=CPU)


def test_microbatches_are_joined_to_one_batch_with_the_offsets_of_all_events() -> None:
    whole, parts = ragged(), ragged(2, 1, 3)
    assert len(parts.microbatches) == 3
    assert parts.offsets.tolist() == [0, 3, 3, 4, 9, 9, 11] == whole.offsets.tolist()
    assert parts.counts.tolist() == COUNTS
    assert parts.event_of_particle.tolist() == [0, 0, 0, 2, 3, 3, 3, 3, 3, 5, 5]
    assert torch.equal(parts.events["primary"], whole.events["primary"])
    assert torch.equal(parts.particles["muons"], whole.particles["muons"])
    assert (len(parts), parts.num_events, parts.num_particles, parts.total_events) == (6, 6, 11, 6)


def test_an_empty_batch_of_a_rank_is_on_the_device_of_its_stream_as_the_others_are() -> None:
    batch = RaggedBatch(
        Batch((), events_elsewhere=5), MUONS, 0, StreamState(StreamPosition(), 0), device=torch.device("meta")
    )
    columns = {**batch.events, **batch.particles}
    for name, tensor in {**columns, "offsets": batch.offsets, "counts": batch.counts}.items():
        assert tensor.device.type == "meta", name
    assert batch.event_of_particle.device.type == batch.device.type == "meta"
    assert {name: tensor.shape for name, tensor in columns.items()} == {
        name: (0, len(fields)) for name, fields in batch.fields.items()
    }


def test_a_batch_is_a_nested_tensor_or_an_awkward_array_with_named_fields() -> None:
    batch = ragged(2, 4)
    nested = batch.nested()
    assert nested.layout == torch.jagged
    assert [len(row) for row in nested.unbind()] == COUNTS
    assert torch.equal(nested.unbind()[3], batch.particles["muons"][4:9])
    with pytest.raises(BadInputError, match=r"nested\('muon'\): name one of the particle columns, 'muons'"):
        batch.nested("muon")
    events = batch.awkward()
    assert ak.num(events.muons).to_list() == COUNTS
    assert events.primary.fields == ["energy_gev", "zenith_rad", "mass_a", "depth_m"]
    energies = ak.flatten(events.muons.energy_gev).to_numpy()
    assert np.array_equal(energies, batch.particles["muons"][:, 0].numpy())
    assert np.array_equal(events.primary.depth_m.to_numpy(), batch.events["primary"][:, 3].numpy())


def test_a_batch_moves_to_another_device_and_stays_where_it_is_on_the_same() -> None:
    batch = ragged(2, 4)
    assert batch.to("cpu") is batch
    moved = batch.to("meta")
    assert moved.particles["muons"].device.type == moved.offsets.device.type == "meta"
    assert (moved.num_events, moved.epoch, moved.after) == (6, 2, batch.after)
