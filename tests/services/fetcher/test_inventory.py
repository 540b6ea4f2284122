"""Ranges: what is listed when, what is left out, the inventory made of them, trainers that wait for it."""

from __future__ import annotations

import contextlib
import json
import logging
import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from muon_files import make_events, write_events

from common import messages as m
from common.config import StreamConfig
from common.errors import BadInputError, IcestreamError, TransientError
from common.files.inputs import NothingFound
from common.files.remotes import Remotes
from common.plan import Blocks, SourceFile
from services.config.root import Config
from services.config.settings import FetcherConfig, InputRange, make_ranges
from services.fetcher.inventory import Inventory, PendingTrainers, RangeListing, list_range, read_done, without_done
from services.fetcher.ledger import LEDGER_FILE, CommittedPlace, Ledger


def test_ranges_are_put_in_for_the_placeholder() -> None:
    assert make_ranges(["pelican://h/a/{range}/*.parquet", "/b/{range}"], "0:2000:1000") == [
        InputRange("0000000-0000999", ("pelican://h/a/0000000-0000999/*.parquet", "/b/0000000-0000999")),
        InputRange("0001000-0001999", ("pelican://h/a/0001000-0001999/*.parquet", "/b/0001000-0001999")),
        InputRange("0002000-0002999", ("pelican://h/a/0002000-0002999/*.parquet", "/b/0002000-0002999")),
    ]


@pytest.mark.parametrize(
    "text", ["1000", "0:5", "a:b:c", "5:0:1", "0:5:0", "0:9999999:1", "-1:5:1", "0:5:1:2", "0:5:٣"]
)
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"FIRST:LAST:STEP|at most"):
        FetcherConfig(ranges=text)


def test_a_template_without_ranges_and_ranges_without_a_template_are_refused() -> None:
    with pytest.raises(BadInputError, match=r"a/\{range\}: .* needs --ranges"):
        make_ranges(["a/{range}"], "")
    with pytest.raises(BadInputError, match=r"^b: .*template"):
        make_ranges(["a/{range}", "b"], "0:1:1")


STREAM = StreamConfig(block_files=3)
RANGES = make_ranges(["a/{range}"], "0:3:1")

Open = Callable[..., Inventory]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    ledgers = []

    def open_inventory(num_ranges: int = 4, epochs: int = 2, folder: str = "") -> Inventory:
        (tmp_path / folder).mkdir(exist_ok=True)
        ledgers.append(Ledger(tmp_path / folder / LEDGER_FILE))
        blocks = Blocks.of_ranges(num_ranges, STREAM, 1, epochs)
        return Inventory(ledgers[-1], RANGES[:num_ranges], blocks)

    yield open_inventory
    for ledger in ledgers:
        ledger.close()


def files(range_index: int, num_files: int) -> list[SourceFile]:
    return [SourceFile(f"https://host/{range_index}/{i}", 10 + i) for i in range(num_files)]


SIZES = (7, 0, 4, 5)


def fill(inventory: Inventory, num_ranges: int = 4) -> None:
    for index in range(inventory.num_known, num_ranges):
        inventory.freeze(files(index, SIZES[index]), "" if SIZES[index] else "empty")


def test_blocks_hold_files_of_one_range_only_and_all_of_them_once_an_epoch(opened: Open) -> None:
    inventory = opened()
    fill(inventory)
    blocks = inventory.blocks
    assert blocks.end == 2 * (3 + 0 + 2 + 2)
    for epoch in range(2):
        seen = []
        for block in range(epoch * 7, epoch * 7 + 7):
            assert blocks.epoch_of(block) == epoch
            names = {inventory.source(file).url.rsplit("/", 1)[0] for file in blocks.files(block)}
            assert names == {f"https://host/{blocks.range_of(block)}"}
            seen += blocks.files(block)
        assert sorted(seen) == list(range(16))
    assert [blocks.range_of(block) for block in range(7)] == [0, 0, 0, 2, 2, 3, 3]
    assert blocks.files(0) != blocks.files(7), "epochs are shuffled anew"


def test_what_is_known_does_not_change_when_the_next_range_comes(opened: Open) -> None:
    inventory = opened()
    blocks = inventory.blocks
    assert not blocks.is_known(0)
    fill(inventory, 1)
    before = [blocks.files(block) for block in range(3)]
    source = inventory.source_of(2)
    assert not blocks.is_known(3)
    assert blocks.end is None
    again = opened()  # a restart
    assert (again.num_known, again.num_files, again.next_range) == (1, 7, RANGES[1])
    assert list(again.staged_bytes) == list(inventory.staged_bytes)
    assert again.source_of(2) == source
    fill(inventory)
    assert [blocks.files(block) for block in range(3)] == before
    assert inventory.source_of(2) == source
    assert blocks.is_known(13)
    assert not blocks.is_known(14)


