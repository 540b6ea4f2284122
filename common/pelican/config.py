"""Settings of the Pelican client: time limits, sources, limits of speed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from common.config import ConfigBranch


class PelicanConfig(ConfigBranch):
    """Settings read by common/pelican. None of them changes the training data."""

    connect_timeout_s: float = Field(10.0, gt=0)
    """Maximum time for a server to accept a connection."""
    read_timeout_s: float = Field(30.0, gt=0)
    """Maximum silence of a server while it sends. The duration of a whole transfer is not limited."""
    list_timeout_s: float = Field(60.0, gt=0)
    """Maximum time for the listing of one directory, and for one answer of discovery or director."""
    list_tries: int = Field(3, ge=1)
    """Number of attempts at a listing."""
    list_concurrency: int = Field(8, ge=1)
    """Directories listed at a time."""
    sources_ttl_s: float = Field(300.0, ge=0)
    """Time for which the director's list of sources is reused for other files of the same directory."""
    checksums: Literal["inventory", "origin", "none"] = "inventory"
    """Checksums that transfers are checked with, besides their size. `inventory`: those in a list file. `origin`: where
    there is none, that of the origin (one more request for each file)."""
    bandwidth_mib_s: float = Field(0.0, ge=0)
    """Maximum MiB per second over all transfers. 0: no limit."""
    direct_reads: bool = False
    """Read from the origin instead of caches."""
