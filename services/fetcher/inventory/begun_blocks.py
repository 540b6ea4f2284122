"""Files of a shard's begun blocks, as they were planned: a fetcher that lost its ledger plans these blocks alike.

A cursor inside a block means something only as long as the block has the same units. They depend on the footers of its
files, and on those that are bad; but a file that was good may be gone when another fetcher stages it again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from common.atomic_file import part_of_one_writer, replace_file
from common.plan import SourceFile, StagedFile
from services.fetcher.inventory.stored_footer import footer_of, groups_of


class BegunBlocks:
    """Record of begun blocks in the file ``path``. ``settings``: plan hash; a record of another plan is dropped."""

    def __init__(self, path: Path, settings: str) -> None:
        self._path = path
        self._head = json.dumps(settings)
        self._lines: dict[int, str] = {}
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
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
        with self._path.open("a") as lines:
            lines.write(f"\n{self._lines[block]}\n")  # on a new line whatever a killed process left
            lines.flush()
            os.fsync(lines.fileno())

    def forget(self, before_block: int) -> None:
        """Remove blocks to which no checkpoint leads back."""
        left = {block: line for block, line in self._lines.items() if block >= before_block}
        if len(left) < len(self._lines):
            self._lines = left
            self._write()

    def _write(self) -> None:
        text = "".join(f"{line}\n" for line in (self._head, *self._lines.values()))
        replace_file(self._path, text, durable=True, part=part_of_one_writer(self._path))


def _block_of(line: str) -> int | None:
    """Block of a line; None for what a killed process left of one."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found[0] if isinstance(found, list) else None
