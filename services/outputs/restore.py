"""Brings back the newest checkpoint and the TensorBoard files of a run whose own are gone."""

from __future__ import annotations

import logging
from pathlib import Path

from common.atomic_file import replacing
from common.errors import BadInputError, IcestreamError
from services.config.root import Config
from services.outputs.destinations import Destination, open_destination
from services.outputs.digest import Digests
from services.outputs.manifest import Manifest, OutputFile
from services.outputs.sync import keep_run_id

logger = logging.getLogger(__name__)


def restore_if_gone(run_dir: Path, config: Config) -> str:
    """What was brought back, for people; empty if there was no need. Before a run's trainer starts.

    Raises BadInputError if the destination can't be asked: to begin anew would lose what is there.
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
            f"{config.outputs.destination}: there is no checkpoint in {run_dir}, and those copied there can't be had: "
            f"{error}; try again later, or use --fresh to start from nothing"
        ) from None
    finally:
        destination.close()
    return f"{manifest.checkpoints[0]} was brought back from {config.outputs.destination}"


def _bring(run_dir: Path, destination: Destination, manifest: Manifest) -> None:
    for name in (name for name in manifest.files if name.startswith("tensorboard/")):
        try:
            _bring_one(run_dir, destination, name, manifest.files[name])
        except BadInputError as error:  # it grew, and whoever copied it was killed before it was told
            logger.warning("%s did not come back: %s", name, error)
    # The checkpoint last: with it, all is there.
    _bring_one(run_dir, destination, manifest.checkpoints[0], manifest.files[manifest.checkpoints[0]])
    keep_run_id(run_dir, manifest.run_id)


def _bring_one(run_dir: Path, destination: Destination, name: str, file: OutputFile) -> None:
    """Raises BadInputError if what comes back is not what was copied."""
    target = run_dir / name
    if target.exists():
        return
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replacing(target, durable=True, part=target.with_name(f"{target.name}.part")) as part:
        destination.get(name, file, part)
        if Digests().of(part) != file:
            raise BadInputError(f"{name}: what came back is not what was copied")
