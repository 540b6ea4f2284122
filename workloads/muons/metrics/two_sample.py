"""Classifier two-sample test: trained on half of the showers, evaluated on the other half (arXiv:1610.06545).

The networks are small enough that their result depends little on the random start.

E events of both samples, real ones first; P their muons; C conditions, W width, H heads, L most muons of an event in a
bucket, B sets of weights, N networks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, scaled_dot_product_attention

from workloads.base.random_streams import numpy_stream, stream_seed
from workloads.muons.metrics.bundles import Bool, BundleArrays, EvaluationSettings, Float64, Int64, Sample, at_most
from workloads.muons.metrics.evaluate import Progress
from workloads.muons.purposes import MuonPurpose

_WIDTH = 64
_MOST_MUONS = 256
"""Most muons of one event in the input of a classifier, chosen at random; it also has the true number."""
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
_HEADS = 4

_NUM_CONDITIONS = 5
_NUM_MUON_FEATURES = 4


class Auc:
    """P(score of b > score of a), ties counted half, for many sets of weights. 0.5: indistinguishable samples."""

    def __init__(self, scores_a: Float64, scores_b: Float64) -> None:
        values, code = np.unique(np.concatenate([scores_a, scores_b]), return_inverse=True)
        self._code_a, self._code_b = np.split(code, [len(scores_a)])
        self._size = len(values)
        self._known = bool(np.isfinite(values).all())

    def __call__(self, weights_a_B: Float64, weights_b_B: Float64) -> Float64:
        """Return AUCs, (B, scores of a), (B, scores of b) -> (B,). NaN if a score is not finite: it has no rank."""
        if not self._known:
            return np.full(len(weights_a_B), np.nan)
        found = []
        for weights_a, weights_b in zip(weights_a_B, weights_b_B, strict=True):
            a = np.bincount(self._code_a, weights_a, self._size)
            b = np.bincount(self._code_b, weights_b, self._size)
            found.append(float((np.cumsum(a) - a / 2) @ b / (a.sum() * b.sum())))
        return np.array(found)

    def chance(self, weights_a: Float64, weights_b: Float64, shower_a: Int64, shower_b: Int64) -> float:
        """Return the standard deviation of the AUC of samples that are alike: sides swapped at random in each shower.

        AUC - 1/2 is the difference of the mean ranks of b and a among all scores, 0 to 1: a sum over showers, each with
        a random sign. Without weights and ties, for showers of one event, the mean is Mann-Whitney's 1 / sqrt(6 E).
        """
        if not self._known:
            return float("nan")
        weights = np.concatenate([-weights_a / weights_a.sum(), weights_b / weights_b.sum()])
        code = np.concatenate([self._code_a, self._code_b])
        part = np.bincount(code, np.abs(weights) / 2, self._size)
        ranks = (np.cumsum(part) - part / 2)[code]
        _, shower = np.unique(np.concatenate([shower_a, shower_b]), return_inverse=True)
        return float(np.sqrt(np.sum(np.bincount(shower, weights * (ranks - 0.5)) ** 2)))


class SetInputs:
    """Raw sets: every muon with energy, radius and direction from the axis, the conditions and the count."""

    def __init__(self, a: Sample, b: Sample, max_muons: int, rng: np.random.Generator) -> None:
        """``max_muons``: most muons of an event in the input, chosen at random; its count is the true one."""
        self._conditions_EC = torch.from_numpy(_conditions(np.concatenate([a.primary_E4, b.primary_E4])))
        counts_E = np.concatenate([a.bundles.counts_E, b.bundles.counts_E])
        self._log_counts_E1 = torch.from_numpy(np.log1p(counts_E).astype(np.float32) / 2).unsqueeze(1)
        a_PF, b_PF = _raw(a.bundles), _raw(b.bundles)
        centre, scale = a_PF.mean(0), a_PF.std(0) + 1e-6
        muons_PF = (np.concatenate([a_PF, b_PF]) - centre) / scale
        if counts_E.max(initial=0) > max_muons:
            event_P = np.repeat(np.arange(len(counts_E)), counts_E)
            order = np.lexsort((rng.random(len(event_P)), event_P))
            place_P = np.arange(len(event_P)) - np.repeat(np.cumsum(counts_E) - counts_E, counts_E)
            muons_PF, counts_E = muons_PF[np.sort(order[place_P < max_muons])], np.minimum(counts_E, max_muons)
        self._counts_E = counts_E
        self._muons_PF = torch.from_numpy(muons_PF.astype(np.float32))
        self._first_E = np.cumsum(counts_E) - counts_E

    def __call__(self, events: Int64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return muons of these events, their number in each, conditions, log(1 + N) / 2."""
        counts = self._counts_E[events]
        begin = np.cumsum(counts) - counts
        index = np.repeat(self._first_E[events] - begin, counts) + np.arange(counts.sum())
        chosen = torch.from_numpy(events)
        return (
            self._muons_PF[torch.from_numpy(index)],
            torch.from_numpy(counts),
            self._conditions_EC[chosen],
            self._log_counts_E1[chosen],
        )


