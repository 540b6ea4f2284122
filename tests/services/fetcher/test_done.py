"""Files on the list of an earlier training are left out of the inventory, and names that match none are said."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from muon_files import make_events, write_events

from common.errors import BadInputError
from common.files.remotes import Remotes
from common.plan import SourceFile
from services.config.root import Config
from services.fetcher.inventory.done import list_range, read_done, without_done
from services.fetcher.inventory.ledger import LEDGER_FILE, Ledger
from services.fetcher.inventory.ranges import InputRange, make_ranges


def listing(path: Path, names: object) -> Path:
    path.write_text(json.dumps({"epoch": 0, "processed_files": names}))
    return path


def test_a_url_is_that_of_the_list_whatever_its_token_and_its_slashes(tmp_path: Path) -> None:
    files = [SourceFile(f"pelican://osg-htc.org/data/{i}.parquet", 1) for i in range(3)]
    old = ["pelican://osg-htc.org//data/0.parquet", "pelican://osg-htc.org/data/2.parquet", "pelican://osg-htc.org/x"]
    found = without_done(files, read_done(listing(tmp_path / "done.json", old)))
    assert (found.files, found.left_out) == ([files[1]], 2)
    assert found.unknown == ("pelican://osg-htc.org/x",)


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


def test_an_inventory_with_a_list_is_another_one_than_without(tmp_path: Path) -> None:
    (plain,) = make_ranges(["a"], "")
    (listed,) = make_ranges(["a"], "", tmp_path / "done.json")
    ledger = Ledger(tmp_path / LEDGER_FILE)
    ledger.use([plain])
    ledger.freeze(plain, [SourceFile("/a/1", 1)])
    assert ledger.frozen(plain) is not None
    assert ledger.frozen(listed) is None
    ledger.close()
