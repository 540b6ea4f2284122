"""Files that were added to the inputs of a run that goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import TransientError
from common.files.remotes import Remotes
from common.plan import SourceFile
from services.config.root import Config
from services.fetcher.inventory.done import listed
from services.fetcher.inventory.grown_inputs import GrownInputs
from services.fetcher.inventory.ledger import LEDGER_FILE, Ledger
from services.fetcher.inventory.ranges import InputRange


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / LEDGER_FILE)
    yield opened
    opened.close()


def files_of(one: InputRange) -> list[SourceFile]:
    with Remotes(Config().remote_access()) as remotes:
        return listed(one, remotes).files


def compared(grown: GrownInputs) -> None:
    until_s = time.monotonic() + 60
    while grown.is_listing and time.monotonic() < until_s:
        time.sleep(0.001)
    for _ in range(3):
        grown.turn()


def made(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(name.encode())


def test_files_that_were_added_since_the_run_began_are_counted_in_the_log_once(
    tmp_path: Path, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    made(tmp_path, "a/1.parquet", "b/1.parquet")
    ranges = [InputRange(name, (str(tmp_path / name),)) for name in ("a", "b")]
    for one in ranges:
        ledger.freeze(one, files_of(one))
    made(tmp_path, "a/0.parquet", "b/2.parquet", "b/3.parquet", "b/notes.txt")
    compared(GrownInputs(ranges, ledger, files_of))
    (message,) = caplog.messages
    assert message.startswith(f"new files in the inputs: 3, the first is {tmp_path}/a/0.parquet; they are not read")


def test_inputs_that_have_not_grown_are_no_line_in_the_log(
    tmp_path: Path, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    made(tmp_path, "a/1.parquet", "a/2.parquet")
    one = InputRange("", (str(tmp_path / "a"),))
    ledger.freeze(one, files_of(one))
    (tmp_path / "a/1.parquet").unlink()
    compared(GrownInputs([one], ledger, files_of))
    assert not caplog.messages


def test_only_the_local_ones_of_the_inputs_are_listed_again(
    tmp_path: Path, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    made(tmp_path, "a/1.parquet")
    (tmp_path / "more").write_text(f"s3://bucket/x.parquet\n{tmp_path}/a\n")
    one = InputRange("", ("pelican://host/x/*.parquet", f"@{tmp_path}/more", f"file://{tmp_path}/a"))
    ledger.freeze(one, [SourceFile("s3://bucket/x.parquet", 1), SourceFile("pelican://host/x/1.parquet", 1)])
    asked: list[tuple[str, ...]] = []

    def spied(part: InputRange) -> list[SourceFile]:
        asked.append(part.inputs)
        return files_of(part)

    compared(GrownInputs([one], ledger, spied))
    assert asked == [(f"{tmp_path}/a", f"file://{tmp_path}/a")]
    assert len(caplog.messages) == 1


def test_inputs_that_cannot_be_listed_again_end_nothing(
    tmp_path: Path, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(one: InputRange) -> list[SourceFile]:
        raise TransientError(f"{one.inputs[0]}: can't be listed")

    caplog.set_level("INFO")
    compared(GrownInputs([InputRange("", (str(tmp_path),))], ledger, fails))
    (message,) = caplog.messages
    assert "are not compared with the run's list of files" in message
