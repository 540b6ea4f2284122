"""Command `icestream run`: every service on this machine, or on each of several, from the start to the summary."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from common.errors import BadInputError
from common.options import InputCommand, run_dir_option
from common.process import StopFlag, end_with
from icestream.commands.options import run_flags, run_options

EXAMPLES = """\b
Examples:
  icestream run -i demo --run-dir runs/demo
  icestream run -i 'data/*.parquet' --decoders 4 --epochs 3 --device cuda --run-dir runs/mine
  icestream run --run-dir runs/mine                  # resumes
  icestream run -i demo --model likelihood -c configs/demo-likelihood.toml --run-dir runs/demo-likelihood
  icestream run -i 'pelican://osg-htc.org/…/{range}/*.parquet' --ranges 0:99000:1000 --run-dir runs/osdf
  icestream run -c configs/demo.toml --set stream.batch_events=512 --fresh --run-dir runs/mine
  torchrun --nnodes 1:4 --nproc-per-node 8 … -m icestream run --shared /shared/mine --run-dir /local/mine -i …

\b
Exit codes: 0 finished, 130 interrupted (checkpoint written), 2 input or configuration error, 1 internal error; on one
of several machines 75: another one is gone, and torchrun starts all again.
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
@click.option(
    "--shared",
    type=click.Path(file_okay=False, path_type=Path),
    help="On several machines, started by torchrun: folder that all of them see, with checkpoints and all other"
    " results. RUN_DIR is then on each machine's own disk.",
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
    shared: Path | None,
    **options: Any,
) -> None:
    """Start every service on this machine and show progress.

    A fetcher, decoders and a trainer run as separate processes; one that dies is started again. Ctrl-C writes a
    checkpoint and stops; the same command resumes from there. The end is a summary, also in RUN_DIR/summary.json.
    """
    from services.supervisor.meeting import place_of_node

    place, flags = place_of_node(os.environ), run_flags(options)
    if place is not None:
        if place.local_rank:
            return  # the first process of a machine starts all trainers of it
        end_with(os.getppid(), signal.SIGTERM)
        if flags["local.trainers"] not in (None, place.trainers):
            raise BadInputError(f"--trainers {flags['local.trainers']}, but torchrun --nproc-per-node {place.trainers}")
        flags["local.trainers"] = place.trainers
        if place.nodes > 1 and shared is None:
            raise BadInputError(f"{place.nodes} machines need --shared, a folder that all of them see")
    if shared is None:
        from icestream.commands.run_session import run_session  # takes a second, which the help should not

        sys.exit(
            run_session(run_dir, toml, assignments, flags, fresh=fresh, new_plan=new_plan, yes=yes, verbose=verbose)
        )
    if place is None:
        raise BadInputError(f"--shared {shared} is for several machines: start `torchrun … -m icestream run` on each")
    if fresh or new_plan:
        raise BadInputError("--fresh and --new-plan are for one machine: to start over, choose another --shared")
    from icestream.commands.node_session import NodeSession

    sys.exit(NodeSession(place, shared.absolute(), run_dir, toml, assignments, flags, StopFlag()).run())
