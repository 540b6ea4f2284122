"""Building of the layers in C++: where, when it can't be done, and for whom."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from native_layers import compiled

from workloads.base.native import library

pytestmark = pytest.mark.process  # a compiler

PATH = os.environ.get("PATH", "")


def fake_compiler(folder: Path, script: str) -> str:
    path = folder / "fake++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_without_a_compiler_torch_computes_the_layers_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert not library.use()
    assert library.used() is None
    assert caplog.messages == ["layers on the CPU: torch, slower than C++ (there is no C++ compiler)"]


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
        library.built(environment)
    assert list((tmp_path / "cache/icestream/native").glob("*")) == []


def test_a_missing_compiler_that_was_asked_for_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"CXX = nothing\+\+ is no compiler"):
        library.built({"CXX": "nothing++", "PATH": PATH, "XDG_CACHE_HOME": str(tmp_path)})


def test_what_is_no_library_is_not_used(tmp_path: Path) -> None:
    script = 'shift $(($# - 1)); echo text > "$1"'
    environment = {"CXX": fake_compiler(tmp_path, script), "PATH": PATH, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with pytest.raises(OSError, match=r"layers-[0-9a-f]{32}\.so"):
        library.built(environment)


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    compiled()  # skips without a compiler
    folder = tmp_path / "icestream/native"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(RuntimeError, match="could be written by others"):
        library.built({"PATH": PATH, "XDG_CACHE_HOME": str(tmp_path)})


def test_a_library_is_built_once_and_again_for_other_flags_or_another_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled()
    built: list[Path] = []

    def build(command: list[str], path: Path) -> None:
        built.append(path)
        path.touch()

    class Library:
        def __init__(self, path: str) -> None:
            assert Path(path).exists()

        def __getattr__(self, name: str) -> Library:
            return self

    monkeypatch.setattr(library, "_build", build)
    monkeypatch.setattr(library.ctypes, "CDLL", Library)
    environment = {"PATH": PATH, "XDG_CACHE_HOME": str(tmp_path)}
    for _ in range(2):
        library.built(environment)
    assert len(built) == 1
    library.built(environment, (*library.FLAGS, "-g"))
    library.built(environment | {"CXX": fake_compiler(tmp_path, "echo another")})
    assert len(set(built)) == 3
    assert {path.parent for path in built} == {tmp_path / "icestream/native"}
    assert (tmp_path / "icestream/native").stat().st_mode & 0o777 == 0o700
