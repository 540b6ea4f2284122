"""Libraries in C++, built by the compiler of this machine for its processor, and kept in the cache of the user.

Nothing is built before `use` is called. Where that fails Python computes the same, and a line in the log says why.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.paths import cache_folder, changed_by_others, make_for_owner

logger = logging.getLogger(__name__)

# Not -ffast-math: a loss that is not finite must stay so, since updates are checked for it.
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
_COMPILERS = ("g++", "clang++", "c++")
_BUILD_TIMEOUT_S = 120.0
_KINDS = {"p": ctypes.c_void_p, "l": ctypes.c_long, "f": ctypes.c_float}


@dataclass(frozen=True)
class NativeSources:
    """The sources of a library, and its functions."""

    name: str
    files: tuple[Path, ...]
    functions: Mapping[str, str]
    """Function -> its arguments and, behind "->", its result: p pointer, l whole number, f float32."""


@dataclass(eq=False)
class NativeLibrary:
    """A library of this process, which is in use or not."""

    sources: NativeSources
    without: str
    """Log's text for a machine that can't build it; the reason follows."""
    used: ctypes.CDLL | None = None
    """The library; None: Python computes."""
    found: ctypes.CDLL | str | None = field(default=None, repr=False)
    """Outcome of this process's only try to build: the library, or why there is none; None before it."""

    def use(self) -> bool:
        """Compute in C++ from now on; True if that is possible. Builds the library on first use: 1 to 3 s."""
        if self.found is None:
            try:
                self.found = built(self.sources)
            except (OSError, RuntimeError) as error:
                self.found = str(error)
                logger.info("%s (%s)", self.without, error)
        self.used = None if isinstance(self.found, str) else self.found
        return self.used is not None


def built(sources: NativeSources, environment: Mapping[str, str] = os.environ) -> ctypes.CDLL:
    """The library, from the cache or built now. Raises OSError or RuntimeError that says why there is none."""
    compiler = _compiler(environment)
    folder = _folder(environment)
    key = hashlib.sha256()
    # For -march=native: machines with different processors may share a home directory.
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    known = [line for line in lines if not line.startswith(("cpu MHz", "bogomips", "processor"))]
    texts = ("\n".join(known).encode(), " ".join(FLAGS).encode())
    for part in (*(path.read_bytes() for path in sources.files), _version(compiler), *texts):
        key.update(hashlib.sha256(part).digest())
    path = folder / f"{sources.name}-{key.hexdigest()[:32]}.so"
    if (descriptor := _opened(path)) is None:
        started_s = time.monotonic()
        _build([compiler, *FLAGS, *map(str, sources.files)], path)
        logger.info("built %s in %.1f s", path, time.monotonic() - started_s)
        if (descriptor := _opened(path)) is None:
            raise RuntimeError(f"{path} can be changed by others")
    library = _loaded(path, descriptor)
    for name, signature in sources.functions.items():
        arguments, _, result = signature.partition("->")
        function = getattr(library, name)
        function.restype = _KINDS[result.strip()] if result else None
        function.argtypes = [_KINDS[kind] for kind in arguments.replace(" ", "")]
    return library


def _compiler(environment: Mapping[str, str]) -> str:
    chosen = environment.get("CXX", "")
    for name in (chosen,) if chosen else _COMPILERS:
        if found := shutil.which(name, path=environment.get("PATH")):
            return found
    raise RuntimeError(f"CXX = {chosen} is no compiler" if chosen else "there is no C++ compiler")


def _folder(environment: Mapping[str, str]) -> Path:
    """Folder for compiled code, which nobody else can change: what is there is loaded and run."""
    folder = cache_folder(environment) / "native"
    make_for_owner(folder)
    around = folder.parent.stat()
    if around.st_uid == os.getuid() and around.st_mode & 0o022:  # made under a umask
        folder.parent.chmod(around.st_mode & 0o755)
    if reason := changed_by_others(folder):
        raise RuntimeError(reason)
    return folder


def _opened(path: Path) -> int | None:
    """Descriptor of a library; None if there is none, or if others may have put it there or can change it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    state = os.fstat(descriptor)
    if stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o022:
        return descriptor
    os.close(descriptor)
    return None


def _loaded(path: Path, descriptor: int) -> ctypes.CDLL:
    """The library that was checked, whatever its name leads to by now.

    The descriptor stays open: the loader takes a library of the same name, of a reused number, for the same one.
    """
    try:
        return ctypes.CDLL(f"/proc/self/fd/{descriptor}")
    except OSError as error:
        os.close(descriptor)
        raise OSError(f"{path}: {error}") from None


def _version(compiler: str) -> bytes:
    """The compiler's file: asking it for its version would start a process each time."""
    path = Path(compiler).resolve()
    state = path.stat()
    return f"{path} {state.st_size} {state.st_mtime_ns}".encode()


def _build(command: list[str], path: Path) -> None:
    """Write the library at ``path``, whole or not at all: other processes may build it at the same time."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [*command, "-o", str(made)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{command[0]} took more than {_BUILD_TIMEOUT_S:.0f} s") from None
        if done.returncode != 0:
            reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
            raise RuntimeError(f"{command[0]}: {reason}")
        with made.open("rb") as file:
            os.fsync(file.fileno())  # a part of a library ends the process that loads it
        made.chmod(0o700)  # whatever the umask
        made.rename(path)
