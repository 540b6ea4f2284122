"""`icestream.stream`: loops that begin again, end early or mix sets; exact batches; lengths; arguments of others."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from muon_files import make_events, make_table, write_events
from torch.utils.data import DataLoader

import icestream
from icestream import streaming

EVENTS, BATCH = 700, 48
"""No multiple of each other: the last batch is smaller, and microbatches don't end where batches do."""
QUICK = {"stream.block_files": 3, "stream.slot_mib": 1, "stream.unit_events": 150}
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven files of 100 events, 0 to 6 muons each, with a weight that is the event's number."""
    folder = tmp_path_factory.mktemp("files")
    for index in range(7):
        events = make_events([number % 7 for number in range(100)], first=100 * index)
        weights = pa.array([float(event.major) for event in events])
        pq.write_table(make_table(events).append_column("weight", weights), folder / f"{index}.parquet")
    return folder


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_events(tmp_path_factory.mktemp("few") / "few.parquet", make_events([1] * 90, first=1000))


def made(inputs: Path | None, **arguments: Any) -> icestream.EventStream:
    settings = QUICK | arguments.pop("settings", {})
    given: dict[str, Any] = {"decoders": 1, "batch_events": BATCH, "device": "cpu", "seed": 3} | arguments
    return icestream.stream(inputs, settings=settings, **given)


def ids(batch: icestream.RaggedBatch) -> list[int]:
    return batch["primary_id"][:, 0].tolist()


@pytest.fixture(scope="module")
def exact(files: Path) -> Iterator[icestream.EventStream]:
    with made(files, drop_last=True) as stream:
        yield stream


# ------------------------------------------------------------------ batches


@SLOW
def test_with_drop_last_each_batch_has_its_events_and_resumes_behind_any_to_the_bit(
    exact: icestream.EventStream,
) -> None:
    start, found, states = exact.state_dict(), [], []
    for batch in exact:
        found.append(ids(batch))
        states.append(exact.state_dict(after=batch))
        assert batch.offsets[-1] == len(batch["muons"]) == sum(number % 100 % 7 for number in found[-1])
    assert batch.is_last
    assert {len(batch) for batch in found} == {BATCH}
    assert len(found) == EVENTS // BATCH == len(exact)
    assert len({number for batch in found for number in batch}) == BATCH * len(found), "none twice"
    following = ids(next(iter(exact)))
    for number, state in enumerate(states):
        exact.load_state_dict(state)
        expected = found[number + 1 : number + 3] or [following]
        assert [ids(batch) for batch in islice(exact, len(expected))] == expected
    exact.load_state_dict(start)


@SLOW
@pytest.mark.parametrize("interrupted", [1, 2, 6])
def test_ctrl_c_while_batches_are_cut_loses_no_event(
    exact: icestream.EventStream, monkeypatch: pytest.MonkeyPatch, interrupted: int
) -> None:
    start, whole = exact.state_dict(), [ids(batch) for batch in exact]
    exact.load_state_dict(start)
    calls, cut, found = [], streaming._Rest.cut, []

    def cut_or_stop(self: Any, events: int) -> Any:
        calls.append(events)
        if len(calls) == interrupted:
            raise KeyboardInterrupt
        return cut(self, events)

    monkeypatch.setattr(streaming._Rest, "cut", cut_or_stop)
    while len(found) < len(whole):
        try:
            for batch in exact:
                found.append(ids(batch))
        except KeyboardInterrupt:
            continue
    assert found == whole
    exact.load_state_dict(start)


@SLOW
def test_a_state_of_cut_batches_is_refused_where_none_are_cut(exact: icestream.EventStream, files: Path) -> None:
    start = exact.state_dict()
    states = [exact.state_dict(after=batch) for batch in exact]
    exact.load_state_dict(start)
    cut = [state for state in states if state["skip"]]
    with pytest.raises(icestream.BadInputError, match="batches that were cut by drop_last"):
        made(files).load_state_dict(cut[0])


@SLOW
def test_a_batch_is_a_dictionary_with_ids_that_torch_can_count_with(exact: icestream.EventStream) -> None:
    batch = next(iter(exact))
    assert set(dict(batch)) == {"muons", "primary", "primary_id"} == set(exact.fields)
    assert (batch["primary_id"] + 1).max() > 0
    assert "muons" in batch
    assert list(batch) == [name for name, _ in batch.items()]
    assert batch.to(dtype=torch.float32) is batch
    half = batch.to(dtype=torch.float16)
    assert (half["muons"].dtype, half["primary_id"].dtype) == (torch.float16, torch.int64)
    assert batch.to("cpu") is batch
    with pytest.raises(KeyError, match="no column 'foo'; there are muons, primary, primary_id"):
        batch["foo"]


