"""Outputs process: copies of a run's changed outputs at intervals and at its end, and their way back.

The newest checkpoint goes first. A destination is a directory or a federation; its readers trust the manifest of
complete files alone, which is written last.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.atomic_file import AS_UMASK_SAYS, OWNER_ONLY, replace_file, replacing, sync_folder
from common.errors import BadInputError, IcestreamError, TransientError
from common.pelican.answers import NotFoundError
from common.pelican.threads import PelicanThread
from common.pelican.token_claims import Need, needs
from common.pelican.tokens import FoundTokens
from common.pelican.transfers import delete, size_of, upload
from common.pelican.url import PelicanUrl, is_pelican
from common.process import StopFlag
from common.status import OutputsStatus, write_status
from common.text import shown
from services.config.root import FINAL_SYNC_S, Config

logger = logging.getLogger(__name__)

MANIFEST = "icestream-outputs.json"
_MAX_MANIFEST_BYTES = 1 << 20

_PART = "[A-Za-z0-9][A-Za-z0-9._-]{0,200}"
Name = Annotated[str, Field(pattern=rf"^(checkpoints|tensorboard(/{_PART})?)/{_PART}$")]


class OutputFile(BaseModel):
    """The size and the digest of one complete file."""

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


def parse_manifest(text: bytes, where: str) -> Manifest:
    """Return the checked manifest. Raises BadInputError."""
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        raise BadInputError(
            f"{where}: not a list of outputs ({error.error_count()} problems); name another outputs.destination"
        ) from None


class Digests:
    """Digests of files, cached by path, size and time of change."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int, int], OutputFile]] = {}

    def of(self, path: Path) -> OutputFile | None:
        """Return the size and the digest of a file; None if it is gone."""
        try:
            with path.open("rb") as file:
                status = path.stat()
                state = (status.st_ino, status.st_size, status.st_mtime_ns)
                known = self._known.get(path)
                if known is not None and known[0] == state:
                    return known[1]
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                content = OutputFile(size_bytes=file.tell(), digest=f"sha256={digest}")
        except FileNotFoundError:
            self._known.pop(path, None)
            return None
        self._known[path] = (state, content)
        return content


def _part_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


