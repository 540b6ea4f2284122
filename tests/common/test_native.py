"""Building of libraries in C++: where, when it can't be done, and for whom."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from common import native
from common.native import NativeSources

pytestmark = pytest.mark.process  # a compiler

PATH = os.environ.get("PATH", "")
BUILDS_TEXT = 'shift $(($# - 1)); echo built > "$1"'


@pytest.fixture
def sources(tmp_path_factory: pytest.TempPathFactory) -> NativeSources:
    """A library that is compiled at once; skips the test where there is no compiler."""
    if not shutil.which("g++"):
        pytest.skip("no g++")
    file = tmp_path_factory.mktemp("sources") / "small.cpp"
    file.write_text('extern "C" long three() { return 3; }')
    return NativeSources("small", (file,), {"three": "-> l"})


def fake_compiler(folder: Path, script: str) -> str:
    path = folder / "fake++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo x.cpp:1: warning: perhaps >&2; echo x.cpp:1: error: no >&2; exit 1", r"fake\+\+: x.cpp:1: error: no"),
        ("exit 1", r"fake\+\+: $"),
    ],
)
def test_a_compiler_that_fails_is_reported(tmp_path: Path, sources: NativeSources, script: str, reason: str) -> None:
    environment = {"CXX": fake_compiler(tmp_path, script), "PATH": PATH, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with pytest.raises(RuntimeError, match=reason):
        native.built(sources, environment)
    assert list((tmp_path / "cache/icestream/native").glob("*")) == []


def test_a_missing_compiler_that_was_asked_for_is_named(tmp_path: Path, sources: NativeSources) -> None:
    with pytest.raises(RuntimeError, match=r"CXX = nothing\+\+ is no compiler"):
        native.built(sources, {"CXX": "nothing++", "PATH": PATH, "XDG_CACHE_HOME": str(tmp_path)})


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, sources: NativeSources) -> None:
    folder = tmp_path / "icestream/native"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(RuntimeError, match=r"native \(mode 0777.*can be changed by every user"):
        native.built(sources, {"PATH": PATH, "XDG_CACHE_HOME": str(tmp_path)})


def test_what_others_may_have_put_there_is_not_loaded(tmp_path: Path, sources: NativeSources) -> None:
    environment = {"PATH": PATH, "XDG_CACHE_HOME": str(tmp_path), "CXX": fake_compiler(tmp_path, BUILDS_TEXT)}
    for _ in range(2):
        with pytest.raises(OSError, match="small"):
            native.built(sources, environment)
    (library,) = (tmp_path / "icestream/native").glob("*.so")
    assert library.read_text() == "built\n"
    library.write_text("planted")
    library.chmod(0o666)
    with pytest.raises(OSError, match="small"):
        native.built(sources, environment)
    assert library.read_text() == "built\n"


def test_a_library_that_is_exchanged_after_its_check_is_not_loaded(
    tmp_path: Path, sources: NativeSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"PATH": PATH, "XDG_CACHE_HOME": str(tmp_path)}
    native.built(sources, environment)
    (library,) = (tmp_path / "icestream/native").glob("*.so")
    loaded = native._loaded

    def exchanged(path: Path, descriptor: int) -> object:
        library.rename(tmp_path / "checked.so")
        library.write_text("planted")
        return loaded(path, descriptor)

    monkeypatch.setattr(native, "_loaded", exchanged)
    assert native.built(sources, environment).three() == 3


@pytest.mark.parametrize("how", ["link", "fifo"])
def test_what_only_looks_like_a_library_is_built_anew(tmp_path: Path, sources: NativeSources, how: str) -> None:
    environment = {"PATH": PATH, "XDG_CACHE_HOME": str(tmp_path)}
    native.built(sources, environment)
    (library,) = (tmp_path / "icestream/native").glob("*.so")
    library.rename(tmp_path / "another.so")
    library.symlink_to(tmp_path / "another.so") if how == "link" else os.mkfifo(library)
    assert native.built(sources, environment)
    assert library.is_file()
    assert not library.is_symlink()


def test_others_can_not_exchange_the_folder_whatever_the_umask(tmp_path: Path, sources: NativeSources) -> None:
    folder = tmp_path / "icestream"
    environment = {"PATH": PATH, "XDG_CACHE_HOME": str(tmp_path), "CXX": fake_compiler(tmp_path, BUILDS_TEXT)}
    os.umask(0)
    for _ in range(2):
        with pytest.raises(OSError, match="small"):
            native.built(sources, environment)
        assert [one.stat().st_mode & 0o022 for one in (folder, *folder.rglob("*"))] == [0, 0, 0]
        folder.chmod(0o777)  # as versions before left it


def test_a_library_is_built_once_and_again_for_other_flags_or_another_compiler(
    tmp_path: Path, sources: NativeSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Path] = []

    def make(command: list[str], path: Path) -> None:
        built.append(path)
        path.touch(0o700)

    class Library:
        def __init__(self, path: str) -> None:
            assert Path(path).exists()

        def __getattr__(self, name: str) -> Library:
            return self

    monkeypatch.setattr(native, "_build", make)
    monkeypatch.setattr(native.ctypes, "CDLL", Library)
    environment = {"PATH": PATH, "XDG_CACHE_HOME": str(tmp_path)}
    for _ in range(2):
        native.built(sources, environment)
    assert len(built) == 1
    native.built(sources, environment | {"CXX": fake_compiler(tmp_path, "echo another")})
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-g"))
    native.built(sources, environment)
    assert len(set(built)) == 3
    assert {path.parent for path in built} == {tmp_path / "icestream/native"}
    assert (tmp_path / "icestream/native").stat().st_mode & 0o777 == 0o700
