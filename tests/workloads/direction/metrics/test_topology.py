"""Tracks and cascades, told apart by κ."""

from __future__ import annotations

import numpy as np

from workloads.direction.metrics.topology import confusion, roc_curve, track_auc


def of(*kinds: int) -> np.ndarray:
    return np.array(kinds, np.int8)


def test_the_auc_of_a_hand_counted_example_with_a_tie() -> None:
    # Pairs (track, cascade): 5 > 1, 5 > 3, 3 > 1, 3 = 3.
    assert track_auc(np.array([5.0, 3.0, 1.0, 3.0, 99.0]), of(1, 1, 0, 0, -1)) == 3.5 / 4


def test_without_tracks_or_without_cascades_nothing_is_separated() -> None:
    kappa, chooses = np.array([1.0, 2.0]), np.array([True, False])
    for kinds in (of(1, 1), of(0, 0), of(-1, -1)):
        assert np.isnan(track_auc(kappa, kinds))
        assert roc_curve(kappa, kinds) is None
        assert confusion(kappa, kinds, chooses) is None


def test_the_curve_ends_with_everything_above() -> None:
    curve = roc_curve(np.array([4.0, 2.0, 3.0, 1.0]), of(1, 1, 0, 0))
    assert curve is not None
    np.testing.assert_allclose(curve.threshold, [4, 3, 2, 1])
    np.testing.assert_allclose(curve.tracks, [0.5, 0.5, 1, 1])
    np.testing.assert_allclose(curve.cascades, [0, 0.5, 0.5, 1])


def test_the_threshold_is_chosen_by_one_half_and_counted_on_the_other() -> None:
    kappa = np.array([1.0, 2.0, 8.0, 9.0, 1.0, 7.0, 8.5, 9.0])
    kinds = of(0, 0, 1, 1, 0, 0, 1, 1)
    chooses = np.arange(8) < 4
    found = confusion(kappa, kinds, chooses)
    assert found is not None
    assert found.threshold == 8.0
    assert found.counts.tolist() == [[2, 0], [0, 2]]
    assert found.balanced_accuracy == 1.0
    other = confusion(kappa, kinds, ~chooses)
    assert other is not None
    assert other.threshold == 8.5
    assert other.counts.tolist() == [[2, 0], [1, 1]]
    assert other.balanced_accuracy == 0.75
