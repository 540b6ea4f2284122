"""The failure budget."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from common.config import StreamConfig
from common.errors import BadInputError
from common.messages import InvalidEvents, Quarantined
from common.plan import Blocks, SourceFile
from services.config.settings import FetcherConfig, make_ranges
from services.fetcher.inventory import Inventory
from services.fetcher.ledger import LEDGER_FILE, Ledger
from services.fetcher.planner import FailureBudget


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / LEDGER_FILE)
    yield opened
    opened.close()


def budget(ledger: Ledger, names: str, *, strict: bool = False) -> FailureBudget:
    inventory = Inventory(ledger, make_ranges(["x"], ""), Blocks.of_ranges(1, StreamConfig(), 0, 1))
    inventory.freeze([SourceFile(f"/x/{name}", 1) for name in names], "")
    return FailureBudget(ledger, inventory, FetcherConfig(strict=strict))


def test_without_a_usable_file_the_reason_of_most_is_named_and_not_the_one_found_last(ledger: Ledger) -> None:
    bad = budget(ledger, "abcd")
    bad.quarantine(Quarantined(2, -1, 0, "/x/c: column 'muons' is missing"))
    bad.quarantine(Quarantined(1, 4, 0, "/x/b: a bad row group"))  # later the whole file
    bad.quarantine(Quarantined(0, -1, 0, "/x/a: column 'muons' is missing"))
    bad.quarantine(Quarantined(1, -1, 0, "/x/b: column 'muons' is missing"))
    with pytest.raises(BadInputError) as caught:
        bad.quarantine(Quarantined(3, -1, 0, "/x/d: the file is empty"))
    words = "no file is usable: /x/a: column 'muons' is missing (3 of the 4 files for this reason)"
    assert str(caught.value) == words


def test_invalid_events_count_against_no_limit_and_each_rule_is_logged_once(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    tolerant = budget(ledger, "a")
    for row in range(3):
        tolerant.set_aside([InvalidEvents("no NaN", 2, (f"row {row}",)), InvalidEvents("no null", 1)])
    assert [record.getMessage() for record in caplog.records] == [
        "invalid, set aside alone: 2 events: no NaN; e.g. row 0; further ones are only counted",
        "invalid, set aside alone: 1 event: no null; further ones are only counted",
    ]
    assert ledger.num_bad_files() == 0


def test_a_strict_run_ends_at_its_first_invalid_event(ledger: Ledger) -> None:
    strict = budget(ledger, "a", strict=True)
    strict.set_aside([])
    with pytest.raises(
        BadInputError, match=r"^2 events: no NaN; e\.g\. row 1 \(fetcher\.strict stops at the first bad"
    ):
        strict.set_aside([InvalidEvents("no NaN", 2, ("row 1",))])
