"""What the networks of all muon models are told about features and counts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from common.config import ConfigBranch


class MuonNetworkConfig(ConfigBranch):
    """Features and count head: a checkpoint fits only the network it was written with."""

    azimuth: Literal["symmetric", "learned"] = "symmetric"
    """``symmetric``: the radius is generated and the azimuth drawn flat. ``learned``: x and y are generated,
    for data where a magnetic field or the detector breaks the symmetry."""

    radius_offset_m: float = Field(0.1, gt=0)
    """r0 in lg(r + r0), in metres: below it, distances to the shower axis are not told apart. Used when
    ``azimuth`` is ``symmetric``."""

    count_hidden: int = Field(64, ge=1)
    """Width of both hidden layers of the count head."""

    count_components: int = Field(2, ge=1, le=16)
    """Negative binomials mixed in the count head."""

    zero_truncated_counts: bool = False
    """For files without empty events (some converters leave them out): the count head learns from p(N | N ≥ 1), and so
    still generates empty events as often as the others say."""
