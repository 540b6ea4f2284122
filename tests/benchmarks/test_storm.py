"""The storm of signals, in small: what it chooses, what it takes for the storm's own doing, and one short run."""

from __future__ import annotations

import signal
import sys
from itertools import islice
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from faulty_services import HASTE, LOSE_PATIENCE_VARIABLE

from benchmarks import storm
from benchmarks.storm_strikes import STALL_TIMEOUT_S, STRIKES, VERBS, Record, Victim, forecast
from benchmarks.storm_verdict import Outcome, Processes, silence_s, told, tracebacks

DECODER, FETCHER = 7, 8


def run_with_log(folder: Path, log: str) -> Processes:
    (folder / "logs").mkdir()
    (folder / "logs" / "fetcher.log").write_text(log)
    return Processes(folder, folder)


def test_the_same_seed_makes_the_same_choices_and_another_one_others() -> None:
    assert list(islice(forecast(1), 100)) == list(islice(forecast(1), 100)) != list(islice(forecast(2), 100))


def test_every_kind_of_strike_at_one_process_meets_each_of_them() -> None:
    kinds = [kind for kind in STRIKES if "all" not in kind]
    chosen = {(strike.kind, strike.verb) for strike in islice(forecast(1), 5_000)}
    assert chosen >= {(kind, verb) for kind in kinds for verb in VERBS}


def test_a_process_is_silent_while_it_is_suspended_and_the_fetcher_is_not() -> None:
    record = Record(fetchers={FETCHER}, stops={DECODER: [[0, 2], [2.1, 6], [10, 11]], FETCHER: [[1, 2], [1.5, 3]]})
    assert silence_s(record, DECODER) == pytest.approx(4)
    assert silence_s(record, FETCHER) == 0
    assert silence_s(record, 9) == 0


def test_a_process_that_was_suspended_twice_goes_on_with_one_signal() -> None:
    record, decoder = Record(), Victim(DECODER, "decoder", -1)
    for second, number in enumerate([signal.SIGSTOP, signal.SIGSTOP, signal.SIGCONT, signal.SIGCONT]):
        record.note(decoder, number, second)
    assert silence_s(record, DECODER) == 2
    assert record.sent == 4


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


def test_a_traceback_in_a_log_is_named_by_its_last_line(tmp_path: Path) -> None:
    log = 'before\nTraceback (most recent call last):\n  File "x", line 1\n    boom()\nValueError: boom\nafter\n'
    assert tracebacks(log * 2) == ["ValueError: boom"] * 2
    assert told(run_with_log(tmp_path, log), Record()) == ["fetcher.log: ValueError: boom"]


def test_a_run_that_trained_one_byte_else_differs() -> None:
    one = Outcome({"audit.jsonl": b"a"}, {}, {"trained": 1}, 2, {})
    assert one.differences(Outcome({"audit.jsonl": b"b"}, {}, {"trained": 1}, 3, {})) == ["other audits", "other steps"]


@pytest.mark.process
@pytest.mark.slow
def test_a_few_signals_at_a_run_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only who is suspended is silent for three seconds; a busy machine has two minutes.
    (tmp_path / "lost-patience").touch()
    monkeypatch.setenv(LOSE_PATIENCE_VARIABLE, str(tmp_path / "lost-patience"))
    monkeypatch.setattr(storm, "COMMON", (*storm.COMMON, f"fetcher.stall_timeout_s={HASTE * STALL_TIMEOUT_S:g}"))
    figures = storm.run_storm(tmp_path, seed=1, signals=20, conditions=["files behind a web server"], epochs=2)
    assert figures["signals"] >= 20
