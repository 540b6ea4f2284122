"""Precisions of the step, as `trainer.precision` names them."""

from __future__ import annotations

import torch

PRECISIONS = ("float32", "tf32", "bf16")


def set_matmul_precision(precision: str) -> None:
    """Set torch's matrix products, as the trainer does."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
