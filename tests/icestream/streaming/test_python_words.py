"""Words of the command line in errors of the Python API."""

from __future__ import annotations

from pathlib import Path

import pytest

import icestream
from icestream.streaming.python_words import in_python


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name files with -i/--input, or -i", "name files with inputs, or inputs"),
        ("restore it, or use --fresh", "restore it, or use another run_dir"),
        ("add some with --decoders", "add some with decoders"),
        ("use --device cpu", "use device cpu"),
        ("then --set source.ids=rows; or", "then settings={'source.ids': 'rows'}; or"),
        ("--set 'source.columns.x=[\"a b\", \"c\"]'", "settings={'source.columns.x': ['a b', 'c']}"),
        ("--set source.columns.a=b --set 'x.y=[1]'. No", "settings={'source.columns.a': 'b', 'x.y': [1]}. No"),
        ("`icestream keys k`, --set transport.keys=k", "`icestream keys k`, settings={'transport.keys': 'k'}"),
        ("`icestream config --keys`, `icestream run -i x`", "`icestream config --keys`, `icestream run -i x`"),
        ("/data/x-i/--run-dirs/a -in", "/data/x-i/--run-dirs/a -in"),
    ],
)  # fmt: skip
def test_options_are_shown_as_arguments_and_commands_stay(text: str, expected: str) -> None:
    assert in_python(text) == expected


def test_errors_of_a_stream_name_arguments(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(icestream.BadInputError, match=r"\{range\} needs fetcher\.ranges FIRST:LAST:STEP"):
        icestream.stream(f"{tmp_path}/{{range}}/*.parquet")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(icestream.BadInputError, match="restore it, or use another run_dir"):
        icestream.stream(tmp_path, run_dir=tmp_path)
    with pytest.raises(icestream.BadInputError, match="settings has input, which is an argument of its own, too"):
        icestream.stream(tmp_path / "a", settings={"input": "b"})
