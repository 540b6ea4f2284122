"""Places of outputs: what can't be written is one line, and nothing is left behind."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import click
import pytest

from common.errors import BadInputError
from common.options import OutputPath
from common.output_place import require_place


@pytest.mark.parametrize("name", ["new", "new/below/it", "there", "there/new", "file"])
def test_a_place_that_can_be_made_or_replaced_is_one_and_stays_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("old")
    require_place(tmp_path / name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "there"]
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize("name", ["file/new", "file/new/below/it"])
def test_below_a_file_there_is_no_place(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInputError) as caught:
        require_place(tmp_path / name)
    assert str(caught.value) == f"{tmp_path / name}: {tmp_path / 'file'} is no folder; choose another place"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_folder_that_takes_no_file_is_told_with_the_reason_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(**_: object) -> None:
        raise OSError(number, os.strerror(number), "a name of no interest")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)  # root may write everywhere
    why = os.strerror(number).lower()
    with pytest.raises(BadInputError, match=rf"there \({why}\); name another one with -o$"):
        require_place(tmp_path / "new", "name another one with -o")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="a folder of Linux in which even root makes no file")
@pytest.mark.parametrize("place", ["/proc/new", "/proc/new/x.parquet"])
def test_a_folder_of_the_system_is_no_place(place: str) -> None:
    with pytest.raises(BadInputError, match=rf"^{place}: nothing can be written there"):
        require_place(Path(place))


def test_a_name_that_is_too_long_is_no_place(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"nothing can be written there .*too long"):
        require_place(tmp_path / ("x" * 300))


def test_an_option_is_checked_as_it_is_parsed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    command = click.Command("it", params=[click.Option(["-o"], type=OutputPath(file_okay=False))])
    assert command.make_context("it", ["-o", f"{tmp_path}/new"]).params == {"o": tmp_path / "new"}
    with pytest.raises(BadInputError, match="is no folder; choose another place"):
        command.make_context("it", ["-o", f"{tmp_path}/file/new"])
    command.make_context("it", ["-o", f"{tmp_path}/file/new"], resilient_parsing=True)  # while the shell completes
