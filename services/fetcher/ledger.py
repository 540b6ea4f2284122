"""The fetcher's sqlite file: frozen inventories, and what is known of each file. All but the inventories is cache."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from common.errors import BadInputError
from common.messages import Quarantined
from services.fetcher.plan import Footer, RowGroup, SourceFile, Span

LEDGER_FILE = "ledger.sqlite"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS inventories (inventory INTEGER PRIMARY KEY, inputs TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS files (
    inventory INTEGER NOT NULL, file INTEGER NOT NULL, url TEXT NOT NULL, size_bytes INTEGER NOT NULL,
    PRIMARY KEY (inventory, file)
);
CREATE TABLE IF NOT EXISTS footers (
    inventory INTEGER NOT NULL, settings TEXT NOT NULL, file INTEGER NOT NULL, footer TEXT NOT NULL,
    PRIMARY KEY (inventory, settings, file)
);
CREATE TABLE IF NOT EXISTS bad (
    inventory INTEGER NOT NULL, file INTEGER NOT NULL, row_group INTEGER NOT NULL, rows INTEGER NOT NULL,
    reason TEXT NOT NULL, PRIMARY KEY (inventory, file, row_group)
);
CREATE TABLE IF NOT EXISTS cached (path TEXT PRIMARY KEY);
"""


class Ledger:
    """One per run; only the fetcher's main thread uses it.

    ``settings``: hash of the stream's settings. Footers are kept for each, since their spans depend on them.
    """

    def __init__(self, path: Path, settings: str = "") -> None:
        self._inventory = 0
        self._settings = settings
        try:
            self._db = sqlite3.connect(path)
            path.chmod(0o600)
            self._db.execute("PRAGMA journal_mode = WAL")  # a commit for each file must not wait for the disk
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(_SCHEMA)
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorname not in ("SQLITE_NOTADB", "SQLITE_CORRUPT"):
                raise  # a full or failing disk, say: the ledger itself may be sound
            raise BadInputError(f"{path}: not a ledger ({error}); use --fresh, or another run directory") from None

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def inventory(self, inputs: Sequence[str]) -> list[SourceFile]:
        """The inventory that was frozen for these inputs, from now on the one in use; empty before freeze()."""
        row = self._db.execute("SELECT inventory FROM inventories WHERE inputs = ?", (_key(inputs),)).fetchone()
        self._inventory = 0 if row is None else int(row[0])
        query = "SELECT url, size_bytes FROM files WHERE inventory = ? ORDER BY file"
        return [SourceFile(*row) for row in self._db.execute(query, (self._inventory,))]

    def freeze(self, inputs: Sequence[str], files: Sequence[SourceFile]) -> None:
        """Fix the inventory of these inputs, all or nothing. Inventories of other inputs are kept."""
        with self._db:
            added = self._db.execute("INSERT INTO inventories (inputs) VALUES (?)", (_key(inputs),))
            assert added.lastrowid is not None
            self._inventory = added.lastrowid
            rows = ((self._inventory, i, file.url, file.size_bytes) for i, file in enumerate(files))
            self._db.executemany("INSERT INTO files VALUES (?, ?, ?, ?)", rows)

    def footer(self, file: int) -> Footer | None:
        """The footer of a file, if it was read before."""
        query = "SELECT footer FROM footers WHERE inventory = ? AND settings = ? AND file = ?"
        row = self._db.execute(query, (self._inventory, self._settings, file)).fetchone()
        if row is None:
            return None
        groups = json.loads(row[0])
        return Footer(tuple(RowGroup(rows, n, tuple(Span(*span) for span in spans)) for rows, n, spans in groups))

    def keep_footer(self, file: int, footer: Footer) -> None:
        """Remember a footer."""
        groups = [
            (g.rows, g.particles, [(s.first_row, s.rows, s.particles) for s in g.spans]) for g in footer.row_groups
        ]
        with self._db:
            row = (self._inventory, self._settings, file, json.dumps(groups))
            self._db.execute("INSERT OR REPLACE INTO footers VALUES (?, ?, ?, ?)", row)

    def quarantine(self, bad: Quarantined) -> None:
        """Remember what was set aside; the first reason stays."""
        with self._db:
            row = (self._inventory, bad.file, bad.row_group, bad.rows, bad.reason)
            self._db.execute("INSERT OR IGNORE INTO bad VALUES (?, ?, ?, ?, ?)", row)

    def whole_file(self, file: int) -> Quarantined | None:
        """The quarantine of a whole file, if it is in one."""
        query = "SELECT rows, reason FROM bad WHERE inventory = ? AND file = ? AND row_group = -1"
        row = self._db.execute(query, (self._inventory, file)).fetchone()
        return None if row is None else Quarantined(file, -1, *row)

    def num_bad_files(self) -> int:
        """Distinct files that are quarantined, whole or in part."""
        query = "SELECT COUNT(DISTINCT file) FROM bad WHERE inventory = ?"
        return int(self._db.execute(query, (self._inventory,)).fetchone()[0])

    def note_cached(self, path: Path) -> None:
        """A remote file was staged there: a fetcher that starts later must know what may be deleted."""
        with self._db:
            self._db.execute("INSERT OR IGNORE INTO cached VALUES (?)", (str(path),))

    def forget_cached(self, path: Path) -> None:
        """It was deleted."""
        with self._db:
            self._db.execute("DELETE FROM cached WHERE path = ?", (str(path),))

    def cached(self) -> list[Path]:
        """Remote files that this run has staged."""
        return [Path(row[0]) for row in self._db.execute("SELECT path FROM cached")]


def _key(inputs: Sequence[str]) -> str:
    return json.dumps(list(inputs))