# ------------------------------------------------------------------ loops


@SLOW
def test_validation_begins_with_the_same_batch_however_the_last_loop_ended(files: Path) -> None:
    """Lightning's sanity check reads two batches, and leaves the loop."""
    arguments: dict[str, Any] = {"restart": True, "settings": {"stream.held_out": 0.3}}
    with made(files, part="held_out", **arguments) as stream:
        upper = len(stream)
        whole = [ids(batch) for batch in stream]
        for most in (2, 1, None):
            assert [ids(batch) for batch in islice(stream, most)] == whole[:most]
        assert len(whole) == len(stream) <= upper
    with made(files, settings=arguments["settings"]) as stream:
        trained = {number for batch in stream for number in ids(batch)}
        held_out = {number for batch in whole for number in batch}
        assert trained | held_out == set(range(EVENTS))
        assert not trained & held_out
        assert stream.counters.events_held_out == len(held_out)


@SLOW
def test_a_limit_ends_a_loop_and_the_next_one_goes_on_also_from_a_state(files: Path) -> None:
    with made(files) as stream:
        whole = [ids(batch) for batch in stream]
    with made(files, limit=200) as stream:
        assert len(stream) == 5
        loops, states = [], []
        while sum(map(len, loops)) < len(whole):
            loops.append([])
            for batch in stream:
                loops[-1].append(ids(batch))
                states.append(stream.state_dict(after=batch))
        assert [batch for loop in loops for batch in loop] == whole
        assert all(sum(map(len, loop)) >= 200 > sum(map(len, loop[:-1])) for loop in loops[:-1])
        stream.load_state_dict(states[len(loops[0])])  # behind the first batch of the second loop
        assert [ids(batch) for batch in stream] == loops[1][1:]


@SLOW
@pytest.mark.parametrize("drop_last", [False, True])
def test_sets_are_mixed_in_proportion_and_resume_to_the_bit(files: Path, few: Path, drop_last: bool) -> None:
    weights = {str(files): 3, str(few): 1}
    with made(None, weights=weights, drop_last=drop_last) as stream:
        promised = len(stream)
        assert stream.num_events == EVENTS + 90
        epochs, states = [], []
        for _ in range(2):
            epochs.append([])
            for batch in stream:
                epochs[-1].append(ids(batch))
                states.append(stream.state_dict(after=batch))
                of_few = [number >= 1000 for number in epochs[-1][-1]]
                assert batch.set_of_event.tolist() == of_few
                assert abs(sum(of_few) - 12) <= (3 if drop_last else 1)
                assert len(of_few) == BATCH or (not drop_last and BATCH <= len(of_few) <= BATCH + 3)
            assert batch.is_last
        found = [batch for epoch in epochs for batch in epoch]
        assert len(found) <= 2 * promised <= len(found) + 4
        large = [number for batch in found for number in batch if number < 1000]
        if not drop_last:
            assert sorted(large[:EVENTS]) == list(range(EVENTS)), "no event of the largest set is left out or repeated"
            assert 0 <= len(large) - 2 * EVENTS < 2 * 39, "an epoch ends once the set that takes longest begins again"
        counted = stream.counters_of_sets
        assert list(counted) == list(weights)
        assert stream.counters.events_trained == sum(map(len, found))
        assert sum(one.events_trained for one in counted.values()) == sum(map(len, found)) + stream.left_out
        assert bool(stream.left_out) == drop_last
        stream.load_state_dict(states[3])
        next(iter(stream))  # Lightning drops an unread first batch, and begins a new loop
        assert ids(next(iter(stream))) == found[4]
        for number in (0, 7, len(epochs[0]) - 1, len(found) - 4):
            stream.load_state_dict(states[number])
            assert [ids(batch) for batch in islice(stream, 2)] == found[number + 1 : number + 3]
        with pytest.raises(icestream.BadInputError, match=r"another stream .*stream\.weights"):
            made(None, weights={str(files): 2, str(few): 1}, drop_last=drop_last).load_state_dict(states[0])


@SLOW
def test_a_batch_may_hold_several_passes_over_all_sets(few: Path, tmp_path: Path) -> None:
    fewer = write_events(tmp_path / "fewer.parquet", make_events([1] * 60))
    with made(None, weights={str(few): 1, str(fewer): 1}, batch_events=500) as stream:
        loops = [[(batch.epoch, len(batch), batch.is_last) for batch in stream] for _ in range(3)]
        assert [len(loop) for loop in loops] == [1, 1, 1]
        assert [loop[0][0] for loop in loops] == [0, 2, 5], "250 of 90 events are 2 passes, and a part of the third"
        assert stream.epoch == stream.counters_of_sets[str(few)].events_trained // 90
    with pytest.raises(icestream.BadInputError, match="has an input twice"):
        made(None, weights={str(few): 1, f"{few.parent}/./{few.name}": 1})


