"""Command `icestream bench`."""

from __future__ import annotations

from pathlib import Path

import click

from common.options import absolute, config_options, input_option, model_option

EXAMPLES = """\b
Examples:
  icestream bench trainer                                   # the default model on simulated events
  icestream bench trainer --device cuda --events 128000 --batches 8
  icestream bench trainer --run-dir runs/mine               # speed of that run without the pipeline
  icestream bench trainer -i 'data/*.parquet' --set trainer.wgan.critic_steps=1
"""


@click.group(epilog=EXAMPLES)
def bench() -> None:
    """Measure the speed of this machine."""


@bench.command(name="trainer", epilog=EXAMPLES)
@input_option
@click.option(
    "--run-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Take configuration and inputs of this run, compare with its summary, and write ceiling.json into it.",
)
@click.option("--events", type=click.IntRange(min=1), help="Events of a batch (stream.batch_events).")
@click.option(
    "--batches", "num_batches", type=click.IntRange(min=1), default=32, show_default=True, help="Distinct batches."
)
@click.option("--steps", type=click.IntRange(min=0), default=0, help="Measure at least this many steps.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="Measure at least this long; each batch three times at least.",
)
@click.option("--device", help="auto, cpu, cuda or cuda:N.")
@model_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")
@config_options
def trainer(
    inputs: tuple[str, ...],
    run_dir: Path | None,
    events: int | None,
    num_batches: int,
    steps: int,
    seconds: float,
    device: str | None,
    model: str | None,
    as_json: bool,
    toml: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Measure the replay ceiling of training: steps on batches that are on the device already.

    The batches are decoded first, from the inputs or, without any, from simulated events; then they are trained
    repeatedly, without feed, logging and checkpoints. No pipeline can make a run faster than this. The weights are new
    ones and are discarded. A run measures it itself with --set trainer.replay_batches=32.
    """
    from icestream.commands.bench.trainer import bench_trainer  # torch

    flags = {
        "input": absolute(inputs) or None,
        "stream.batch_events": events,
        "trainer.device": device,
        "trainer.model": model,
    }
    text = bench_trainer(
        run_dir,
        toml=toml,
        assignments=assignments,
        flags=flags,
        num_batches=num_batches,
        steps=steps,
        seconds=seconds,
        as_json=as_json,
    )
    click.echo(text)