def _conditions(primary_E4: Float64) -> np.ndarray:
    """Return log10 E, log10 E per nucleon, cos zenith, log10 A, depth: each with mean 0 and standard deviation 1."""
    energy_E, zenith_E, mass_E, depth_E = primary_E4.T
    mass_E = np.maximum(mass_E, 1.0)  # a photon has mass number 0 and counts as one nucleon
    columns = [np.log10(energy_E), np.log10(energy_E / mass_E), np.cos(zenith_E), np.log10(mass_E), depth_E]
    conditions_EC = np.stack(columns, 1)
    scaled: np.ndarray = (conditions_EC - conditions_EC.mean(0)) / (conditions_EC.std(0) + 1e-9)
    return scaled.astype(np.float32)


def _raw(bundles: BundleArrays) -> Float64:
    """Return log10 E, log10(r + 0.1 m), x / r, y / r of each muon."""
    radius_P = np.maximum(bundles.radius_m_P, 1e-9)
    features = [bundles.features[name].values for name in ("log10_energy", "log10_radius")]
    columns = [*features, bundles.x_m_P / radius_P, bundles.y_m_P / radius_P]
    return np.stack(columns, 1)


class DeepSets(nn.Module):
    """Network on muons, mean and maximum over the event's muons, network on events (arXiv:1703.06114)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.muon = nn.Sequential(
            nn.Linear(_NUM_MUON_FEATURES + _NUM_CONDITIONS, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.event = nn.Sequential(
            nn.Linear(2 * width + _NUM_CONDITIONS + 1, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, 1),
        )

    def forward(self, muons_PF: Tensor, counts_E: Tensor, conditions_EC: Tensor, log_counts_E1: Tensor) -> Tensor:
        """Return a score of each event, (E,): the larger, the more likely generated."""
        size = len(counts_E)
        event_P = torch.repeat_interleave(torch.arange(size), counts_E)
        seen_PW: Tensor = self.muon(torch.cat([muons_PF, conditions_EC[event_P]], 1))
        seen_PW = self.together(seen_PW, counts_E)
        nothing_EW = seen_PW.new_zeros(size, seen_PW.shape[1])
        mean_EW = nothing_EW.index_add(0, event_P, seen_PW) / counts_E.clamp_min(1).unsqueeze(1)
        index_PW = event_P.unsqueeze(1).expand_as(seen_PW)
        most_EW = nothing_EW.scatter_reduce(0, index_PW, seen_PW, "amax", include_self=False)
        answer_E1: Tensor = self.event(torch.cat([mean_EW, most_EW, conditions_EC, log_counts_E1], 1))
        return answer_E1[:, 0]

    def together(self, seen_PW: Tensor, counts_E: Tensor) -> Tensor:
        """Return features of muons that depend on the event's other muons: none here."""
        return seen_PW


