"""Local files with several names: links, and other spellings of their path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common.files.inputs import expand
from common.files.remotes import Remotes
from common.plan import SourceFile
from services.config.root import Config


def listed(inputs: list[str]) -> list[SourceFile]:
    with Remotes(Config().remote_access()) as remotes:
        return expand(inputs, remotes)


def test_a_file_with_several_names_is_read_once_under_the_first_which_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sub").mkdir()
    for name, size in [("b.parquet", 2), ("a.parquet", 1), ("sub/c.parquet", 3)]:
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / "link.parquet").symlink_to(tmp_path / "b.parquet")
    (tmp_path / "hard.parquet").hardlink_to(tmp_path / "a.parquet")
    (tmp_path / "above").symlink_to(tmp_path / "sub")
    monkeypatch.chdir(tmp_path / "sub")
    (tmp_path / "more.txt").write_text(f"{tmp_path}/sub/../a.parquet\n{tmp_path}/above/c.parquet\n")
    found = listed([str(tmp_path / "b.parquet"), "c.parquet", str(tmp_path), "./c.parquet", f"@{tmp_path}/more.txt"])
    assert [os.path.relpath(file.url, tmp_path) for file in found] == ["b.parquet", "sub/c.parquet", "a.parquet"]
    assert [file.size_bytes for file in found] == [2, 3, 1]
    (message,) = caplog.messages
    assert message.startswith("4 more names of files that are among the inputs already")
    assert message.endswith(f"the first is {tmp_path}/hard.parquet, which is {tmp_path}/a.parquet")


def test_different_files_with_the_same_content_are_both_read_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.parquet", "b.parquet"):
        (tmp_path / name).write_bytes(b"same")
    assert len(listed([str(tmp_path)])) == 2
    assert not caplog.messages
