"""Classifier two-sample test: trained on half of the showers, evaluated on the other half (arXiv:1610.06545).

B sets of weights, E events, N networks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from workloads.base.random_streams import numpy_stream, stream_seed
from workloads.muons.metrics.bundles import Bool, Float64
from workloads.muons.metrics.sample import Sample
from workloads.muons.metrics.settings import EvaluationSettings
from workloads.muons.metrics.splits import at_most
from workloads.muons.metrics.two_sample.auc import Auc
from workloads.muons.metrics.two_sample.inputs import SetInputs, SummaryInputs
from workloads.muons.metrics.two_sample.networks import AttentionSets, DeepSets, EventClassifier
from workloads.muons.purposes import MuonPurpose

_BATCH_EVENTS = 512
_EVENTS_OF_ALL_EPOCHS = 40_000
"""Most events of which all epochs are trained; of more, as many steps in fewer epochs."""
_LEARNING_RATE = 3e-3
_TRAININGS = 3
"""Number of trainings of a set classifier, each from other random weights."""

_ATTENTION_WIDTH = 128
_ATTENTION_EVENTS = 20_000
_ATTENTION_MUONS = 150_000
"""Most events, and about as many muons, of each sample for the test with attention, which costs most."""

Inputs = Callable[[npt.NDArray[np.int64]], tuple[Tensor, ...]]
"""Indices of events -> inputs of the network."""


@dataclass(frozen=True)
class ClassifierTest:
    """AUC on the events of the test half, for many sets of event weights: the median over several trainings."""

    test_a_E: Bool
    test_b_E: Bool
    aucs: Sequence[Auc]
    """One for each training."""

    def __call__(self, weights_a_BE: Float64, weights_b_BE: Float64) -> Float64:
        """AUC for each set of weights."""
        tested = (weights_a_BE[:, self.test_a_E], weights_b_BE[:, self.test_b_E])
        median_B: Float64 = np.median([auc(*tested) for auc in self.aucs], axis=0)
        return median_B

    def chance(self, a: Sample, b: Sample) -> float:
        """Standard deviation of the AUC of one training for samples that are alike."""
        a, b = a.only(self.test_a_E), b.only(self.test_b_E)
        return float(np.median([auc.chance(a.weights_E, b.weights_E, a.shower_E, b.shower_E) for auc in self.aucs]))


def set_test(
    a: Sample, b: Sample, settings: EvaluationSettings, progress: Callable[[float], None], trainings: int = _TRAININGS
) -> ClassifierTest:
    """Test with DeepSets on raw sets. ``progress`` takes the fraction of the training that is done."""
    inputs = SetInputs(a, b, settings.c2st_max_muons, numpy_stream(MuonPurpose.SET_MUONS, settings.seed))
    return _test(a, b, inputs, lambda: DeepSets(settings.c2st_width), settings, trainings, progress)


def attention_test(
    a: Sample, b: Sample, settings: EvaluationSettings, progress: Callable[[float], None]
) -> ClassifierTest:
    """Test with attention between the muons of an event, on some of the showers; a and b: events of the same primaries.

    One training, with half of the epochs.
    """
    muons = np.minimum(a.bundles.counts_E, settings.c2st_max_muons).mean()
    most = int(min(_ATTENTION_EVENTS, _ATTENTION_MUONS / muons))
    chosen_E = at_most(a.shower_E, most, numpy_stream(MuonPurpose.ATTENTION_EVENTS, settings.seed))
    a, b = a.only(chosen_E), b.only(chosen_E)
    inputs = SetInputs(a, b, settings.c2st_max_muons, numpy_stream(MuonPurpose.SET_MUONS, settings.seed))
    settings = replace(settings, c2st_epochs=max(settings.c2st_epochs // 2, 1))
    test = _test(a, b, inputs, lambda: AttentionSets(_ATTENTION_WIDTH), settings, 1, progress)
    test_E = np.zeros(len(chosen_E), np.bool_)
    test_E[chosen_E] = test.test_a_E
    return replace(test, test_a_E=test_E, test_b_E=test_E)


def summary_test(
    a: Sample, b: Sample, settings: EvaluationSettings, progress: Callable[[float], None]
) -> ClassifierTest:
    """Test with dense layers on the nine features of an event."""
    inputs = SummaryInputs(a, b)
    return _test(a, b, inputs, lambda: EventClassifier(inputs.width, settings.c2st_width), settings, 1, progress)


def _test(
    a: Sample,
    b: Sample,
    inputs: Inputs,
    make: Callable[[], nn.Module],
    settings: EvaluationSettings,
    trainings: int,
    progress: Callable[[float], None],
) -> ClassifierTest:
    test_a_E, test_b_E = _test_halves(a, b, settings.seed)
    test_E = np.concatenate([test_a_E, test_b_E])
    labels_E = torch.cat([torch.zeros(len(a)), torch.ones(len(b))])
    # Both samples have the same total weight in the training, whatever their numbers of events.
    weights_E = torch.from_numpy(
        np.concatenate([one.weights_E / one.weights_E[~test].mean() for one, test in ((a, test_a_E), (b, test_b_E))])
    ).float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(MuonPurpose.CLASSIFIER_WEIGHTS, settings.seed))
        networks = nn.ModuleList([make() for _ in range(trainings)])
    _train(networks, inputs, labels_E, weights_E, np.flatnonzero(~test_E), settings, progress)
    num_a = int(test_a_E.sum())
    scores_NE = _scores(networks, inputs, np.flatnonzero(test_E))
    return ClassifierTest(test_a_E, test_b_E, [Auc(scores_E[:num_a], scores_E[num_a:]) for scores_E in scores_NE])


def _test_halves(a: Sample, b: Sample, seed: int) -> tuple[Bool, Bool]:
    """Masks of the test half: half of the showers, each with all its events of both samples."""
    names, index = np.unique(np.concatenate([a.shower_E, b.shower_E]), return_inverse=True)
    chosen = numpy_stream(MuonPurpose.TEST_HALVES, seed).permutation(len(names)) < len(names) // 2
    test_a_E, test_b_E = np.split(chosen[index], [len(a)])
    return test_a_E, test_b_E


def _train(
    networks: nn.ModuleList,
    inputs: Inputs,
    labels_E: Tensor,
    weights_E: Tensor,
    events: npt.NDArray[np.int64],
    settings: EvaluationSettings,
    progress: Callable[[float], None],
) -> None:
    """Train all networks on the same batches, each for itself: no parameter has a gradient of another's loss."""
    rng = numpy_stream(MuonPurpose.BATCHES, settings.seed)
    batches = max(len(events) // _BATCH_EVENTS, 1)
    epochs = max(round(settings.c2st_epochs * min(_EVENTS_OF_ALL_EPOCHS / len(events), 1.0)), 1)
    optimiser = torch.optim.Adam(networks.parameters(), _LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _LEARNING_RATE, total_steps=epochs * batches + 1)
    for epoch in range(epochs):
        for chosen in np.array_split(rng.permutation(events), batches):
            of, given = torch.from_numpy(chosen), inputs(chosen)
            losses = [binary_cross_entropy_with_logits(one(*given), labels_E[of], weights_E[of]) for one in networks]
            optimiser.zero_grad()
            torch.stack(losses).sum().backward()
            optimiser.step()
            schedule.step()
        progress((epoch + 1) / epochs)


@torch.no_grad()
def _scores(networks: nn.ModuleList, inputs: Inputs, events: npt.NDArray[np.int64]) -> Float64:
    """Scores of each network. (N, events)."""
    found = []
    for part in np.array_split(events, max(len(events) // _BATCH_EVENTS, 1)):
        given = inputs(part)
        found.append(torch.stack([one(*given) for one in networks]))
    scores_NE: Float64 = torch.cat(found, 1).double().numpy()
    return scores_NE
