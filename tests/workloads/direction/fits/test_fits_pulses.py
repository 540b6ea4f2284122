"""Tests of the choice of pulses for the fits, and of their padding."""

from __future__ import annotations

import torch

from tests.workloads.direction.fits.light_fronts import random_pulses
from workloads.direction.fits.pulses import FARTHEST, MOST_PULSES, NEAR_M, NEAR_NS, padded_batches, used_pulses


def test_clean_pulses_and_auxiliary_ones_near_them_are_used() -> None:
    pulses = random_pulses([40, 0, 25, 60], clean_share=0.2)
    used = used_pulses(pulses)
    expected = []
    for event in range(4):
        own = (pulses.segments.event_P == event).nonzero().squeeze(1)
        if not len(own):
            continue
        clean = own[pulses.clean_P[own]]
        space = torch.cdist(pulses.position_P3[own], pulses.position_P3[clean]) / NEAR_M
        time = (pulses.time_P[own, None] - pulses.time_P[clean]) / NEAR_NS
        distance = (space.square() + time.square()).sqrt().amin(1)
        expected += own[pulses.clean_P[own] | (distance < FARTHEST)].tolist()
    assert 0 < len(expected) < 125
    assert torch.equal(used.time_P, pulses.time_P[expected])
    assert used.segments.num_events == 4


def test_without_a_clean_pulse_all_pulses_are_used_as_clean() -> None:
    used = used_pulses(random_pulses([7], clean_share=0.0))
    assert used.segments.counts_E.tolist() == [7]
    assert used.clean_P.all()


def test_of_too_many_clean_pulses_no_auxiliary_one_is_used() -> None:
    pulses = random_pulses([1000, 3], clean_share=0.5)
    used = used_pulses(pulses)
    assert used.segments.counts_E[0] == MOST_PULSES
    assert used.clean_P[:MOST_PULSES].all()


def test_of_too_many_pulses_the_auxiliary_ones_nearest_to_clean_ones_are_used() -> None:
    pulses = random_pulses([4000], clean_share=0.01)
    used = used_pulses(pulses)
    num_clean = int(pulses.clean_P.sum())
    assert used.segments.counts_E.tolist() == [MOST_PULSES]
    assert int(used.clean_P.sum()) == num_clean


def test_an_extreme_event_is_cut() -> None:
    used = used_pulses(random_pulses([178_000], clean_share=0.0005))
    assert used.segments.counts_E.tolist() == [MOST_PULSES]


def test_batches_hold_every_event_with_pulses_once() -> None:
    pulses = random_pulses([5, 0, 16, 17, 3, 8], clean_share=1.0)
    found = {}
    for batch in padded_batches(pulses):
        assert batch.time_BL.shape[1] % 8 == 0
        for row, event in enumerate(batch.event_B.tolist()):
            present = batch.present_BL[row] > 0
            found[event] = batch.time_BL[row][present].tolist()
            assert (batch.position_B3L[row][:, ~present] == 0).all()
    expected = dict(enumerate(values.tolist() for values in pulses.time_P.split([5, 0, 16, 17, 3, 8])))
    assert found == {event: times for event, times in expected.items() if times}
