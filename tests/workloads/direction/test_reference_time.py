"""Tests of the reference time of events."""

from __future__ import annotations

import torch

from workloads.direction.reference_time import reference_times


def reference_time(time_ns: list[float], clean: list[bool]) -> float:
    offsets_E1 = torch.tensor([0, len(time_ns)])
    return reference_times(torch.tensor(time_ns), torch.tensor(clean, dtype=torch.bool), offsets_E1).item()


def test_the_reference_time_is_the_median_of_the_clean_pulses() -> None:
    assert reference_time([5.0, 900.0, 1.0, 3.0, -700.0], [True, False, True, True, False]) == 3.0


def test_of_an_even_number_it_is_the_lower_one_in_the_middle() -> None:
    assert reference_time([4.0, 1.0, 2.0, 3.0], [True] * 4) == 2.0


def test_without_a_clean_pulse_it_is_the_median_of_all_pulses() -> None:
    assert reference_time([7.0, 9.0, 8.0], [False] * 3) == 8.0


def test_an_event_without_pulses_has_the_time_zero() -> None:
    empty = torch.zeros(0)
    assert reference_times(empty, empty.bool(), torch.tensor([0, 0, 0])).tolist() == [0.0, 0.0]
    times_E = reference_times(torch.tensor([6.0]), torch.tensor([True]), torch.tensor([0, 0, 1, 1]))
    assert times_E.tolist() == [0.0, 6.0, 0.0]


def test_every_event_has_the_time_that_it_has_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    counts_E = torch.randint(0, 9, (200,), generator=generator)
    offsets_E1 = torch.nn.functional.pad(counts_E.cumsum(0), (1, 0))
    time_P = torch.randn(int(offsets_E1[-1]), generator=generator) * 1e3 + 1e4
    clean_P = torch.rand(time_P.shape, generator=generator) < 0.4
    times_E = reference_times(time_P, clean_P, offsets_E1)
    for event, (first, end) in enumerate(offsets_E1.unfold(0, 2, 1).tolist()):
        clean = time_P[first:end][clean_P[first:end]]
        pulses = clean if len(clean) else time_P[first:end]
        assert times_E[event] == (pulses.median() if len(pulses) else 0)
