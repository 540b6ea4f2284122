"""Physics panel: generated bundles against those of the validation block, for the same primaries.

E events, P muons.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from workloads.base.batch import Batch
from workloads.base.random_streams import stream_seed
from workloads.base.training import Evaluation, Histogram
from workloads.muons.metrics.bundles import FLOOR_SPLITS, PANEL_SPLITS, BundleArrays, halves
from workloads.muons.purposes import MuonPurpose

logger = logging.getLogger(__name__)

FIGURE = "panel/distributions"
SCORE = "panel/score"
_EVENTS_AT_A_TIME = 256
_MOST_TIMES_REAL = 32
_MOST_AT_LEAST = 1 << 20
_BINS = 60
_SHOWN = (
    *("log10_count", "log10_energy", "log10_radius"),
    *("log10_bundle_energy", "log10_leading_energy", "weighted_radius_m"),
)
_BEYOND = 0.001
"""Fraction of the real values that the range of a histogram may exclude on each side before it is widened."""


class Bundles(NamedTuple):
    """Generated events. The muons of an event are contiguous, events in order."""

    counts_E: Tensor
    """Numbers of muons, (E,) int64."""
    muons_P3: Tensor
    """Muons, (P, 3) float32: energy_gev, x_m, y_m."""


class MuonTask(Protocol):
    """Interface of a model to the panel. All random numbers of both calls come from torch's global generators."""

    @property
    def device(self) -> torch.device:
        """Device of the computation."""

    @property
    def is_fitted(self) -> bool:
        """False before the first training batch with muons: then neither call below is possible."""

    def learning_rates(self) -> dict[str, float]:
        """Learning rates of the newest step, by network."""

    def held_out(self, batch: Batch) -> dict[str, Tensor]:
        """Metrics on events outside the training, 0-dim."""

    def generate(self, primary_E4: Tensor) -> Bundles:
        """Events, one for each primary. (E, 4) = [energy_gev, zenith_rad, mass_a, depth_m]."""


class MuonPanel:
    """Physics panel, see workloads.base.training.Evaluator. The noise is the same each time."""

    def __init__(self, task: MuonTask, seed: int) -> None:
        self._task = task
        self._seed = seed
        self._real: _Real | None = None

    def settings(self) -> dict[str, float]:
        """Learning rates; a model may add further settings."""
        return {f"lr_{name}": rate for name, rate in self._task.learning_rates().items()}

    def evaluate(self, block: Batch) -> Evaluation | None:
        """Results of the panel; None before the first training batch with muons."""
        if not self._task.is_fitted:
            return None
        if self._real is None or self._real.block is not block:
            self._real = _Real(block)
        with _own_noise(self._task.device, self._seed):
            held_out = self._task.held_out(block)
            generated = self._generate(self._real)
        told = torch.stack(list(held_out.values())).tolist()
        scalars = {f"train/held_out_{name}": value for name, value in zip(held_out, told, strict=True)}
        if generated is None:
            return Evaluation(scalars)
        return self._real.compared_with(generated, scalars)

    def _generate(self, real: _Real) -> BundleArrays | None:
        """Events, one for each primary of the block; None if they have too many muons.

        A diverged count head does that; it must not exhaust the memory.
        """
        most = max(_MOST_TIMES_REAL * int(real.bundles.counts_E.sum()), _MOST_AT_LEAST)
        counts: list[npt.NDArray[np.int64]] = []
        muons: list[npt.NDArray[np.float32]] = []
        for primary_E4 in real.primary_E4.split(_EVENTS_AT_A_TIME):
            bundles = self._task.generate(primary_E4)
            counts.append(bundles.counts_E.cpu().numpy())
            muons.append(bundles.muons_P3.cpu().numpy())
            if sum(map(len, muons)) > most:
                logger.warning("no panel: more than %d muons were generated, far more than the real ones", most)
                return None
        return BundleArrays.of(np.concatenate(counts), np.concatenate(muons))


class _Real:
    """Data of the block for the panel, computed once."""

    def __init__(self, block: Batch) -> None:
        # Imported here: without scipy and matplotlib a run starts a second earlier.
        from workloads.muons.metrics import panel

        self._panel = panel
        self.block = block
        self.primary_E4 = torch.cat([part.event_columns["primary"] for part in block.microbatches])
        counts_E = torch.cat([part.offsets_E1.diff() for part in block.microbatches]).cpu().numpy()
        muons_P3 = torch.cat([part.particle_columns["muons"] for part in block.microbatches]).cpu().numpy()
        self.bundles = BundleArrays.of(counts_E, muons_P3)
        showers_E = _showers(block)
        self._panel_splits = halves(showers_E, PANEL_SPLITS)
        self._floor = panel.floor(self.bundles, halves(showers_E, FLOOR_SPLITS))
        self._edges = {}
        for name in _SHOWN:
            if len(values := self.bundles.features[name].values):
                low, high = np.quantile(values, [_BEYOND, 1 - _BEYOND])
                margin = max(0.1 * (high - low), 1e-3)
                self._edges[name] = np.linspace(low - margin, high + margin, _BINS + 1)
        self._histograms = _histograms(self.bundles, self._edges)

    def compared_with(self, generated: BundleArrays, scalars: dict[str, float]) -> Evaluation:
        """Results of the panel, including ``scalars``."""
        finite, num_bad = generated.finite()
        found = self._panel.panel(self.bundles, finite, self._panel_splits)
        histograms = _histograms(finite, self._edges)
        return Evaluation(
            scalars=scalars
            | {f"panel/{name}": value for name, value in found.items()}
            | {f"panel/{name}_floor": self._floor[name] for name in found if name in self._floor}
            | {SCORE: self._panel.score(found, self._floor), "panel/muons_not_finite": float(num_bad)},
            histograms={f"hist/real/{name}": histogram for name, histogram in self._histograms.items()}
            | {f"hist/generated/{name}": histogram for name, histogram in histograms.items()},
            images={
                FIGURE: self._panel.comparison(
                    {
                        name: (histogram.edges, self._histograms[name].counts, histogram.counts)
                        for name, histogram in histograms.items()
                    },
                    f"{len(generated)} events, real and generated for the same primaries",
                )
            },
        )


def _histograms(bundles: BundleArrays, edges: dict[str, npt.NDArray[np.float64]]) -> dict[str, Histogram]:
    """Histograms; values beyond the outermost edges count in the outermost bins."""
    found = {}
    for name, of in edges.items():
        inside = np.clip(bundles.features[name].values, of[0], of[-1])
        found[name] = Histogram(of, np.histogram(inside, of)[0].astype(np.int64))
    return found


def _showers(block: Batch) -> npt.NDArray[np.int64]:
    """Number of each event's shower, (E,): events with the same ids, if there are ids, are of one shower."""
    if not all("primary_id" in part.event_columns for part in block.microbatches):
        return np.arange(block.num_events)
    ids_E2 = np.concatenate([part.event_columns["primary_id"].cpu().numpy() for part in block.microbatches])
    shower_E: npt.NDArray[np.int64] = np.unique(ids_E2, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return shower_E


@contextlib.contextmanager
def _own_noise(device: torch.device, seed: int) -> Iterator[None]:
    """Context in which torch's global generators start from ``seed``; they are restored for the training afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(stream_seed(MuonPurpose.PANEL, seed))
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            torch.cuda.default_generators[index].manual_seed(stream_seed(MuonPurpose.PANEL, seed))
        yield
