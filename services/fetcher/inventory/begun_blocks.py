"""Files of a shard's begun blocks, as they were planned: a fetcher that lost its ledger plans these blocks alike.

A cursor inside a block means something only as long as the block has the same units. They depend on the footers of its
files, and on those that are bad; but a file that was good may be gone when another fetcher stages it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from common.plan import SourceFile, StagedFile
from services.fetcher.inventory.own_record import OwnRecord
from services.fetcher.inventory.stored_footer import footer_of, groups_of


class BegunBlocks:
    """Begun blocks in a shard's ``record``. ``settings``: plan hash; a record of another plan is dropped."""

    def __init__(self, record: OwnRecord, settings: str) -> None:
        self._record = record
        self._head = json.dumps(settings)
        self._lines: dict[int, str] = {}
        lines = record.path.read_text(errors="replace").splitlines() if record.path.exists() else []
        if lines[:1] == [self._head]:
            self._lines = {block: line for line in lines[1:] if (block := _block_of(line)) is not None}
        else:
            self._write()

    @property
    def blocks(self) -> list[int]:
        """Numbers of the begun blocks, in order."""
        return sorted(self._lines)

    def files(self, block: int) -> dict[tuple[str, int], StagedFile]:
        """Files of a begun block as they were planned, without paths, by URL and size."""
        _, files = json.loads(self._lines[block])
        found: dict[tuple[str, int], StagedFile] = {}
        for url, size_bytes, file, groups, reason, rows in files:
            footer = None if groups is None else footer_of(groups)
            found[url, size_bytes] = StagedFile(file, "", footer, reason=reason, bad_rows=rows)
        return found

    def add(self, block: int, files: Iterable[tuple[SourceFile, StagedFile]]) -> None:
        """Keep the files of a planned block, in place of those of its former plan."""
        kept = [
            (
                source.url,
                source.size_bytes,
                file.file,
                None if file.footer is None else groups_of(file.footer),
                file.reason,
                file.bad_rows,
            )
            for source, file in files
        ]
        self._lines[block] = json.dumps([block, kept])
        self._record.append(self._lines[block])

    def forget(self, before_block: int) -> None:
        """Remove blocks to which no checkpoint leads back."""
        left = {block: line for block, line in self._lines.items() if block >= before_block}
        if len(left) < len(self._lines):
            self._lines = left
            self._write()

    def _write(self) -> None:
        self._record.replace(self._head, *self._lines.values())


def _block_of(line: str) -> int | None:
    """Block of a line; None for what a killed process left of one."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found[0] if isinstance(found, list) else None
