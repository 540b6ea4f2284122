"""Training of the direction models (one network, one update, the running mean of its weights), and trained models.

Shape suffixes: E events, S sensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.optim import AdamW

from common.errors import BadInputError
from workloads.base.batch import Batch, Microbatch
from workloads.base.checkpoint import TrainedRun, load_run
from workloads.base.context import StepContext
from workloads.base.optimiser import AveragedWeights, PartGradients, uncompiled
from workloads.base.step import BaseTask
from workloads.base.training import Evaluation, Histogram, ModelTraining
from workloads.direction.columns import CASCADE, DIRECTION, TRACK
from workloads.direction.grouping import Float64
from workloads.direction.models import flat, transformer
from workloads.direction.models.config import CONFIGS, DirectionConfig
from workloads.direction.models.network import (
    CPU_CHUNK_PULSES,
    Detector,
    DirectionNetwork,
    EventInput,
    Predictor,
    angle_deg,
    energy_loss,
    unit_vectors,
    vmf_loss,
)
from workloads.direction.models.sets import SetsNetwork
from workloads.registry import section_name

NETWORKS: dict[str, Callable[[Any], DirectionNetwork]] = {
    "sets": lambda config: SetsNetwork(),
    "transformer": lambda config: transformer.TransformerNetwork(*transformer.SIZES[config.size]),
    "flat": lambda config: flat.FlatNetwork(*flat.SIZES[config.size]),
}
"""Model -> network of its section of the configuration, without the energy."""


def network_of(model: str, config: DirectionConfig) -> DirectionNetwork:
    """Return the network of a model, with new weights, which are the same with and without the energy."""
    network = NETWORKS[model](config)
    if config.energy:
        network.add_energy()
    return network


@dataclass(frozen=True)
class TrainedPredictor(Predictor):
    """Predictor of a trained model, and its source."""

    run: TrainedRun


def load_predictor(place: Path, device: torch.device) -> TrainedPredictor:
    """Trained model from a checkpoint, or from a run directory: its best checkpoint, else its newest.

    Raises BadInputError that names the file.
    """
    return load_run(place, partial(build_predictor, device=device))


def build_predictor(run: TrainedRun, task_state: dict[str, Any], device: torch.device) -> TrainedPredictor:
    """Trained model of a run, from its task's state; for load_run."""
    run.require_workload(DIRECTION.name)
    if run.model not in NETWORKS:
        raise ValueError(f"{run.model!r} is no model of directions: {', '.join(NETWORKS)}")
    config = CONFIGS[run.model].model_validate(run.section)
    states = task_state["networks"]
    network = network_of(run.model, config)
    network.load_state_dict(states["network_average"])
    network.to(device).requires_grad_(False).eval()
    detector = Detector.of(states["detector"]).to(device)
    return TrainedPredictor(network, detector, nullcontext, config.chunk_particles, run)  # float32, on any device


BETAS = (0.9, 0.98)
"""Decay of AdamW's means of the gradient and of its square: usual for attention."""
WEIGHT_DECAY = 0.02
"""Decay of the weights, by AdamW."""
AVERAGE_DECAY = 0.995
"""Decay per step of the running mean of the weights, which directions are predicted with."""
_TURN = "turn"
_STEPS_OF_MEAN = 20
"""Steps whose predictions the metric mean_direction is the mean of, about: that of one small batch is never near 0."""
_ENERGY_METRICS = ("energy_loss", "lg_energy_error")
_NUM_SUMS = 7
"""Sums of a part without those of the energy; see DirectionTask._gradients."""
_KINDS = {"track_": TRACK, "cascade_": CASCADE}
_ANGLE_EDGES = np.linspace(-2, np.log10(180), 61)
_KAPPA_EDGES = np.linspace(-3, 7, 61)


