"""Folders of a node: the one that all nodes share, and its own run directory, which belongs to one run."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from common.atomic_file import OWNER_ONLY, replace_file
from common.errors import BadInputError
from common.paths import CONFIG_FILE, NODE_FILE, RUN_ID_FILE, own_files_only, require_private
from common.paths import RUN_DIR_MODE as MODE


def require_shared(shared: Path, run_dir: Path) -> None:
    """Make the shared folder if it is missing. Raises BadInputError if nothing can be written there, if others can
    change what is there, or if it is the run directory."""
    own_files_only()
    if shared.resolve() == run_dir.resolve():
        raise BadInputError(
            f"--run-dir {run_dir} is --shared, too: it must be a folder of each node, on its machine's own disk"
        )
    trial = shared / f".trial-{secrets.token_hex(4)}"
    try:
        shared.mkdir(mode=MODE, parents=True, exist_ok=True)
        require_private(shared, "--shared")
        os.close(os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, OWNER_ONLY))
        trial.unlink()
    except OSError as error:
        raise BadInputError(
            f"--shared {shared}: can't write there ({error.strerror}); choose a folder that all nodes can write to"
        ) from None


def run_id(shared: Path, *, begins: bool) -> str:
    """Random name of the run in the shared folder; ``begins``: make one if there is none yet."""
    path = shared / RUN_ID_FILE
    if begins and not path.exists():
        replace_file(path, secrets.token_hex(8), durable=True)
    return path.read_text()


def claim_run_dir(run_dir: Path, run: str, shared: Path) -> None:
    """Note that the directory is of this run. Raises BadInputError if it is of another one: nothing is deleted."""
    note = run_dir / NODE_FILE
    if note.exists():
        if json.loads(note.read_text())["run"] != run:
            raise BadInputError(
                f"{run_dir}: of a node of another run (another --shared); delete it, or choose another --run-dir"
            )
    elif (run_dir / CONFIG_FILE).exists():
        raise BadInputError(f"{run_dir}: a run of one machine (`icestream run`); choose another --run-dir")
    replace_file(note, json.dumps({"run": run, "shared": str(shared)}), durable=False)
