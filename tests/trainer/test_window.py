"""The windowed mean against numpy's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from services.trainer.window import WindowedMean

CPU = torch.device("cpu")
VALUES = np.random.default_rng(1).normal(3, 100, 50).astype(np.float32)


@pytest.mark.parametrize("size", [1, 7, 50, 80])
def test_it_is_the_mean_of_the_last_values(size: int) -> None:
    window = WindowedMean(size, CPU)
    assert float(window.mean()) == 0
    for count, value in enumerate(VALUES, start=1):
        window.add(torch.tensor(value))
        expected = VALUES[max(0, count - size) : count].astype(np.float64).mean()
        assert float(window.mean()) == pytest.approx(expected, rel=1e-5, abs=1e-4)


def test_it_goes_on_from_a_checkpoint() -> None:
    window, resumed = WindowedMean(7, CPU), WindowedMean(7, CPU)
    for value in VALUES[:20]:
        window.add(torch.tensor(value))
    resumed.load_state_dict(window.state_dict())
    for value in VALUES[20:]:
        window.add(torch.tensor(value))
        resumed.add(torch.tensor(value))
    assert torch.equal(window.mean(), resumed.mean())
