"""Megatron Energon: WebDataset shards of crude samples, a cooker and a TaskEncoder, and the savable loader.

As in its pages "Data Preparation" (tar files by webdataset's ShardWriter, then `energon prepare`), "Crude Datasets",
"Task Encoder", "Metadataset" (a mixture by weights), "Epochized Blending" (epochs that end) and "Save and Restore". An
event is one part of a tar file, its numbers one after the other; rows are batched in the workers. The filter is
SkipSample, the transform is in `encode_sample`.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import webdataset
from megatron.energon import (
    Batch,
    Cooker,
    DefaultTaskEncoder,
    Sample,
    SkipSample,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_savable_loader,
    get_train_dataset,
    stateless,
)

from benchmarks.peers.features import COLUMN, WEIGHTS, is_kept_row, log_energies
from benchmarks.peers.loaders.base import COLUMNS, Job, Ragged, from_rows, rows_of

HEAD = struct.Struct("<2Q4ff")
"""Ids, primary and the user's own column of an event; its muons follow."""
BUFFER = 10_000
METADATASET = """\
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    {blend}:
"""


def prepare(source: Path, target: Path) -> None:
    """Write all events as tar files, index them, and describe both sets: one after the other, and mixed."""
    for name, files in Job(source, target, 0, 0, 0).sets.items():
        (target / name).mkdir(parents=True)
        with webdataset.ShardWriter(str(target / name / "%05d.tar"), maxcount=10_000, verbose=0) as writer:
            for path in files:
                for row in rows_of(path):
                    major, minor = (int(row[column]) for column in COLUMNS[:2])
                    head = HEAD.pack(major, minor, *row["primary"], row[COLUMN])
                    writer.write({"__key__": f"{major:09}-{minor:09}", "bin": head + row["muons"]})
        prepare_set = [sys.executable, "-m", "megatron.energon.cli.main", "prepare", "--non-interactive"]
        prepare_set += ["--no-progress", "--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset"]
        subprocess.run([*prepare_set, "--num-workers", "2", str(target / name)], check=True, capture_output=True)
    entries = {"blend_epochized": dict.fromkeys(WEIGHTS, "repetitions: 1"), "blend": {}}
    entries["blend"] = {name: f"weight: {weight}" for name, weight in WEIGHTS.items()}
    for blend, sets in entries.items():
        lines = "".join(f"      - {how_much}\n        path: ./{name}\n" for name, how_much in sets.items())
        (target / f"{blend}.yaml").write_text(METADATASET.format(blend=blend) + lines)


@edataclass
class Event(Sample):
    """An event as it is stored."""

    row: dict


@edataclass
class Events(Batch):
    """Batch of events, with the keys that Energon restores it by."""

    ragged: dict


@stateless  # type: ignore[untyped-decorator]
def cook(sample: dict) -> Event:
    major, minor, *values = HEAD.unpack_from(sample["bin"])
    muons = np.frombuffer(sample["bin"], np.float32)[HEAD.size // 4 :].reshape(-1, 3)
    row = {"primary_major_id": major, "primary_minor_id": minor, "primary": values[:4], "muons": muons}
    return Event(**basic_sample_keys(sample), row=row | {COLUMN: values[4]})


class Encoder(DefaultTaskEncoder):
    """The encoder of an event, and of a batch."""

    cookers = [Cooker(cook)]  # noqa: RUF012

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    @stateless  # type: ignore[untyped-decorator]
    def encode_sample(self, sample: Event) -> Event:
        if "filter" in self._job.features and not is_kept_row(sample.row):
            raise SkipSample
        if "transform" in self._job.features:
            sample.row["muons"] = log_energies(sample.row["muons"])
        return sample

    @stateless  # type: ignore[untyped-decorator]
    def batch(self, samples: list[Event]) -> Events:
        ragged = from_rows([sample.row for sample in samples], self._job.columns)._asdict()
        return Events.from_samples(samples, ragged=ragged)


class Loader:
    def __init__(self, job: Job) -> None:
        is_mixed = "mix" in job.features
        data = get_train_dataset(
            str(job.prepared / ("blend.yaml" if is_mixed else "blend_epochized.yaml")),
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=job.workers, seed_offset=job.seed),
            batch_size=job.batch_events,
            shuffle_buffer_size=BUFFER,
            max_samples_per_sequence=100,
            task_encoder=Encoder(job),
            repeat=is_mixed,
        )
        self._loader = get_savable_loader(data)
        self.state_dict = self._loader.save_state_rank
        self.load_state_dict = self._loader.restore_state_rank

    def __iter__(self) -> Iterator[Ragged]:
        for batch in self._loader:
            yield Ragged(**batch.ragged)

    def close(self) -> None:
        del self._loader
