"""The same random numbers in each test of the models."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(7)
