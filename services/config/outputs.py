"""Settings of the copies of a run's outputs."""

from __future__ import annotations

from pydantic import Field, field_validator

from common.config import ConfigBranch


class OutputsConfig(ConfigBranch):
    """Read by services/outputs (docs/how-to/copy-outputs.md)."""

    destination: str = ""
    """Destination of the copies of checkpoints and TensorBoard files: a directory, or a pelican:// URL. Empty: none."""
    every_s: float = Field(60.0, gt=0)
    """Pause between two checks for changed files."""
    keep_checkpoints: int = Field(2, ge=1)
    """Newest checkpoints kept at the destination."""
    final_sync_s: float = Field(120.0, gt=0)
    """Time limit of the last copies at a run's end."""

    @field_validator("destination")
    @classmethod
    def _is_a_place(cls, value: str) -> str:
        if "://" in value and not value.startswith(("pelican://", "osdf://")):
            raise ValueError("a directory, or a pelican:// URL")
        return value
