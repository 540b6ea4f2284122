"""Settings of `icestream run`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from common.config import ConfigBranch

MAX_TRAINERS = 256
MAX_DECODERS = 1024
"""Limit against typing errors: each decoder is a process of 100 MB."""


class LocalConfig(ConfigBranch):
    """Settings read by services/supervisor, which runs all services on one machine."""

    decoders: int | Literal["auto"] = 2
    """Number of decoder processes. `auto`: one at first, more while units wait for them; idle ones leave."""
    max_decoders: int = Field(0, ge=0)
    """Most decoders for `auto`, and never more than `stream.slots`. 0: the usable cores minus one, divided by
    decoder.threads."""
    trainers: int = Field(1, ge=1, le=MAX_TRAINERS)
    """Number of data-parallel trainer processes, each on its own GPU (or all on the CPU). They share the
    batches, which don't depend on their number."""
    restart_min_s: float = Field(5.0, ge=0)
    """Pause before a process that died is restarted; it doubles with each death in a row."""
    restart_max_s: float = Field(300.0, ge=0)
    """Longest such pause."""
    stop_timeout_s: float = Field(60.0, gt=0)
    """Time for a process to stop cleanly before it is killed."""

    @field_validator("decoders", mode="before")
    @classmethod
    def _number_or_auto(cls, value: object) -> object:
        text = str(value).strip()
        if text == "auto":
            return text
        if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= MAX_DECODERS:
            raise ValueError(f"a number from 1 to {MAX_DECODERS}, or auto")
        return int(text)

    @property
    def decoders_at_start(self) -> int:
        """Number of decoders started before the load is known."""
        return 1 if self.decoders == "auto" else self.decoders
