"""Settings of features and count head, common to all muon models."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from common.config import ConfigBranch


class MuonNetworkConfig(ConfigBranch):
    """Features and count head: a checkpoint fits only the network it was written with."""

    azimuth: Literal["symmetric", "learned"] = "symmetric"
    """``symmetric``: the radius is generated and the azimuth drawn uniformly. ``learned``: x and y are generated,
    for data where a magnetic field or the detector breaks the symmetry."""

    radius_offset_m: float = Field(0.1, gt=0)
    """r0 in lg(r + r0), in metres: smaller distances to the shower axis are not resolved. Used when
    ``azimuth`` is ``symmetric``."""

    count_hidden: int = Field(64, ge=1)
    """Width of both hidden layers of the count head."""

    count_components: int = Field(2, ge=1, le=16)
    """Number of negative binomials in the count head's mixture."""

    zero_truncated_counts: bool = False
    """Train the count head with p(N | N ≥ 1), for files without empty events (some converters leave them out): it then
    still generates empty events, at the rate that the other events imply."""