class DirectionTask(BaseTask[DirectionConfig, Microbatch]):
    """Task of one network that predicts directions.

    Metrics of a step: vmf_loss and angle_deg are the mean loss and error of natural events, auxiliary_loss the sum of
    the mean losses of auxiliary predictions, of all events. mean_direction is the length of the mean predicted unit
    vector of the last steps: near 1 if the network has collapsed to one direction; 0 during the warm-up, in which a
    network that has learned nothing yet has one arbitrary direction. skipped_updates is 1 if the update was skipped
    because loss or gradient was not finite, or beyond the limits. With the energy: energy_loss and lg_energy_error are
    the mean loss and absolute error of lg E, of natural events with a known energy.

    Unlike other models' steps, each part waits for the device: once to read how many sensors saw light, and a few times
    more where a network chooses among them (`sensor_set`).
    """

    CPU_CHUNK = CPU_CHUNK_PULSES
    METRICS = ("vmf_loss", "auxiliary_loss", "angle_deg", "mean_direction", "network_grad_norm", "skipped_updates")
    RECIPE = ("schedule_steps", "warmup_steps", "learning_rate", "symmetry")

    def __init__(self, model: str, config: DirectionConfig, context: StepContext) -> None:
        """``model``: its name. Raises BadInputError if there are no positions of the sensors."""
        self.model, self.SECTION = model, f"trainer.{section_name(model)}"
        self.detector = Detector.found(config.geometry, context.inputs, self.SECTION).to(context.device)
        with context.initial_weights():
            network = network_of(model, config).to(context.device)
        self.averaged = AveragedWeights(network, AVERAGE_DECAY)
        adam = uncompiled(AdamW)(
            network.parameters(), config.learning_rate, BETAS, weight_decay=WEIGHT_DECAY, fused=True
        )
        modules = {"detector": self.detector, "network": network, "network_average": self.averaged.average}
        super().__init__(config, context, modules, {"network": (network, adam)})
        self._mean_direction_3 = torch.zeros(3, device=context.device)

    def predictor(self) -> Predictor:
        """Predictor with the present weights."""
        return Predictor(self.averaged.average, self.detector, self.context.precision, self.config.chunk_particles)

    # ---- The step.

    def prepare(self, microbatch: Microbatch, random: torch.Generator) -> Microbatch:
        """Microbatch with a random turn of each event in an additional column, if the detector is symmetric."""
        if self.config.symmetry == "none":
            return microbatch
        uniform_2E = torch.rand(2, microbatch.num_events, device=self.device, generator=random)
        turn_E2 = torch.stack([2 * math.pi * uniform_2E[0], torch.where(uniform_2E[1] < 0.5, -1.0, 1.0)], 1)
        return replace(microbatch, event_columns=microbatch.event_columns | {_TURN: turn_E2})

    def train(self, batch: Batch, parts: list[Microbatch], metrics: dict[str, Tensor]) -> None:
        """Update of the network: natural events train everything, enriched ones the auxiliary predictions."""
        with_energy = _ENERGY_METRICS if self.config.energy else ()
        metrics |= dict.fromkeys(with_energy, self.zero)
        if batch.total_events == 0:
            return
        natural_2 = torch.zeros(2, device=self.device)  # of all ranks, and those with a known energy; at least 1
        for microbatch in batch.microbatches:
            natural_E = ~microbatch.event_columns["enriched"][:, 0]
            natural_2 += torch.stack([natural_E.sum(), (natural_E & lg_energies(microbatch).isfinite()).sum()])
        self.context.sum_over_ranks([natural_2])
        gradients = partial(self._gradients, natural_2=natural_2.clamp_min(1), total=batch.total_events)
        over_parts = partial(self.pool.map, gradients)
        result, _ = self.update("network", over_parts, parts, metrics, num_sums=_NUM_SUMS + len(with_energy))
        self.averaged.update(self.steps + 1)
        sums = result.sums
        if (learned := self.steps + 1 - self.config.warmup_steps) > 0:
            self._mean_direction_3 = torch.lerp(
                self._mean_direction_3, torch.nan_to_num(sums[4:_NUM_SUMS]), 1 / min(learned, _STEPS_OF_MEAN)
            )
        metrics |= {"vmf_loss": sums[1], "auxiliary_loss": sums[2], "angle_deg": sums[3]}
        metrics["mean_direction"] = torch.linalg.vector_norm(self._mean_direction_3)
        metrics |= zip(with_energy, sums[_NUM_SUMS:], strict=True)

    def _gradients(self, part: Microbatch, natural_2: Tensor, total: int) -> PartGradients:
        """Gradients of a part, and its sums: loss, vmf_loss, auxiliary_loss, angle_deg, mean direction, and with the
        energy energy_loss and lg_energy_error."""
        events = self._input(part)
        with self.context.precision():
            prediction = self.averaged.latest(events)
        target_E3 = events.source_direction_E3
        share_E = (~events.enriched_E).float() / natural_2[0]
        loss = vmf_loss(prediction.p_E3, target_E3) @ share_E
        auxiliary = self.zero
        for p_E3 in prediction.auxiliary:
            auxiliary = auxiliary + vmf_loss(p_E3, target_E3).sum() / total
        whole, of_energy = loss + auxiliary, []
        if prediction.energy_E2 is not None:
            lg_energy_E = lg_energies(part)
            share_of_known_E = (lg_energy_E.isfinite() & ~events.enriched_E).float() / natural_2[1]
            lg_energy_E = lg_energy_E.nan_to_num()
            error_E = (prediction.energy_E2.detach()[:, 0] - lg_energy_E).abs()
            of_energy = [energy_loss(prediction.energy_E2, lg_energy_E) @ share_of_known_E, error_E @ share_of_known_E]
            whole = whole + of_energy[0]
        gradients = self.optimisers["network"].gradients(whole)
        with torch.no_grad():
            p_E3 = prediction.p_E3.detach()
            told = [whole, loss, auxiliary, angle_deg(p_E3, target_E3) @ share_E]
            direction_3 = unit_vectors(p_E3).sum(0) / total
            return PartGradients(gradients, torch.stack([*told, *direction_3, *of_energy]))

    def _input(self, part: Microbatch) -> EventInput:
        """Input of the network, turned. Raises BadInputError for an event without the classical fits it needs."""
        events = EventInput.from_microbatch(part, self.detector)
        if self.averaged.latest.needs_fits and events.num_without_fits:
            raise BadInputError(
                f"{events.num_without_fits} of {events.num_events} events have no classical fits, which the model"
                f" {self.model} learns from: add them to the files with `icestream seeds`"
            )
        return events.turned(part.event_columns[_TURN]) if _TURN in part.event_columns else events

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
        theirs, own = Detector.of(state["networks"]["detector"]).geometry, self.detector.geometry
        if not theirs.is_like(own):
            raise RuntimeError(
                f"its {len(theirs)} sensors are not at the positions, and in the medium, of the {len(own)} here:"
                f" use the geometry that it was trained with ({self.SECTION}.geometry)"
            )
        super().load_weights(state)


