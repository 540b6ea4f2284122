"""Settings of training's health: limits, and the rollbacks that follow."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from common.config import ConfigBranch


class HealthConfig(ConfigBranch):
    """Limits of health, checked at every log step and before every checkpoint for each step since
    (docs/how-to/diagnose.md). A number that is not finite is always critical. 0: that limit is off."""

    warning_loss: float = Field(1e4, ge=0)
    """Absolute loss above which a step is a warning."""
    critical_loss: float = Field(1e6, ge=0)
    """Absolute loss above which a step is critical: the update is skipped, and training rolls back to the last good
    checkpoint."""
    warning_grad_norm: float = Field(1e5, ge=0)
    """Norm of a network's gradient above which a step is a warning."""
    critical_grad_norm: float = Field(1e7, ge=0)
    """Norm of a network's gradient above which a step is critical: the update is skipped, and training rolls back."""
    warning_grad_ratio: float = Field(1000.0, ge=0)
    """Ratio of a gradient norm to its running median above which a step is a warning."""
    critical_grad_ratio: float = Field(100_000.0, ge=0)
    """Ratio of a gradient norm to its running median above which a step is critical."""
    grad_norm_floor: float = Field(10.0, ge=0)
    """Norm up to which gradients are never compared with their median: small norms vary by large factors."""
    median_steps: int = Field(201, ge=3)
    """Number of healthy steps in a running median; nothing is compared before there are a tenth as many."""
    critical_skipped_updates: int = Field(1, ge=0)
    """Number of updates skipped in one step, since a loss or gradient was not finite or too large, from which on the
    step is critical. 0: they are skipped and counted, and training continues."""
    rollbacks: int = Field(3, ge=0)
    """Number of rollbacks to the last good checkpoint. At the next one training stops."""
    learning_rate_factor: float = Field(0.5, gt=0, le=1)
    """Factor of all learning rates at each rollback."""
    recovered_steps: int = Field(20_000, ge=1)
    """Steps without a critical one after which the count of rollbacks restarts from 0. The learning rates stay
    unchanged."""

    @model_validator(mode="after")
    def _warns_first(self) -> Self:
        for name in ("loss", "grad_norm", "grad_ratio"):
            warning, critical = getattr(self, f"warning_{name}"), getattr(self, f"critical_{name}")
            if 0 < critical < warning:
                raise ValueError(
                    f"trainer.health.warning_{name} = {warning:g} must not be above critical_{name} = {critical:g}"
                )
        return self
