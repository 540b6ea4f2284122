"""Settings of the fetcher: staging, the disk budget, bad files, hung decoders."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from common.config import ConfigBranch

GIB = 1 << 30


class FetcherConfig(ConfigBranch):
    """Read by services/fetcher."""

    cache_dir: Path | None = None
    """Where remote files are staged. Default: `cache/` in the run directory. Local files are used in place."""
    disk_budget_gib: float = Field(20.0, gt=0)
    """Most disk space of staged remote files."""
    blocks_ahead: int = Field(2, ge=1)
    """Blocks staged beyond the one that is being dealt out."""
    transfers: int = Field(4, ge=1)
    """Files fetched, or inspected, at a time."""
    max_bad_files: int | float = 10
    """Failure budget: the run stops once more files are bad. A whole number counts files; one below 1 is a fraction
    of the inventory."""
    strict: bool = False
    """Stop at the first bad file, row group or unit."""
    stall_timeout_s: float = Field(120.0, gt=0)
    """A decoder that holds a unit and makes no progress for this long is fenced (killed)."""
    max_unit_deaths: int = Field(3, ge=1)
    """A unit that killed this many decoders is quarantined."""

    metrics_port: int = Field(0, ge=0, lt=65536)
    """Port on 127.0.0.1 that tells Prometheus what the run does. 0: none."""

    @property
    def disk_budget_bytes(self) -> int:
        """Most disk space of staged remote files, in bytes."""
        return int(self.disk_budget_gib * GIB)

    @field_validator("max_bad_files")
    @classmethod
    def _count_or_fraction(cls, value: float) -> float:
        if value < 0 or (value >= 1 and value != int(value)):
            raise ValueError("a count (0, 1, 2, …) or a fraction below 1")
        return value

    def bad_files_allowed(self, num_files: int) -> int:
        """How many files of an inventory may be bad before the run stops."""
        if self.strict:
            return 0
        return int(self.max_bad_files * num_files if 0 < self.max_bad_files < 1 else self.max_bad_files)