def lg_energies(microbatch: Microbatch) -> Tensor:
    """Return lg(E / GeV) of the events, NaN where the energy is not known. -> (E,)."""
    energy_E = microbatch.event_columns["true_energy"][:, 0]
    return torch.where(energy_E > 0, energy_E, torch.nan).log10()


class DirectionPanel:
    """Errors of the averaged weights on natural events of the block, see workloads.base.training.Evaluator."""

    def __init__(self, task: DirectionTask) -> None:
        self._task = task

    def settings(self) -> dict[str, float]:
        """Learning rate."""
        return {f"lr_{name}": rate for name, rate in self._task.learning_rates().items()}

    def evaluate(self, block: Batch) -> Evaluation | None:
        """Results on the block; None if it has no natural events."""
        told_E5, topology_E = _predicted(self._task.predictor(), block)
        if not len(told_E5):
            return None
        angle_deg_E, kappa_E, loss_E, pull_E, residual_E = told_E5.T
        scalars = _of_angles(angle_deg_E, topology_E)
        scalars["panel/score"] = scalars["panel/angle_mean_deg"]
        scalars["panel/kappa_pull_mean"] = float(pull_E.mean())
        scalars["train/held_out_vmf_loss"] = float(loss_E.mean())
        if len(known := residual_E[np.isfinite(residual_E)]):
            scalars["panel/lg_energy_bias"] = float(known.mean())
            scalars["panel/lg_energy_rms"] = float(np.sqrt(np.mean(known**2)))
        with np.errstate(divide="ignore"):
            lg_angle_E, lg_kappa_E = np.log10(angle_deg_E), np.log10(kappa_E)
        return Evaluation(
            scalars,
            histograms={
                "hist/log10_angle_deg": _histogram(lg_angle_E, _ANGLE_EDGES),
                "hist/log10_kappa": _histogram(lg_kappa_E, _KAPPA_EDGES),
            },
        )


