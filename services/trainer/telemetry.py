"""What the trainer tells: scalars on TensorBoard, and its status file. The only place where metrics reach the host."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from common.measurements import values
from common.metrics import Rate, Shares
from common.status import FetcherStatus, Hop, TrainerStatus, read_status, write_status
from services.trainer.state import TrainState
from services.trainer.waits import BatchWaits

TENSORBOARD_FOLDER = "tensorboard"
_STATUS_S = 0.5
_QUARANTINED_TOLD = 100
_ON_TENSORBOARD = ("hop/", "stall/", "trainer/events_per_s", "trainer/particles_per_s", "trainer/wait_fraction")
"""Beginnings of the names (common/measurements.py) that are written at every log step, besides the losses."""
_IN_STATUS = ("c_loss", "g_loss", "m_loss", "w_gap", "w_gap_ma_500")


class Telemetry:
    """For one trainer process. A rank that is not the first has a status file of its own, and no TensorBoard."""

    def __init__(self, run_dir: Path, *, step: int, device: str, max_steps: int, epochs: int, rank: int = 0) -> None:
        self._run_dir = run_dir
        self._name = "trainer" if rank == 0 else f"trainer-{rank}"
        self._rank = rank
        self._writer = self._open(step)
        self._base = TrainerStatus(pid=os.getpid(), device=device, max_steps=max_steps, epochs=epochs)
        self._newest = self._base
        self._losses: dict[str, float] = {}
        self._events = Rate()
        self._particles = Rate()
        self._waits = Shares()
        self._checkpoint = ""
        self._checkpoint_step = 0
        self._written_s = 0.0

    def scalars(self, state: TrainState, metrics: dict[str, Tensor], waits: BatchWaits) -> None:
        """Write the metrics of a step: the host waits for the device here, and nowhere else."""
        self._losses = {name: float(value) for name, value in metrics.items()}
        self.status("training", state, waits, force=True)
        if self._writer is None:
            return
        for name, value in self._losses.items():
            self._writer.add_scalar(f"train/{name}", value, state.step)
        fetcher = read_status(self._run_dir, "fetcher", FetcherStatus)  # None: it runs somewhere else
        for name, value in values(fetcher, self._newest).items():
            if name.startswith(_ON_TENSORBOARD):
                self._writer.add_scalar(name, value, state.step)

    def _open(self, step: int) -> SummaryWriter | None:
        if self._rank:
            return None
        # Steps after the checkpoint are trained again: what TensorBoard has of them is hidden.
        return SummaryWriter(str(self._run_dir / TENSORBOARD_FOLDER), purge_step=step + 1 if step else None)

    def note(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write numbers that are on the host, by their full names."""
        if self._writer is None:
            return
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)

    def health(self, label: str, reason: str, rollbacks: int) -> None:
        """For the status file, from now on."""
        self._base = self._base.model_copy(update={"health": label, "health_reason": reason, "rollbacks": rollbacks})

    def rolled_back(self, step: int) -> None:
        """Training went back to ``step``."""
        if self._writer is not None:
            self._writer.close()
        self._writer = self._open(step)
        self._events, self._particles = Rate(), Rate()  # the counters went back as well
        self._losses = {}

    def newest_score(self) -> float | None:
        """How good the weights are, lower is better; None if nothing was measured since the last call."""
        return None

    def checkpointed(self, path: Path, step: int) -> None:
        """A checkpoint was written."""
        self._checkpoint = str(path.relative_to(self._run_dir))
        self._checkpoint_step = step
        if self._writer is not None:
            self._writer.flush()

    def status(
        self,
        name: Literal["starting", "training", "finished", "stopped"],
        state: TrainState,
        waits: BatchWaits,
        *,
        force: bool = False,
    ) -> TrainerStatus:
        """Replace the status file, at most twice a second unless forced."""
        now_s = time.monotonic()
        if not force and now_s - self._written_s < _STATUS_S:
            return self._newest
        self._written_s = now_s
        counters = state.position.counters
        batches = self._batches(now_s, waits)
        self._newest = self._base.model_copy(
            update={
                "state": name,
                "step": state.step,
                "epoch": state.position.epoch,
                "seconds": state.seconds,
                "counters": counters,
                "events_per_s": self._events.update(now_s, counters.events_trained),
                "particles_per_s": self._particles.update(now_s, counters.particles_trained),
                "wait_fraction": batches.wait_get_share,
                "batches": batches,
                "losses": {
                    # JSON has no word for others, and the file could not be read.
                    loss: self._losses[loss]
                    for loss in _IN_STATUS
                    if math.isfinite(self._losses.get(loss, math.nan))
                },
                "checkpoint": self._checkpoint,
                "checkpoint_step": self._checkpoint_step,
                "quarantined": [bad.reason for bad in state.position.quarantined[-_QUARANTINED_TOLD:]],
                "num_quarantined": len(state.position.quarantined),
            }
        )
        write_status(self._run_dir, self._name, self._newest)
        return self._newest

    def waiting(self, state: TrainState, waits: BatchWaits) -> None:
        """Keep the status file new while no step is made, or nobody would see the waiting."""
        self.status(self._newest.state, state, waits)

    def _batches(self, now_s: float, waits: BatchWaits) -> Hop:
        shares = self._waits.update(now_s, {"put": waits.put_s, "get": waits.get_s})
        return Hop(
            wait_put_s=waits.put_s,
            wait_get_s=waits.get_s,
            wait_put_share=min(shares["put"], 1.0),  # a step's time counts at its end
            wait_get_share=min(shares["get"], 1.0),
        )

    def close(self) -> None:
        """Flush and close."""
        if self._writer is not None:
            self._writer.close()