def test_more_ranges_may_follow_in_the_first_epoch_but_not_later(opened: Open) -> None:
    short = opened(num_ranges=3)
    fill(short, 3)
    in_first, in_second = short.source_of(4), short.source_of(5)
    assert short.has(in_first)
    assert short.has(in_second)
    longer = opened(num_ranges=4)
    assert longer.has(in_first), "the same data up to there"
    assert not longer.has(in_second), "its first epoch was shorter"


def test_another_file_in_a_range_is_another_inventory_from_there_on(opened: Open) -> None:
    inventory, other = opened(), opened(folder="other")
    fill(inventory)
    fill(other, 2)
    other.freeze(files(2, 5))
    assert other.has(inventory.source_of(2))
    assert not other.has(inventory.source_of(3))
    assert not other.knows(inventory.source_of(5))


@pytest.mark.parametrize(
    ("block", "place"), [(0, (0, 0)), (2, (0, 0)), (3, (0, 2)), (5, (0, 3)), (7, (1, 0)), (13, (1, 3)), (14, (1, 4))]
)
def test_the_place_is_told_in_ranges(opened: Open, block: int, place: tuple[int, int]) -> None:
    inventory = opened()
    fill(inventory)
    assert inventory.place_before(block) == CommittedPlace(*place)


def attach(source: m.Source) -> m.Attach:
    return m.Attach(0, 1, "ab" * 16, m.Cursor(), source=source)


def test_a_trainer_waits_with_all_that_it_says_until_its_ranges_are_known(opened: Open) -> None:
    known = opened(folder="known")
    fill(known)
    inventory = opened()
    claims = PendingTrainers(inventory)
    claim = attach(known.source_of(4))
    assert claims.pass_on("t", claim) == []
    assert claims.pass_on("t", m.Want(2)) == []
    assert claims.pass_on("decoder", m.Hello(1)) == [m.Hello(1)]
    assert claims.ranges_wanted == 3
    fill(inventory, 2)
    assert claims.settle() == ([], [])
    fill(inventory, 3)
    assert claims.settle() == ([("t", claim), ("t", m.Want(2))], [])
    assert claims.settle() == ([], [])
    assert claims.ranges_wanted == 0
    assert claims.pass_on("t", m.Want(1)) == [m.Want(1)]

    claims.pass_on("t", attach(m.Source(9, "ab")))
    for _ in range(5000):
        claims.pass_on("t", m.Want(1))
    assert len(claims._held["t"]) < 100, "one that talks without end takes little memory"
    claims.forget("t")  # it died
    assert claims.ranges_wanted == 0


def test_a_trainer_of_other_files_is_refused_and_may_begin_anew(opened: Open) -> None:
    known = opened(folder="known")
    known.freeze(files(9, 7))
    inventory = opened()
    claims = PendingTrainers(inventory)
    claims.pass_on("t", attach(known.source_of(0)))
    claims.pass_on("t", m.Want(2))
    fill(inventory, 1)
    assert claims.settle() == ([], ["t"])
    assert claims.pass_on("t", attach(m.Source())) == [attach(m.Source())]


def listing(path: Path, names: object) -> Path:
    path.write_text(json.dumps({"epoch": 0, "processed_files": names}))
    return path


def test_a_url_is_that_of_the_list_whatever_its_token_and_its_slashes(tmp_path: Path) -> None:
    files = [SourceFile(f"pelican://osg-htc.org/data/{i}.parquet", 1) for i in range(3)]
    old = ["pelican://osg-htc.org//data/0.parquet", "pelican://osg-htc.org/data/2.parquet", "pelican://osg-htc.org/x"]
    found = without_done(files, read_done(listing(tmp_path / "done.json", old)))
    assert (found.files, found.left_out, found.unknown) == ([files[1]], 2, ("pelican://osg-htc.org/x",))


def test_with_ranges_only_names_in_the_folder_of_a_range_are_said(tmp_path: Path) -> None:
    files = [SourceFile("pelican://h/0000000-0000999/a.parquet", 1)]
    names = read_done(listing(tmp_path / "done.json", [f"pelican://h/000{i}000-000{i}999/b.parquet" for i in range(3)]))
    assert without_done(files, names, "0000000-0000999").unknown == ("pelican://h/0000000-0000999/b.parquet",)


