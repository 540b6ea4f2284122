"""Fixture of the tests of kernels."""

from __future__ import annotations

import pytest
import torch
from triton_runs import INTERPRETED


@pytest.fixture
def device() -> torch.device:
    """Device of the Triton kernels: interpreted, they read the memory of the CPU."""
    if INTERPRETED:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device; Triton's interpreter makes this test in another process")
    return torch.device("cuda")
