"""Checkpoints without weights: `checkpoints/step-N.json`, with the position in the stream and the settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

from common.errors import BadInputError
from services.trainer.checkpoints.checkpoint_folder import CheckpointFolder
from workloads.base.checkpoint import UnreadableError

FORMAT = 1


class PositionCheckpoints(CheckpointFolder):
    """Checkpoints of a run that only counts; the newest ``keep`` stay."""

    suffix = ".json"

    def save(self, step: int, content: dict[str, Any]) -> Path:
        """Write a checkpoint atomically; it is on disk on return. Raises OSError."""
        return self._save(step, {"format": FORMAT, **content})

    def _write(self, content: dict[str, Any], file: BinaryIO) -> None:
        file.write(json.dumps(content).encode() + b"\n")

    def _read(self, path: Path) -> dict[str, Any]:
        return read_position(path)


def read_position(path: Path) -> dict[str, Any]:
    """Return what was saved. Raises BadInputError that names the file, UnreadableError if it is damaged."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{path}: can't be read ({' '.join(str(error).split())[:200]})") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BadInputError(f"{path}: not a checkpoint of format {FORMAT}; use --fresh, or another run directory")
    return content
