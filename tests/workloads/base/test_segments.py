"""Segment operations against loops over the events."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from workloads.base.segments import Segments, segment_max, segment_mean, segment_sum, sort_within_events, spread

COUNTS = [0, 3, 1, 0, 4, 0]
REDUCTIONS = {
    "sum": segment_sum,
    "mean": segment_mean,
    "max": lambda values_PD, segments: segment_max(values_PD, segments)[0],
}


@pytest.fixture
def segments() -> Segments:
    return Segments.from_counts(torch.tensor(COUNTS), sum(COUNTS))


@pytest.fixture
def values_PD() -> Tensor:
    return torch.randn(sum(COUNTS), 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def loop(values_PD: Tensor, reduce: str) -> Tensor:
    rows = []
    for part in values_PD.split(COUNTS):
        if len(part) == 0:
            rows.append(torch.zeros(values_PD.shape[1], dtype=values_PD.dtype))
        else:
            rows.append(part.amax(0) if reduce == "max" else getattr(part, reduce)(0))
    return torch.stack(rows)


def test_each_particle_belongs_to_the_event_whose_offsets_enclose_it() -> None:
    offsets = torch.tensor([0, 0, 3, 4, 4, 8, 8])

    segments = Segments.from_offsets(offsets, 8)

    assert segments.event_P.tolist() == [1, 1, 1, 2, 4, 4, 4, 4]
    assert segments.counts_E.tolist() == COUNTS
    assert (segments.num_events, segments.num_particles) == (6, 8)


def test_sum_mean_and_max_equal_a_loop_and_are_zero_for_empty_events(segments: Segments, values_PD: Tensor) -> None:
    values_PD = values_PD - 10  # all negative: a maximum that starts from 0 would be seen

    for kind, reduction in REDUCTIONS.items():
        torch.testing.assert_close(reduction(values_PD, segments), loop(values_PD, kind))
    torch.testing.assert_close(segment_sum(values_PD[:, 0], segments), loop(values_PD, "sum")[:, 0])


@pytest.mark.parametrize("kind", [*REDUCTIONS, "spread"])
@pytest.mark.parametrize("compiling", [False, True], ids=["eager", "compiled"])
def test_every_operation_has_right_first_and_second_derivatives(
    segments: Segments, values_PD: Tensor, kind: str, *, compiling: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: compiling)
    inputs = (values_PD[: len(COUNTS)] if kind == "spread" else values_PD).clone().requires_grad_(True)
    function = spread if kind == "spread" else REDUCTIONS[kind]
    assert torch.autograd.gradcheck(lambda x: function(x, segments), inputs)
    assert torch.autograd.gradgradcheck(lambda x: function(x**3, segments), inputs)


def test_no_particles_at_all_give_zeros_for_each_event() -> None:
    segments = Segments.from_counts(torch.zeros(3, dtype=torch.int64), 0)
    nothing = torch.zeros(0, 2)

    for reduction in REDUCTIONS.values():
        assert torch.equal(reduction(nothing, segments), torch.zeros(3, 2))
    assert sort_within_events(nothing[:, 0], segments).shape == (0,)


def test_of_equal_values_the_first_is_largest(segments: Segments) -> None:
    values_P1 = torch.tensor([[1.0], [2], [2], [7], [3], [3], [0], [3]])
    assert segment_max(values_P1, segments)[1].flatten().nonzero().flatten().tolist() == [1, 3, 4]


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reductions_of_bfloat16_are_as_near_as_it_is(kind: str) -> None:
    counts = torch.tensor([600, 0, 3])  # a count above 256 is no number of bfloat16
    segments, values_PD = Segments.from_counts(counts, 603), torch.rand(603, 4) + 1
    found_ED = REDUCTIONS[kind](values_PD.bfloat16(), segments)
    assert found_ED.dtype == torch.bfloat16
    torch.testing.assert_close(found_ED.float(), REDUCTIONS[kind](values_PD, segments), rtol=0.01, atol=0)


@pytest.mark.parametrize("counts", [[], [0, 0], COUNTS])
@pytest.mark.parametrize("times", [1, 3])
def test_copies_of_segments_are_the_segments_of_the_copies(counts: list[int], times: int) -> None:
    counts_E = torch.tensor(counts, dtype=torch.int64)
    segments = Segments.from_counts(counts_E, sum(counts), counts_E + 1)
    expected = Segments.from_counts(counts_E.repeat(times), times * sum(counts), (counts_E + 1).repeat(times))
    found = segments.repeated(times)
    for name in ("event_P", "counts_E", "starts_E", "sizes_E", "particles_P"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


@given(
    st.lists(st.lists(st.one_of(st.floats(width=32), st.sampled_from([0.0, -0.0, 1.0])), max_size=5), max_size=5),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_one_sort_of_integers_is_a_stable_sort_of_each_event(keys: list[list[float]], dtype: torch.dtype) -> None:
    segments = Segments.from_counts(torch.tensor([len(one) for one in keys], dtype=torch.int64), sum(map(len, keys)))
    key_P = torch.tensor([key for one in keys for key in one]).to(dtype)
    by_key_P = key_P.argsort(stable=True)

    expected_P = by_key_P[segments.event_P[by_key_P].argsort(stable=True)]

    assert torch.equal(sort_within_events(key_P, segments), expected_P)


def test_a_nan_of_either_sign_comes_last(segments: Segments) -> None:
    nan = torch.tensor([0x7FC00000, -0x400000], dtype=torch.int32).view(torch.float32)
    key_P = torch.cat([nan, torch.tensor([torch.inf, 1, 2]), nan[1:], torch.tensor([-torch.inf]), nan[:1]])

    assert sort_within_events(key_P, segments).tolist() == [2, 0, 1, 3, 6, 4, 5, 7]


def test_keys_that_do_not_fit_into_32_bits_are_refused(segments: Segments) -> None:
    with pytest.raises(TypeError, match="float64"):
        sort_within_events(torch.zeros(8, dtype=torch.float64), segments)