@SLOW
def test_a_set_without_events_is_told(files: Path, few: Path) -> None:
    told = rf"no event of a whole epoch of {few} can|input 2 of stream\.weights has no"
    with (
        made(None, weights={str(files): 3, str(few): 1}, where="muons.count != 1") as stream,
        pytest.raises(icestream.BadInputError, match=told),
    ):
        next(iter(stream))


@SLOW
def test_a_filter_a_column_and_a_function_go_through_the_decoders(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_transform.py").write_text(
        "def halved(events, particles, offsets, random):\n    events['weight'] *= 0.5\n\n"
        "def wrong(events, particles, offsets, random):\n    raise ValueError('no such detector')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)  # as Python does for a script in another folder
    from own_transform import halved  # type: ignore[import-not-found]

    with made(files, where="weight >= 600 and muons.count > 0", extra=["weight"], transform=halved) as stream:
        events = {
            number: weight for batch in stream for number, weight in zip(ids(batch), batch["weight"], strict=True)
        }
        assert sorted(events) == [number for number in range(600, EVENTS) if number % 100 % 7]
        assert all(float(weight) == number / 2 for number, weight in events.items())
        assert stream.counters.events_filtered == EVENTS - len(events)
    with (
        made(files, transform="own_transform:wrong") as stream,
        pytest.raises(icestream.BadInputError, match=r"failed in unit 0 of .*parquet.*: ValueError: no such detector"),
    ):
        next(iter(stream))
    monkeypatch.delitem(sys.modules, "own_transform")


# ------------------------------------------------------------------ before the first batch


def test_length_fields_and_a_line_for_people_are_there_before_the_first_batch(files: Path) -> None:
    stream = made(files, drop_last=False)
    assert (stream.num_events, len(stream)) == (EVENTS, -(-EVENTS // BATCH))
    assert stream, "no question for its length"
    assert stream.fields["muons"] == ("energy_gev", "x_m", "y_m")
    assert repr(stream).startswith("<EventStream: 1 input, batches of 48 events, epoch 0, 0 events handed out: muons")
    assert len(made(files, limit=100)) == len(made(files, limit=100, drop_last=True)) == 3
    assert made(files, extra="weight").fields["weight"] == ("weight",)
    with pytest.raises(TypeError, match="unknown before the first epoch"):
        len(made("pelican://host/data"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"batch_size": 3}, r"stream\(\) has no argument batch_size; did you mean batch_events\?"),
        ({"num_workers": 3}, "did you mean decoders"),
        ({"shufle": False}, "did you mean shuffle"),
        ({"zzz": 1}, r"there are inputs, decoders, batch_events"),
        *(({"limit": limit}, "limit = .*: expected a whole number") for limit in (0, "5", 2.5, True)),
        ({"extra": 5}, "extra = 5: expected names of columns"),
        ({"part": "held_out"}, r'stream\.part = "held_out" needs the share'),
        ({"weights": {"a": 1}}, "inputs and weights are given"),
        ({"where": "energy > 1"}, r"there is no energy; did you mean primary\.energy_gev"),
        ({"transform": lambda *_: None}, "define it with `def` in a module"),
        ({"transform": "nowhere"}, r"stream\.transform = 'nowhere': expected package\.module:NAME"),
        ({"transform": "no_such_module:f"}, r"stream\.transform = .*: there is no module 'no_such_module'"),
    ],
)
def test_an_argument_that_can_not_be_is_one_line_with_the_cure(
    files: Path, arguments: dict[str, Any], told: str
) -> None:
    with pytest.raises(icestream.BadInputError, match=told):
        made(files, **arguments)


@pytest.mark.parametrize("weights", [{"a": 1, "b": 0}, {"a": 1, "b": -1}, {"a": 1, "b": math.nan}, {"a": 1, "b": "x"}])
def test_weights_that_no_batch_can_be_divided_by_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(icestream.BadInputError, match=r"weights.* expected "):
        made(None, weights=weights)


def test_a_loader_that_collates_is_told_what_to_write() -> None:
    batch = icestream.RaggedBatch.__new__(icestream.RaggedBatch)
    with pytest.raises(icestream.BadInputError, match=r"DataLoader\(stream, batch_size=None\)"):
        next(iter(DataLoader([batch], batch_size=1)))  # type: ignore[arg-type]
