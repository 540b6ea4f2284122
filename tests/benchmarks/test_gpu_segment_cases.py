"""Hard cases of the segment operators: right here, and a wrong kernel would be found."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.gpu import operator_cases, segment_cases
from benchmarks.gpu.segment_cases import wrong_values
from workloads.base.kernels.registration import ON_CPU
from workloads.base.segments import Segments, pool_with_argmax, segment_sum, spread

CPU = torch.device("cpu")


@pytest.mark.slow
def test_the_operators_have_the_values_of_a_plain_loop() -> None:
    outcomes = list(wrong_values(CPU))
    assert len(outcomes) > 100
    assert [one for one in outcomes if one is not None] == []


def without_last(values_PD: Tensor, segments: Segments) -> Tensor:
    """Sum that forgets the last particle."""
    return segment_sum(torch.cat([values_PD[:-1], 0 * values_PD[-1:]]), segments)


def empty_is_one(values_PD: Tensor, segments: Segments) -> Tensor:
    return segment_sum(values_PD, segments) + (segments.counts_E == 0).unsqueeze(1)


def one_too_far(values_ED: Tensor, segments: Segments) -> Tensor:
    return spread(values_ED.roll(1, 0), segments)


def slope_to_the_next(values_PD: Tensor, segments: Segments, pools: tuple[str, ...]) -> Tensor:
    """Pooling whose largest particle is the one behind it."""
    argmax_ED = pool_with_argmax(values_PD.detach(), segments, pools)[1]
    assert argmax_ED is not None
    mean_ED = segment_sum(values_PD, segments) / segments.counts_E.clamp_min(1).unsqueeze(1)
    rows_PD = values_PD if segments.num_particles else values_PD.new_zeros(1, values_PD.shape[1])
    return torch.cat([mean_ED, rows_PD.gather(0, (argmax_ED + 1).clamp_max(len(rows_PD) - 1))], 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("segment_sum", without_last),
        ("segment_sum", empty_is_one),
        ("spread", one_too_far),
        ("pool", slope_to_the_next),
    ],
)
def test_a_wrong_operator_is_found(monkeypatch: pytest.MonkeyPatch, name: str, broken: object) -> None:
    monkeypatch.setattr(segment_cases, name, broken)
    monkeypatch.setattr(segment_cases, "WIDTHS", (3,))
    assert any(one is not None for one in wrong_values(CPU))


def test_every_registered_operator_is_among_the_cases_of_the_sanitizer() -> None:
    of_segments = {"pool", "pool_finding_largest", "unpool"}  # by a plain loop

    assert {name for name, _ in operator_cases.calls()} | of_segments == set(ON_CPU)


def test_a_wrong_value_of_any_operator_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {name: (name, arguments) for name, arguments in operator_cases.calls()}
    monkeypatch.setattr(operator_cases, "calls", lambda: iter(calls.values()))
    expected = list(operator_cases.compared(torch.device("cpu")))
    monkeypatch.setattr(
        operator_cases, "compared", lambda device: [(what, -one - 1, other) for what, one, other in expected]
    )
    monkeypatch.setattr(segment_cases, "COUNTS", {})

    outcomes = list(segment_cases.wrong_values(torch.device("cpu")))

    assert len(outcomes) == len(expected)
    assert all((found is None) == (one.numel() == 0) for found, (_, one, _) in zip(outcomes, expected, strict=True))
