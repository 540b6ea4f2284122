"""Command `icestream ray`: a run on several machines of a Ray cluster."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from common.errors import missing_extra
from common.paths import user_path
from icestream.commands.options import EngineCommand, checked_nodes, engine_options, set_words

EXAMPLES = """\b
Examples:
  icestream ray --address head:6379 --nodes 4 --gpus 8 --trainers 8 --shared /shared/mine --run-dir /local/mine \\
    -c mine.toml -i '/data/*.parquet'
  icestream ray --address head:6379 --nodes 4 --gpus 8 --trainers 8 --shared /shared/mine --run-dir /local/mine \\
    -c mine.toml    # resumes

\b
Exit codes: 0 finished, 130 interrupted (checkpoint written), 2 input or configuration error, 1 internal error, or ten
failures without a new checkpoint.
"""


@click.command(epilog=EXAMPLES, cls=EngineCommand)
@engine_options
@click.option("--address", envvar="RAY_ADDRESS", required=True, help="HOST:PORT of the cluster's head, or RAY_ADDRESS.")
@click.option(
    "--cpus",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="CPUs that Ray reserves for each node. All of a machine keep Ray's other jobs away from it.",
)
@click.option(
    "--wait-for-nodes",
    "wait_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds to wait for missing machines before a start with fewer, and for which returned ones must be there"
    " before all start again with more.",
)
def ray(
    nodes: int,
    address: str,
    shared: Path,
    run_dir: Path,
    gpus: int,
    cpus: int,
    wait_s: float,
    toml: Path | None,
    assignments: tuple[str, ...],
    options: tuple[str, ...],
) -> None:
    """Train on several machines of a Ray cluster: one `icestream node` on each, started and restarted together.

    Any other option is one of `icestream run`, and given to each node. Ray places the nodes; no event passes through
    it. A machine that is lost: all start again from the last checkpoint, on a spare machine or with fewer nodes, and
    with more once it is back. Ctrl-C writes a checkpoint and stops all; the same command resumes.
    """
    from services.config.root import ENVIRONMENT_PREFIX

    possible = checked_nodes(nodes, shared, toml, assignments, options)
    try:
        from icestream.commands.ray.session import RaySession
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise missing_extra("icestream ray", "ray") from None

    given = set_words(assignments)
    session = RaySession(
        nodes=nodes,
        possible=possible,
        cpus=cpus,
        gpus=gpus,
        wait_s=wait_s,
        shared=user_path(shared).absolute(),
        run_dir=user_path(run_dir).absolute(),
        options=(*options, *given),
        config=toml.read_text() if toml is not None else None,
        environment={name: text for name, text in os.environ.items() if name.startswith(ENVIRONMENT_PREFIX)},
    )
    sys.exit(session.run(address))
