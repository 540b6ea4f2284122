"""Destinations of outputs: a directory, or a federation."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Protocol

from common.atomic_file import AS_UMASK_SAYS, replace_file, replacing
from common.errors import BadInputError
from common.pelican.errors import NotFoundError
from common.pelican.threads import PelicanThread
from common.pelican.tokens.scopes import Need, needs
from common.pelican.tokens.source import FoundTokens
from common.pelican.upload import delete, size_of, upload
from common.pelican.url import PelicanUrl, is_pelican
from services.config.root import Config
from services.outputs.manifest import MANIFEST, Manifest, OutputFile, parse_manifest

_MAX_MANIFEST_BYTES = 1 << 20


class Destination(Protocol):
    """Destination of outputs. Raises BadInputError or TransientError that names it, OSError for a local disk."""

    def manifest(self) -> Manifest | None:
        """Manifest at the destination; None before the first copy."""

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the list of complete files."""

    def put(self, name: str, path: Path) -> None:
        """Copy a local file to the destination, in full or not at all."""

    def get(self, name: str, file: OutputFile, path: Path) -> None:
        """Copy a file back; ``path`` may hold its beginning."""

    def delete(self, name: str) -> None:
        """Remove a file; a missing file is no error."""

    def close(self) -> None:
        """Abort all transfers."""


def open_destination(config: Config, folder: Path) -> Destination:
    """Destination of a run. ``folder``: for files in transfer."""
    where = config.outputs.destination
    return FederationDestination(config, folder) if is_pelican(where) else FolderDestination(Path(where))


def _part_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


class FolderDestination:
    """Directory as a destination, on another disk for example."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def manifest(self) -> Manifest | None:
        try:
            return parse_manifest((self._folder / MANIFEST).read_bytes(), str(self._folder / MANIFEST))
        except FileNotFoundError:
            return None

    def write_manifest(self, manifest: Manifest) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / MANIFEST
        text = manifest.model_dump_json(indent=1)
        replace_file(path, text, durable=True, mode=AS_UMASK_SAYS, part=_part_of(path))

    def put(self, name: str, path: Path) -> None:
        target = self._folder / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(target, durable=True, mode=AS_UMASK_SAYS, part=_part_of(target)) as part:
            shutil.copyfile(path, part)

    def get(self, name: str, file: OutputFile, path: Path) -> None:
        del file
        try:
            shutil.copyfile(self._folder / name, path)
        except FileNotFoundError:
            raise BadInputError(f"{self._folder / name} is gone") from None

    def delete(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        return


class FederationDestination:
    """Federation directory as a destination. Read from the origin: a cache would keep returning an old state."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._place = PelicanUrl.parse(config.outputs.destination)
        self._folder = folder
        found = needs([], [config.outputs.destination], storage_prefix=config.token.storage_prefix)
        need = next(iter(found), Need(self._place.federation, ()))
        direct = config.pelican.model_copy(update={"direct_reads": True, "checksums": "inventory"})
        self._thread = PelicanThread(direct, lambda host: FoundTokens(need, config.token), transfers=1)

    def manifest(self) -> Manifest | None:
        part = self._folder / "manifest.part"
        part.unlink(missing_ok=True)
        try:
            path = self._path(MANIFEST)
            size_bytes = self._thread.run(lambda federation: size_of(federation, path), str(self._place))
            if size_bytes > _MAX_MANIFEST_BYTES:
                raise BadInputError(f"{self._url(MANIFEST)}: {size_bytes} bytes are no list of outputs")
            self._thread.download(self._url(MANIFEST), part, size_bytes)
            return parse_manifest(part.read_bytes(), self._url(MANIFEST))
        except NotFoundError:
            return None
        finally:
            part.unlink(missing_ok=True)

    def write_manifest(self, manifest: Manifest) -> None:
        part = self._folder / "manifest.part"
        part.write_text(manifest.model_dump_json(indent=1))
        try:
            self.put(MANIFEST, part)
        finally:
            part.unlink(missing_ok=True)

    def put(self, name: str, path: Path) -> None:
        self._thread.run(lambda federation: upload(federation, self._path(name), path), str(self._place))

    def get(self, name: str, file: OutputFile, path: Path) -> None:
        self._thread.download(self._url(name), path, file.size_bytes, file.digest)

    def delete(self, name: str) -> None:
        self._thread.run(lambda federation: delete(federation, self._path(name)), str(self._place))

    def close(self) -> None:
        self._thread.close()

    def _path(self, name: str) -> str:
        return f"{self._place.path}/{name}"

    def _url(self, name: str) -> str:
        return str(self._place.at(self._path(name)))
