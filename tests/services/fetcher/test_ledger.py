from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from common.errors import BadInputError
from common.messages import Quarantined
from common.plan import Footer, RowGroup, SourceFile, Span
from icestream.commands import services as command
from services.config.settings import InputRange
from services.fetcher.ledger import LEDGER_FILE, DamagedLedger, Ledger, damage_named, set_aside

FILES = [
    SourceFile("/x/b", 2),
    SourceFile("/x/a", 1),
    SourceFile("https://host/x,y/ü %41?q=1/2", 1031, "adler32=00000001"),
]
X, Y, EMPTY = InputRange("", ("x",)), InputRange("", ("y", "z")), InputRange("", ("empty",))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / LEDGER_FILE)
    yield opened
    opened.close()


def test_the_inventory_of_a_range_stays_as_it_was_frozen(ledger: Ledger, tmp_path: Path) -> None:
    assert ledger.use([X, Y]) == []
    frozen = ledger.freeze(X, FILES)
    assert ledger.frozen(X) == frozen
    assert ledger.frozen(InputRange("", ("x",), tmp_path / "done.json")) is None, "a list makes it another inventory"
    assert stat.S_IMODE((tmp_path / LEDGER_FILE).stat().st_mode) == 0o600
    assert (frozen.num_files, frozen.bytes, frozen.note) == (3, 1034, "")
    again = Ledger(tmp_path / LEDGER_FILE)
    assert again.use([X, Y]) == [frozen]
    assert [again.source(file) for file in range(3)] == FILES
    assert again.use([Y, X]) == [], "ranges are used from the first on"
    again.close()


def test_files_are_numbered_over_the_ranges_in_use(ledger: Ledger) -> None:
    ledger.use([X, EMPTY, Y])
    ledger.freeze(X, FILES)
    ledger.freeze(EMPTY, [], "nothing there")
    frozen = ledger.freeze(Y, FILES[:1])
    assert ledger.source(3) == FILES[0]
    ledger.quarantine(Quarantined(3, -1, 3, "bad"))
    ledger.keep_footer(3, Footer(()))
    assert ledger.footer(0) is None
    ledger.use([Y])
    assert (ledger.num_bad_files(), ledger.footer(0), ledger.source(0)) == (1, Footer(()), FILES[0])
    assert ledger.whole_file(0) == Quarantined(0, -1, 3, "bad")
    ledger.use([X])
    assert ledger.num_bad_files() == 0
    assert list(ledger.staged_bytes(frozen)) == [0], "a local file is used in place"


def test_a_failure_is_forgotten_once_the_range_is_listed(ledger: Ledger) -> None:
    ledger.use([X])
    ledger.note_failure(X, 1, "away")
    ledger.note_failure(X, 2, "still away")
    assert ledger.failure(X) == (2, "still away")
    ledger.freeze(X, FILES)
    assert ledger.failure(X) is None


def test_a_footer_is_kept_with_its_spans_for_its_settings(ledger: Ledger, tmp_path: Path) -> None:
    footer = Footer((RowGroup(5, 9), RowGroup(7, 80, (Span(0, 3, 40), Span(3, 4, 40)))))
    ledger.use([X])
    frozen = ledger.freeze(X, FILES)
    assert ledger.footer(2) is None
    ledger.keep_footer(2, footer)
    ledger.keep_footer(2, footer)
    assert ledger.footer(2) == footer
    other = Ledger(tmp_path / LEDGER_FILE, "other settings")
    assert other.use([X]) == [frozen]
    assert other.footer(2) is None
    other.close()


def test_bad_files_are_counted_once_and_the_first_reason_stays(ledger: Ledger) -> None:
    ledger.use([X])
    ledger.freeze(X, FILES)
    ledger.quarantine(Quarantined(1, 1, 10, "first"))
    ledger.quarantine(Quarantined(1, 2, 10, "another row group"))
    ledger.quarantine(Quarantined(2, -1, 7, "whole"))
    ledger.quarantine(Quarantined(2, -1, 0, "told again"))
    assert ledger.num_bad_files() == 2
    assert ledger.whole_file(1) is None
    assert ledger.whole_file(2) == Quarantined(2, -1, 7, "whole")


