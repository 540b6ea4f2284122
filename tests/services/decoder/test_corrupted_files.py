"""Hundreds of damaged files through footer, plan and decoder: the right events or a named reason, and never a crash.

The files carry the checksums that their formats know: of pages (Parquet), of chunks (HDF5).
"""

from __future__ import annotations

import random
from pathlib import Path

import damage
import pytest

from common.errors import BadInputError
from common.process import in_a_copy

FILES_OF_A_KIND = 60


def outcome(path: Path) -> damage.Outcome:
    """What becomes of a file, in a copy of this process that may crash."""
    try:
        return in_a_copy(lambda: damage.outcome(path, path.parent), damage.Outcome, str(path))
    except BadInputError as error:
        return damage.Outcome(wrong=str(error))


@pytest.mark.process
@pytest.mark.parametrize("kind", [*damage.PARQUET, *damage.HDF5])
def test_a_damaged_file_gives_its_right_events_or_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    good = damage.write_good(path, kind)
    sound = outcome(path)
    assert (sound.reasons, sound.wrong, len(sound.rows)) == ([], "", damage.NUM_EVENTS)
    num_refused = num_damaged = 0
    for seed in range(FILES_OF_A_KIND):
        raw = damage.damaged(good, random.Random(f"{kind} {seed}"))
        path.write_bytes(raw)
        found = outcome(path)
        assert found.wrong == "", f"{kind}, seed {seed}: {found.wrong}, {found.reasons}"
        assert all(reason.startswith(f"{path}: ") and "\n" not in reason for reason in found.reasons)
        num_refused += bool(found.reasons)
        num_damaged += raw != good
    assert num_refused > num_damaged / 2
