"""Settings of `icestream run`."""

from __future__ import annotations

from pydantic import Field

from common.config import ConfigBranch


class LocalConfig(ConfigBranch):
    """Read by services/local, which runs all services on one machine."""

    decoders: int = Field(2, ge=1)
    """Decoder processes."""
    restart_min_s: float = Field(5.0, ge=0)
    """Pause before a process that died is started again; it doubles with each death in a row."""
    restart_max_s: float = Field(300.0, ge=0)
    """Longest such pause."""
    stop_timeout_s: float = Field(60.0, gt=0)
    """How long a process may take to stop cleanly before it is killed."""