@pytest.mark.parametrize("content", ["", "[1]", '{"processed_files": [1]}', '{"processed": []}', "null", "[" * 100_000])
def test_a_list_of_another_form_is_refused_with_the_form_that_is_expected(tmp_path: Path, content: str) -> None:
    path = tmp_path / "done.json"
    path.write_text(content)
    with pytest.raises(BadInputError, match=r'--done .*done.json: .*expected \{"processed_files": \[names\]\}'):
        read_done(path)
    with pytest.raises(BadInputError, match=r"--done .*: No such file"):
        read_done(tmp_path / "none.json")


def test_a_fetcher_lists_what_is_left_and_logs_the_rest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for i in range(3):
        write_events(tmp_path / f"{i}.parquet", make_events([1]))
    done = listing(tmp_path / "training_checkpoint.json", ["0.parquet", str(tmp_path / "2.parquet"), "7.parquet"])
    with Remotes(Config().remote_access()) as remotes, caplog.at_level(logging.INFO):
        files = list_range(InputRange("", (str(tmp_path),), done), remotes)
        assert [file.url for file in files] == [str(tmp_path / "1.parquet")]
        assert "2 files left out" in caplog.text
        assert "7.parquet" in caplog.text
        listing(done, [f"{i}.parquet" for i in range(3)])
        with pytest.raises(BadInputError, match=r"all 3 files of the inputs are in .*: nothing is left to train on"):
            list_range(InputRange("", (str(tmp_path),), done), remotes)
        assert list_range(InputRange("range", (str(tmp_path),), done), remotes) == []


LISTED_RANGES = make_ranges(["x/{range}"], "0:4:1")


class FakeExpand:
    """Files or error of each range, 4 files where nothing is given."""

    def __init__(self) -> None:
        self.answers: dict[str, IcestreamError] = {}
        self.begun: list[str] = []

    def __call__(self, one: InputRange) -> list[SourceFile]:
        self.begun.append(one.name)
        if one.name in self.answers:
            raise self.answers[one.name]
        return [SourceFile(f"/x/{one.name}/{i}", 1) for i in range(4)]


@pytest.fixture
def lister() -> FakeExpand:
    return FakeExpand()


Make = Callable[..., RangeListing]


@pytest.fixture
def make(tmp_path: Path, lister: FakeExpand) -> Iterator[Make]:
    with contextlib.ExitStack() as stack:
        ledger = Ledger(tmp_path / LEDGER_FILE)
        stack.callback(ledger.close)

        def make_listing(ranges: list[InputRange] = LISTED_RANGES) -> RangeListing:
            blocks = Blocks.of_ranges(len(ranges), StreamConfig(block_files=2), 0, 1)
            listing = RangeListing(Inventory(ledger, ranges, blocks), ledger, lister)
            stack.callback(listing.close)
            return listing

        yield make_listing


def turns(listing: RangeListing, times: int = 10, *, block: int = 0, now_s: float = 0.0, wanted: int = 0) -> None:
    for _ in range(times):
        listing.turn(now_s, block, 1, wanted)
        if listing.listing:
            assert select.select([listing.wake_fd], [], [], 20)[0]


def test_one_range_beyond_the_one_in_training_is_listed(make: Make, lister: FakeExpand) -> None:
    listing = make()
    turns(listing)
    assert len(lister.begun) == 2
    turns(listing, block=1)
    assert len(lister.begun) == 2, "still in the first"
    turns(listing, block=2)
    assert len(lister.begun) == 3
    turns(listing, wanted=4)
    assert len(lister.begun) == 4, "a trainer waits for it"
    turns(listing, block=9)
    assert len(lister.begun) == 5


def test_empty_ranges_are_skipped_and_the_next_are_listed(make: Make, lister: FakeExpand) -> None:
    for name in ("0000000-0000000", "0000002-0000002", "0000003-0000003"):
        lister.answers[name] = NothingFound("no file matches")
    listing = make()
    turns(listing, 20)
    assert lister.begun == [one.name for one in LISTED_RANGES]
    assert listing.problem == ""
    inputs = [InputRange("", ("x",))]
    lister.answers[""] = NothingFound("x: no such file")
    with pytest.raises(BadInputError, match="x: no such file"):  # an input without ranges is not skipped
        turns(make(inputs))


def test_no_file_in_any_range_is_an_error(make: Make, lister: FakeExpand) -> None:
    lister.answers = dict.fromkeys([one.name for one in LISTED_RANGES], NothingFound("empty"))
    with pytest.raises(BadInputError, match="no range holds a file"):
        turns(make(), 20)


def test_the_first_failure_of_a_run_ends_it_at_once(make: Make, lister: FakeExpand) -> None:
    lister.answers["0000000-0000000"] = TransientError("the federation is away")
    with pytest.raises(BadInputError, match="the federation is away"):
        turns(make())


def test_a_later_range_is_tried_again_with_growing_pauses_and_told(make: Make, lister: FakeExpand) -> None:
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
