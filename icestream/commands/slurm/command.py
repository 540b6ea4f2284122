"""Command `icestream slurm`: a job script for a run on several nodes."""

from __future__ import annotations

from pathlib import Path

import click

from common.paths import user_path
from common.process import python_command
from icestream.commands.options import EngineCommand, checked_nodes, engine_options, set_words

EXAMPLES = """\b
Example:
  icestream slurm --nodes 4 --gpus 8 --trainers 8 --shared /shared/mine --run-dir /tmp/mine \\
    -c mine.toml -i '/data/*.parquet' > job.sbatch && sbatch job.sbatch
"""


@click.command(epilog=EXAMPLES, cls=EngineCommand)
@engine_options
@click.option("--time", default="24:00:00", show_default=True, help="Time limit of one job, in Slurm's form.")
@click.option("--name", default="icestream", show_default=True, help="Name of the job.")
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

    possible = checked_nodes(nodes, shared, toml, assignments, options)
    given = set_words(assignments)
    given += ["-c", str(toml.absolute())] if toml is not None else []
    job = SlurmJob(
        name=name,
        nodes=nodes,
        possible=possible,
        gpus=gpus,
        time=time,
        shared=user_path(shared).absolute(),
        run_dir=user_path(run_dir).absolute(),
        program=python_command("icestream", anywhere=True),
        options=(*options, *given),
    )
    click.echo(job.script(Path(__file__).with_name("job.sbatch").read_text()), nl=False)
