"""Random schedules of real processes on one cache directory: see cache_chaos.py.

`ICESTREAM_SEEDS=100 pytest tests/services/fetcher/test_cache_chaos.py` tries more of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SEEDS = min(int(os.environ.get("ICESTREAM_SEEDS", "2")), 10_000)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_runs_that_share_a_cache_and_are_killed_see_no_wrong_byte_fetch_nothing_twice_and_leave_nothing(
    seed: int, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("cache_chaos.py")), str(seed), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    told = json.loads(done.stdout)
    assert told["kills"] > 5
    assert told["fetches"] > 5
