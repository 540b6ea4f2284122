"""Building of libraries in C++: where, when it can't be done, and for whom."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from native_layers import compiled

from common.native import build
from workloads.base.native.library import LAYERS

pytestmark = pytest.mark.process  # a compiler

PATH = os.environ.get("PATH", "")


BUILDS_TEXT = 'shift $(($# - 1)); echo built > "$1"'


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
def test_a_compiler_that_fails_is_reported(tmp_path: Path, script: str, reason: str) -> None:
    environment = {"CXX": fake_compiler(tmp_path, script), "PATH": PATH, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with pytest.raises(RuntimeError, match=reason):
        build.built(LAYERS.sources, environment)
    assert list((tmp_path / "cache/icestream/native").glob("*")) == []


def test_a_missing_compiler_that_was_asked_for_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"CXX = nothing\+\+ is no compiler"):
        build.built(LAYERS.sources, {"CXX": "nothing++", "PATH": PATH, "XDG_CACHE_HOME": str(tmp_path)})


def test_what_is_no_library_is_not_used(tmp_path: Path) -> None:
    script = 'shift $(($# - 1)); echo text > "$1"'
    environment = {"CXX": fake_compiler(tmp_path, script), "PATH": PATH, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with pytest.raises(OSError, match=r"layers-[0-9a-f]{32}\.so"):
        build.built(LAYERS.sources, environment)


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    compiled()  # skips without a compiler
    folder = tmp_path / "icestream/native"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(RuntimeError, match=r"native \(mode 0777.*can be changed by every user"):
        build.built(LAYERS.sources, {"PATH": PATH, "XDG_CACHE_HOME": str(tmp_path)})


def test_what_others_may_have_put_there_is_not_loaded(tmp_path: Path) -> None:
    compiled()
    environment = {"PATH": PATH, "XDG_CACHE_HOME": str(tmp_path), "CXX": fake_compiler(tmp_path, BUILDS_TEXT)}
    for _ in range(2):
        with pytest.raises(OSError, match="layers"):
            build.built(LAYERS.sources, environment)
    (library,) = (tmp_path / "icestream/native").glob("*.so")
    assert library.read_text() == "built\n"
    library.write_text("planted")
    library.chmod(0o666)
    with pytest.raises(OSError, match="layers"):
        build.built(LAYERS.sources, environment)
    assert library.read_text() == "built\n"


def test_a_library_that_is_exchanged_after_its_check_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled()
    environment = {"PATH": PATH, "XDG_CACHE_HOME": str(tmp_path)}
    build.built(LAYERS.sources, environment)
    (library,) = (tmp_path / "icestream/native").glob("*.so")
    loaded = build._loaded

    def exchanged(path: Path, descriptor: int) -> object:
        library.rename(tmp_path / "checked.so")
        library.write_text("planted")
        return loaded(path, descriptor)

    monkeypatch.setattr(build, "_loaded", exchanged)
    assert build.built(LAYERS.sources, environment)


@pytest.mark.parametrize("how", ["link", "fifo"])
def test_what_only_looks_like_a_library_is_built_anew(tmp_path: Path, how: str) -> None:
    compiled()
    environment = {"PATH": PATH, "XDG_CACHE_HOME": str(tmp_path)}
    build.built(LAYERS.sources, environment)
    (library,) = (tmp_path / "icestream/native").glob("*.so")
    library.rename(tmp_path / "another.so")
    library.symlink_to(tmp_path / "another.so") if how == "link" else os.mkfifo(library)
    assert build.built(LAYERS.sources, environment)
    assert library.is_file()
    assert not library.is_symlink()


def test_others_can_not_exchange_the_folder_whatever_the_umask(tmp_path: Path) -> None:
    compiled()
    folder = tmp_path / "icestream"
    environment = {"PATH": PATH, "XDG_CACHE_HOME": str(tmp_path), "CXX": fake_compiler(tmp_path, BUILDS_TEXT)}
    before = os.umask(0)
    try:
        for _ in range(2):
            with pytest.raises(OSError, match="layers"):
                build.built(LAYERS.sources, environment)
            assert [one.stat().st_mode & 0o022 for one in (folder, *folder.rglob("*"))] == [0, 0, 0]
            folder.chmod(0o777)  # as versions before left it
    finally:
        os.umask(before)


def test_a_new_cache_is_of_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        build._folder({"HOME": str(tmp_path)})
    finally:
        os.umask(before)
    for name in (".cache", ".cache/icestream", ".cache/icestream/native"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700


def test_a_library_is_built_once_and_again_for_other_flags_or_another_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled()
    built: list[Path] = []

    def make(command: list[str], path: Path) -> None:
        built.append(path)
        path.touch(0o700)

    class Library:
        def __init__(self, path: str) -> None:
            assert Path(path).exists()

        def __getattr__(self, name: str) -> Library:
            return self

    monkeypatch.setattr(build, "_build", make)
    monkeypatch.setattr(build.ctypes, "CDLL", Library)
    environment = {"PATH": PATH, "XDG_CACHE_HOME": str(tmp_path)}
    for _ in range(2):
        build.built(LAYERS.sources, environment)
    assert len(built) == 1
    build.built(LAYERS.sources, environment, (*build.FLAGS, "-g"))
    build.built(LAYERS.sources, environment | {"CXX": fake_compiler(tmp_path, "echo another")})
    assert len(set(built)) == 3
    assert {path.parent for path in built} == {tmp_path / "icestream/native"}
    assert (tmp_path / "icestream/native").stat().st_mode & 0o777 == 0o700
