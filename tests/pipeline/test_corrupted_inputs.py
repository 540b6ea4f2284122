"""A directory of good and damaged files of both kinds: every good event is trained once, every bad file is named."""

from __future__ import annotations

import random
from pathlib import Path

import damage
import pytest
from runs import COUNTING, Processes, settings

KINDS = ("zstd", "snappy_dictionary", "gzip", "lzf_latest")
DAMAGED_OF_A_KIND = 5


def write_files(folder: Path) -> None:
    """A good file and some damaged ones of every kind."""
    for kind in KINDS:
        suffix = "parquet" if kind in damage.PARQUET else "h5"
        good = damage.write_good(folder / f"{kind}.{suffix}", kind)
        for number in range(DAMAGED_OF_A_KIND):
            rng = random.Random(f"{kind} {number}")
            raw = bytearray(good)
            if number == 0:
                del raw[len(raw) // 2 :]
            elif number == 1:
                raw[:16] = bytes(16)
            else:  # in the middle of the data
                start = rng.randrange(len(raw) // 3, len(raw) // 2)
                raw[start : start + 64] = rng.randbytes(64)
            (folder / f"{kind}-{number}.{suffix}").write_bytes(raw)


@pytest.mark.slow
def test_a_run_over_damaged_files_trains_what_is_good_and_names_what_is_not(
    processes: Processes, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    write_files(folder)
    # Each event that comes out of a file alone is compared with its original.
    alone = {path: damage.outcome(path, tmp_path) for path in sorted(folder.iterdir())}
    assert not any(outcome.wrong for outcome in alone.values())
    bad = [path for path, outcome in alone.items() if outcome.reasons]
    assert len(bad) >= len(KINDS) * DAMAGED_OF_A_KIND - 2  # HDF5 has bytes between its chunks that nobody reads

    summary = processes.train("-i", str(folder), *settings(*COUNTING, f"fetcher.max_bad_files={len(bad)}"))

    summary.assert_read(sum(outcome.read for outcome in alone.values()))
    assert processes.fetcher.files_bad == len(bad)
    told = [line for line in processes.log("fetcher").splitlines() if "quarantined: " in line]
    named = {path for path in alone if any(f" {path}: " in line for line in told)}
    assert named == set(bad)
    # The sound row groups of a damaged file are trained, too.
    assert summary["events_trained"] == sum(len(outcome.rows) for outcome in alone.values())
    assert summary["particles_trained"] == sum(outcome.particles for outcome in alone.values())
    for line in summary["quarantined"]:
        assert any(line.startswith(f"{path}: ") for path in bad)
