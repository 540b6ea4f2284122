"""A copier that is late as a GPU's is: copies and releases happen some time after they were asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import torch

from common.arena import Arena
from common.unit_arrays import UnitArrays
from services.trainer.stream.copier import copy_to_host
from services.trainer.stream.microbatch_copy import slice_microbatch
from workloads.base.batch import Microbatch


class DelayedCopier:
    """Copies are made at hand_over(), or one by one at poll(); until then their tensors hold rubbish."""

    batches_ahead = 2

    def __init__(self, arena: Arena, device: torch.device) -> None:
        del arena, device
        self._jobs: deque[tuple[int, Callable[[], object]]] = deque()
        self._releases: deque[tuple[int, Callable[[], None]]] = deque()
        self._asked = self._done = 0
        self.marked = self.handed_over = 0
        """Batches."""
        self.most_ahead = 0

    def copy(self, arrays: UnitArrays, epoch: int, unit: int, index: int) -> Microbatch:
        offsets, particles, events = slice_microbatch(arrays, index)
        late = Microbatch(
            epoch=epoch,
            unit=unit,
            index=index,
            offsets_E1=torch.full((len(offsets),), -77),
            host_offsets_E1=offsets - offsets[0],
            event_columns={name: torch.from_numpy(column * 0 + 77) for name, column in events.items()},
            particle_columns={name: torch.from_numpy(column * 0 + 77) for name, column in particles.items()},
            num_events=len(offsets) - 1,
            num_particles=len(next(iter(particles.values()))),
        )
        self._asked += 1
        self._jobs.append((self._asked, partial(_fill, late, arrays)))
        return late

    def mark(self) -> int:
        self.marked += 1
        self.most_ahead = max(self.most_ahead, self.marked - self.handed_over - 1)
        return self._asked

    def hand_over(self, mark: int) -> None:
        self.handed_over += 1
        while self._done < mark:
            self._run_one()

    def finish_unit(self, release: Callable[[], None]) -> None:
        self._releases.append((self._asked, release))
        self.poll()

    def poll(self) -> None:
        if self._jobs:
            self._run_one()
        while self._releases and self._releases[0][0] <= self._done:
            self._releases.popleft()[1]()

    def close(self) -> None:
        while self._jobs:
            self._run_one()
        self._releases.clear()

    def _run_one(self) -> None:
        self._done, job = self._jobs.popleft()
        job()


def _fill(late: Microbatch, arrays: UnitArrays) -> None:
    copied = copy_to_host(arrays, late.epoch, late.unit, late.index)
    late.offsets_E1.copy_(copied.offsets_E1)
    for to, of in ((late.event_columns, copied.event_columns), (late.particle_columns, copied.particle_columns)):
        for name, column in of.items():
            to[name].copy_(column)
