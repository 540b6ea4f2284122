"""Several runs on one cache directory, each a process that is killed at random instants and started again.

`python tests/services/fetcher/cache_chaos.py SEED FOLDER` prints what went wrong and exits with 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from common.errors import TransientError
from common.files.local_name import name_of
from common.plan import SourceFile
from services.fetcher.staging.cache import Cache
from services.fetcher.staging.cache_layout import CacheLayout

RUNS = 3
FILES = 12
BUDGET_BYTES = 60_000
PHASES = 3
PHASE_S = 1.2
LEAST = 3
"""Kills and transfers of a phase, however slow the machine is."""
THREADS = 2


def content(file: int) -> bytes:
    """What stands in a file of the inventory."""
    rng = random.Random(file)
    return rng.randbytes(rng.randint(0, 20_000))


CONTENTS = [content(file) for file in range(FILES)]
SOURCES = [SourceFile(f"chaos://host/{file}/a b%2f..,{file}.parquet", len(CONTENTS[file])) for file in range(FILES)]
FILE_OF = {name_of(source): file for file, source in enumerate(SOURCES)}


@dataclass
class Folders:
    """Where everything lies."""

    root: Path

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def stop(self) -> Path:
        return self.root / "stop"

    @property
    def fetches(self) -> Path:
        """A line for each transfer that was begun."""
        return self.root / "fetches"

    def run(self, number: int) -> Path:
        return self.root / f"run {number}"


class Worker:
    """One life of a run's fetcher."""

    def __init__(self, folders: Folders, number: int, rng: random.Random) -> None:
        self._folders = folders
        self._layout = CacheLayout(folders.cache)
        self._own = self._layout.run(folders.run(number))
        self._rng = rng
        self._cache = Cache(folders.cache, folders.run(number))
        self._held = {FILE_OF[name] for name in self._cache.pinned() if rng.random() < 0.7}
        self._got: set[int] = set()  # in this life: what a former one pinned may be damaged by now
        self._cache.drop_all_but(SOURCES[file] for file in self._held)
        self._check_budget()

    def live(self) -> None:
        """Get, check and drop at random until told to stop."""
        with ThreadPoolExecutor(THREADS) as threads:
            while not self._folders.stop.exists():
                files = self._rng.sample(range(FILES), THREADS)
                for file in [file for file in self._held if file not in files]:
                    new_bytes = sum(len(CONTENTS[file]) for file in {*files} - self._held)
                    held_bytes = sum(len(CONTENTS[file]) for file in self._held)
                    if held_bytes + new_bytes > BUDGET_BYTES or self._rng.random() < 0.2:
                        self._drop(file)
                for file, got in zip(files, threads.map(self._get, files), strict=True):
                    self._held.add(file)
                    self._got.add(file)
                    if not got:
                        self._drop(file)
                for file in self._got:
                    assert self._cache.path(SOURCES[file]).read_bytes() == CONTENTS[file], f"file {file}: a wrong byte"
                self._check_budget()
        self._cache.close()

    def _drop(self, file: int) -> None:
        self._held.discard(file)
        self._got.discard(file)
        self._cache.drop(SOURCES[file])

    def _get(self, file: int) -> bool:
        rng = random.Random(self._rng.random())

        def fetch(part: Path) -> None:
            for run in self._layout.all_runs():
                with contextlib.suppress(FileNotFoundError):
                    there = (run.files / part.name).read_bytes()
                    assert there != CONTENTS[file], f"file {file}: fetched again, although {run.folder} has it"
            with self._folders.fetches.open("a") as log:
                log.write(f"{file}\n")
            with part.open("ab") as out:
                done = out.tell()
                assert part.read_bytes() == CONTENTS[file][:done], f"file {file}: goes on from a wrong byte"
                while done < len(CONTENTS[file]):
                    if rng.random() < 0.02:
                        raise TransientError("the server is away")
                    done += out.write(CONTENTS[file][done : done + 3000])
                    out.flush()
                    time.sleep(rng.random() * 0.003)
            self._check_budget()

        try:
            path = self._cache.get(SOURCES[file], fetch)
        except TransientError:
            return False
        assert path.read_bytes() == CONTENTS[file], f"file {file}: a wrong byte"
        return True

    def _check_budget(self) -> None:
        """Files only come while this is called: they go before."""
        sizes: dict[int, int] = {}
        for folder in (self._own.files, self._own.parts):
            for path in folder.iterdir():
                with contextlib.suppress(FileNotFoundError):  # a part became a file
                    status = path.stat()
                    sizes[status.st_ino] = status.st_size
        assert sum(sizes.values()) <= BUDGET_BYTES, f"{sum(sizes.values())} bytes in {self._own.folder}"


