"""Library of the layers in C++: built by the machine's own compiler, for its processor, and kept in the user's cache.

Nothing is built before `use` is called. Where that fails torch computes the layers, and a line in the log says why.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

logger = logging.getLogger(__name__)

_HERE = Path(__file__).parent
SOURCES, HEADERS = (_HERE / "dense.cpp", _HERE / "particles.cpp", _HERE / "scores.cpp"), (_HERE / "rows.h",)
# Not -ffast-math: a loss that is not finite must stay so, since updates are checked for it.
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
_COMPILERS = ("g++", "clang++", "c++")
_BUILD_TIMEOUT_S = 120.0
_POINTER, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
_ARGUMENTS: Mapping[str, str] = {
    "dense_forward": "p ll p l pppp ff ppp",
    "dense_backward": "pppppp ll p l pp f ppppp",
    "pullback_forward": "pppp ll p l p f pp",
    "pullback_backward": "pppppp ll p l p f pppp",
    "energy_scores": "p lll p f pp",
    "chain_forward": "p ll p l pp pppp l f pp ll",
    "chain_backward": "ppp lll ppp pp l f pppppp",
    "pooled_forward": "p ll p l ppp pp f pppp f f pppp",
    "pooled_backward": "ppp p ll p l ppp pp f ppp f ppp ppppppppp",
    "slope_forward": "pp ll p l ppp pp f ppp f ppp pp",
    "slope_backward": "ppp ll p l ppp pp f ppp f ppp p ppp pppp",
}
"""Function -> its arguments: p pointer, l number of rows or columns, f number."""

_used: ctypes.CDLL | None = None
_found: ctypes.CDLL | str | None = None
"""Outcome of this process's only try to build: the library, or why there is none; None before it."""


def used() -> ctypes.CDLL | None:
    """Library that computes the layers on the CPU, None: torch does."""
    return _used


def use() -> bool:
    """Let the library compute the layers on the CPU from now on; True if it does. Builds it on first use: 3 s."""
    global _used, _found
    if _found is None:
        try:
            _found = built()
        except (OSError, RuntimeError) as error:
            _found = str(error)
            logger.info("layers on the CPU: torch, slower than C++ (%s)", error)
    _used = None if isinstance(_found, str) else _found
    return _used is not None


def use_torch() -> None:
    """Let torch compute the layers, as before `use`."""
    global _used
    _used = None


def built(environment: Mapping[str, str] = os.environ, flags: tuple[str, ...] = FLAGS) -> ctypes.CDLL:
    """The library, from the cache or built now. Raises OSError or RuntimeError that says why there is none."""
    compiler = _compiler(environment)
    folder = _folder(environment)
    key = hashlib.sha256()
    for part in (
        *(path.read_bytes() for path in (*SOURCES, *HEADERS)),
        _version(compiler),
        _processor(),
        " ".join(flags).encode(),
    ):
        key.update(hashlib.sha256(part).digest())
    path = folder / f"layers-{key.hexdigest()[:32]}.so"
    if not path.exists():
        started_s = time.monotonic()
        _build([compiler, *flags, *map(str, SOURCES)], path)
        logger.info("built %s in %.1f s", path, time.monotonic() - started_s)
    library = ctypes.CDLL(str(path))
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.restype = None
        kinds = {"p": _POINTER, "l": _LONG, "f": _FLOAT}
        function.argtypes = [kinds[kind] for kind in arguments.replace(" ", "")]
    return library


def _compiler(environment: Mapping[str, str]) -> str:
    chosen = environment.get("CXX", "")
    for name in (chosen,) if chosen else _COMPILERS:
        if found := shutil.which(name, path=environment.get("PATH")):
            return found
    raise RuntimeError(f"CXX = {chosen} is no compiler" if chosen else "there is no C++ compiler")


def _folder(environment: Mapping[str, str]) -> Path:
    """Folder for compiled code, of this user alone: it is loaded and run."""
    cache = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or Path.home()) / ".cache"
    folder = Path(cache) / "icestream" / "native"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise RuntimeError(f"{folder} could be written by others")
    return folder


def _version(compiler: str) -> bytes:
    """The compiler's file: asking it for its version would start a process each time."""
    path = Path(compiler).resolve()
    state = path.stat()
    return f"{path} {state.st_size} {state.st_mtime_ns}".encode()


def _processor() -> bytes:
    """Description of the processor, for -march=native: machines with different ones may share a home directory."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = list(os.uname())
    return "\n".join(line for line in lines if not line.startswith(("cpu MHz", "bogomips", "processor"))).encode()


def _build(command: list[str], path: Path) -> None:
    """Write the library at ``path``, whole or not at all: other processes may build it at the same time."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        _run([*command, "-o", str(made)])
        with made.open("rb") as file:
            os.fsync(file.fileno())  # a part of a library ends the process that loads it
        made.rename(path)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{command[0]} took more than {_BUILD_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
        raise RuntimeError(f"{command[0]}: {reason}")
