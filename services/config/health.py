"""When training counts as unhealthy, and what is done about it."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from common.config import ConfigBranch


class HealthConfig(ConfigBranch):
    """Judged at every log step and before every checkpoint, for each step since (docs/health.md). A number that is
    not finite is always critical. 0: that limit is off."""

    warning_loss: float = Field(1e4, ge=0)
    """A loss above this, without its sign, is a warning."""
    critical_loss: float = Field(1e6, ge=0)
    """A loss above this is critical: the update is left out, and training goes back to the last good checkpoint."""
    warning_grad_norm: float = Field(1e5, ge=0)
    """The norm of a network's gradient above this is a warning."""
    critical_grad_norm: float = Field(1e7, ge=0)
    """The norm of a network's gradient above this is critical: the update is left out, and training goes back."""
    warning_grad_ratio: float = Field(1000.0, ge=0)
    """A gradient norm above this many times its running median is a warning."""
    critical_grad_ratio: float = Field(100_000.0, ge=0)
    """A gradient norm above this many times its running median is critical."""
    grad_norm_floor: float = Field(10.0, ge=0)
    """Gradient norms up to this are never compared with their median: small ones vary by large factors."""
    median_steps: int = Field(201, ge=3)
    """Healthy steps that a running median is taken of; nothing is compared before there are a tenth as many."""
    critical_skipped_updates: int = Field(1, ge=0)
    """Updates that were left out in one step, since a loss or gradient was not finite or too large, from which on the
    step is critical. 0: they are left out and counted, and training goes on."""
    rollbacks: int = Field(3, ge=0)
    """Times that training goes back to its last good checkpoint. The next time it stops."""
    learning_rate_factor: float = Field(0.5, gt=0, le=1)
    """All learning rates are multiplied by this each time."""
    recovered_steps: int = Field(20_000, ge=1)
    """Steps without a critical one after which going back is counted from 0 again. The learning rates stay as they
    are."""

    @model_validator(mode="after")
    def _warns_first(self) -> Self:
        for name in ("loss", "grad_norm", "grad_ratio"):
            warning, critical = getattr(self, f"warning_{name}"), getattr(self, f"critical_{name}")
            if 0 < critical < warning:
                raise ValueError(
                    f"trainer.health.warning_{name} = {warning:g} must not be above critical_{name} = {critical:g}"
                )
        return self