def damaged_ledger(folder: Path, num_files: int = 2000) -> Path:
    """A ledger that opens, and has pages of zeros where most of its files should be."""
    path = folder / LEDGER_FILE
    made = Ledger(path)
    made.use([X])
    made.freeze(X, [SourceFile(f"/data/{i:06d}.parquet", i) for i in range(num_files)])
    made.close()
    raw = bytearray(path.read_bytes())
    raw[12 * 4096 : -4096] = bytes(len(raw) - 13 * 4096)
    path.write_bytes(raw)
    return path


def test_a_damaged_page_is_found_set_aside_and_leaves_room_for_a_new_ledger(tmp_path: Path) -> None:
    path = damaged_ledger(tmp_path)
    ledger = Ledger(path)
    ledger.use([X])
    with pytest.raises(DamagedLedger, match=f"{LEDGER_FILE}: not a ledger, or damaged"), damage_named(path):
        [ledger.source(file) for file in range(2000)]
    ledger.close()
    path.with_name(f"{LEDGER_FILE}-wal").write_bytes(b"the old one's")
    damaged = path.read_bytes()
    assert set_aside(path).read_bytes() == damaged
    again = Ledger(path)
    assert again.use([X]) == []
    again.close()


def test_a_file_or_footer_that_is_not_what_was_written_is_damage(ledger: Ledger, tmp_path: Path) -> None:
    ledger.use([X])
    ledger.freeze(X, FILES)
    ledger.keep_footer(0, Footer(()))
    ledger.close()
    with sqlite3.connect(tmp_path / LEDGER_FILE) as db:
        db.execute("UPDATE footers SET footer = x'c1'")
        db.execute("DELETE FROM files WHERE file = 1")
    db.close()
    again = Ledger(tmp_path / LEDGER_FILE)
    again.use([X])
    with pytest.raises(DamagedLedger, match="the footer of file 0"):
        again.footer(0)
    with pytest.raises(DamagedLedger, match="file 1 is missing"):
        again.source(1)
    again.close()


@pytest.mark.parametrize("name", ["SQLITE_FULL", "SQLITE_IOERR_READ", "SQLITE_BUSY", "SQLITE_CANTOPEN"])
def test_what_the_machine_says_is_no_damage(tmp_path: Path, name: str) -> None:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorname = name
    with pytest.raises(sqlite3.OperationalError, match="is full"), damage_named(tmp_path / LEDGER_FILE):
        raise error


def test_the_fetcher_begins_anew_with_a_new_ledger_when_its_own_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[bool] = []

    class FakeService:
        def __init__(self, run_dir: Path, config: object, shared: object) -> None:
            self.ledger = Ledger(run_dir / LEDGER_FILE)

        def run(self, stop: object) -> None:
            served.append(self.ledger.use([X]) == [])
            for file in range(0 if served[-1] else 2000):
                self.ledger.source(file)

        def close(self) -> None:
            self.ledger.close()

    damaged_ledger(tmp_path)
    monkeypatch.setattr("services.fetcher.service.FetcherService", FakeService)
    monkeypatch.setattr(command, "start_logging", lambda name: None)
    monkeypatch.setattr(command, "end_with_parent", lambda number: None)
    result = CliRunner().invoke(command.fetcher, ["--run-dir", str(tmp_path), "-i", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert served == [False, True]
    assert (tmp_path / f"{LEDGER_FILE}.damaged").exists()


def test_the_ledger_of_another_version_is_named(tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / LEDGER_FILE)
    old.execute("CREATE TABLE files (inventory INTEGER)")
    old.close()
    with pytest.raises(BadInputError, match="written by another version"):
        Ledger(tmp_path / LEDGER_FILE)
