"""Attention between the sensors of an event, against its definition."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from workloads.base.segments import Segments
from workloads.direction.ice import LIGHT_SPEED_M_NS
from workloads.direction.models.transformer.attention import Attention, interval_terms
from workloads.direction.models.transformer.padding import Padding

COUNTS = [3, 0, 7, 1, 5]


def layout() -> tuple[Segments, Padding]:
    segments = Segments.from_counts(torch.tensor(COUNTS), sum(COUNTS))
    return segments, Padding.of(segments)


def test_each_event_is_attended_to_by_itself_with_its_bias_and_so_are_its_gradients() -> None:
    torch.manual_seed(1)
    segments, padding = layout()
    rows = torch.randn(16, 8, requires_grad=True)
    position, time = 200 * torch.randn(16, 3), 500 * torch.randn(16, 1)
    attention = Attention(8, 2, 4)
    assert attention.bias is not None
    torch.nn.init.normal_(attention.bias.weight)

    found = attention(rows, padding, interval_terms(position, time, 4, padding))

    expected = []
    for start, count in zip(segments.starts_E.tolist(), COUNTS, strict=True):
        if count == 0:
            continue
        of_event = slice(start, start + count)
        alone = Padding.of(Segments.from_counts(torch.tensor([count]), count))
        bias = attention.bias(interval_terms(position[of_event], time[of_event], 4, alone)[0][0])
        query, key, value = attention.input(rows[of_event]).unflatten(1, (3, 2, 4)).unbind(1)
        heads = []
        for head in range(2):
            scores = attention.query_norm(query[:, head]) @ attention.key_norm(key[:, head]).T / 2 + bias[..., head]
            heads.append(F.softmax(scores, 1) @ value[:, head])
        expected.append(attention.output(torch.cat(heads, 1)))
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-4, atol=1e-5)
    weights = torch.randn(16, 8)
    slopes, expected_slopes = (
        torch.autograd.grad((result * weights).sum(), [rows, *attention.parameters()])
        for result in (found, torch.cat(expected))
    )
    torch.testing.assert_close(slopes, expected_slopes, rtol=1e-3, atol=1e-4)


def test_terms_depend_on_the_sign_and_size_of_the_interval() -> None:
    """Two sensors at the same place, 300 m of light apart in time: s = 300 m. At the same time, 300 m apart: -300 m."""
    padding = Padding.of(Segments.from_counts(torch.tensor([2, 2]), 4))
    position = torch.tensor([[0.0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 300, 0]])
    time = torch.tensor([[0.0], [300 / LIGHT_SPEED_M_NS], [0], [0]])

    (terms,) = interval_terms(position, time, 5, padding)

    centres = torch.tensor([-2.0, -1, 0, 1, 2])
    for event, interval in ((0, 1.0), (1, -1.0)):
        expected = (-((interval - centres) * 5 / 4).square()).exp()
        torch.testing.assert_close(terms[event, 0, 1], expected)
        torch.testing.assert_close(terms[event, 1, 0], expected)
        torch.testing.assert_close(terms[event, 0, 0, 2], torch.tensor(1.0))


def test_queries_and_keys_are_normalised() -> None:
    """Scores stay within √W however large the rows are: no head can saturate by growing."""
    attention = Attention(8, 2, 0)
    _, padding = layout()
    rows = 1e4 * torch.randn(16, 8)
    query, key, _ = attention.input(rows).unflatten(1, (3, 2, 4)).unbind(1)
    scores = attention.query_norm(query) @ attention.key_norm(key).transpose(1, 2) / math.sqrt(4)
    assert scores.abs().max() <= math.sqrt(4) + 1e-4
    assert attention(rows, padding, []).isfinite().all()
