"""Hidden and unfinished files: no inputs of a directory or a glob, local and remote."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from common.files.inputs import expand
from common.files.remotes import Remotes
from common.plan import SourceFile
from services.config.root import Config


def listed(inputs: list[str]) -> list[SourceFile]:
    with Remotes(Config().remote_access()) as remotes:
        return expand(inputs, remotes)


def test_unfinished_and_hidden_names_of_a_directory_or_a_glob_are_no_inputs_which_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.parquet", "_b.parquet", ".c.parquet", "_temporary/d.parquet", "e/_f.parquet", "e/g.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for text, hidden in ((str(tmp_path), 4), (f"{tmp_path}/**/*.parquet", 3)):
        caplog.clear()
        assert [Path(file.url).name for file in listed([text])] == ["a.parquet", "g.parquet"]
        assert len(caplog.messages) == 1
        assert f'left out {hidden} with a name that begins with "." or "_"' in caplog.text
    for name in ("_b.parquet", "_temporary", "_*.parquet"):
        assert len(listed([f"{tmp_path}/{name}"])) == 1


def test_unfinished_and_hidden_names_of_a_remote_directory_or_glob_are_no_inputs_which_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fs, memory = fsspec.filesystem("memory"), "memory://hidden"
    for name in (
        "a.parquet",
        "b.parquet",
        "sub/c.parquet",
        "readme",
        "_b.parquet",
        ".c.parquet",
        "_SUCCESS",
        "_temporary/d.parquet",
    ):
        fs.pipe_file(f"/hidden/{name}", b"x")
    for text, hidden in ((memory, 3), (f"{memory}/*.parquet", 2), (f"{memory}/*", 2), (f"{memory}/**", 3)):
        caplog.clear()
        found = [Path(file.url).name for file in listed([text])]
        assert {"a.parquet", "b.parquet"} <= set(found) <= {"a.parquet", "b.parquet", "c.parquet", "readme"}
        (told,) = caplog.messages
        assert (
            f'{text}: left out {hidden} with a name that begins with "." or "_", the first is /hidden/.c.parquet'
            in told
        )
    caplog.clear()
    for text in ("_b.parquet", "_temporary", "_*.parquet", "_t*/*.parquet"):
        assert len(listed([f"{memory}/{text}"])) == 1
    assert not caplog.messages
