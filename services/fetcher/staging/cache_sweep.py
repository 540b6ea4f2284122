"""Removal of unused cache content: files without a pin, remains of killed fetchers, runs without their directory."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from common.file_lock import locked, try_lock
from services.fetcher.staging.cache_layout import NEW_SUM, CacheLayout, RunFolder, names_in


def sweep(layout: CacheLayout, *, all_dead: bool = False) -> None:
    """Remove files that no run pins. A dead run loses its unfinished files, and its pins if its run directory is gone.

    ``all_dead``: every run that isn't alive loses its pins.
    """
    for run in layout.all_runs():
        _sweep_run(run, all_dead=all_dead)
    names = {path.name for kind in ("pool", "sums") for ab in names_in(layout.folder / kind) for path in names_in(ab)}
    for name in names:
        if not is_pinned(layout, name):
            with locked(layout.locks / name, lambda: False) as mine:
                if mine:
                    remove_if_unpinned(layout, name)
    for lock in names_in(layout.locks):  # of killed fetchers
        with locked(lock, lambda: False):
            pass


def is_pinned(layout: CacheLayout, name: str) -> bool:
    """True if a run uses this file."""
    try:
        return layout.pool(name).stat().st_nlink > 1
    except FileNotFoundError:  # its fetcher was killed before the file appeared there
        return any((run.files / name).exists() for run in layout.all_runs())


def remove_if_unpinned(layout: CacheLayout, name: str) -> None:
    """Delete a file if no run uses it. The caller holds its lock."""
    if not is_pinned(layout, name):
        layout.pool(name).unlink(missing_ok=True)
        layout.sum(name).unlink(missing_ok=True)


def remove_run(run: RunFolder) -> None:
    """Remove a run's folder with its pins. The caller holds its lock; a fetcher that waits for it recreates the folder.

    The lock is removed last: the next holder finds nothing that is still being removed.
    """
    _remove_all_in(run.files)
    _remove_all_in(run.parts)
    for path in names_in(run.folder):
        if path != run.lock:
            _remove(path)
    _remove(run.lock)
    with contextlib.suppress(OSError):  # a new fetcher has begun in it
        run.folder.rmdir()


def _sweep_run(run: RunFolder, *, all_dead: bool) -> None:
    try:
        lock = try_lock(run.lock)
    except (FileNotFoundError, NotADirectoryError):  # another process sweeps too; or it is no run at all
        return
    if lock is None:
        return
    try:
        run_dir = run.run_dir()
        _remove_all_in(run.parts)
        for path in run.folder.glob(f"{NEW_SUM}*"):
            path.unlink(missing_ok=True)
        if all_dead or run_dir is None or not run_dir.exists():
            remove_run(run)
    finally:
        os.close(lock)


def _remove_all_in(folder: Path) -> None:
    for path in names_in(folder):
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        with contextlib.suppress(OSError):
            path.rmdir()
    else:
        path.unlink(missing_ok=True)
