"""Training step common to the direction models: one network, one update, the running mean of its weights.

Shape suffix: E events.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import AdamW

from common.errors import BadInputError
from workloads.base.averaged import AveragedWeights
from workloads.base.batch import Batch, Microbatch
from workloads.base.compiler import require_compiler
from workloads.base.context import StepContext
from workloads.base.optimiser import PartGradients, uncompiled
from workloads.base.step import BaseTask
from workloads.direction.models.config import DirectionConfig
from workloads.direction.models.detector import Detector
from workloads.direction.models.events import EventInput
from workloads.direction.models.losses import angle_deg, unit_vectors, vmf_loss
from workloads.direction.models.network import DirectionNetwork
from workloads.direction.models.predictor import CPU_CHUNK_PULSES, Predictor

ConfigT = TypeVar("ConfigT", bound=DirectionConfig)

_TURN = "turn"
_STEPS_OF_MEAN = 20
"""Steps whose predictions the metric mean_direction is the mean of, about: that of one small batch is never near 0."""
_NUM_SUMS = 7


class DirectionTask(BaseTask[ConfigT, Microbatch]):
    """Task of one network that predicts directions.

    Metrics of a step: vmf_loss and angle_deg are the mean loss and error of natural events, auxiliary_loss the sum of
    the mean losses of auxiliary predictions, of all events. mean_direction is the length of the mean predicted unit
    vector of the last steps: near 1 if the network has collapsed to one direction; 0 during the warm-up, in which a
    network that has learned nothing yet has one arbitrary direction. skipped_updates is 1 if the update was skipped
    because loss or gradient was not finite, or beyond the limits.

    Unlike other models' steps, each part waits for the device: once to read how many sensors saw light, and a few times
    more where a network chooses among them (sensors.py).
    """

    CPU_CHUNK = CPU_CHUNK_PULSES
    METRICS = ("vmf_loss", "auxiliary_loss", "angle_deg", "mean_direction", "network_grad_norm", "skipped_updates")
    RECIPE = ("schedule", "schedule_steps", "warmup_steps", "learning_rate", "symmetry")

    def __init__(self, config: ConfigT, context: StepContext) -> None:
        """Raises BadInputError if there are no positions of the sensors."""
        self.detector = Detector.found(config.geometry, context.inputs, self.SECTION).to(context.device)
        with context.initial_weights():
            network = self.build(config).to(context.device)
        self.averaged = AveragedWeights(network, config.average_decay)
        adam = uncompiled(AdamW)(
            network.parameters(), config.learning_rate, config.betas, weight_decay=config.weight_decay, fused=True
        )
        modules = {"detector": self.detector, "network": network, "network_average": self.averaged.average}
        if config.compile:
            require_compiler(context.device, f"{self.SECTION}.compile")
            for block in network.blocks():
                block.compile(dynamic=True)
        optimisers = {"network": (network, adam)}
        # Compiled code runs its own threads.
        super().__init__(config, context, modules, optimisers, parallel=not config.compile)
        self._mean_direction_3 = torch.zeros(3, device=context.device)

    @abstractmethod
    def build(self, config: ConfigT) -> DirectionNetwork:
        """Network with new weights, from torch's global generator."""

    def predictor(self) -> Predictor:
        """Predictor with the present weights."""
        return Predictor(self.averaged.used, self.detector, self.context.precision, self.config.chunk_particles)

    # ---- The step.

    def prepare(self, microbatch: Microbatch, random: torch.Generator) -> Microbatch:
        """Microbatch with a random turn of each event in an additional column, if the detector is symmetric."""
        if self.config.symmetry == "none":
            return microbatch
        uniform_2E = torch.rand(2, microbatch.num_events, device=self.device, generator=random)
        turn_E2 = torch.stack([2 * math.pi * uniform_2E[0], torch.where(uniform_2E[1] < 0.5, -1.0, 1.0)], 1)
        return replace(microbatch, event_columns=microbatch.event_columns | {_TURN: turn_E2})

    def part(self, chunk: Microbatch, whole: Microbatch, random: torch.Generator) -> Microbatch:
        """Chunk itself, which has its turns."""
        return chunk

    def train(self, batch: Batch, parts: list[Microbatch], metrics: dict[str, Tensor]) -> None:
        """Update of the network: natural events train everything, enriched ones the auxiliary predictions."""
        if batch.total_events == 0:
            return
        natural = self._num_natural(batch)

        def gradients(part: Microbatch) -> PartGradients:
            return self._gradients(part, natural, batch.total_events)

        def over(parts: list[Microbatch]) -> Iterator[PartGradients]:
            return self.pool.map(gradients, parts)

        result, _ = self.update("network", over, parts, metrics, num_sums=_NUM_SUMS)
        self.averaged.update(self.steps + 1)
        sums = result.sums
        if (learned := self.steps + 1 - self.config.warmup_steps) > 0:
            self._mean_direction_3 = torch.lerp(
                self._mean_direction_3, torch.nan_to_num(sums[4:]), 1 / min(learned, _STEPS_OF_MEAN)
            )
        metrics |= {"vmf_loss": sums[1], "auxiliary_loss": sums[2], "angle_deg": sums[3]}
        metrics["mean_direction"] = torch.linalg.vector_norm(self._mean_direction_3)

    def _gradients(self, part: Microbatch, natural: Tensor, total: int) -> PartGradients:
        """Gradients of a part, and its sums: loss, vmf_loss, auxiliary_loss, angle_deg, mean direction."""
        events = self._input(part)
        with self.context.precision():
            prediction = self.averaged.latest(events)
        target_E3 = events.source_direction_E3
        share_E = (~events.enriched_E).float() / natural
        loss = vmf_loss(prediction.p_E3, target_E3) @ share_E
        auxiliary = self.zero
        for p_E3 in prediction.auxiliary:
            auxiliary = auxiliary + vmf_loss(p_E3, target_E3).sum() / total
        gradients = self.optimisers["network"].gradients(loss + auxiliary)
        with torch.no_grad():
            p_E3 = prediction.p_E3.detach()
            told = [loss + auxiliary, loss, auxiliary, angle_deg(p_E3, target_E3) @ share_E]
            direction_3 = unit_vectors(p_E3).sum(0) / total
            return PartGradients(gradients, torch.cat([torch.stack(told), direction_3]))

    def _input(self, part: Microbatch) -> EventInput:
        """Input of the network, turned. Raises BadInputError for an event without the classical fits it needs."""
        events = EventInput.from_microbatch(part, self.detector.position_S3)
        if self.averaged.latest.needs_fits and events.num_without_fits:
            raise BadInputError(
                f"{events.num_without_fits} of {events.num_events} events have no classical fits, which the model"
                f" {self.SECTION.removeprefix('trainer.')} learns from: add them to the files with `icestream seeds`"
            )
        return events.turned(part.event_columns[_TURN]) if _TURN in part.event_columns else events

    def _num_natural(self, batch: Batch) -> Tensor:
        """Natural events of all ranks, at least 1. -> ()."""
        total = torch.zeros((), device=self.device)
        for microbatch in batch.microbatches:
            total += (~microbatch.event_columns["enriched"]).sum()
        self.context.sum_over_ranks([total])
        return total.clamp_min(1)

    # ---- Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """See BaseTask; with the mean predicted direction."""
        return super().state_dict() | {"mean_direction": self._mean_direction_3}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See BaseTask."""
        super().load_state_dict(state)
        self._mean_direction_3 = state["mean_direction"].to(self.device)

    def load_weights(self, state: dict[str, Any]) -> None:
        """See BaseTask. Raises RuntimeError if the checkpoint is of another detector."""
        theirs_S3 = state["networks"]["detector"]["position_S3"].to(self.device)
        if not torch.equal(theirs_S3, self.detector.position_S3):
            raise RuntimeError(
                f"its {len(theirs_S3)} sensors are not at the positions of the {len(self.detector.position_S3)} here:"
                f" use the geometry that it was trained with ({self.SECTION}.geometry)"
            )
        super().load_weights(state)
