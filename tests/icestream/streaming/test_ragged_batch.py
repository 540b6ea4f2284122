"""Batch of the Python API: columns, offsets, nested and Awkward views."""

from __future__ import annotations

import logging

import awkward as ak
import numpy as np
import pytest
import torch
from torch.fx import _symbolic_trace
from toy_events import split, toy_batch

from common.errors import BadInputError
from icestream.streaming.batch import RaggedBatch
from services.trainer.stream.position import StreamPosition
from workloads import registry
from workloads.base.batch import Batch

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


def test_one_microbatch_is_handed_out_without_a_copy() -> None:
    batch = ragged()
    assert batch.particles["muons"] is batch.microbatches[0].particle_columns["muons"]


def test_a_rank_without_data_gets_an_empty_batch_with_all_columns() -> None:
    batch = RaggedBatch(Batch((), events_elsewhere=5), MUONS, 0, StreamPosition(), device=CPU)
    assert batch.particles["muons"].shape == (0, 3)
    assert batch.events["primary"].dtype == torch.float32
    assert batch.offsets.tolist() == [0]
    assert (len(batch), batch.total_events) == (0, 5)


def test_an_empty_batch_of_a_rank_is_on_the_device_of_its_stream_as_the_others_are() -> None:
    batch = RaggedBatch(Batch((), events_elsewhere=5), MUONS, 0, StreamPosition(), device=torch.device("meta"))
    columns = {**batch.events, **batch.particles}
    for name, tensor in {**columns, "offsets": batch.offsets, "counts": batch.counts}.items():
        assert tensor.device.type == "meta", name
    assert batch.event_of_particle.device.type == batch.device.type == "meta"
    assert {name: tensor.shape for name, tensor in columns.items()} == {
        name: (0, len(fields)) for name, fields in batch.fields.items()
    }


def test_an_empty_batch_moves_to_the_device_asked_for() -> None:
    batch = RaggedBatch(Batch((), events_elsewhere=5), MUONS, 0, StreamPosition(), device=CPU, is_last=True)
    assert batch.to("cpu") is batch
    moved = batch.to("meta")
    assert moved.offsets.device.type == moved.particles["muons"].device.type == moved.device.type == "meta"
    assert moved.total_events == 5


def test_the_last_batch_of_an_epoch_is_so_on_another_device_too() -> None:
    batch = RaggedBatch(Batch(ragged().microbatches), MUONS, 0, StreamPosition(), device=CPU, is_last=True)
    assert batch.to("meta").is_last


def test_the_nested_tensor_has_a_row_of_particles_for_each_event() -> None:
    batch = ragged(2, 4)
    nested = batch.nested()
    assert nested.layout == torch.jagged
    assert [len(row) for row in nested.unbind()] == COUNTS
    assert torch.equal(nested.unbind()[3], batch.particles["muons"][4:9])
    with pytest.raises(BadInputError, match=r"nested\('muon'\): name one of the particle columns, 'muons'"):
        batch.nested("muon")


def test_nested_tensors_are_made_without_a_notice_to_the_developers_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _symbolic_trace.is_fx_tracing_warning.cache_clear()  # once a process
    lines: list[str] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: lines.append(record.getMessage()))
    monkeypatch.setattr(_symbolic_trace.log, "handlers", [handler])
    ragged(2, 4).nested()
    assert lines == []
    _symbolic_trace.is_fx_tracing_warning.cache_clear()
    _symbolic_trace.is_fx_tracing()
    assert len(lines) == 1, "elsewhere it is printed"


def test_the_awkward_array_has_named_fields_and_lists_of_particles() -> None:
    batch = ragged(2, 4)
    events = batch.awkward()
    assert ak.num(events.muons).to_list() == COUNTS
    assert events.primary.fields == ["energy_gev", "zenith_rad", "mass_a", "depth_m"]
    energies = ak.flatten(events.muons.energy_gev).to_numpy()
    assert np.array_equal(energies, batch.particles["muons"][:, 0].numpy())
    assert np.array_equal(events.primary.depth_m.to_numpy(), batch.events["primary"][:, 3].numpy())


def test_a_batch_says_what_is_in_it() -> None:
    assert repr(ragged()).startswith("<RaggedBatch: 6 events, 11 particles, epoch 2, on cpu: ")
    assert "muons (energy_gev, x_m, y_m)" in repr(ragged())


def test_a_batch_moves_to_another_device_and_stays_where_it_is_on_the_same() -> None:
    batch = ragged(2, 4)
    assert batch.to("cpu") is batch
    moved = batch.to("meta")
    assert moved.particles["muons"].device.type == moved.offsets.device.type == "meta"
    assert (moved.num_events, moved.epoch, moved.position) == (6, 2, batch.position)


def test_the_last_batch_of_an_epoch_is_still_that_on_another_device() -> None:
    """A state after it is the start of the next epoch, wherever a framework has moved it to."""
    batch = ragged()
    batch.is_last = True
    assert batch.to("meta").is_last
