"""Averaged weights, against numbers computed by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from workloads.base.averaged import AveragedWeights


def numbers(value: float) -> nn.Linear:
    network = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        network.weight.fill_(value)
    return network


def test_the_average_starts_short_and_then_has_the_given_decay() -> None:
    network = numbers(0.0)
    averaged = AveragedWeights(network, decay=0.5)
    with torch.no_grad():
        network.weight.fill_(1.0)

    averaged.update(1)
    assert averaged.average.weight.item() == pytest.approx(10 / 11)  # decay 1 / 11
    with torch.no_grad():
        network.weight.fill_(3.0)
    averaged.update(90)
    assert averaged.average.weight.item() == pytest.approx((10 / 11 + 3) / 2)  # not 90 / 100
    assert network.weight.item() == 3


def test_the_average_is_used_unless_there_is_none() -> None:
    averaged, none = AveragedWeights(numbers(1.0), decay=0.9), AveragedWeights(numbers(1.0), decay=0.0)
    assert averaged.used is averaged.average
    assert not averaged.average.weight.requires_grad
    assert none.used is none.latest
    with torch.no_grad():
        none.latest.weight.fill_(4.0)
    none.update(5)
    assert none.average.weight.item() == 4
