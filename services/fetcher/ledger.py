"""The fetcher's sqlite file: the frozen inventory, and what is known of each file. All but the inventory is cache."""

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
CREATE TABLE IF NOT EXISTS inventory (file INTEGER PRIMARY KEY, url TEXT NOT NULL, size_bytes INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS inputs (position INTEGER PRIMARY KEY, input TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS footers (file INTEGER PRIMARY KEY, footer TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS bad (
    file INTEGER NOT NULL, row_group INTEGER NOT NULL, rows INTEGER NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (file, row_group)
);
"""


class Ledger:
    """One per run; only the fetcher's main thread uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._db = sqlite3.connect(path)
            path.chmod(0o600)
            # The ledger is rebuilt from the inputs if it is lost: speed before durability.
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(_SCHEMA)
        except sqlite3.DatabaseError as error:
            raise BadInputError(f"{path}: not a ledger ({error}); use --fresh, or another run directory") from None

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def frozen_inputs(self) -> list[str]:
        """The inputs that the inventory was expanded from; empty before freeze()."""
        return [row[0] for row in self._db.execute("SELECT input FROM inputs ORDER BY position")]

    def inventory(self) -> list[SourceFile]:
        """The frozen inventory; empty before freeze()."""
        return [SourceFile(*row) for row in self._db.execute("SELECT url, size_bytes FROM inventory ORDER BY file")]

    def freeze(self, inputs: Sequence[str], files: Sequence[SourceFile]) -> None:
        """Fix the inventory, all or nothing; what was known of another one is forgotten."""
        with self._db:
            for table in ("inventory", "inputs", "footers", "bad"):
                self._db.execute(f"DELETE FROM {table}")
            self._db.executemany("INSERT INTO inputs VALUES (?, ?)", enumerate(inputs))
            rows = ((i, file.url, file.size_bytes) for i, file in enumerate(files))
            self._db.executemany("INSERT INTO inventory VALUES (?, ?, ?)", rows)

    def footer(self, file: int) -> Footer | None:
        """The footer of a file, if it was read before."""
        row = self._db.execute("SELECT footer FROM footers WHERE file = ?", (file,)).fetchone()
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
            self._db.execute("INSERT OR REPLACE INTO footers VALUES (?, ?)", (file, json.dumps(groups)))

    def quarantine(self, bad: Quarantined) -> None:
        """Remember what was set aside; the first reason stays."""
        with self._db:
            row = (bad.file, bad.row_group, bad.rows, bad.reason)
            self._db.execute("INSERT OR IGNORE INTO bad VALUES (?, ?, ?, ?)", row)

    def whole_file_reason(self, file: int) -> str | None:
        """Why a whole file is quarantined; None if it isn't."""
        row = self._db.execute("SELECT reason FROM bad WHERE file = ? AND row_group = -1", (file,)).fetchone()
        return None if row is None else str(row[0])

    def num_bad_files(self) -> int:
        """Distinct files that are quarantined, whole or in part."""
        return int(self._db.execute("SELECT COUNT(DISTINCT file) FROM bad").fetchone()[0])
