"""Direction panel: predicted directions against the true ones of the validation block.

E events.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from workloads.base.batch import Batch
from workloads.base.evaluator import Evaluation, Histogram
from workloads.direction.columns import CASCADE, TRACK
from workloads.direction.models.losses import angle_deg, vmf_loss
from workloads.direction.models.predictor import Predictor

Float64 = npt.NDArray[np.float64]

_KINDS = {"track_": TRACK, "cascade_": CASCADE}
_ANGLE_EDGES = np.linspace(-2, np.log10(180), 61)
_KAPPA_EDGES = np.linspace(-3, 7, 61)


class PredictingTask(Protocol):
    """Interface of a task to the panel."""

    def learning_rates(self) -> dict[str, float]:
        """Learning rates of the newest step, by network."""

    def predictor(self) -> Predictor:
        """Predictor with the present weights."""


class DirectionPanel:
    """Errors of the averaged weights on natural events of the block, see workloads.base.evaluator.Evaluator."""

    def __init__(self, task: PredictingTask) -> None:
        self._task = task

    def settings(self) -> dict[str, float]:
        """Learning rate."""
        return {f"lr_{name}": rate for name, rate in self._task.learning_rates().items()}

    def evaluate(self, block: Batch) -> Evaluation | None:
        """Results on the block; None if it has no natural events."""
        told_E4, topology_E = _predicted(self._task.predictor(), block)
        if not len(told_E4):
            return None
        angle_deg_E, kappa_E, loss_E, pull_E = told_E4.T
        scalars = _of_angles(angle_deg_E, topology_E)
        scalars["panel/score"] = scalars["panel/angle_mean_deg"]
        scalars["panel/kappa_pull_mean"] = float(pull_E.mean())
        scalars["train/held_out_vmf_loss"] = float(loss_E.mean())
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
    """Angle in degrees, κ, loss and pull of natural events, (E, 4), and their topology, (E,).

    The pull 2κ(1 - cos α) has a mean of 2 if κ is right. One microbatch at a time: the block may be large.
    """
    told, topology = [np.empty((0, 4))], [np.empty(0, np.int8)]
    for microbatch in block.microbatches:
        columns = microbatch.event_columns
        p_E3, direction_E3 = predictor.predict(microbatch).double(), columns["source_direction"].double()
        kappa_E, angle_deg_E = torch.linalg.vector_norm(p_E3, dim=1), angle_deg(p_E3, direction_E3)
        pull_E = 4 * kappa_E * torch.sin(torch.deg2rad(angle_deg_E) / 2).square()
        told_E4 = torch.stack([angle_deg_E, kappa_E, vmf_loss(p_E3, direction_E3), pull_E], 1).cpu().numpy()
        natural_E = ~columns["enriched"][:, 0].cpu().numpy()
        told.append(told_E4[natural_E])
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