class FolderDestination:
    """A directory as a destination, on another disk for example. Raises OSError, and BadInputError that names it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def manifest(self) -> Manifest | None:
        """Return the manifest at the destination; None before the first copy."""
        try:
            return parse_manifest((self._folder / MANIFEST).read_bytes(), str(self._folder / MANIFEST))
        except FileNotFoundError:
            return None

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the list of complete files."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / MANIFEST
        text = manifest.model_dump_json(indent=1)
        replace_file(path, text, durable=True, mode=AS_UMASK_SAYS, part=_part_of(path))

    def put(self, name: str, path: Path) -> None:
        """Copy a local file to the destination, in full or not at all."""
        target = self._folder / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(target, durable=True, mode=AS_UMASK_SAYS, part=_part_of(target)) as part:
            shutil.copyfile(path, part)

    def get(self, name: str, file: OutputFile, path: Path) -> None:
        """Copy a file back; ``path`` may hold its beginning."""
        del file
        try:
            shutil.copyfile(self._folder / name, path)
        except FileNotFoundError:
            raise BadInputError(f"{self._folder / name} is gone") from None

    def delete(self, name: str) -> None:
        """Remove a file; a missing file is no error."""
        (self._folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        """End all transfers."""


class FederationDestination:
    """A directory of a federation as a destination, as FolderDestination. Raises TransientError, too.

    It is read from the origin: a cache would keep returning an old state.
    """

    def __init__(self, config: Config, folder: Path) -> None:
        self._place = PelicanUrl.parse(config.outputs.destination)
        self._folder = folder
        found = needs([], [config.outputs.destination], storage_prefix=config.token.storage_prefix)
        need = next(iter(found), Need(self._place.federation, ()))
        pelican = config.pelican.model_copy(update={"checksums": "inventory"})
        self._thread = PelicanThread(pelican, lambda host: FoundTokens(need, config.token), transfers=1, direct=True)

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
        return str(PelicanUrl(self._place.federation, self._path(name)))


Destination: TypeAlias = FolderDestination | FederationDestination


def open_destination(config: Config, folder: Path) -> Destination:
    """Return the destination of a run. ``folder``: for files in transfer."""
    where = config.outputs.destination
    return FederationDestination(config, folder) if is_pelican(where) else FolderDestination(Path(where))


RUN_ID_FILE = "outputs.json"
KEPT_CHECKPOINTS = 2
"""Newest checkpoints at the destination: one to go on from, and one before it in case that is damaged."""
_NAMES = {
    "checkpoints": re.compile(r"step-\d{9,}\.pt"),
    "tensorboard": re.compile(r"([\w-]+/)?events\.out\.tfevents\.[\w.-]+"),  # in a folder named by the run's start
}
_POLL_S = 0.2
_RETRY_S = 5.0
_LONGEST_PAUSE_S = 300.0
_FINAL_PAUSE_S = 2.0


def serve(run_dir: Path, config: Config, stop: StopFlag, *, take_over: bool) -> None:
    """Copy until ``stop`` is set, then what is left.

    Raises BadInputError for an error at the start that only the user can fix, and if the last copies can't be made in
    time.
    """
    destination = open_destination(config, run_dir)
    try:
        copies = Copies(run_dir, destination, config.outputs.destination, take_over=take_over)
        failures = 0
        while not stop:
            failures = failures + 1 if copies.attempt() else 0
            pause_s = config.outputs.every_s
            if failures:
                pause_s = min(max(pause_s, _RETRY_S) * 2.0 ** min(failures - 1, 10), max(_LONGEST_PAUSE_S, pause_s))
            next_s = time.monotonic() + pause_s
            while not stop and time.monotonic() < next_s:
                time.sleep(_POLL_S)
        end_s = time.monotonic() + FINAL_SYNC_S
        while problem := copies.attempt():
            if time.monotonic() + _FINAL_PAUSE_S > end_s:
                raise BadInputError(f"the newest outputs were not copied: {problem}")
            time.sleep(_FINAL_PAUSE_S)
    finally:
        destination.close()


class Copies:
    """The copies of one run, at a destination that may refuse them for a while."""

    def __init__(self, run_dir: Path, destination: Destination, where: str, *, take_over: bool) -> None:
        """``take_over``: another run's copies there are replaced."""
        self._run_dir = run_dir
        self._destination = destination
        self._where = shown(where)
        self._take_over = take_over
        self._manifest: Manifest | None = None
        """Newest manifest of this run; None until the destination has answered."""
        self._has_written = False
        self._digests = Digests()
        self._files_copied = self._bytes_copied = 0

    def attempt(self) -> str:
        """Copy the changed files and write the status; return the reason of a failure, or an empty text.

        Raises BadInputError at the start, if another run's outputs are there.
        """
        problem = ""
        try:
            if copied := self.turn():
                logger.info("%d files copied to %s", copied, self._where)
        except (TransientError, OSError) as error:
            problem = shown(f"{self._where}: {error}")
            logger.warning("not copied: %s", problem)
        except IcestreamError as error:
            if self._manifest is None:
                raise  # the start: the user must see the error at once
            problem = shown(f"{self._where}: {error}")
            logger.error("not copied: %s", problem)
        status = OutputsStatus(files_copied=self._files_copied, bytes_copied=self._bytes_copied, problem=problem)
        write_status(self._run_dir, "outputs", status)
        return problem

    def turn(self) -> int:
        """Copy changed files, and return their number. Raises the destination's errors; the copies so far are kept."""
        if self._manifest is None:  # this run's at the destination, or an empty one
            ours, former = run_id(self._run_dir), self._destination.manifest()
            is_ours = former is not None and former.run_id == ours
            if former is not None and not is_ours and not self._take_over:
                raise BadInputError(
                    f"{self._where} holds the outputs of another run: name another outputs.destination, or start with"
                    " --fresh to replace them"
                )
            self._manifest = former if former is not None and is_ours else Manifest(run_id=ours)
        manifest = self._manifest
        before = self._files_copied
        local = {name: self._digests.of(self._run_dir / name) for name in self._names()}
        known = {name: file for name, file in local.items() if file is not None}
        to_copy, to_delete = changes(known, manifest)
        if (to_copy or to_delete) and self._has_written:
            newest = self._destination.manifest()
            if newest is not None and newest.run_id != manifest.run_id:
                raise BadInputError(f"{self._where}: another run has taken it over; this one copies nothing more there")
        files = dict(manifest.files)
        for name in to_copy:
            copied = self._copy(name)
            if copied is not None:
                files[name] = copied
                self._write(Manifest(run_id=manifest.run_id, files=files))
                self._files_copied += 1
        for name in to_delete:
            del files[name]
            self._write(Manifest(run_id=manifest.run_id, files=files))  # first: no reader must rely on it any more
            self._destination.delete(name)
        return self._files_copied - before

    def _names(self) -> list[str]:
        outputs = []
        for folder, pattern in _NAMES.items():
            inside = self._run_dir / folder
            names = [str(path.relative_to(inside)) for glob in ("*", "*/*") for path in inside.glob(glob)]
            outputs += [f"{folder}/{name}" for name in names if pattern.fullmatch(name)]
        return outputs

    def _copy(self, name: str) -> OutputFile | None:
        """Copy one file as it is now, and return its size and digest; None if it is gone."""
        still = self._run_dir / "outputs.part"
        try:
            still.unlink(missing_ok=True)
            if name.startswith("checkpoints/"):
                os.link(self._run_dir / name, still)  # the trainer may delete it meanwhile; it never changes it
            else:
                still.write_bytes((self._run_dir / name).read_bytes())  # the file grows: its copy must not
            file = Digests().of(still)
            if file is not None:
                self._destination.put(name, still)
                self._bytes_copied += file.size_bytes
            return file
        except FileNotFoundError:
            return None
        finally:
            still.unlink(missing_ok=True)

    def _write(self, manifest: Manifest) -> None:
        self._destination.write_manifest(manifest)
        self._manifest, self._has_written = manifest, True


