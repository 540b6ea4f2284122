"""Inputs: which files they are, under which names."""

from __future__ import annotations

import errno
import glob
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from common.errors import BadInputError, TransientError
from common.files import local as listing
from common.files.inputs import NOT_UTF8, expand
from common.files.local import each_match, named_inputs
from common.files.remotes import Remotes
from common.plan import SourceFile
from services.config.root import Config, load_config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """b.parquet of 2 bytes, a.parquet of 1, sub/c.parquet of 3, and things that are no input."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "odd").mkdir()
    for name, size in [("b.parquet", 2), ("a.parquet", 1), ("sub/c.parquet", 3), ("notes.txt", 9), ("a.part", 1)]:
        (tmp_path / name).write_bytes(b"x" * size)
    return tmp_path


def listed(inputs: list[str]) -> list[SourceFile]:
    with Remotes(Config().remote_access()) as remotes:
        return expand(inputs, remotes)


def names(files: list[SourceFile], folder: Path) -> list[tuple[str, int]]:
    return [(os.path.relpath(file.url, folder), file.size_bytes) for file in files]


def test_numbers_in_braces_stand_for_as_many_inputs_everywhere(folder: Path) -> None:
    """On the command line, in TOML and in Python alike: all of them become a configuration."""
    (folder / "x_9.parquet").write_bytes(b"x")
    with pytest.raises(BadInputError, match=r"x_10\.parquet: no such file"):
        listed([f"{folder}/x_{{9..10}}.parquet"])
    (folder / "c.toml").write_text('input = ["a{9..10}"]\ntrainer.validation.input = ["b{09..10}/{1..2}", "{range}"]')
    config = load_config({}, toml=folder / "c.toml")
    assert config.input == ("a9", "a10")
    assert config.trainer.validation.input == ("b09/1", "b09/2", "b10/1", "b10/2", "{range}")
    for wrong in ("a{2..1}", "a{1..999999}", "{1..1000}{1..1000}"):
        with pytest.raises(BadInputError, match="100,000"):
            load_config({}, flags={"input": (wrong,)})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("notes.txt", [("notes.txt", 9)]),
        ("", [("a.parquet", 1), ("b.parquet", 2), ("sub/c.parquet", 3)]),
        ("**/*.parquet", [("a.parquet", 1), ("b.parquet", 2), ("sub/c.parquet", 3)]),
        ("*.parquet", [("a.parquet", 1), ("b.parquet", 2)]),
        ("[ab].parquet", [("a.parquet", 1), ("b.parquet", 2)]),
        ("?.parquet", [("a.parquet", 1), ("b.parquet", 2)]),
    ],
)
def test_an_input_is_a_file_of_any_name_or_the_data_files_of_a_folder_or_a_glob_sorted(
    folder: Path, text: str, expected: list[tuple[str, int]]
) -> None:
    assert names(listed([str(folder / text)]), folder) == expected


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "a[1].parquet").touch()
    (tmp_path / "a1.parquet").touch()
    assert names(listed([str(tmp_path / "a[1].parquet")]), tmp_path) == [("a[1].parquet", 0)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nowhere.parquet", "no such file or directory"),
        ("nowhere-*.parquet", r"no file matches this glob \(folder .* exists; for the files below it: "),
        ("nowhere/*.parquet", r"no file matches this glob \(folder .*nowhere does not exist\)"),
        ("sub/empty", "the directory holds no"),
    ],
)
def test_an_input_that_is_not_there_is_named(folder: Path, text: str, told: str) -> None:
    (folder / "sub/empty").mkdir()
    with pytest.raises(BadInputError, match=told) as error:
        listed([str(folder / "a.parquet"), str(folder / text)])
    assert str(folder / text) in str(error.value)


@pytest.mark.parametrize(
    ("inputs", "told"), [([], "no input: name files"), (["sdfkj://x/y.parquet"], r"sdfkj://x/y\.parquet: .*sdfkj")]
)
def test_no_input_at_all_and_an_unknown_scheme_are_told(inputs: list[str], told: str) -> None:
    with pytest.raises(BadInputError, match=told):
        listed(inputs)


@pytest.mark.parametrize("pattern", ["", "**/*.parquet"])
def test_what_is_named_like_data_and_is_none_is_listed_so_that_it_will_be_named(folder: Path, pattern: str) -> None:
    (folder / "link.parquet").symlink_to("nowhere")
    (folder / "loop.parquet").symlink_to("loop.parquet")
    os.mkfifo(folder / "pipe.parquet")
    (folder / "empty.parquet").mkdir()
    (folder / "full.parquet").mkdir()
    (folder / "full.parquet/part.parquet").write_bytes(b"xx")
    found = dict(names(listed([str(folder / pattern)]), folder))
    odd = dict.fromkeys(("link.parquet", "loop.parquet", "pipe.parquet", "empty.parquet"), 0)
    assert odd.items() <= found.items()
    assert found["full.parquet/part.parquet"] == 2
    assert "full.parquet" not in found
    assert {"a.parquet", "b.parquet"} <= found.keys()


@pytest.mark.parametrize("pattern", ["", "bad*"])
def test_a_name_that_is_not_utf8_is_listed_as_it_can_be_written(folder: Path, pattern: str) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/bad\xff.parquet")).write_bytes(b"x")
    found = listed([str(folder / pattern)])
    assert SourceFile(f"{folder}/bad\\udcff.parquet", 1, NOT_UTF8) in found
    assert all(file.url.encode() for file in found)


PATTERNS = (
    *("*", "*.parquet", "**", "**/*.parquet", "*/*", "su?/*.parquet", "**/sub/**", "[!a]*"),
    *("sub/[c].parquet", ".*", "**/.h*", "sub/**/*", "deep/**/c*", "nowhere/*", "*/nowhere"),
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_glob_matches_what_python_s_glob_matches(folder: Path, pattern: str) -> None:
    (folder / "deep/x/y").mkdir(parents=True)
    (folder / "deep/x/y/c.parquet").touch()
    (folder / ".hidden").mkdir()
    (folder / ".hidden/h.parquet").touch()
    (folder / "linked").symlink_to("deep")
    expected = {Path(name) for name in glob.glob(f"{folder}/{pattern}", recursive=True) if not Path(name).is_dir()}  # noqa: PTH207
    assert set(each_match(folder / pattern)) == expected


@pytest.mark.parametrize("pattern", ["", "**/*.parquet", "sub/c.parquet", "*/c.parquet"])
@pytest.mark.parametrize("touched", ["scandir", "stat"])
def test_no_error_of_the_machine_makes_a_listing_shorter(
    folder: Path, pattern: str, touched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = listed([str(folder / pattern)])
    real = getattr(os, touched)
    fails_at, calls, number = -1, 0, 0

    def failing(path: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal calls
        if str(path).startswith(str(folder)):
            calls += 1
            if calls == fails_at:
                raise OSError(number, os.strerror(number), str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, touched, failing)
    listed([str(folder / pattern)])
    num_calls = calls
    for fails_at in range(1, num_calls + 1):  # noqa: B007  failing() reads it
        for number in (errno.EIO, errno.EACCES, errno.ESTALE, errno.EMFILE):
            calls = 0
            with pytest.raises(TransientError, match=re.escape(os.strerror(number))) as told:
                listed([str(folder / pattern)])
            assert str(folder) in str(told.value)
    fails_at = -1
    assert listed([str(folder / pattern)]) == expected


def test_files_of_which_none_can_be_read_are_told_before_the_run_begins(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(BadInputError, match=r"none of its 3 files can be read; the first is .*/a\.parquet"):
        listed([str(folder)])


@pytest.mark.parametrize("rest", ["", "\t7", "\t7\tadler32=0123abcd"])
@pytest.mark.parametrize("scheme", ["", "file://", "https://host", "pelican://host"])
def test_a_path_with_a_zero_byte_is_refused(folder: Path, scheme: str, rest: str) -> None:
    (folder / "list").write_text(f"{scheme}/data/\0.parquet{rest}\n")
    with pytest.raises(BadInputError, match="zero byte"):
        listed([f"@{folder}/list"])
    with pytest.raises(BadInputError, match="zero byte"):
        listed([f"@{folder}/\0list"])
    assert list(named_inputs([f"@{folder}/\0list"])) == []


@pytest.mark.parametrize("prefix", ["", "@", "file://"])
def test_the_home_of_a_user_that_does_not_exist_is_refused(prefix: str) -> None:
    with pytest.raises(BadInputError, match=r"~nosuchuser/x: .*home"):
        listed([f"{prefix}~nosuchuser/x"])
    assert list(named_inputs(["@~nosuchuser/x"])) == []


# ------------------------------------------------------------------ remote


@pytest.fixture
def memory() -> Iterator[str]:
    fs = fsspec.filesystem("memory")
    for name, size in [("/in/b.parquet", 2), ("/in/a.parquet", 1), ("/in/sub/c.parquet", 3), ("/in/readme", 4)]:
        fs.pipe_file(name, b"x" * size)
    yield "memory://in"
    fs.rm("/in", recursive=True)


def test_a_remote_folder_glob_and_file_are_listed_with_sizes(memory: str) -> None:
    a, b, c = (SourceFile(f"memory:///in/{name}.parquet", size) for name, size in [("a", 1), ("b", 2), ("sub/c", 3)])
    assert listed([memory]) == [a, b, c]
    assert listed([f"{memory}/*.parquet"]) == [a, b]
    assert listed([f"{memory}/**/*.parquet"]) in ([a, b, c], [c])
    assert listed([f"{memory}/b.parquet", memory]) == [b, a, c]


def test_a_remote_input_that_is_not_there_is_named(memory: str) -> None:
    for name in ("nowhere.parquet", "nowhere-*.parquet", "sub/x?"):
        with pytest.raises(BadInputError, match=r"no such file|no file matches"):
            listed([f"{memory}/{name}"])


def test_a_list_file_names_inputs_or_files_with_size_and_checksum(folder: Path) -> None:
    lines = [
        "# a comment",
        "",
        str(folder / "*.parquet"),
        "pelican://h/x y.parquet\t7\tadler32=0123abcd",
        "pelican://h/z\t0",
    ]
    (folder / "list.txt").write_text("\n".join(lines))
    assert listed([f"@{folder}/list.txt"])[-2:] == [
        SourceFile("pelican://h/x y.parquet", 7, "adler32=0123abcd"),
        SourceFile("pelican://h/z", 0),
    ]
    assert names(listed([f"@{folder}/list.txt"])[:2], folder) == [("a.parquet", 1), ("b.parquet", 2)]


@pytest.mark.parametrize(
    "line",
    [
        *("x\tmany", "x\t5\tcrc64=00", "x\t5\tmd5=00\tmore", "@other"),
        *(f"https://h/1\t{size}" for size in (1 << 63, "9" * 5000, "²", "-5")),  # what the ledger can't hold
        f"https://h/1\t{1 << 62}\nhttps://h/2\t{1 << 62}",  # or not together
    ],
)
def test_a_line_of_a_list_that_is_none_is_named(folder: Path, line: str) -> None:
    (folder / "list.txt").write_text(f"{folder}/a.parquet\n{line}\n")
    with pytest.raises(BadInputError, match=r"list\.txt" + (", line 2: " if "\n" not in line else "")):
        listed([f"@{folder}/list.txt"])


@pytest.mark.parametrize(
    ("url", "package", "text"),
    [
        ("s3://bucket/*.parquet", "s3fs", r"S3 input needs: pip install -c constraints\.txt '\.\[s3\]'"),
        ("gs://bucket/*.parquet", "gcsfs", r"gs://bucket/\*.parquet: needs another package: .*gcsfs"),
    ],
)
def test_a_missing_package_for_a_kind_of_remote_is_named(
    url: str, package: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BadInputError, match=text):
        listed([url])


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


def test_hidden_names_of_a_remote_directory_or_glob_are_no_inputs_which_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fs, memory = fsspec.filesystem("memory"), "memory://hidden"
    for name in ("a.parquet", "sub/c.parquet", "_b.parquet", ".c.parquet", "_SUCCESS", "_temporary/d.parquet"):
        fs.pipe_file(f"/hidden/{name}", b"x")
    for text, hidden in ((memory, 3), (f"{memory}/*.parquet", 2), (f"{memory}/**", 3)):
        caplog.clear()
        assert {Path(file.url).name for file in listed([text])} <= {"a.parquet", "c.parquet"}
        (told,) = caplog.messages
        assert f'{text}: left out {hidden} with a name that begins with "." or "_"' in told
    caplog.clear()
    for text in ("_b.parquet", "_temporary", "_*.parquet", "_t*/*.parquet"):
        assert len(listed([f"{memory}/{text}"])) == 1
    assert not caplog.messages


def test_a_file_with_several_names_is_read_once_under_the_first_which_is_said_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "link.parquet").symlink_to(folder / "b.parquet")
    (folder / "hard.parquet").hardlink_to(folder / "a.parquet")
    (folder / "above").symlink_to(folder / "sub")
    monkeypatch.chdir(folder / "sub")
    (folder / "more.txt").write_text(f"{folder}/sub/../a.parquet\n{folder}/above/c.parquet\n")
    found = listed([str(folder / "b.parquet"), "c.parquet", str(folder), "./c.parquet", f"@{folder}/more.txt"])
    assert [os.path.relpath(file.url, folder) for file in found] == ["b.parquet", "sub/c.parquet", "a.parquet"]
    assert [file.size_bytes for file in found] == [2, 3, 1]
    (message,) = caplog.messages
    assert message.startswith("4 more names of files that are among the inputs already")
    assert message.endswith(f"the first is {folder}/hard.parquet, which is {folder}/a.parquet")


def test_no_error_of_the_machine_at_an_entry_makes_a_listing_shorter(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems don't tell an entry's kind: it is asked for then, which may fail."""

    class Entry:
        path = str(folder / "a.parquet")

        def is_dir(self, *, follow_symlinks: bool) -> bool:
            raise OSError(number, os.strerror(number), self.path)

    monkeypatch.setattr(listing, "_entries", lambda folder: [Entry()])
    for number in (errno.EIO, errno.EACCES):
        with pytest.raises(TransientError, match=re.escape(os.strerror(number))):
            listed([str(folder)])
    number = errno.ENOENT
    assert names(listed([str(folder)]), folder) == [("a.parquet", 1)], "whatever it was, staging names it"
