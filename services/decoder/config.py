"""Settings of a decoder process. What is decoded, and how, is fixed by the stream's settings."""

from __future__ import annotations

from pydantic import Field

from common.config import ConfigBranch


class DecoderConfig(ConfigBranch):
    """Read by services/decoder. Nothing here may change a unit's bytes."""

    credit: int = Field(2, ge=1)
    """Units leased to one decoder at a time: one in work, the others so that it never waits for the next."""
    threads: int = Field(1, ge=1)
    """Arrow threads of one decoder: N decoders use N cores."""
