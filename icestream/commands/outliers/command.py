"""Command `icestream outliers`."""

from __future__ import annotations

from pathlib import Path

import click

from common.errors import BadInputError
from common.run_dir import SHARDS_FOLDER
from common.status import OUTLIER_FOLDER
from icestream.commands.outliers.compact import Compacted, compact

MIB = 1 << 20

EXAMPLES = """\b
Examples:
  icestream outliers compact runs/mine                     # its outliers/, or those of all of its stream.shards
  icestream outliers compact runs/mine --shard-mib 1024 --dry-run
"""


@click.group(name="outliers", epilog=EXAMPLES)
def outliers() -> None:
    """Process a run's outliers: events with more than max_particles_per_event particles."""


@outliers.command(name="compact", epilog=EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--shard-mib",
    type=click.FloatRange(min=0, min_open=True),
    default=256.0,
    show_default=True,
    help="Size of a shard.",
)
@click.option("--keep", is_flag=True, help="Keep the unit files. Then name only the shards as input.")
@click.option("--dry-run", is_flag=True, help="Print the planned changes, and change nothing.")
def compact_command(folder: Path, shard_mib: float, keep: bool, dry_run: bool) -> None:
    """Merge the small Parquet files in DIR (a run's outliers/, or the run directory), one for each unit, into shards.

    The directory of a run with several stream.shards stands for the outliers/ of each of them. Merged files have the
    columns of the small ones and can be used as input like them; a file without a column of another one has nulls
    there. The run must not be active. After a kill, run the same command again; a unit that a resumed run decodes again
    replaces its events in the merged files.
    """
    for one in _outlier_folders(folder):
        done = compact(one, shard_bytes=int(shard_mib * MIB), keep=keep, dry_run=dry_run)
        click.echo(f"{one}: {_told(done, shard_mib, keep=keep, dry_run=dry_run)}")


def _outlier_folders(folder: Path) -> list[Path]:
    """Outlier folders of a run: its own, and those of its shards; or the folder itself."""
    if not folder.is_dir():
        raise BadInputError(f"{folder}: no such directory; name a run's {OUTLIER_FOLDER}/")
    of_shards = sorted((folder / SHARDS_FOLDER).glob(f"[0-9][0-9][0-9]/{OUTLIER_FOLDER}"))
    found = [inner for inner in (folder / OUTLIER_FOLDER, *of_shards) if inner.is_dir()]
    return [inner.absolute() for inner in found or [folder]]


def _told(done: Compacted, shard_mib: float, *, keep: bool, dry_run: bool) -> str:
    merge = done.merge
    num_files = len(merge.unit_files)
    sources = f"{num_files:,} unit files and {len(merge.rewritten):,} shards, {done.bytes_read / MIB:,.1f} MiB"
    leftover = len(merge.obsolete_shards) + (0 if keep else len(merge.merged_files))
    if not merge.sources and not leftover:
        return "nothing to merge"
    if dry_run:
        text = f"would merge {sources}, into shards of {shard_mib:g} MiB" if merge.sources else "nothing to merge"
        return f"{text}; would remove {leftover:,} files that were merged before; nothing was changed"
    text = (
        f"{sources}, merged into {done.shards_written:,} shards, {done.bytes_written / MIB:,.1f} MiB, "
        f"{done.events:,} events"
        if merge.sources
        else "nothing to merge"
    )
    return f"{text}; {done.files_removed:,} files removed"
