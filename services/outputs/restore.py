"""Restore of the newest checkpoint and the TensorBoard files of a run whose own are gone."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from common.atomic_file import OWNER_ONLY, sync_folder
from common.errors import BadInputError, IcestreamError
from services.config.root import Config
from services.outputs.destinations import Destination, open_destination
from services.outputs.digest import Digests
from services.outputs.manifest import Manifest, OutputFile
from services.outputs.sync import keep_run_id

logger = logging.getLogger(__name__)


def restore_if_gone(run_dir: Path, config: Config) -> str:
    """Message on the restored files; empty if none was needed. To be called before a run's trainer starts.

    Raises BadInputError if the destination can't be read: a new start would lose the copies there.
    """
    here = (run_dir / "checkpoints").glob("step-*")
    if not config.outputs.destination or any(path.suffix in (".pt", ".json") for path in here):
        return ""
    destination = open_destination(config, run_dir)
    try:
        manifest = destination.manifest()
        if manifest is None or not manifest.checkpoints:
            return ""
        _bring(run_dir, destination, manifest)
    except (IcestreamError, OSError) as error:
        raise BadInputError(
            f"{config.outputs.destination}: there is no checkpoint in {run_dir}, and the copies there can't be read: "
            f"{error}; try again later, or use --fresh to start from nothing"
        ) from None
    finally:
        destination.close()
    return f"{manifest.checkpoints[0]} was brought back from {config.outputs.destination}"


def _bring(run_dir: Path, destination: Destination, manifest: Manifest) -> None:
    for name in (name for name in manifest.files if name.startswith("tensorboard/")):
        try:
            _bring_one(run_dir, destination, name, manifest.files[name])
        except BadInputError as error:  # it grew, and its copier was killed before it updated the manifest
            logger.warning("%s did not come back: %s", name, error)
    # The checkpoint last: its presence means that all files are restored.
    _bring_one(run_dir, destination, manifest.checkpoints[0], manifest.files[manifest.checkpoints[0]])
    keep_run_id(run_dir, manifest.run_id)


def _bring_one(run_dir: Path, destination: Destination, name: str, file: OutputFile) -> None:
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
