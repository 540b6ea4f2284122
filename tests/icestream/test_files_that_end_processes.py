"""A file that ends the process that reads it: `inspect`, `convert` and `plan` name it in one line and go on."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from muon_files import make_events, write_events

from common.errors import BadInputError, IcestreamError
from common.files.by_content import ContentReader
from icestream.commands.convert import convert
from icestream.commands.inspect import inspect
from icestream.commands.plan import plan
from services.fetcher import inspection

pytestmark = pytest.mark.process


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three files; reading the one named bad ends the process by the signal that ``number`` holds."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("a", "bad", "c"):
        write_events(folder / f"{name}.parquet", make_events([2, 0, 1]))
    real = ContentReader.read

    def read(self: ContentReader, parts: Any, *arguments: Any, **options: Any) -> Any:
        if Path(parts[0].path).name == "bad.parquet":
            os.kill(os.getpid(), signal.SIGSEGV)
        return real(self, parts, *arguments, **options)

    monkeypatch.setattr(ContentReader, "read", read)
    return folder


def ran(*words: str, command: Any) -> tuple[Result, IcestreamError]:
    done = CliRunner().invoke(command, [str(word) for word in words])
    assert isinstance(done.exception, IcestreamError), done.output
    return done, done.exception


def test_inspect_names_it_and_describes_the_others(data: Path) -> None:
    done, error = ran(str(data), "--json", command=inspect)
    assert "1 of 3 files can't be used" in str(error)
    assert str(error).endswith(
        f"{data}/bad.parquet: damaged: it ends the process that reads it (SIGSEGV); leave it out or write it anew"
    )
    assert [one["events"] for one in json.loads(done.stdout)] == [3, 0, 3]


def test_convert_names_it_converts_the_others_and_leaves_no_unfinished_file(data: Path, tmp_path: Path) -> None:
    done, error = ran(str(data), str(tmp_path / "out"), command=convert)
    assert "1 of 3 files were not converted" in str(error)
    assert f"{data}/bad.parquet: damaged: it ends the process that reads it (SIGSEGV)" in str(error)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.parquet", "c.parquet"]
    assert f"{data}/c.parquet -> " in done.stdout


def test_plan_names_a_file_that_ends_its_inspection(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "child.py"
    script.write_text(
        "import os, sys\nsys.stdin.readline()\nprint('{\"ready\": true}', flush=True)\nfor line in sys.stdin:\n"
        "    if 'bad' in line:\n        os.kill(os.getpid(), 11)\n    print('{\"footer\": [[3, 3, []]]}', flush=True)\n"
    )
    monkeypatch.setattr(inspection, "_COMMAND", [sys.executable, "-S", str(script)])
    done = CliRunner().invoke(plan, ["-i", str(data)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "it ends the process that inspects it (SIGSEGV, 3 times)" in done.output
    assert not isinstance(done.exception, BadInputError)


def test_no_name_of_a_file_that_is_converted_steers_the_terminal(tmp_path: Path) -> None:
    name = "a\x1b[2Jb\x07"
    path = write_events(tmp_path / f"{name}.parquet", make_events([1]))
    done = CliRunner().invoke(convert, [str(path), str(tmp_path / "out")], catch_exceptions=False)
    assert (tmp_path / "out" / f"{name}.parquet").exists()
    assert "\x1b" not in done.output
    assert "\x07" not in done.output