class AttentionSets(DeepSets):
    """DeepSets with one attention block between the muons of an event (arXiv:1810.00825)."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.before = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.after = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def together(self, seen_PW: Tensor, counts_E: Tensor) -> Tensor:
        """Return features after attention and a dense network, each added to what was there."""
        seen_PW = seen_PW + self.attended(_attention(self.queries_keys_values(self.before(seen_PW)), counts_E))
        changed_PW: Tensor = seen_PW + self.after(seen_PW)
        return changed_PW


def _attention(inputs_PW: Tensor, counts_E: Tensor) -> Tensor:
    """Return the attention of the muons of each event to each other: queries, keys, values (P, 3 W) -> (P, W).

    Events are padded in buckets of up to 1, 2, 4, 8, ... muons.
    """
    first_E = torch.cumsum(counts_E, 0) - counts_E
    bucket_E = torch.ceil(torch.log2(counts_E.double()))
    indices, answers = [], []
    for bucket in torch.unique(bucket_E[counts_E > 0]):
        chosen = torch.nonzero(bucket_E == bucket)[:, 0]
        place_L = torch.arange(int(counts_E[chosen].max()))
        known_EL = place_L < counts_E[chosen, None]
        index_EL = torch.where(known_EL, first_E[chosen, None] + place_L, first_E[chosen, None])
        heads_ELHW = inputs_PW[index_EL].unflatten(2, (3 * _HEADS, -1))
        query, key, value = heads_ELHW.transpose(1, 2).chunk(3, 1)
        answer = scaled_dot_product_attention(query, key, value, attn_mask=known_EL[:, None, None])
        answers.append(answer.transpose(1, 2).flatten(2)[known_EL])
        indices.append(index_EL[known_EL])
    if not answers:
        return inputs_PW[:, : inputs_PW.shape[1] // 3]
    order = torch.argsort(torch.cat(indices))
    return torch.cat(answers)[order]


@dataclass(frozen=True)
class ClassifierTest:
    """AUC on the events of the test half, for many sets of event weights: the median over several trainings."""

    test_a_E: Bool
    test_b_E: Bool
    aucs: Sequence[Auc]
    """One for each training."""

    def __call__(self, weights_a_BE: Float64, weights_b_BE: Float64) -> Float64:
        """Return the AUC for each set of weights."""
        tested = (weights_a_BE[:, self.test_a_E], weights_b_BE[:, self.test_b_E])
        median_B: Float64 = np.median([auc(*tested) for auc in self.aucs], axis=0)
        return median_B

    def chance(self, a: Sample, b: Sample) -> float:
        """Return the standard deviation of the AUC of one training for samples that are alike."""
        a, b = a.only(self.test_a_E), b.only(self.test_b_E)
        return float(np.median([auc.chance(a.weights_E, b.weights_E, a.shower_E, b.shower_E) for auc in self.aucs]))


def set_test(
    a: Sample, b: Sample, settings: EvaluationSettings, progress: Progress, trainings: int = _TRAININGS
) -> ClassifierTest:
    """Return the test with DeepSets on raw sets."""
    return _test(a, b, lambda: DeepSets(_WIDTH), settings, trainings, progress)


def attention_test(a: Sample, b: Sample, settings: EvaluationSettings, progress: Progress) -> ClassifierTest:
    """Return the test with attention between the muons of an event, on some of the events of the same primaries.

    One training, with half of the epochs.
    """
    muons = np.minimum(a.bundles.counts_E, _MOST_MUONS).mean()
    most = int(min(_ATTENTION_EVENTS, _ATTENTION_MUONS / muons))
    chosen_E = at_most(np.arange(len(a)), most, numpy_stream(MuonPurpose.ATTENTION_EVENTS, settings.seed))
    settings = replace(settings, c2st_epochs=max(settings.c2st_epochs // 2, 1))
    test = _test(a.only(chosen_E), b.only(chosen_E), lambda: AttentionSets(_ATTENTION_WIDTH), settings, 1, progress)
    test_E = np.zeros(len(chosen_E), np.bool_)
    test_E[chosen_E] = test.test_a_E
    return replace(test, test_a_E=test_E, test_b_E=test_E)


def _test(
    a: Sample,
    b: Sample,
    make: Callable[[], nn.Module],
    settings: EvaluationSettings,
    trainings: int,
    progress: Progress,
) -> ClassifierTest:
    inputs = SetInputs(a, b, _MOST_MUONS, numpy_stream(MuonPurpose.SET_MUONS, settings.seed))
    # Half of the showers are tested, each with all its events of both samples.
    showers, index = np.unique(np.concatenate([a.shower_E, b.shower_E]), return_inverse=True)
    chosen = numpy_stream(MuonPurpose.TEST_HALVES, settings.seed).permutation(len(showers)) < len(showers) // 2
    test_E = chosen[index]
    test_a_E, test_b_E = np.split(test_E, [len(a)])
    labels_E = torch.cat([torch.zeros(len(a)), torch.ones(len(b))])
    # Both samples have the same total weight in the training, whatever their numbers of events.
    weights_E = torch.from_numpy(
        np.concatenate(
            [sample.weights_E / sample.weights_E[~test].mean() for sample, test in ((a, test_a_E), (b, test_b_E))]
        )
    ).float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(MuonPurpose.CLASSIFIER_WEIGHTS, settings.seed))
        networks = nn.ModuleList([make() for _ in range(trainings)])
    _train(networks, inputs, labels_E, weights_E, np.flatnonzero(~test_E), settings, progress)
    num_a = int(test_a_E.sum())
    scores = []
    with torch.no_grad():
        for part in np.array_split(np.flatnonzero(test_E), max(int(test_E.sum()) // _BATCH_EVENTS, 1)):
            given = inputs(part)
            scores.append(torch.stack([network(*given) for network in networks]))
    scores_NE: Float64 = torch.cat(scores, 1).double().numpy()
    return ClassifierTest(test_a_E, test_b_E, [Auc(scores_E[:num_a], scores_E[num_a:]) for scores_E in scores_NE])


def _train(
    networks: nn.ModuleList,
    inputs: SetInputs,
    labels_E: Tensor,
    weights_E: Tensor,
    events: Int64,
    settings: EvaluationSettings,
    progress: Progress,
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
            losses = [binary_cross_entropy_with_logits(net(*given), labels_E[of], weights_E[of]) for net in networks]
            optimiser.zero_grad()
            torch.stack(losses).sum().backward()
            optimiser.step()
            schedule.step()
        progress((epoch + 1) / epochs)
