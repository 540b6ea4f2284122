"""A run with held-out events: none of them is trained on, the validation block has nothing else, all are counted."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import pytest
import torch
from runs import SMALL_STREAM, Processes, settings
from showers import Showers
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from common.held_out import is_held_out
from common.unit_arrays import UnitArrays
from icestream.commands.bench.batches import batches_from_files
from services.config.root import Config, load_config
from services.trainer.stream.audit import audit_line
from services.trainer.telemetry.stored_block import StoredBatch, stored_block
from services.trainer.telemetry.tensorboard_sink import run_folder
from services.trainer.telemetry.validation import made_for
from workloads.base.batch import Microbatch

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
SHARE = 0.25
Ids = npt.NDArray[np.uint64]


def digest(part: Microbatch) -> str:
    """Digest that the audit has of these bytes."""
    arrays = UnitArrays(
        offsets=part.host_offsets_E1.astype(np.int64),
        microbatch_bounds=np.array([0, part.num_events]),
        particle_columns={name: column.numpy() for name, column in part.particle_columns.items()},
        event_columns={name: column.numpy() for name, column in part.event_columns.items()},
    )
    found: str = json.loads(audit_line(arrays, 0, 0, 0, 0))["digest"]
    return found


def ids_of(part: Microbatch) -> Ids:
    ids: Ids = part.event_columns["primary_id"].numpy()
    return ids


def block_of(processes: Processes, config: Config) -> StoredBatch:
    settings_of_block = made_for(config.trainer.validation, config.stream.held_out)
    return stored_block(processes.run_dir, config.stored_workload(), settings_of_block, CPU, lambda: [])


def test_no_held_out_event_is_trained_on_and_the_block_has_no_other(processes: Processes, showers: Showers) -> None:
    validation = ("trainer.validation.events=300", "trainer.validation.every=10")
    held_out = f"stream.held_out={SHARE}"
    summary = processes.train(*showers.input, "--epochs", "1", *settings(*SMALL_STREAM, *validation, held_out))
    summary.assert_read(showers.events)
    major, minor = (
        np.concatenate([table[f"primary_{name}_id"].to_numpy() for table in showers.tables]).astype(np.uint64)
        for name in ("major", "minor")
    )
    every = np.stack([major, minor], 1)
    assert summary.events["held_out"] == is_held_out(every, SHARE).sum() > 0

    config = load_config(processes.run_dir, environment={})
    parts = [part for batch in batches_from_files(config, 10_000, CPU) for part in batch.microbatches]
    audit = [json.loads(line)["digest"] for line in processes.audit()]
    assert audit == [digest(part) for part in parts], "these are the microbatches that were trained"
    trained = np.concatenate([ids_of(part) for part in parts])
    assert len(trained) == summary.events["trained"]
    assert not is_held_out(trained, SHARE).any()

    block = block_of(processes, config)
    validated = np.concatenate([ids_of(part) for part in block.microbatches])
    assert len(validated) == block.num_events == 300
    assert is_held_out(validated, SHARE).all()
    assert not {tuple(one) for one in validated.tolist()} & {tuple(one) for one in trained.tolist()}
    told = EventAccumulator(str(run_folder(processes.run_dir))).Reload()
    assert told.Scalars("panel/score")
