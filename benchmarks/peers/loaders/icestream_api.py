"""icestream's own API: docs/how-to/python.md; a setting for the mixing: docs/explanation/mixing.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import icestream
from benchmarks.peers.features import COLUMN, WEIGHTS, WHERE
from benchmarks.peers.loaders.base import Job, Ragged


class Loader:
    def __init__(self, job: Job) -> None:
        asked: dict[str, Any] = {"inputs": job.source, "decoders": job.workers}
        if "mix" in job.features:  # a set has decoders of its own
            asked = {"decoders": max(1, job.workers // len(WEIGHTS))}
            asked |= {"weights": {str(job.source / name): weight for name, weight in WEIGHTS.items()}}
        if "filter" in job.features:
            asked["where"] = WHERE
        if "transform" in job.features:
            asked["transform"] = "benchmarks.peers.features:transform"
        if "column" in job.features:
            asked["extra"] = [COLUMN]
        self._stream = icestream.stream(
            batch_events=job.batch_events,
            device="cpu",
            seed=job.seed,
            settings={"stream.block_files": 64},  # as `icestream plan` says for small files: mixes more of them
            **asked,
        )
        self._has_column = "column" in job.features
        self.state_dict = self._stream.state_dict
        self.load_state_dict = self._stream.load_state_dict
        self.close = self._stream.close

    def __iter__(self) -> Iterator[Ragged]:
        for batch in self._stream:
            events, muons = batch.events, batch.particles["muons"]
            weight = events[COLUMN].flatten() if self._has_column else torch.empty(0)
            yield Ragged(events["primary_id"], events["primary"], batch.offsets, muons, weight)
