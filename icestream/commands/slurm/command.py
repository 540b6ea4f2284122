"""Command `icestream slurm`: a job script for a run on several nodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from common.errors import BadInputError
from common.options import config_options
from common.run_dir import CONFIG_FILE
from common.user_path import user_path

EXAMPLES = """\b
Example:
  icestream slurm --nodes 4 --gpus 8 --time 24:00:00 --shared /shared/mine --run-dir /tmp/mine \\
    -c mine.toml -i '/data/*.parquet' > job.sbatch && sbatch job.sbatch
"""


@click.command(epilog=EXAMPLES, context_settings={"ignore_unknown_options": True})
@click.option("--nodes", type=click.IntRange(min=1), required=True, help="Nodes, each on a machine of its own.")
@click.option(
    "--shared",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder that all machines see: checkpoints, outliers, the list of files.",
)
@click.option(
    "--run-dir",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder on each machine's own disk; node I uses node-I in it.",
)
@click.option("--gpus", type=click.IntRange(min=0), default=0, show_default=True, help="GPUs of each node.")
@click.option("--time", default="24:00:00", show_default=True, help="Time limit of one job, in Slurm's form.")
@click.option("--name", default="icestream", show_default=True, help="Name of the job.")
@config_options
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF RUN]...")
def slurm(
    nodes: int,
    shared: Path,
    run_dir: Path,
    gpus: int,
    time: str,
    name: str,
    toml: Path | None,
    assignments: tuple[str, ...],
    options: tuple[str, ...],
) -> None:
    """Print a job script for Slurm, to be read and changed: one `icestream node` on each of several machines.

    Any other option is one of `icestream run`, and given to each node. A lost machine or the end of the time puts the
    job back into the queue; it goes on from the last checkpoint. Nothing is submitted.
    """
    from icestream.commands.slurm.script import SlurmJob
    from services.config.root import load_config

    stored: Path | dict[str, Any] = shared if (shared / CONFIG_FILE).exists() else {}
    shards = load_config(stored, toml=toml, assignments=assignments).stream.shards
    if shards % nodes:
        raise BadInputError(
            f"--nodes {nodes}, but stream.shards = {shards}, of which each node takes the same number: use a divisor of"
            f" {shards}, or other --set stream.shards=… (another order of the data)"
        )
    given = [word for assignment in assignments for word in ("--set", assignment)]
    given += ["-c", str(toml.absolute())] if toml is not None else []
    job = SlurmJob(
        name=name,
        nodes=nodes,
        shards=shards,
        gpus=gpus,
        time=time,
        shared=user_path(shared).absolute(),
        run_dir=user_path(run_dir).absolute(),
        program=(sys.executable, "-P", "-m", "icestream"),
        options=(*options, *given),
    )
    click.echo(job.script(Path(__file__).with_name("job.sbatch").read_text()), nl=False)
