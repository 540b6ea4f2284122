"""Ranges: parts of the inventory that are listed, and trained, one after the other. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import BadInputError
from services.config.fetcher import range_names

PLACEHOLDER = "{range}"


@dataclass(frozen=True)
class InputRange:
    """Range: its name, and the inputs that are listed for it."""

    name: str
    inputs: tuple[str, ...]
    done: Path | None = None
    """List of files that are left out."""


def range_key(one: InputRange) -> str:
    """Text that names the inputs of a range: the same for two ranges with the same inventory."""
    done = [] if one.done is None else [{"done": str(one.done)}]  # with another list, the inventory is another one
    return json.dumps([*one.inputs, *done])


def make_ranges(inputs: Sequence[str], ranges: str, done: Path | None = None) -> list[InputRange]:
    """Ranges of a run: one for each step of `FIRST:LAST:STEP`; without it one range with the inputs as they are.

    `0:2000:1000` gives `0000000-0000999`, `0001000-0001999` and `0002000-0002999` for `{range}`.
    Raises BadInputError if inputs and ranges don't fit together.
    """
    if not ranges:
        for text in inputs:
            if PLACEHOLDER in text:
                raise BadInputError(f"{text}: {PLACEHOLDER} needs --ranges FIRST:LAST:STEP, for example 0:99000:1000")
        return [InputRange("", tuple(inputs), done)]
    for text in inputs:
        if PLACEHOLDER not in text:
            raise BadInputError(
                f"{text}: with --ranges each input is a template with {PLACEHOLDER} in it, for example"
                f" pelican://osg-htc.org/icecube/…/{PLACEHOLDER}/*.parquet"
            )
    return [
        InputRange(name, tuple(text.replace(PLACEHOLDER, name) for text in inputs), done)
        for name in range_names(ranges)
    ]


class Backoff:
    """Pauses between tries: they double from ``min_s`` to ``max_s``."""

    def __init__(self, min_s: float, max_s: float) -> None:
        self.tries = 0
        self._min_s, self._max_s = min_s, max_s

    def failed(self, jitter: float) -> float:
        """Seconds until the next try; ``jitter`` (0 to 1) spreads the tries of many runs over its last quarter."""
        pause_s = min(self._min_s * 2.0 ** min(self.tries, 60), self._max_s)
        self.tries += 1
        return pause_s * (1 - 0.25 * jitter)

    def worked(self) -> None:
        """Reset: the next failure counts as the first."""
        self.tries = 0
