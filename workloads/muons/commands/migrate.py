"""`icestream migrate`: the command line."""

from __future__ import annotations

from pathlib import Path

import click

from common.redact import shown

EXAMPLES = """\b
Examples:
  icestream migrate -- python training/train.py -i 'data/*.parquet' --batch-size 8192 --lambda-gp 10
  icestream migrate -- torchrun --nproc-per-node 4 training/train.py --batch-size 8192 > migrated.sh
"""


@click.command(epilog=EXAMPLES, context_settings={"ignore_unknown_options": True})
@click.argument("old", nargs=-1, required=True, metavar="-- COMMAND...", type=click.UNPROCESSED)
def migrate(old: tuple[str, ...]) -> None:
    """Print the icestream command for an old command of cr_muons, and its settings as TOML.

    COMMAND: the old command with its flags; quote its globs. The output can be pasted into a shell: it writes
    migrated.toml and starts the run. Flags that are not needed are named in comments, with the reason. Flags that were
    not given get icestream's defaults, not the old ones.
    """
    from workloads.muons.migrate.command_line import parse
    from workloads.muons.migrate.moved import moved, script

    new = moved(parse(old))
    if new.done and not Path(new.done).is_file():
        new.left_out.append(
            f"--checkpoint: {shown(new.done)} is not there; --done FILE leaves out the files that it names"
        )
        new.done = ""
    click.echo("\n".join(script(new)))
