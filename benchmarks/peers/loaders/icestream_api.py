"""icestream's own API: docs/how-to/python.md; a setting for the mixing: docs/explanation/mixing.md."""

from __future__ import annotations

from collections.abc import Iterator

import icestream
from benchmarks.peers.loaders.base import Job, Ragged


class Loader:
    def __init__(self, job: Job) -> None:
        self._stream = icestream.stream(
            job.source,
            decoders=job.workers,
            batch_events=job.batch_events,
            device="cpu",
            seed=job.seed,
            settings={"stream.block_files": 64},  # as `icestream plan` says for small files: mixes more of them
        )
        self.state_dict = self._stream.state_dict
        self.load_state_dict = self._stream.load_state_dict
        self.close = self._stream.close

    def __iter__(self) -> Iterator[Ragged]:
        for batch in self._stream:
            yield Ragged(batch.events["primary_id"], batch.events["primary"], batch.offsets, batch.particles["muons"])
