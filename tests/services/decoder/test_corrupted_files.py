"""Hundreds of damaged files through footer, plan and decoder: the right events or a named reason, and never a crash.

The files carry the checksums that their formats know: of pages (Parquet), of chunks (HDF5).
"""

from __future__ import annotations

import random
from pathlib import Path

import damage
import pytest

from common.process import in_a_copy

FILES_OF_A_KIND = 60
FILES_OF_A_COPY = 12
"""Of so many files a crash is told at once: a copy of this process, with all that tests import, takes a while."""


def outcomes(paths: list[Path]) -> list[damage.Outcome]:
    """What becomes of files, in a copy of this process that may crash."""

    def read() -> list[damage.Outcome]:
        return [damage.outcome(path, path.parent) for path in paths]

    return in_a_copy(read, list[damage.Outcome], f"{paths[0]} to {paths[-1].name}")


@pytest.mark.process
@pytest.mark.parametrize("kind", [*damage.PARQUET, *damage.HDF5])
def test_a_damaged_file_gives_its_right_events_or_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    good = damage.write_good(tmp_path / "good", kind)
    (sound,) = outcomes([tmp_path / "good"])
    assert (sound.reasons, sound.wrong, len(sound.rows)) == ([], "", damage.NUM_EVENTS)
    num_refused = num_damaged = 0
    paths = [tmp_path / f"seed {seed}" for seed in range(FILES_OF_A_KIND)]
    for seed, path in enumerate(paths):
        path.write_bytes(damage.damaged(good, random.Random(f"{kind} {seed}")))
        num_damaged += path.read_bytes() != good
    for first in range(0, FILES_OF_A_KIND, FILES_OF_A_COPY):
        some = paths[first : first + FILES_OF_A_COPY]
        for path, found in zip(some, outcomes(some), strict=True):
            assert found.wrong == "", f"{kind}, {path.name}: {found.wrong}, {found.reasons}"
            assert all(reason.startswith(f"{path}: ") and "\n" not in reason for reason in found.reasons)
            num_refused += bool(found.reasons)
    assert num_refused > num_damaged / 2
