"""Manifest of the complete files at a destination. Readers trust this list alone: it is written last. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.errors import BadInputError

MANIFEST = "icestream-outputs.json"

_PART = "[A-Za-z0-9][A-Za-z0-9._-]{0,200}"
Name = Annotated[str, Field(pattern=rf"^(checkpoints|tensorboard(/{_PART})?)/{_PART}$")]


class OutputFile(BaseModel):
    """Size and digest of one complete file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size_bytes: int = Field(ge=0)
    digest: str = Field(pattern=r"^sha256=[0-9a-f]{64}$")


class Manifest(BaseModel):
    """Outputs of one run, by their names in its run directory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    files: dict[Name, OutputFile] = {}

    @property
    def checkpoints(self) -> list[str]:
        """Names of the checkpoints, newest first."""
        return sorted((name for name in self.files if name.startswith("checkpoints/")), reverse=True)

    def with_file(self, name: str, file: OutputFile) -> Manifest:
        """Manifest with a new or changed file."""
        return self.model_copy(update={"files": {**self.files, name: file}})

    def without(self, name: str) -> Manifest:
        """Manifest without a file."""
        return self.model_copy(update={"files": {key: file for key, file in self.files.items() if key != name}})


def parse_manifest(text: bytes, where: str) -> Manifest:
    """Parsed and checked manifest. Raises BadInputError."""
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        raise BadInputError(
            f"{where}: not a list of outputs ({error.error_count()} problems); name another outputs.destination"
        ) from None


def changes(local: Mapping[str, OutputFile], manifest: Manifest, keep_checkpoints: int) -> tuple[list[str], list[str]]:
    """(names to copy, the newest checkpoint first; names to delete).

    ``local``: files of the run directory. A checkpoint that is gone there stays at the destination while it is among
    the newest.
    """
    checkpoints = sorted({name for name in (*local, *manifest.files) if name.startswith("checkpoints/")}, reverse=True)
    kept = set(checkpoints[:keep_checkpoints])
    wanted = [name for name in checkpoints if name in kept and name in local]
    wanted += sorted(name for name in local if not name.startswith("checkpoints/"))
    to_copy = [name for name in wanted if manifest.files.get(name) != local[name]]
    return to_copy, [name for name in manifest.checkpoints if name not in kept]
