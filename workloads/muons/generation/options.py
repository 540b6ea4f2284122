"""Options of `icestream generate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """The values of the command's options, under the names that click gives them."""

    checkpoint: Path
    inputs: tuple[str, ...]
    out: Path
    preset_name: str | None
    events: int | None
    counts: str
    counts_column: str
    max_count: int | None
    depth_kind: str | None
    seed: int
    device: str
    threads: int | None
    rows_per_file: int
    force: bool
    toml: Path | None
    assignments: tuple[str, ...]
