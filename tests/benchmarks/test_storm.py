"""The storm of signals, in small: what it chooses, what it takes for the storm's own doing, and one short run."""

from __future__ import annotations

from pathlib import Path

import pytest
from faulty_services import HASTE, LOSE_PATIENCE_VARIABLE

from benchmarks import storm
from benchmarks.storm_strikes import STALL_TIMEOUT_S


@pytest.mark.process
@pytest.mark.slow
def test_a_few_signals_at_a_run_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only who is suspended is silent for three seconds; a busy machine has two minutes.
    (tmp_path / "lost-patience").touch()
    monkeypatch.setenv(LOSE_PATIENCE_VARIABLE, str(tmp_path / "lost-patience"))
    monkeypatch.setattr(storm, "STALL_TIMEOUT_S", HASTE * STALL_TIMEOUT_S)
    figures = storm.run_storm(tmp_path, seed=1, signals=8, conditions=["files behind a web server"], epochs=2)
    assert figures["signals"] >= 8
