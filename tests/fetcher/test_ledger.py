from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import BadInputError
from common.messages import Quarantined
from services.fetcher.ledger import LEDGER_FILE, Ledger
from services.fetcher.plan import Footer, RowGroup, SourceFile, Span

FILES = [SourceFile("b", 2), SourceFile("a", 1)]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / LEDGER_FILE)
    yield opened
    opened.close()


def test_an_inventory_stays_as_it_was_frozen(ledger: Ledger, tmp_path: Path) -> None:
    assert ledger.inventory(["x", "y"]) == []
    ledger.freeze(["x", "y"], FILES)
    assert ledger.inventory(["x", "y"]) == FILES
    again = Ledger(tmp_path / LEDGER_FILE)
    assert again.inventory(["x", "y"]) == FILES
    assert again.inventory(["y", "x"]) == []
    again.close()


def test_other_inputs_have_an_inventory_of_their_own(ledger: Ledger) -> None:
    ledger.freeze(["x"], FILES)
    ledger.quarantine(Quarantined(0, -1, 3, "bad"))
    ledger.keep_footer(1, Footer(()))
    ledger.freeze(["y"], FILES[:1])
    assert ledger.num_bad_files() == 0
    assert ledger.footer(1) is None
    assert ledger.inventory(["x"]) == FILES
    assert ledger.num_bad_files() == 1
    assert ledger.footer(1) == Footer(())


def test_a_footer_is_kept_with_its_spans(ledger: Ledger) -> None:
    footer = Footer((RowGroup(5, 9), RowGroup(7, 80, (Span(0, 3, 40), Span(3, 4, 40)))))
    assert ledger.footer(3) is None
    ledger.keep_footer(3, footer)
    ledger.keep_footer(3, footer)
    assert ledger.footer(3) == footer


def test_bad_files_are_counted_once_and_the_first_reason_stays(ledger: Ledger) -> None:
    ledger.quarantine(Quarantined(4, 1, 10, "first"))
    ledger.quarantine(Quarantined(4, 2, 10, "another row group"))
    ledger.quarantine(Quarantined(5, -1, 7, "whole"))
    ledger.quarantine(Quarantined(5, -1, 0, "told again"))
    assert ledger.num_bad_files() == 2
    assert ledger.whole_file(4) is None
    assert ledger.whole_file(5) == Quarantined(5, -1, 7, "whole")


def test_what_is_cached_is_known_to_the_next_fetcher(ledger: Ledger, tmp_path: Path) -> None:
    ledger.note_cached(Path("/c/1"))
    ledger.note_cached(Path("/c/1"))
    ledger.note_cached(Path("/c/2"))
    ledger.forget_cached(Path("/c/2"))
    again = Ledger(tmp_path / LEDGER_FILE)
    assert again.cached() == [Path("/c/1")]
    again.close()


def test_the_ledger_is_the_owners_only(ledger: Ledger, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / LEDGER_FILE).stat().st_mode) == 0o600


def test_a_file_that_is_no_ledger_is_named(tmp_path: Path) -> None:
    (tmp_path / LEDGER_FILE).write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(BadInputError, match=rf"{LEDGER_FILE}: not a ledger"):
        Ledger(tmp_path / LEDGER_FILE)


def test_a_footer_is_kept_for_the_settings_that_its_spans_were_cut_for(ledger: Ledger, tmp_path: Path) -> None:
    ledger.freeze(["x"], FILES)
    ledger.keep_footer(0, Footer((RowGroup(5, 9),)))
    other = Ledger(tmp_path / LEDGER_FILE, "other settings")
    assert other.inventory(["x"]) == FILES
    assert other.footer(0) is None
    other.close()