def _predicted(predictor: Predictor, block: Batch) -> tuple[Float64, npt.NDArray[np.int8]]:
    """Angle in degrees, κ, loss, pull, and predicted - true lg E of natural events, (E, 5), and their topology, (E,).

    The pull 2κ(1 - cos α) has a mean of 2 if κ is right. lg E is NaN where it isn't predicted or not known.
    One microbatch at a time: the block may be large.
    """
    told, topology = [np.empty((0, 5))], [np.empty(0, np.int8)]
    for microbatch in block.microbatches:
        columns = microbatch.event_columns
        prediction = predictor.predict(microbatch)
        p_E3, direction_E3 = prediction.p_E3.double(), columns["source_direction"].double()
        kappa_E, angle_deg_E = torch.linalg.vector_norm(p_E3, dim=1), angle_deg(p_E3, direction_E3)
        pull_E = 4 * kappa_E * torch.sin(torch.deg2rad(angle_deg_E) / 2).square()
        residual_E = torch.full_like(kappa_E, torch.nan)
        if prediction.energy_E2 is not None:
            residual_E = (prediction.energy_E2[:, 0] - lg_energies(microbatch)).double()
        told_E5 = torch.stack([angle_deg_E, kappa_E, vmf_loss(p_E3, direction_E3), pull_E, residual_E], 1)
        natural_E = ~columns["enriched"][:, 0].cpu().numpy()
        told.append(told_E5.cpu().numpy()[natural_E])
        topology.append(columns["topology"][:, 0].cpu().numpy()[natural_E])
    return np.concatenate(told), np.concatenate(topology)


def _of_angles(angle_deg_E: Float64, topology_E: npt.NDArray[np.int8]) -> dict[str, float]:
    found = {
        "panel/angle_mean_deg": angle_deg_E.mean(),
        "panel/angle_median_deg": np.median(angle_deg_E),
        "panel/angle_68_deg": np.quantile(angle_deg_E, 0.68),
    }
    for prefix, topology in _KINDS.items():
        if (of_kind_E := topology_E == topology).any():
            found[f"panel/{prefix}angle_mean_deg"] = angle_deg_E[of_kind_E].mean()
    return {name: float(value) for name, value in found.items()}


def _histogram(values_E: Float64, edges: Float64) -> Histogram:
    """Histogram; values beyond the outermost edges, infinite ones too, count in the outermost bins."""
    inside_E = np.clip(values_E[~np.isnan(values_E)], edges[0], edges[-1])
    return Histogram(edges, np.histogram(inside_E, edges)[0].astype(np.int64))


def _training(model: str) -> ModelTraining:
    return ModelTraining(
        "angle_deg",
        ("angle_deg", "vmf_loss", "auxiliary_loss", "mean_direction"),
        MappingProxyType({"mean_direction": 0.3}),  # by then most events have one direction
        partial(DirectionTask, model),
        lambda task, seed: DirectionPanel(task),  # it draws no random numbers
    )


SETS = _training("sets")
TRANSFORMER = _training("transformer")
FLAT = _training("flat")
