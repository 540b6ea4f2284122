"""Ledger: the fetcher's SQLite file with the frozen inventory of each range, and the data of each file.

Everything but the frozen inventories is cache. Files are numbered over the ranges in use, which are set with use().
"""

from __future__ import annotations

import contextlib
import sqlite3
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgpack

from common.errors import BadInputError
from common.messages import Quarantined
from common.plan import Footer, SourceFile, files_digest, footer_of, groups_of
from services.config.settings import InputRange, range_key

LEDGER_FILE = "ledger.sqlite"

_VERSION = 2
_SCHEMA = f"""
PRAGMA user_version = {_VERSION};
CREATE TABLE IF NOT EXISTS ranges (
    id INTEGER PRIMARY KEY, inputs TEXT NOT NULL UNIQUE, num_files INTEGER NOT NULL, bytes INTEGER NOT NULL,
    digest TEXT NOT NULL, note TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS folders (id INTEGER PRIMARY KEY, url TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS files (
    range INTEGER NOT NULL, file INTEGER NOT NULL, folder INTEGER NOT NULL, name TEXT NOT NULL,
    size_bytes INTEGER NOT NULL, checksum TEXT NOT NULL, PRIMARY KEY (range, file)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS settings (id INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS footers (
    settings INTEGER NOT NULL, range INTEGER NOT NULL, file INTEGER NOT NULL, footer BLOB NOT NULL,
    PRIMARY KEY (settings, range, file)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS bad (
    range INTEGER NOT NULL, file INTEGER NOT NULL, row_group INTEGER NOT NULL, rows INTEGER NOT NULL,
    reason TEXT NOT NULL, PRIMARY KEY (range, file, row_group)
);
CREATE TABLE IF NOT EXISTS failures (inputs TEXT PRIMARY KEY, tries INTEGER NOT NULL, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS place (one INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, ranges_done INTEGER NOT NULL);
"""


