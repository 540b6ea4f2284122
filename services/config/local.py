"""Settings of `icestream run`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from common.config import ConfigBranch

MAX_TRAINERS = 256
MAX_DECODERS = 1024
"""Each is a process of 100 MB: a slip of the finger shall not take the machine."""


class LocalConfig(ConfigBranch):
    """Read by services/supervisor, which runs all services on one machine."""

    decoders: int | Literal["auto"] = 2
    """Decoder processes. `auto`: begins with one; more are started while units wait for them, and leave when idle."""
    max_decoders: int = Field(0, ge=0)
    """Most decoders that `auto` asks for, and never more than `stream.slots`. 0: the usable cores but one, divided by
    decoder.threads."""
    trainers: int = Field(1, ge=1, le=MAX_TRAINERS)
    """Trainer processes that learn together, each on a GPU of its own (or all on the CPU). `stream.lanes` must be a
    multiple of their number."""
    restart_min_s: float = Field(5.0, ge=0)
    """Pause before a process that died is started again; it doubles with each death in a row."""
    restart_max_s: float = Field(300.0, ge=0)
    """Longest such pause."""
    stop_timeout_s: float = Field(60.0, gt=0)
    """How long a process may take to stop cleanly before it is killed."""

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
        """How many are started before anything is known of the load."""
        return 1 if self.decoders == "auto" else self.decoders
