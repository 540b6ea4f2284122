"""Option --fresh of `icestream run`: deletes what icestream made in a run directory, and nothing else."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from common.errors import BadInputError
from common.file_lock import LOCKS_FOLDER, RunLock, patience
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
    "invalid",
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

_RECORDS = tuple(f"{name}-[0-9][0-9][0-9]*" for name in ("planned", "begun", ".begun", "bad", "epochs"))
_OWN_BELOW = {
    SHARDS_FOLDER: (f"[0-9][0-9][0-9]/{LOCKS_FOLDER}/fetcher",),
    INVENTORY_FOLDER: ("files-*.jsonl", ".files-*", *_RECORDS),
}
"""Names that icestream makes in folders whose names users give to theirs, too; a shard's is told by its lock."""
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
    shards = _own_below(run_dir / SHARDS_FOLDER)
    for folder in (run_dir, *shards):
        for path in folder.glob("ledger.sqlite*"):
            path.unlink()
    for folder in shards:
        shutil.rmtree(folder / STATUS_FOLDER, ignore_errors=True)
    if _is_own(run_dir / INVENTORY_FOLDER):
        _delete(run_dir / INVENTORY_FOLDER)


def delete_own_contents(run_dir: Path, yes: bool) -> None:
    """Delete icestream's files, after confirmation. Links are removed, not followed."""
    found = sorted(path for pattern in OWN_CONTENTS for path in run_dir.glob(pattern) if _is_own(path))
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
        _delete(path)


def _is_own(path: Path) -> bool:
    return path.name not in _OWN_BELOW or bool(_own_below(path))


def _own_below(folder: Path) -> list[Path]:
    """Return the paths that icestream made in a folder of _OWN_BELOW."""
    if folder.is_symlink():
        return []
    found = (path for pattern in _OWN_BELOW[folder.name] for path in folder.glob(pattern))
    return [folder / path.relative_to(folder).parts[0] for path in found]


def _delete(path: Path) -> None:
    """Delete a file, a link, or a folder with everything that icestream made in it."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    elif path.name in _OWN_BELOW:
        for own in _own_below(path):
            _delete(own)
        with contextlib.suppress(OSError):  # there is more in it
            path.rmdir()
    else:
        shutil.rmtree(path)


def _can_ask() -> bool:
    return sys.stdin.isatty()