class DamagedLedger(BadInputError):
    """Error: the ledger is damaged. Nothing in it is the only copy: see set_aside()."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(
            f"{path}: not a ledger, or damaged ({reason}); the run's fetcher makes a new one when it starts"
        )


@dataclass(frozen=True)
class FrozenRange:
    """Inventory of one range at the time of its listing."""

    id: int
    num_files: int
    bytes: int
    digest: str
    """files_digest() of its files."""
    note: str
    """Reason that it has no files; empty if it has some."""


@dataclass(frozen=True)
class CommittedPlace:
    """Position of the newest checkpoint, for `icestream ranges`; the run itself uses the checkpoint."""

    epoch: int = 0
    ranges_done: int = 0
    """Ranges done in this epoch."""


class Ledger:
    """Ledger of one run; only the fetcher's main thread uses it.

    ``settings``: the plan hash. Footers are kept for each, since their spans depend on it.
    """

    def __init__(self, path: Path, settings: str = "") -> None:
        self._path = path
        self._used: list[FrozenRange] = []
        self._first_file: list[int] = [0]
        self._bad: set[tuple[int, int]] = set()
        with damage_named(path):
            self._db = sqlite3.connect(path)
            path.chmod(0o600)
            self._db.execute("PRAGMA journal_mode = WAL")  # a commit for each file must not wait for the disk
            self._db.execute("PRAGMA synchronous = NORMAL")
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version != _VERSION and self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
                raise BadInputError(
                    f"{path}: written by another version of icestream; use --fresh, or another run directory"
                )
            self._db.executescript(_SCHEMA)
            with self._db:
                self._settings = self._id("settings", "hash", settings)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    # -------------------------------------------------------------- ranges

    def use(self, ranges: Sequence[InputRange]) -> list[FrozenRange]:
        """Number files over these ranges from now on; return those, from the first on, that are frozen."""
        self._used, self._first_file = [], [0]
        self._bad = set()
        for one in ranges:
            frozen = self.frozen(one)
            if frozen is None:
                break
            self._append(frozen)
        return list(self._used)

    def frozen(self, one: InputRange) -> FrozenRange | None:
        """Return the inventory of a range, if it was listed."""
        query = "SELECT id, num_files, bytes, digest, note FROM ranges WHERE inputs = ?"
        row = self._db.execute(query, (range_key(one),)).fetchone()
        return None if row is None else FrozenRange(*row)

    def freeze(self, one: InputRange, files: Sequence[SourceFile], note: str = "") -> FrozenRange:
        """Fix the inventory of the next range in use, all or nothing. ``note``: reason that it has no files."""
        size_bytes = sum(file.size_bytes for file in files)
        digest = files_digest((file.url, file.size_bytes) for file in files)
        with self._db:
            row = (range_key(one), len(files), size_bytes, digest, note)
            query = "INSERT INTO ranges (inputs, num_files, bytes, digest, note) VALUES (?, ?, ?, ?, ?)"
            added = self._db.execute(query, row)
            assert added.lastrowid is not None
            folders: dict[str, int] = {}
            rows = []
            for number, file in enumerate(files):
                path = file.url.partition("?")[0] if "://" in file.url else file.url
                end = path.rfind("/") + 1  # a "/" in the query belongs to the name
                folder, name = file.url[:end], file.url[end:]
                if folder not in folders:
                    folders[folder] = self._id("folders", "url", folder)
                rows.append((added.lastrowid, number, folders[folder], name, file.size_bytes, file.checksum))
            self._db.executemany("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?)", rows)
            self._db.execute("DELETE FROM failures WHERE inputs = ?", (range_key(one),))
        frozen = FrozenRange(added.lastrowid, len(files), size_bytes, digest, note)
        self._append(frozen)
        return frozen

    def note_failure(self, one: InputRange, tries: int, reason: str) -> None:
        """Store the ``tries``-th failure in a row to list a range."""
        with self._db:
            self._db.execute("INSERT OR REPLACE INTO failures VALUES (?, ?, ?)", (range_key(one), tries, reason))

    def failure(self, one: InputRange) -> tuple[int, str] | None:
        """(tries, reason) of a range that could not be listed yet."""
        query = "SELECT tries, reason FROM failures WHERE inputs = ?"
        row = self._db.execute(query, (range_key(one),)).fetchone()
        return None if row is None else (int(row[0]), str(row[1]))

    def note_place(self, place: CommittedPlace) -> None:
        """Store the position of a checkpoint."""
        with self._db:
            self._db.execute("INSERT OR REPLACE INTO place VALUES (0, ?, ?)", (place.epoch, place.ranges_done))

    def place(self) -> CommittedPlace | None:
        """Return the position of the newest checkpoint; None before the first."""
        row = self._db.execute("SELECT epoch, ranges_done FROM place").fetchone()
        return None if row is None else CommittedPlace(*row)

    # -------------------------------------------------------------- files

    def source(self, file: int) -> SourceFile:
        """A file of the inventory."""
        query = (
            "SELECT folders.url, name, size_bytes, checksum FROM files JOIN folders ON folders.id = folder "
            "WHERE range = ? AND file = ?"
        )
        row = self._db.execute(query, self._at(file)).fetchone()
        if row is None:
            raise DamagedLedger(self._path, f"file {file} is missing")
        folder, name, size_bytes, checksum = row
        return SourceFile(folder + name, size_bytes, checksum)

    def staged_bytes(self, frozen: FrozenRange) -> array[int]:
        """Return the disk space of each file of a range once it is staged: 0 if it is local."""
        query = (
            "SELECT CASE WHEN instr(folders.url, '://') THEN size_bytes ELSE 0 END FROM files "
            "JOIN folders ON folders.id = folder WHERE range = ? ORDER BY file"
        )
        return array("q", (row[0] for row in self._db.execute(query, (frozen.id,))))

    def footer(self, file: int) -> Footer | None:
        """Return the footer of a file, if it was read before."""
        query = "SELECT footer FROM footers WHERE settings = ? AND range = ? AND file = ?"
        row = self._db.execute(query, (self._settings, *self._at(file))).fetchone()
        if row is None:
            return None
        try:
            return footer_of(msgpack.unpackb(row[0], use_list=False))
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise DamagedLedger(self._path, f"the footer of file {file}: {error}") from None

    def keep_footer(self, file: int, footer: Footer) -> None:
        """Store a footer."""
        with self._db:
            row = (self._settings, *self._at(file), msgpack.packb(groups_of(footer)))
            self._db.execute("INSERT OR REPLACE INTO footers VALUES (?, ?, ?, ?)", row)

    def quarantine(self, bad: Quarantined) -> None:
        """Store a quarantine; the first reason stays."""
        at = self._at(bad.file)
        self._bad.add(at)
        with self._db:
            row = (*at, bad.row_group, bad.rows, bad.reason)
            self._db.execute("INSERT OR IGNORE INTO bad VALUES (?, ?, ?, ?, ?)", row)

    def release(self, file: int) -> None:
        """Remove the quarantine of a whole file."""
        at = self._at(file)
        with self._db:
            self._db.execute("DELETE FROM bad WHERE range = ? AND file = ? AND row_group = -1", at)
        if not self._db.execute("SELECT 1 FROM bad WHERE range = ? AND file = ?", at).fetchone():
            self._bad.discard(at)

    def whole_file(self, file: int) -> Quarantined | None:
        """Return the quarantine of a whole file, if it is in one."""
        query = "SELECT rows, reason FROM bad WHERE range = ? AND file = ? AND row_group = -1"
        row = self._db.execute(query, self._at(file)).fetchone()
        return None if row is None else Quarantined(file, -1, *row)

    def num_bad_files(self) -> int:
        """Return the number of distinct files of the ranges in use that are quarantined, whole or in part."""
        return len(self._bad)

    def reasons(self) -> list[str]:
        """Return the first reason of each of these files, in their order."""
        query = "SELECT range, file, reason FROM bad ORDER BY range, file, row_group DESC"
        of_files = {(of_range, file): reason for of_range, file, reason in self._db.execute(query)}
        return [reason for at, reason in of_files.items() if at in self._bad]

    # -------------------------------------------------------------- small things

    def _at(self, file: int) -> tuple[int, int]:
        """(id of the range, index in it)."""
        index = bisect_right(self._first_file, file) - 1
        return self._used[index].id, file - self._first_file[index]

    def _append(self, frozen: FrozenRange) -> None:
        self._used.append(frozen)
        self._first_file.append(self._first_file[-1] + frozen.num_files)
        self._bad.update(self._db.execute("SELECT DISTINCT range, file FROM bad WHERE range = ?", (frozen.id,)))

    def _id(self, table: str, column: str, value: str) -> int:
        """Return the number of a text used in many rows."""
        self._db.execute(f"INSERT OR IGNORE INTO {table} ({column}) VALUES (?)", (value,))
        row = self._db.execute(f"SELECT id FROM {table} WHERE {column} = ?", (value,)).fetchone()
        return int(row[0])


@contextlib.contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Raise DamagedLedger in place of SQLite's errors of a wrong file; with a failing disk the file may be sound."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorname", "").startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
            raise DamagedLedger(path, error) from None
        raise


def set_aside(path: Path) -> Path:
    """Move a damaged ledger out of the way, and return its new path. The next one is made from the inputs.

    The trainer's checkpoint has the digest of the inventory, the cursor and the bad files: a run continues from there,
    or ends with the error that its inputs have changed.
    """
    aside = path.with_name(f"{path.name}.damaged")
    for suffix in ("-wal", "-shm"):  # a new ledger would take them for its own
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        path.replace(aside)
    return aside