def kill_at_system_calls(rng: random.Random) -> None:
    """Some calls that change the directory are this process's last: between them is where a kill may hurt."""

    def deadly(call: Callable[..., None]) -> Callable[..., None]:
        def wrapped(*arguments: object, **settings: object) -> None:
            if rng.random() < 0.01:
                os.kill(os.getpid(), signal.SIGKILL)
            if rng.random() < 0.1:
                time.sleep(0.001)  # another process comes between
            call(*arguments, **settings)

        return wrapped

    for name in ("link", "replace", "unlink"):
        setattr(os, name, deadly(getattr(os, name)))


def start(folders: Folders, number: int, seed: float) -> int:
    """Fork one life of a run; its process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: none outlives a test that failed
        kill_at_system_calls(random.Random(seed + 1))
        Worker(folders, number, random.Random(seed)).live()
        status = 0
    except BaseException:  # noqa: BLE001  the child must end here, whatever it was
        traceback.print_exc()
    os._exit(status)


def reap(child: int) -> None:
    """Wait for its end, and complain if it was an error of its own."""
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), f"a worker ended with {code}"


def damage(folders: Folders, rng: random.Random) -> None:
    """Change a byte of some file, or cut it, while nobody lives."""
    files = sorted(path for path in folders.cache.glob("pool/*/*") if path.stat().st_size)
    if files:
        path = rng.choice(files)
        with path.open("r+b") as file:
            if rng.random() < 0.5:
                file.truncate(rng.randrange(path.stat().st_size))
            else:
                file.seek(rng.randrange(path.stat().st_size))
                file.write(bytes([255 ^ file.read(1)[0]]))


def check_the_end(folders: Folders) -> None:
    """Nothing is there but what the runs pin; and nothing at all once their directories are gone."""
    (folders.root / "last").mkdir()
    Cache(folders.cache, folders.root / "last").close()
    pool = {path.name: path for path in folders.cache.glob("pool/*/*")}
    assert all(path.stat().st_nlink > 1 for path in pool.values()), "a file that nobody pins"
    assert all(path.read_bytes() == CONTENTS[FILE_OF[name]] for name, path in pool.items())
    pinned = {path.name for path in folders.cache.glob("runs/*/files/*")}
    assert pool.keys() <= pinned, "of a run that was killed just before, the pool may lack one"
    assert {path.name for path in folders.cache.glob("sums/*/*")} == pinned
    for pattern in ("locks/*", "runs/*/parts/*", "runs/*/sum-*"):
        assert not list(folders.cache.glob(pattern)), f"{pattern} is left"
    for number in range(RUNS):
        folders.run(number).rmdir()
    Cache(folders.cache, folders.root / "last").close()
    left = [path for path in folders.cache.rglob("*") if path.is_file() and path.name not in ("lock", "run.json")]
    assert not left, f"left although every run is gone: {left}"
    assert not list(folders.cache.glob("runs/*"))


def main() -> None:
    rng, folders = random.Random(int(sys.argv[1])), Folders(Path(sys.argv[2]))
    for number in range(RUNS):
        folders.run(number).mkdir()
    kills = 0
    folders.fetches.touch()
    for phase in range(PHASES):
        folders.stop.unlink(missing_ok=True)
        living = {number: start(folders, number, rng.random()) for number in range(RUNS)}
        end_s, enough = time.monotonic() + PHASE_S, LEAST * (phase + 1)
        while time.monotonic() < end_s or kills < enough:
            time.sleep(rng.random() * 0.05)
            number = rng.randrange(RUNS)
            os.kill(living[number], signal.SIGKILL)
            reap(living[number])
            living[number] = start(folders, number, rng.random())
            kills += 1
        while len(folders.fetches.read_text().splitlines()) < enough:  # whoever is killed at once fetches nothing
            time.sleep(0.01)
        folders.stop.touch()
        for child in living.values():
            reap(child)
        if phase < PHASES - 1:
            damage(folders, rng)
    check_the_end(folders)
    fetches = len(folders.fetches.read_text().splitlines())
    print(json.dumps({"kills": kills, "fetches": fetches}))  # noqa: T201


if __name__ == "__main__":
    main()
