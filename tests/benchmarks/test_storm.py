"""The storm of signals, in small: what it chooses, what it takes for the storm's own doing, and one short run."""

from __future__ import annotations

from pathlib import Path

import pytest
from faulty_services import HASTE, LOSE_PATIENCE_VARIABLE

from benchmarks import storm
from benchmarks.storm_strikes import STALL_TIMEOUT_S, Record
from benchmarks.storm_verdict import Processes, silence_s, told

DECODER, FETCHER = 7, 8


def run_with_log(folder: Path, log: str) -> Processes:
    (folder / "logs").mkdir()
    (folder / "logs" / "fetcher.log").write_text(log)
    return Processes(folder, folder)


def test_a_process_is_silent_while_it_is_suspended_and_the_fetcher_is_not() -> None:
    record = Record(fetchers={FETCHER}, stops={DECODER: [[0, 2], [2.1, 6], [10, 11]], FETCHER: [[1, 2], [1.5, 3]]})
    assert silence_s(record, DECODER) == pytest.approx(4)
    assert silence_s(record, FETCHER) == 0
    assert silence_s(record, 9) == 0


def test_a_decoder_that_is_fenced_or_blamed_although_nobody_struck_it_is_named(tmp_path: Path) -> None:
    log = (
        f"decoder {DECODER}-ab hangs in lease 3: fencing it\nunit 4 failed 1 time(s): decoder {DECODER}-ab died\n"
        "unit 5 failed 1 time(s): decoder 9-cd died\n"
    )
    processes = run_with_log(tmp_path, log)
    assert told(processes, Record()) == [
        f"decoder {DECODER} was fenced, silent by our doing for 0.0 s",
        "blamed: unit 5 failed 1 time(s): decoder 9-cd died",
    ]
    assert told(processes, Record(killed={9}, stops={DECODER: [[0.0, 4.0]]})) == []


@pytest.mark.process
@pytest.mark.slow
def test_a_few_signals_at_a_run_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only who is suspended is silent for three seconds; a busy machine has two minutes.
    (tmp_path / "lost-patience").touch()
    monkeypatch.setenv(LOSE_PATIENCE_VARIABLE, str(tmp_path / "lost-patience"))
    monkeypatch.setattr(storm, "STALL_TIMEOUT_S", HASTE * STALL_TIMEOUT_S)
    figures = storm.run_storm(tmp_path, seed=1, signals=20, conditions=["files behind a web server"], epochs=2)
    assert figures["signals"] >= 20
