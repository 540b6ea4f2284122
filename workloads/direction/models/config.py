"""Settings common to the direction models."""

from __future__ import annotations

from common.config import ConfigBranch


class DirectionConfig(ConfigBranch):
    """Settings that every direction model has."""
