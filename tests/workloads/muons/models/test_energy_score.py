"""The energy score of generated bundles."""

from __future__ import annotations

import math

import pytest
import torch

from workloads.base.segments import Segments
from workloads.muons.models.wgan.energy_score import EnergyScore, energy_score, event_summary, event_weight

SPREAD = torch.tensor(0.5)


def segments_of(*counts: int) -> Segments:
    return Segments.from_counts(torch.tensor(counts), sum(counts))


def score_of(generated: list[torch.Tensor], real: torch.Tensor, segments: Segments) -> EnergyScore:
    present_E = (segments.counts_E > 0).to(real.dtype)
    weights = event_weight(segments, present_E), present_E
    return energy_score(torch.stack(generated), real, segments, weights, SPREAD)


def test_the_summary_of_an_event_is_that_of_its_muons_by_hand() -> None:
    features = torch.tensor([[0.0, 1.0], [2.0, 3.0], [-1.0, 0.5]], dtype=torch.float64)
    found = event_summary(features, segments_of(2, 0, 1), SPREAD)
    sum_lg_energy = math.log10(10**0.0 + 10 ** (2.0 * 0.5)) / 0.5
    assert found[0].tolist() == pytest.approx([1.0, 2.0, 2.0, 3.0, 2.0, sum_lg_energy])
    assert found[1].tolist() == [0.0] * 6
    assert found[2].tolist() == pytest.approx([-1.0, 0.5, 1.0, -0.5, -1.0, -1.0])


def test_the_score_of_one_muon_by_hand() -> None:
    one, other, real = (torch.tensor([[value, 0.0]], dtype=torch.float64) for value in (1.0, 4.0, 2.0))
    # Summary (mean lg E, mean lg r, lg E², lg E lg r, largest, sum): of 1, 4, 2.
    far = [math.sqrt(3 * (a - b) ** 2 + (a * a - b * b) ** 2) for a, b in ((1, 2), (4, 2), (1, 4))]
    expected = (far[0] + far[1] - far[2]) / 2
    found = score_of([one, other], real, segments_of(1))
    assert found.of_muons.item() == pytest.approx((1 + 2 - 3) / 2, abs=1e-5)
    assert found.of_events.item() == pytest.approx(expected, abs=1e-5)


def test_an_empty_event_has_no_score_and_no_gradient_that_is_not_finite() -> None:
    one = torch.zeros(2, 2, requires_grad=True)
    real = torch.zeros(2, 2)
    score = sum(score_of([one, torch.zeros(2, 2)], real, segments_of(0, 2, 0)))
    score.backward()
    assert score.item() == pytest.approx(0.0, abs=1e-5)
    assert one.grad is not None
    assert bool(one.grad.isfinite().all())
    nothing = torch.zeros(0, 2)
    assert [part.item() for part in score_of([nothing, nothing], nothing, segments_of(0, 0))] == [0.0, 0.0]


@pytest.mark.parametrize("wrong", ["shifted", "too wide", "too narrow", "correlated", "no common part"])
def test_a_wrong_distribution_has_a_larger_score_than_the_right_one(wrong: str) -> None:
    random = torch.Generator().manual_seed(2)
    num, size = 4000, 6
    segments = segments_of(*[size] * num)

    def draw(common: float = 0.7) -> torch.Tensor:
        """Muons of an event share a part of their lg r, as they do of a shower."""
        own = torch.randn(num * size, 2, generator=random)
        shared = torch.randn(num, generator=random)[segments.event_P]
        radius = common * shared + math.sqrt(1 - common**2) * own[:, 1]
        return torch.stack([own[:, 0], radius], 1)

    def made() -> torch.Tensor:
        if wrong == "no common part":
            return draw(0.0)
        good = draw()
        if wrong == "correlated":
            return torch.stack([good[:, 0], 0.6 * good[:, 0] + 0.8 * good[:, 1]], 1)
        return good * {"too wide": 1.5, "too narrow": 0.6}.get(wrong, 1.0) + (0.5 if wrong == "shifted" else 0.0)

    real = draw()
    right = score_of([draw(), draw()], real, segments)
    found = score_of([made(), made()], real, segments)
    assert found.of_events / num > right.of_events / num + 0.02
    if wrong != "no common part":  # of single muons, nothing is wrong
        weight = num * size**0.75
        assert found.of_muons / weight > right.of_muons / weight + 0.02 / size


def test_the_order_of_events_does_not_matter() -> None:
    random = torch.Generator().manual_seed(3)
    one, other, real = (torch.randn(5, 2, generator=random, dtype=torch.float64) for _ in range(3))
    order = torch.tensor([2, 3, 4, 0, 1])
    first = score_of([one, other], real, segments_of(2, 3))
    second = score_of([one[order], other[order]], real[order], segments_of(3, 2))
    assert [part.item() for part in first] == pytest.approx([part.item() for part in second])


def test_more_generated_events_give_the_mean_score_of_all_pairs_of_them() -> None:
    random = torch.Generator().manual_seed(4)
    *generated, real = (torch.randn(6, 2, generator=random, dtype=torch.float64) for _ in range(4))
    segments = segments_of(1, 3, 2)
    pairs = [(0, 1), (0, 2), (1, 2)]
    expected = [score_of([generated[one], generated[other]], real, segments) for one, other in pairs]
    found = score_of(generated, real, segments)
    for value, of_pairs in zip(found, zip(*expected, strict=True), strict=True):
        assert value.item() == pytest.approx(sum(one.item() for one in of_pairs) / 3)


def test_the_gradient_is_that_of_the_score() -> None:
    random = torch.Generator().manual_seed(5)
    segments = segments_of(1, 0, 3)
    generated = [torch.randn(4, 2, generator=random, dtype=torch.float64).requires_grad_() for _ in range(3)]
    real = torch.randn(4, 2, generator=random, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *made: tuple(score_of(list(made), real, segments)), generated)
