"""Command `icestream bench`."""

from __future__ import annotations

from pathlib import Path

import click

from common.options import absolute, config_options, device_option, input_option
from icestream.commands.model_option import model_option

EXAMPLES = """\b
Examples:
  icestream bench trainer                        # speed of the default model's steps, on simulated events
  icestream bench trainer --events 512,1024,2048,4096
  icestream bench overfit --model sets           # does the model learn one batch by heart?
  icestream bench shuffle -i 'data/*.parquet'    # what does shuffling cost the decoders?
"""
TRAINER_EXAMPLES = """\b
Examples:
  icestream bench trainer                                   # the default model on simulated events
  icestream bench trainer --events 512,1024,2048,4096       # which size of a batch is the fastest?
  icestream bench trainer --device cuda --events 128000 --batches 8
  icestream bench trainer --run-dir runs/mine               # speed of that run without the pipeline
  icestream bench trainer -i 'data/*.parquet' --set trainer.wgan.critic_steps=1
"""
OVERFIT_EXAMPLES = """\b
Examples:
  icestream bench overfit                                   # the default model on 256 simulated events
  icestream bench overfit --model sets --steps 500          # of another workload: the model's
  icestream bench overfit --model likelihood --steps 200 --json
  icestream bench overfit -i 'data/*.parquet' --events 1024 --device cuda
"""
SHUFFLE_EXAMPLES = """\b
Examples:
  icestream bench shuffle                                   # 10,000 to 1,000,000 simulated events
  icestream bench shuffle -i data --events 50000 --set stream.block_files=16
  icestream bench shuffle --events 10000,100000 --json
"""


_MOST = 1_000_000_000


def _numbers(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Whole numbers from 1, separated by commas."""
    words = [word.strip() for word in text.split(",")] if text is not None else []
    if not all(word.isascii() and word.isdigit() and 1 <= int(word[:11]) <= _MOST for word in words):
        expected = f"expected whole numbers from 1 to {_MOST:,}, separated by commas"
        raise click.BadParameter(f"{text!r}: {expected}", context, option)
    return tuple(map(int, words))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")


@click.group(epilog=EXAMPLES)
def bench() -> None:
    """Measure the speed of this machine."""


@bench.command(name="trainer", epilog=TRAINER_EXAMPLES)
@input_option
@click.option(
    "--run-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Take configuration and inputs of this run, compare with its summary, and write ceiling.json into it.",
)
@click.option(
    "--events",
    "sizes",
    callback=_numbers,
    metavar="N[,N…]",
    help="Events of a batch (stream.batch_events). With several sizes: a table, from the smallest on, until one"
    " does not fit the memory.",
)
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
@device_option()
@model_option
@json_option
@config_options
def trainer(
    inputs: tuple[str, ...],
    run_dir: Path | None,
    sizes: tuple[int, ...],
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

    flags = {"input": absolute(inputs) or None, "trainer.device": device, "trainer.model": model}
    text = bench_trainer(
        run_dir,
        toml=toml,
        assignments=assignments,
        flags=flags,
        sizes=sizes,
        num_batches=num_batches,
        steps=steps,
        seconds=seconds,
        as_json=as_json,
    )
    click.echo(text)


@bench.command(name="overfit", epilog=OVERFIT_EXAMPLES)
@input_option
@click.option("--events", type=click.IntRange(min=1), help="Events of the batch (stream.batch_events).")
@click.option("--steps", type=click.IntRange(min=1), default=500, show_default=True, help="Steps on the batch.")
@device_option()
@model_option
@json_option
@config_options
def overfit(
    inputs: tuple[str, ...],
    events: int | None,
    steps: int,
    device: str | None,
    model: str | None,
    as_json: bool,
    toml: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Train one batch again and again: a model that can't learn it by heart has a fault, or too few weights.

    Prints the model's metrics over the steps, and the headline metric at the start and at the end. The batch is the
    first one of the inputs or, without any, of simulated events. The weights are discarded.
    """
    from icestream.commands.bench.overfit import bench_overfit  # torch

    flags = {
        "input": absolute(inputs) or None,
        "stream.batch_events": events,
        "trainer.device": device,
        "trainer.model": model,
    }
    click.echo(bench_overfit(toml=toml, assignments=assignments, flags=flags, steps=steps, as_json=as_json))


@bench.command(name="shuffle", epilog=SHUFFLE_EXAMPLES)
@input_option
@click.option(
    "--events",
    "numbers",
    callback=_numbers,
    metavar="N[,N…]",
    default="10000,100000,1000000",
    show_default=True,
    help="Numbers of events. Whole files are read: the first that hold so many events, or all.",
)
@click.option(
    "--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Measure each order this often at least."
)
@click.option("--workload", help="Workload of the simulated events, if there are no inputs.")
@json_option
@config_options
def shuffle(
    inputs: tuple[str, ...],
    numbers: tuple[int, ...],
    rounds: int,
    workload: str | None,
    as_json: bool,
    toml: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Measure the cost of shuffling (stream.shuffle) for one decoder, from files to filled slots, and the mixing.

    Both orders take turns; the cost is the median over the rounds of the time with shuffling ÷ without - 1, by the
    clock (with its smallest and largest value) and in CPU time. Without inputs, files of simulated events are written:
    eight, to which the others are links, so that events repeat, but reading and decoding are real. All files are in
    the page cache after the first round.
    """
    from icestream.commands.bench.shuffle import bench_shuffle  # Arrow

    flags = {"input": absolute(inputs) or None, "workload": workload}
    text = bench_shuffle(
        toml=toml, assignments=assignments, flags=flags, numbers=numbers, rounds=rounds, as_json=as_json
    )
    click.echo(text)
