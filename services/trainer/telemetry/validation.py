"""Validation block: events that stay the same over a run and its restarts (stored_block.py: those from files)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common.atomic_file import Publishing, replacing
from common.errors import BadInputError
from common.unit_arrays import Array
from services.config.trainer import ValidationConfig
from workloads.base.batch import Batch, Microbatch
from workloads.base.checkpoint import why_unreadable

logger = logging.getLogger(__name__)

VALIDATION_FILE = "validation.pt"
_FORMAT = 1


def made_for(config: ValidationConfig, held_out: float) -> dict[str, Any]:
    """Settings of which a block is kept; with others, another begins."""
    settings: dict[str, Any] = {"events": config.events, "input": list(config.input)}
    return settings | ({"held_out": held_out} if held_out else {})


class ValidationBlock:
    """Block of events from the run directory, or else from the run's first batches."""

    def __init__(
        self,
        run_dir: Path,
        config: ValidationConfig,
        device: torch.device,
        *,
        held_out: float = 0.0,
        publishing: Publishing = nullcontext,
    ) -> None:
        """``publishing``: see replacing(). Raises BadInputError if the block in the run directory is damaged."""
        self._publishing = publishing
        self._path = run_dir / VALIDATION_FILE
        self._events = config.events
        self.made_for = made_for(config, held_out)
        self._device = device
        self._parts: list[Microbatch] = []
        self._epoch: int | None = None
        self.batch: Batch | None = None
        """Block for the training device; None while it is being filled."""
        if self._path.exists():
            parts = self._load()
            self.batch = Batch(tuple(self._on_device(part) for part in parts)) if parts else None

    def add(self, batch: Batch, ids: Sequence[Mapping[str, Array]] = ()) -> None:
        """Fill the block from a batch of the run, until it is complete or the first epoch is over.

        ``ids``: columns of each microbatch that the run's batches don't have on the device.
        """
        if self.batch is not None or not batch.microbatches:  # a rank without a share of the batch gets an empty one
            return
        for part, columns in zip(batch.microbatches, ids or repeat({}), strict=False):
            if self._epoch is None:
                self._epoch = part.epoch
            missing = self._events - self._num_events
            if missing == 0 or part.epoch != self._epoch:
                break
            if part.num_events:
                known = {name: torch.from_numpy(column).to(self._device) for name, column in columns.items()}
                whole = replace(part, event_columns=part.event_columns | known)
                self._parts.append(_first_events(whole, missing))
        if self._num_events and (self._num_events == self._events or batch.microbatches[-1].epoch != self._epoch):
            self._complete()

    @property
    def _num_events(self) -> int:
        return sum(part.num_events for part in self._parts)

    def _complete(self) -> None:
        self.batch = Batch(tuple(replace(part, shard=0, number=0) for part in self._parts))  # as it is after a restart
        self._parts = []
        self._save(self.batch)
        logger.info("validation block: %d events, %d particles", self.batch.num_events, self.batch.num_particles)

    def _save(self, block: Batch) -> None:
        saved = [_as_saved(part) for part in block.microbatches]
        with replacing(self._path, durable=True, publishing=self._publishing) as part, part.open("wb") as file:
            torch.save({"format": _FORMAT, "made_for": self.made_for, "parts": saved}, file)

    def _load(self) -> list[Microbatch]:
        """Block in the run directory; empty if the settings have changed."""
        try:
            state = torch.load(self._path, map_location="cpu", weights_only=True)
            if state["format"] != _FORMAT:
                raise ValueError(f"format {state['format']}, expected {_FORMAT}")
            found = state["made_for"]
            parts = [_of_saved(saved) for saved in state["parts"]]
        except Exception as error:  # noqa: BLE001  damage can make the unpickler fail in any way
            reason = why_unreadable(error)
            raise BadInputError(f"{self._path}: can't be read ({reason}); delete it to begin another block") from None
        if found == self.made_for:
            return parts
        logger.warning("the validation block was made with %s: another begins with %s", found, self.made_for)
        return []

    def _on_device(self, part: Microbatch) -> Microbatch:
        return replace(
            part,
            offsets_E1=part.offsets_E1.to(self._device),
            event_columns=_to(part.event_columns, self._device),
            particle_columns=_to(part.particle_columns, self._device),
        )


def _first_events(part: Microbatch, most: int) -> Microbatch:
    """First ``most`` events of a microbatch, in memory of their own: it may be a view of a whole unit."""
    views = part.part(0, min(most, part.num_events))
    return replace(
        views,
        event_columns={name: column.clone() for name, column in views.event_columns.items()},
        particle_columns={name: column.clone() for name, column in views.particle_columns.items()},
    )


def _as_saved(part: Microbatch) -> dict[str, Any]:
    host = torch.device("cpu")
    return {
        "offsets": part.offsets_E1.to(host),
        "event_columns": _to(part.event_columns, host),
        "particle_columns": _to(part.particle_columns, host),
    }


def _of_saved(saved: Mapping[str, Any]) -> Microbatch:
    """Microbatch on the host."""
    offsets_E1 = saved["offsets"]
    return Microbatch(
        epoch=0,
        unit=0,
        index=0,
        offsets_E1=offsets_E1,
        host_offsets_E1=offsets_E1.numpy(),
        event_columns=dict(saved["event_columns"]),
        particle_columns=dict(saved["particle_columns"]),
        num_events=len(offsets_E1) - 1,
        num_particles=int(offsets_E1[-1]),
    )


def _to(columns: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: column.to(device) for name, column in columns.items()}