def changes(local: Mapping[str, OutputFile], manifest: Manifest) -> tuple[list[str], list[str]]:
    """Return the names to copy, the newest checkpoint first, and the names to delete.

    ``local``: files of the run directory. A checkpoint that is gone there stays at the destination while it is among
    the newest.
    """
    checkpoints = sorted({name for name in (*local, *manifest.files) if name.startswith("checkpoints/")}, reverse=True)
    kept = set(checkpoints[:KEPT_CHECKPOINTS])
    wanted = [name for name in checkpoints if name in kept and name in local]
    wanted += sorted(name for name in local if not name.startswith("checkpoints/"))
    to_copy = [name for name in wanted if manifest.files.get(name) != local[name]]
    return to_copy, [name for name in manifest.checkpoints if name not in kept]


def run_id(run_dir: Path) -> str:
    """Return the random name of the run in this directory, which is made at its first use."""
    path = run_dir / RUN_ID_FILE
    try:
        return str(json.loads(path.read_text())["run_id"])
    except FileNotFoundError:
        keep_run_id(run_dir, made := secrets.token_hex(16))
        return made
    except (ValueError, KeyError, TypeError):
        raise BadInputError(f"{path}: damaged; delete it and use --fresh, or another outputs.destination") from None


def keep_run_id(run_dir: Path, value: str) -> None:
    """Store the name of the run in this directory."""
    replace_file(run_dir / RUN_ID_FILE, json.dumps({"run_id": value}) + "\n", durable=True)


def restore_if_gone(run_dir: Path, config: Config) -> str:
    """Restore the newest checkpoint and the TensorBoard files of a run whose own are gone, before its trainer starts.

    Returns a message about the restored files; empty if none was needed. Raises BadInputError if the destination can't
    be read: a new start would lose the copies there.
    """
    here = (run_dir / "checkpoints").glob("step-*")
    if not config.outputs.destination or any(path.suffix == ".pt" for path in here):
        return ""
    destination = open_destination(config, run_dir)
    try:
        manifest = destination.manifest()
        if manifest is None or not manifest.checkpoints:
            return ""
        _restore(run_dir, destination, manifest)
    except (IcestreamError, OSError) as error:
        raise BadInputError(
            f"{config.outputs.destination}: there is no checkpoint in {run_dir}, and the copies there can't be read: "
            f"{error}; try again later, or use --fresh to start from nothing"
        ) from None
    finally:
        destination.close()
    return f"{manifest.checkpoints[0]} was brought back from {config.outputs.destination}"


def _restore(run_dir: Path, destination: Destination, manifest: Manifest) -> None:
    for name in (name for name in manifest.files if name.startswith("tensorboard/")):
        try:
            _restore_file(run_dir, destination, name, manifest.files[name])
        except BadInputError as error:  # it grew, and its copier was killed before it updated the manifest
            logger.warning("%s did not come back: %s", name, error)
    # The checkpoint last: its presence means that all files are restored.
    _restore_file(run_dir, destination, manifest.checkpoints[0], manifest.files[manifest.checkpoints[0]])
    keep_run_id(run_dir, manifest.run_id)


def _restore_file(run_dir: Path, destination: Destination, name: str, file: OutputFile) -> None:
    """Restore one file. Raises BadInputError if it differs from the file that was copied."""
    target = run_dir / name
    if target.exists():
        return
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    part.unlink(missing_ok=True)
    try:
        destination.get(name, file, part)  # a download makes its file by itself
        if Digests().of(part) != file:
            raise BadInputError(f"{name}: the restored file differs from the copied one")
        with part.open("rb") as whole:
            os.fchmod(whole.fileno(), OWNER_ONLY)
            os.fsync(whole.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(target.parent)
