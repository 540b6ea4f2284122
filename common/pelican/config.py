"""Settings of the Pelican client: time limits, sources, limits of speed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from common.config import ConfigBranch


class PelicanConfig(ConfigBranch):
    """Read by common/pelican. Nothing here changes what is trained."""

    connect_timeout_s: float = Field(10.0, gt=0)
    """How long a server may take to accept a connection."""
    read_timeout_s: float = Field(30.0, gt=0)
    """How long a server may be silent while it sends. A transfer as a whole may take as long as it needs."""
    list_timeout_s: float = Field(60.0, gt=0)
    """How long one directory's listing may take, and one answer of discovery or director."""
    list_tries: int = Field(3, ge=1)
    """Times that a listing is tried before it has failed."""
    list_concurrency: int = Field(8, ge=1)
    """Directories listed at a time."""
    sources_ttl_s: float = Field(300.0, ge=0)
    """How long the director's list of sources is used for other files of the same directory."""
    checksums: Literal["inventory", "origin", "none"] = "inventory"
    """What transfers are checked with besides their size. `inventory`: checksums in a list file. `origin`: where there
    is none, the origin is asked for its own (one request more for each file)."""
    bandwidth_mib_s: float = Field(0.0, ge=0)
    """Most MiB a second over all transfers. 0: no limit."""
    direct_reads: bool = False
    """Read from the origin instead of caches."""
