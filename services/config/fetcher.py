"""Settings of the fetcher: staging, the disk budget, bad files, hung decoders."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, PrivateAttr, field_validator

from common.config import ConfigBranch
from common.messages import MAX_BAD_FILES

GIB = 1 << 30
_MAX_RANGES = 100_000


class FetcherConfig(ConfigBranch):
    """Settings read by services/fetcher."""

    ranges: str = ""
    """Ranges `FIRST:LAST:STEP` that are listed and trained one after the other. `0:99000:1000` replaces `{range}` in
    each input by `0000000-0000999` to `0099000-0099999`. Empty: the inputs as they are."""
    done: Path | None = None
    """List of files that an earlier training has processed, which are left out: JSON with their names under
    `processed_files` (docs/how-to/migrate.md). Read when a range is listed, and part of the plan."""
    cache_dir: Path | None = None
    """Directory for staged remote files. Default: `cache/` in the run directory. Local files are used in place. Runs of
    one user on one node may share a directory: a file that two of them need is fetched once, and counts in the budget
    of each. It needs hard links and locks: a local disk."""
    disk_budget_gib: float = Field(20.0, gt=0)
    """Most disk space of staged remote files. Those behind the checkpoint are kept for the next epoch if they fit."""
    blocks_ahead: int = Field(2, ge=1)
    """Blocks staged beyond the one being delivered."""
    transfers: int = Field(8, ge=1)
    """Most files fetched, or inspected, at a time. From a federation, the number with the highest rate is used."""
    max_bad_files: int | float = 10
    """Failure budget: the run stops once more files are bad. A whole number counts files; one below 1 is a fraction
    of the inventory. Never more than 100,000: a trainer lists all of them when it attaches."""
    missing_ranges: Literal["skip", "stop"] = "skip"
    """Action for a range that does not exist, or holds no file."""
    max_retries: int = Field(0, ge=0)
    """Retries of a range that can't be listed before the run stops. 0: no limit."""
    retry_min_s: float = Field(5.0, gt=0)
    """Pause before the first of these retries; each pause is twice as long as the one before."""
    retry_max_s: float = Field(300.0, gt=0)
    """Longest pause between retries."""
    strict: bool = False
    """Stop at the first bad file, row group or unit."""
    stall_timeout_s: float = Field(120.0, gt=0)
    """Time without progress after which a decoder that holds a unit is fenced (killed)."""
    max_unit_deaths: int = Field(3, ge=1)
    """Number of killed decoders after which a unit is quarantined."""

    metrics_port: int = Field(0, ge=0, lt=65536)
    """Port for Prometheus metrics of the run. 0: none."""
    metrics_host: str = "127.0.0.1"
    """Address of this machine on which that port is open, without encryption or a password; 0.0.0.0: on all."""

    _sharing: int = PrivateAttr(1)

    def of_shard(self, on_machine: int) -> Self:
        """Settings of one of the shards that share this machine's disk and transfers."""
        share = {
            "disk_budget_gib": self.disk_budget_gib / on_machine,
            "transfers": max(1, self.transfers // on_machine),
        }
        of_shard = self.model_copy(update=share)
        of_shard._sharing = on_machine
        return of_shard

    @property
    def disk_budget(self) -> str:
        """The setting and its value, for errors about it."""
        text = f"fetcher.disk_budget_gib = {self.disk_budget_gib * self._sharing:g}"
        if self._sharing == 1:
            return text
        return f"{text}, of which each of the {self._sharing} shards here has {self.disk_budget_gib:.3g},"

    @property
    def disk_budget_bytes(self) -> int:
        """Most disk space of staged remote files, in bytes."""
        return int(self.disk_budget_gib * GIB)

    @field_validator("ranges")
    @classmethod
    def _range_names(cls, value: str) -> str:
        if value:
            range_names(value)
        return value

    @field_validator("max_bad_files")
    @classmethod
    def _count_or_fraction(cls, value: float) -> float:
        if value < 0 or (value >= 1 and value != int(value)):
            raise ValueError("a count (0, 1, 2, …) or a fraction below 1")
        return value

    def bad_files_allowed(self, num_files: int) -> int:
        """Number of files in an inventory that may be bad before the run stops."""
        if self.strict:
            return 0
        allowed = int(self.max_bad_files * num_files if 0 < self.max_bad_files < 1 else self.max_bad_files)
        return min(allowed, MAX_BAD_FILES)


def range_names(text: str) -> list[str]:
    """Names of the ranges `FIRST:LAST:STEP`, LAST included. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,7}):([0-9]{1,7}):([0-9]{1,7})", text)
    if match is None:
        raise ValueError("FIRST:LAST:STEP, for example 0:99000:1000 for 0000000-0000999 to 0099000-0099999")
    first, last, step = map(int, match.groups())
    if step < 1 or last < first:
        raise ValueError("FIRST:LAST:STEP with a STEP above 0, and LAST not below FIRST")
    starts = range(first, last + 1, step)
    if len(starts) > _MAX_RANGES:
        raise ValueError(f"at most {_MAX_RANGES:,} ranges, not {len(starts):,}")
    return [f"{start:07d}-{start + step - 1:07d}" for start in starts]
