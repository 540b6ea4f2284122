"""Command `icestream tensorboard`."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import click

from common.errors import BadInputError
from common.options import OutputPath
from common.python_command import python_command
from common.slow_progress import SlowProgress
from common.tensorboard_names import since_s
from common.user_path import user_path
from icestream.commands.tensorboard.find import LogFolder, find
from icestream.commands.tensorboard.merge import merge

PREFIX_VARIABLE = "_ICESTREAM_TENSORBOARD_PATH"
"""Variable with the path of the address: others can read a process's arguments, but not its environment."""

EXAMPLES = """\b
Examples:
  icestream tensorboard runs/demo                   # the same as `icestream tensorboard show runs/demo`
  icestream tensorboard runs --port 6007            # all runs below
  icestream tensorboard merge runs/a runs/b -o all && tensorboard --logdir all
  icestream tensorboard merge --glob 'runs/*' --since 7d --match 'wide|deep' -o all
  icestream tensorboard merge /scratch/runs --copy -o ~/tensorboard     # a folder of runs; copies, to move elsewhere
"""


class _ShowByDefault(click.Group):
    """Group whose arguments are those of `show`, unless they begin with a command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["show", *args])


@click.group(cls=_ShowByDefault, epilog=EXAMPLES)
def tensorboard() -> None:
    """Start TensorBoard on runs, or collect their files.

    `icestream tensorboard RUN_DIR...` is short for `icestream tensorboard show RUN_DIR...`.
    """


@tensorboard.command(epilog=EXAMPLES)
@click.argument("run_dirs", nargs=-1, required=True, metavar="RUN_DIR...", type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), default=6006, show_default=True, help="Port. 0: any free one.")
def show(run_dirs: tuple[Path, ...], port: int) -> None:
    """Start TensorBoard on runs, or on folders with many below, for this machine only. Ctrl-C ends it.

    The address has a random part, without which other users of the machine see nothing.
    """
    if not any(find(run_dirs, Path())):
        raise BadInputError(f"{', '.join(map(str, run_dirs[:5]))}: no TensorBoard files (events.out.tfevents.*) there")
    if len(run_dirs) == 1:
        where = ["--logdir", str(run_dirs[0])]
    else:
        places = [str(path) for path in run_dirs]
        if odd := [place for place in places if "," in place or ":" in place]:
            raise BadInputError(f"{odd[0]}: TensorBoard takes no path with a comma or colon; use `tensorboard merge`")
        where = ["--logdir_spec", ",".join(f"{place}:{place}" for place in places)]
    prefix = f"/{secrets.token_urlsafe(16)}"
    if port:
        address = f"http://localhost:{port}{prefix}/#custom_scalars"
        click.echo(f"losses first, a value and its floor in one chart: {address}", err=True)
    server = python_command("icestream.commands.tensorboard.server", *where, "--host", "127.0.0.1", "--port", str(port))
    os.execve(server[0], server, os.environ | {PREFIX_VARIABLE: prefix})


@tensorboard.command(name="merge", epilog=EXAMPLES)
@click.argument("run_dirs", nargs=-1, metavar="RUN_DIR...", type=click.Path(path_type=Path))
@click.option(
    "--glob", "globs", multiple=True, metavar="PATTERN", help="More run directories, e.g. 'runs/*'. Repeatable."
)
@click.option("-o", "--output", "out", required=True, type=OutputPath(file_okay=False))
@click.option("--since", help="Only files written since then: 2026-11-21, 2026-11-21T08:00, 20261121-080000, 12h, 7d.")
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
