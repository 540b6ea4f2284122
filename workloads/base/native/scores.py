"""Energy scores of rows in C++, with their gradient.

Same results as torch's to 1e-6, relative. Shape suffixes: M generated sets, R rows, S numbers of a row.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from workloads.base.native.dense import address
from workloads.base.native.library import used


def library_for_scores(values: Tensor) -> ctypes.CDLL | None:
    """Library that computes scores of these values, None if torch has to."""
    return used() if values.is_cpu and values.dtype == torch.float32 else None


def energy_scores(
    library: ctypes.CDLL, generated_MRS: Tensor, real_RS: Tensor, distance_floor: float
) -> tuple[Tensor, Tensor]:
    """Score of each row and its gradient with respect to the generated values. -> (R,), (M, R, S).

    (M, R, S), M at least 2; (R, S). ``distance_floor`` is added to each squared distance.
    """
    generated_MRS, real_RS = generated_MRS.contiguous(), real_RS.contiguous()
    score_R, slope_MRS = real_RS.new_empty(len(real_RS)), torch.empty_like(generated_MRS)
    library.energy_scores(
        *(address(generated_MRS), *generated_MRS.shape, address(real_RS), distance_floor),
        *(address(score_R), address(slope_MRS)),
    )
    return score_R, slope_MRS
