"""What is listed when, and what a failure means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.config import StreamConfig
from common.errors import BadInputError, IcestreamError, TransientError
from common.files.inputs import NothingFound
from common.plan import Blocks, SourceFile
from services.config.fetcher import FetcherConfig
from services.fetcher.inventory.inventory import Inventory
from services.fetcher.inventory.ledger import LEDGER_FILE, Ledger
from services.fetcher.inventory.lister import Lister
from services.fetcher.inventory.range_listing import RangeListing
from services.fetcher.inventory.ranges import InputRange, make_ranges

RANGES = make_ranges(["x/{range}"], "0:4:1")


class FakeLister:
    """Lists at once, what it was given."""

    def __init__(self) -> None:
        self.answers: dict[str, list[SourceFile] | IcestreamError] = {}
        self.begun: list[str] = []
        self._outcome: list[SourceFile] | IcestreamError | None = None
        self.busy = False

    def begin(self, one: InputRange) -> None:
        self.begun.append(one.name)
        self._outcome = self.answers.get(one.name, [SourceFile(f"/x/{one.name}/{i}", 1) for i in range(4)])
        self.busy = True

    def collect(self) -> list[SourceFile] | IcestreamError | None:
        outcome, self._outcome = self._outcome, None
        self.busy = self.busy and outcome is None
        return outcome


@pytest.fixture
def lister() -> FakeLister:
    return FakeLister()


Make = Callable[..., RangeListing]


@pytest.fixture
def make(tmp_path: Path, lister: FakeLister) -> Iterator[Make]:
    ledger = Ledger(tmp_path / LEDGER_FILE)

    def make_listing(ranges: list[InputRange] = RANGES, **config: object) -> RangeListing:
        blocks = Blocks.of_ranges(len(ranges), StreamConfig(block_files=2), 0, 1)
        inventory = Inventory(ledger, ranges, blocks)
        return RangeListing(inventory, ledger, lister, FetcherConfig(**config))  # type: ignore[arg-type]

    yield make_listing
    ledger.close()


def turns(listing: RangeListing, times: int = 10, *, block: int = 0, now_s: float = 0.0, wanted: int = 0) -> None:
    for _ in range(times):
        listing.turn(now_s, block, 1, wanted)


def test_one_range_beyond_the_one_in_training_is_listed(make: Make, lister: FakeLister) -> None:
    listing = make()
    turns(listing)
    assert len(lister.begun) == 2
    turns(listing, block=1)
    assert len(lister.begun) == 2, "still in the first"
    turns(listing, block=2)
    assert len(lister.begun) == 3
    turns(listing, block=9)
    assert len(lister.begun) == 5


def test_a_trainer_that_waits_for_its_ranges_has_them_listed(make: Make, lister: FakeLister) -> None:
    turns(make(), wanted=4)
    assert len(lister.begun) == 4


def test_empty_ranges_are_skipped_and_the_next_are_listed(make: Make, lister: FakeLister) -> None:
    for name in ("0000000-0000000", "0000002-0000002", "0000003-0000003"):
        lister.answers[name] = NothingFound("no file matches")
    listing = make()
    turns(listing, 20)
    assert lister.begun == [one.name for one in RANGES]
    assert listing.problem == ""


def test_a_missing_range_stops_the_run_where_that_is_wanted(make: Make, lister: FakeLister) -> None:
    lister.answers["0000001-0000001"] = NothingFound("x/1: no such directory")
    with pytest.raises(BadInputError, match="x/1: no such directory"):
        turns(make(missing_ranges="stop"))


def test_no_file_in_any_range_is_an_error(make: Make, lister: FakeLister) -> None:
    lister.answers = dict.fromkeys([one.name for one in RANGES], NothingFound("empty"))
    with pytest.raises(BadInputError, match="no range holds a file"):
        turns(make(), 20)


def test_an_input_without_ranges_that_is_not_there_is_an_error(make: Make, lister: FakeLister) -> None:
    lister.answers[""] = NothingFound("x: no such file")
    with pytest.raises(BadInputError, match="x: no such file"):
        turns(make([InputRange("", ("x",))]))


def test_the_first_failure_of_a_run_ends_it_at_once(make: Make, lister: FakeLister) -> None:
    lister.answers["0000000-0000000"] = TransientError("the federation is away")
    with pytest.raises(BadInputError, match="the federation is away"):
        turns(make())


def test_a_later_range_is_tried_again_with_growing_pauses_and_told(make: Make, lister: FakeLister) -> None:
    lister.answers["0000001-0000001"] = TransientError("away")
    listing = make()
    turns(listing)
    assert listing.problem == "range 0000001-0000001 can't be listed: away"
    assert len(lister.begun) == 2
    turns(listing, now_s=5.1)
    assert len(lister.begun) == 3
    turns(listing, now_s=10.1)
    assert len(lister.begun) == 3, "the pause has doubled"
    turns(listing, now_s=15.2)
    assert len(lister.begun) == 4
    del lister.answers["0000001-0000001"]
    turns(listing, now_s=1000.0)
    assert listing.problem == ""


def test_tries_may_be_limited(make: Make, lister: FakeLister) -> None:
    lister.answers["0000001-0000001"] = TransientError("away")
    listing = make(max_retries=2)
    turns(listing)
    turns(listing, now_s=400)
    with pytest.raises(BadInputError, match=r"3 times \(fetcher\.max_retries = 2\): away; the same command resumes"):
        turns(listing, now_s=800)


def test_a_lister_lists_in_its_thread_and_tells_errors() -> None:
    import select

    def expand(one: InputRange) -> list[SourceFile]:
        if one.inputs == ("bad",):
            raise TransientError("away")
        return [SourceFile("a", 1)]

    lister = Lister(expand)
    try:
        for inputs, expected in ((("good",), list), (("bad",), TransientError)):
            lister.begin(InputRange("r", inputs))
            assert lister.busy
            assert select.select([lister.wake_fd], [], [], 20)[0]
            assert isinstance(lister.collect(), expected)
            assert not lister.busy
        assert lister.collect() is None
    finally:
        lister.close()
