"""Copy of changed outputs, newest checkpoint first, with a manifest of the complete files at the destination."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path

from common.atomic_file import replace_file
from common.errors import BadInputError
from services.outputs.destinations import Destination
from services.outputs.digest import Digests
from services.outputs.manifest import Manifest, OutputFile, changes

logger = logging.getLogger(__name__)

RUN_ID_FILE = "outputs.json"
_NAMES = {
    "checkpoints": re.compile(r"step-\d{9,}\.(pt|json)"),
    "tensorboard": re.compile(r"([\w-]+/)?events\.out\.tfevents\.[\w.-]+"),  # in a folder named by the run's start
}


def run_id(run_dir: Path) -> str:
    """Random name of the run in this directory, created at its first use."""
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


class Sync:
    """Copies of one run. Raises BadInputError if another run's outputs are at the destination."""

    def __init__(self, run_dir: Path, destination: Destination, where: str, keep: int, *, take_over: bool) -> None:
        self.bytes_copied = 0
        self._run_dir = run_dir
        self._destination = destination
        self._keep = keep
        self._digests = Digests()
        self._where = where
        self._told = False
        ours = run_id(run_dir)
        found = destination.manifest()
        if found is not None and found.run_id != ours and not take_over:
            raise BadInputError(
                f"{where} holds the outputs of another run: name another outputs.destination, or start with --fresh to "
                "replace them"
            )
        self._manifest = found if found is not None and found.run_id == ours else Manifest(run_id=ours)

    def turn(self, stopped: Callable[[], bool] = lambda: False) -> int:
        """Copy changed files; their number. Raises the errors of the destination: copies made so far are kept."""
        local = {name: self._digests.of(self._run_dir / name) for name in self._names()}
        known = {name: file for name, file in local.items() if file is not None}
        to_copy, to_delete = changes(known, self._manifest, self._keep)
        if to_copy or to_delete:
            self._check_owner()
        done = 0
        for name in to_copy:
            if stopped():
                break
            copied = self._copy(name)
            if copied is not None:
                self._tell(self._manifest.with_file(name, copied))
                done += 1
        for name in to_delete:
            self._tell(self._manifest.without(name))  # first: no reader must rely on it any more
            self._destination.delete(name)
        return done

    def _check_owner(self) -> None:
        """Check that no other run has taken over since. Raises BadInputError."""
        found = self._destination.manifest()
        if found is not None and found.run_id != self._manifest.run_id and self._told:
            raise BadInputError(f"{self._where}: another run has taken it over; this one copies nothing more there")

    def _names(self) -> list[str]:
        found = []
        for folder, pattern in _NAMES.items():
            inside = self._run_dir / folder
            names = [str(path.relative_to(inside)) for glob in ("*", "*/*") for path in inside.glob(glob)]
            found += [f"{folder}/{name}" for name in names if pattern.fullmatch(name)]
        return found

    def _copy(self, name: str) -> OutputFile | None:
        """Copy one file as it is now; None if it is gone."""
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
                self.bytes_copied += file.size_bytes
            return file
        except FileNotFoundError:
            return None
        finally:
            still.unlink(missing_ok=True)

    def _tell(self, manifest: Manifest) -> None:
        self._destination.write_manifest(manifest)
        self._manifest = manifest
        self._told = True
