"""The windowed mean against numpy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from services.trainer.telemetry.window import WindowedMean

CPU = torch.device("cpu")
VALUES = np.random.default_rng(1).normal(3, 100, 50).astype(np.float32)


@pytest.mark.parametrize("size", [1, 7, 50, 80])
def test_it_is_the_mean_of_the_last_values(size: int) -> None:
    window = WindowedMean(size, CPU)
    assert float(window.mean()) == 0
    for count, value in enumerate(VALUES, start=1):
        window.add(torch.tensor(value))
        expected = VALUES[max(0, count - size) : count].astype(np.float64).mean()
        assert float(window.mean()) == pytest.approx(expected, rel=1e-6, abs=1e-5)


@pytest.mark.slow
def test_rounding_does_not_add_up_over_100_000_values_of_very_different_size() -> None:
    rng = np.random.default_rng(2)
    # Steps of 1e12 and back: a running sum that is never taken anew keeps the rounding error of the largest values.
    values = rng.normal(0, 1, 100_000) * np.where(np.arange(100_000) % 9_000 < 40, 1e12, 1.0)
    window = WindowedMean(500, CPU)
    compared = 0
    for index, value in enumerate(torch.from_numpy(values).unbind()):
        window.add(value)
        if index >= 1_500 and index % 997 == 0 and np.abs(values[max(0, index - 1_000) : index]).max() < 1e6:
            compared += 1
            exact = values[index - 499 : index + 1].mean()
            assert float(window.mean()) == pytest.approx(exact, rel=1e-6, abs=1e-9)
    assert compared > 50


def test_a_value_that_is_not_finite_counts_until_it_leaves_the_window() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        window = WindowedMean(3, CPU)
        for value in (1.0, bad, 2.0, 3.0):
            window.add(torch.tensor(value))
        assert math.isnan(float(window.mean()))
        window.add(torch.tensor(7.0))
        assert float(window.mean()) == 4.0


def test_reading_it_looks_at_no_more_than_two_numbers_whatever_the_size() -> None:
    window = WindowedMean(5, CPU)
    window.add(torch.tensor(3.0))
    window._values.fill_(math.nan)  # nothing reads them
    assert float(window.mean()) == 3.0


def test_it_goes_on_from_a_checkpoint_to_the_bit() -> None:
    window, resumed = WindowedMean(7, CPU), WindowedMean(7, CPU)
    for value in VALUES[:20]:
        window.add(torch.tensor(value))
    state: dict[str, Tensor | int] = {
        name: value.clone() if isinstance(value, Tensor) else value for name, value in window.state_dict().items()
    }
    resumed.load_state_dict(state)
    for value in VALUES[20:]:
        window.add(torch.tensor(value))
        resumed.add(torch.tensor(value))
        assert torch.equal(window.mean(), resumed.mean())
