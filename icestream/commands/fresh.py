"""Option --fresh of `icestream run`: deletes what icestream made in a run directory, and nothing else."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from common.errors import BadInputError
from common.file_lock import RunLock, patience
from common.run_dir import INVENTORY_FOLDER, SHARDS_FOLDER, shard_dirs
from common.status_files import STATUS_FOLDER

OWN_CONTENTS = (
    "config.json",
    "config.part",
    "summary.json",
    "summary.part",
    "audit.jsonl",
    "audit-rank*.jsonl",
    "ledger.sqlite*",
    "shards",
    "inventory",
    "checkpoints",
    "outliers",
    "logs",
    "status",
    "sockets",
    "tensorboard",
    "profile",
    "ceiling.json",
    "ceiling.part",
    "evaluation",
    "health.jsonl",
    "validation.pt",
    "validation.json",
    "validation.units",
    "validation.part",
    "wandb",
    "cache",
    "outputs.json",
    "outputs.part",
)
"""Files and folders made by icestream in a run directory: `--fresh` deletes only these."""

_ENDING_S = 10.0


def keep_what_it_starts_from(run_dir: Path, start_from: str) -> None:
    """Raise BadInputError if --fresh would delete the checkpoint that the run is to start from."""
    begins, run = Path(start_from).resolve(), run_dir.resolve()
    if start_from and (begins == run or run / "checkpoints" in (begins, *begins.parents)):
        raise BadInputError(
            f"--fresh would delete {start_from}, which the run is to start from: use another --run-dir, or copy the"
            " checkpoint first"
        )


@contextlib.contextmanager
def without_services(run_dir: Path) -> Iterator[None]:
    """Exclude services started by hand; those of a run that was just killed get a moment to end."""
    with contextlib.ExitStack() as locks:
        locks.enter_context(RunLock(run_dir, "trainer", "icestream run", patience(_ENDING_S)))
        for folder in {run_dir, *shard_dirs(run_dir)}:
            locks.enter_context(RunLock(folder, "fetcher", "icestream run", patience(_ENDING_S)))
        yield


def delete_inventory(run_dir: Path) -> None:
    """Delete the list of files, and what is known of shards: they are a part of the plan."""
    for folder in (run_dir, *run_dir.glob(f"{SHARDS_FOLDER}/*")):
        for path in folder.glob("ledger.sqlite*"):
            path.unlink()
        if folder != run_dir:
            shutil.rmtree(folder / STATUS_FOLDER, ignore_errors=True)
    shutil.rmtree(run_dir / INVENTORY_FOLDER, ignore_errors=True)


def delete_own_contents(run_dir: Path, yes: bool) -> None:
    """Delete icestream's files, after confirmation. Links are removed, not followed."""
    found = sorted(path for pattern in OWN_CONTENTS for path in run_dir.glob(pattern))
    if not found:
        return
    names = ", ".join(path.name for path in found)
    if not yes:
        if not _can_ask():
            raise BadInputError(
                f"--fresh would delete from {run_dir}: {names}; there is no terminal to ask on: add --yes to agree"
            )
        if not click.confirm(f"Delete from {run_dir}: {names}?"):
            raise BadInputError("nothing was deleted; without --fresh the run resumes where it stopped")
    for path in found:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _can_ask() -> bool:
    return sys.stdin.isatty()
