"""Command `icestream node`: the shards and trainers of one node, until the end of the run or of another node."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from common.options import InputCommand
from common.process import PARENT_VARIABLE, StopFlag, end_with_parent
from icestream.commands.options import run_flags, run_options

EXAMPLES = """\b
Examples, on two machines, of which `gpu-a` is node 0:
  icestream node --node 0 --nodes 2 --master gpu-a:29500 --shared /shared/mine --run-dir /local/mine \\
    -i '/data/*.parquet' --set stream.shards=8 --trainers 4
  icestream node --node 1 --nodes 2 --master gpu-a:29500 --shared /shared/mine --run-dir /local/mine \\
    -i '/data/*.parquet' --set stream.shards=8 --trainers 4

\b
Exit codes: 0 finished, 75 another node is gone: start all nodes again, they resume; 130 stopped by a signal (checkpoint
written), 2 input or configuration error, 1 events do not add up, or an internal error.
"""


@click.command(name="node", epilog=EXAMPLES, cls=InputCommand)
@click.option("--node", type=click.IntRange(min=0), required=True, help="Number of this node, from 0.")
@click.option("--nodes", type=click.IntRange(min=1), required=True, help="Number of nodes; it divides stream.shards.")
@click.option("--master", metavar="HOST:PORT", required=True, help="Host of node 0, and a free port of it.")
@click.option(
    "--shared",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder that all nodes see: checkpoints and all other results, usable as a RUN in other commands.",
)
@click.option(
    "--run-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("run"),
    show_default=True,
    help="Folder on this machine's own disk: ledgers, cache, logs.",
)
@run_options
def node(
    node: int,
    nodes: int,
    master: str,
    shared: Path,
    run_dir: Path,
    toml: Path | None,
    assignments: tuple[str, ...],
    **options: Any,
) -> None:
    """Run one of several nodes of a run: its shards and its trainers.

    An engine (Slurm, Ray, …) or a person gives this command on every machine, with the same options but for --node, and
    gives it on all of them again after exit code 75. RUN_DIR is on the machine's own disk, and may be empty at any
    start. The number of nodes may be another one at each start. SIGTERM to one node stops all with a checkpoint.
    """
    from icestream.commands.node.session import NodeSession
    from services.supervisor.nodes.master import parse_master

    if PARENT_VARIABLE in os.environ:
        end_with_parent(signal.SIGTERM)
    session = NodeSession(
        node, nodes, parse_master(master), shared.absolute(), run_dir, toml, assignments, run_flags(options), StopFlag()
    )
    sys.exit(session.run())
