"""Command `icestream run`: every service on this machine, from the start to the summary."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from common.options import InputCommand, run_dir_option
from icestream.commands.options import run_flags, run_options

EXAMPLES = """\b
Examples:
  icestream run -i demo --run-dir runs/demo
  icestream run -i 'data/*.parquet' --decoders 4 --epochs 3 --device cuda --run-dir runs/mine
  icestream run --run-dir runs/mine                  # resumes
  icestream run -i demo --model likelihood -c configs/demo-likelihood.toml --run-dir runs/demo-likelihood
  icestream run -i 'pelican://osg-htc.org/…/{range}/*.parquet' --ranges 0:99000:1000 --run-dir runs/osdf
  icestream run -c configs/demo.toml --set stream.batch_events=512 --fresh --run-dir runs/mine

\b
Exit codes: 0 finished, 130 interrupted (checkpoint written), 2 input or configuration error, 1 internal error.
"""


@click.command(name="run", epilog=EXAMPLES, cls=InputCommand)
@run_dir_option
@run_options
@click.option(
    "--fresh",
    is_flag=True,
    help="Start over: delete checkpoints, logs and saved settings in RUN_DIR. Your data files are not touched; give -i"
    " again.",
)
@click.option("--yes", is_flag=True, help="Don't ask before --fresh deletes.")
@click.option(
    "--new-plan", is_flag=True, help="Continue with the weights although inputs, seed or stream settings changed."
)
@click.option("-v", "--verbose", is_flag=True, help="Without a terminal: show the queues below each progress line.")
def run(
    run_dir: Path,
    toml: Path | None,
    assignments: tuple[str, ...],
    fresh: bool,
    yes: bool,
    new_plan: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Start every service on this machine and show progress.

    A fetcher, decoders and a trainer run as separate processes; one that dies is started again. Ctrl-C writes a
    checkpoint and stops; the same command resumes from there. The end is a summary, also in RUN_DIR/summary.json.
    """
    from icestream.commands.run_session import run_session  # takes a second, which the help should not

    flags = run_flags(options)
    sys.exit(run_session(run_dir, toml, assignments, flags, fresh=fresh, new_plan=new_plan, yes=yes, verbose=verbose))
