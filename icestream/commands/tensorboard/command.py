"""Command `icestream tensorboard`."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

import click

from common.errors import BadInputError
from common.slow_progress import SlowProgress
from common.tensorboard_names import since_s
from common.user_path import user_path
from icestream.commands.tensorboard.find import LogFolder, find
from icestream.commands.tensorboard.merge import merge

EXAMPLES = """\b
Examples:
  icestream tensorboard merge runs/a runs/b -o all && tensorboard --logdir all
  icestream tensorboard merge --glob 'runs/*' --since 7d --match 'wide|deep' -o all
  icestream tensorboard merge /scratch/runs --copy -o ~/tensorboard     # a folder of runs; copies, to move elsewhere
"""


@click.group(epilog=EXAMPLES)
def tensorboard() -> None:
    """Process TensorBoard files."""


@tensorboard.command(name="merge", epilog=EXAMPLES)
@click.argument("run_dirs", nargs=-1, metavar="RUN_DIR...", type=click.Path(path_type=Path))
@click.option(
    "--glob", "globs", multiple=True, metavar="PATTERN", help="More run directories, e.g. 'runs/*'. Repeatable."
)
@click.option("-o", "--output", "out", required=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--since", help="Only files written since then: 2026-11-21, 2026-11-21T08:00, 12h, 7d, 2w.")
@click.option("--match", "pattern", help="Only runs with a name that contains a match of this regular expression.")
@click.option(
    "--link/--copy", default=True, show_default=True, help="Symbolic links, which grow with the run, or copies."
)
@click.option("--dry-run", is_flag=True, help="Print the files to collect, and change nothing.")
def merge_command(
    run_dirs: tuple[Path, ...],
    globs: tuple[str, ...],
    out: Path,
    since: str | None,
    pattern: str | None,
    link: bool,
    dry_run: bool,
) -> None:
    """Collect the TensorBoard files of many runs below one directory, for one TensorBoard.

    RUN_DIR: run directories, or folders with many below. Each run is named by its directory; if two have the same name,
    also by the one above. Run the same command again for later runs and files: unchanged files stay. Links inside of
    the run directories are not followed.
    """
    sources = [*run_dirs, *_matches(globs)]
    if not sources:
        raise click.UsageError("name run directories, or a --glob")
    wanted = _chosen(list(find(sources, out.resolve())), sources, since, pattern)
    num_files = sum(len(folder.files) for folder in wanted)
    runs = len({(folder.parent, folder.run) for folder in wanted})
    found = f"{runs:,} runs, {len(wanted):,} folders, {num_files:,} files"
    if dry_run:
        click.echo("\n".join([*(f"  {folder.path}" for folder in wanted), f"{found}; nothing was changed"]))
        return
    with SlowProgress("files", num_files) as progress:
        done = merge(wanted, out.resolve(), how="link" if link else "copy", on_file=lambda: progress.advance(1))
    gone = f", {done.removed:,} links to files that are gone removed" if done.removed else ""
    click.echo(f"{out}: {found}: {done.new:,} new, {done.changed:,} changed, {done.unchanged:,} as they were{gone}")


def _matches(globs: Sequence[str]) -> list[Path]:
    """Directories that match. A pattern without matches is an error: it is probably mistyped."""
    found: list[Path] = []
    for text in globs:
        pattern = user_path(text)
        root = Path(pattern.anchor) if pattern.is_absolute() else Path()
        matches = sorted(path for path in root.glob(str(pattern.relative_to(root))) if path.is_dir())
        if not matches:
            raise BadInputError(f"--glob {text}: no directory matches; quote the pattern")
        found += matches
    return found


def _chosen(
    folders: Sequence[LogFolder], sources: Sequence[Path], since: str | None, pattern: str | None
) -> list[LogFolder]:
    if not folders:
        raise BadInputError(f"{', '.join(map(str, sources[:5]))}: no TensorBoard files (events.out.tfevents.*) there")
    try:
        name = re.compile(pattern or "")
    except re.error as error:
        raise BadInputError(f"--match {pattern}: not a regular expression ({error})") from None
    earliest_s = since_s(since, time.time()) if since else 0.0
    return [folder for folder in folders if folder.newest_s >= earliest_s and name.search(folder.run)]
