"""The picture is drawn, whatever there is to draw."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from workloads.muons.metrics.figures import comparison

EDGES = np.linspace(0.0, 3.0, 31)
SOME = np.arange(30)
NONE = np.zeros(30, np.int64)


def num_colours(pixels: npt.NDArray[np.uint8]) -> int:
    return len(np.unique(pixels.reshape(-1, 3), axis=0))


@pytest.mark.parametrize(("real", "generated"), [(SOME, SOME[::-1]), (SOME, NONE), (NONE, SOME), (NONE, NONE)])
def test_a_picture_is_drawn_even_if_a_side_is_empty(
    real: npt.NDArray[np.int64], generated: npt.NDArray[np.int64]
) -> None:
    pixels = comparison({"log10_energy": (EDGES, real, generated), "log10_count": (EDGES, real, generated)}, "title")
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3
    assert num_colours(pixels) > 10


@pytest.mark.slow
def test_what_differs_looks_different_and_what_does_not_does_not() -> None:
    one = comparison({"log10_energy": (EDGES, SOME, SOME)}, "title")
    assert np.array_equal(one, comparison({"log10_energy": (EDGES, SOME, SOME)}, "title"))
    assert not np.array_equal(one, comparison({"log10_energy": (EDGES, SOME, SOME[::-1])}, "title"))
