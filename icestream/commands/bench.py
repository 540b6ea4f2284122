"""Command `icestream bench`: the speed of training on this machine without a pipeline."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from common.config import MIB
from common.errors import BadInputError
from common.options import absolute, config_options, device_option, input_option
from common.summary import SUMMARY_FILE
from icestream.commands.options import model_option
from icestream.run_config import load_run_config
from services.config.root import Config
from workloads import registry
from workloads.registry import NO_MODEL

if TYPE_CHECKING:
    from icestream.replay import SizeMeasured
    from services.trainer.speed import Ceiling

EXAMPLES = """\b
Examples:
  icestream bench trainer                                   # the default model on simulated events
  icestream bench trainer --events 512,1024,2048,4096       # which size of a batch is the fastest?
  icestream bench trainer --device cuda --events 128000 --batches 8
  icestream bench trainer --run-dir runs/mine               # speed of that run without the pipeline
  icestream bench trainer -i 'data/*.parquet' --set trainer.wgan.critic_steps=1
"""
_MOST = 1_000_000_000
_SPARE = 1.25
"""Factor on the number of simulated events: a batch may be larger than requested."""


def _numbers(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Return the different whole numbers from 1 in a text, separated by commas, in order."""
    words = [word.strip() for word in text.split(",")] if text is not None else []
    if not all(word.isascii() and word.isdigit() and 1 <= int(word[:11]) <= _MOST for word in words):
        expected = f"expected whole numbers from 1 to {_MOST:,}, separated by commas"
        raise click.BadParameter(f"{text!r}: {expected}", context, option)
    return tuple(sorted(set(map(int, words))))


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
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")
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
    flags: dict[str, Any] = {"input": absolute(inputs) or None, "trainer.device": device, "trainer.model": model}
    config = load_run_config(run_dir or {}, toml=toml, assignments=assignments, flags=flags)
    if config.trainer.model == NO_MODEL:
        raise BadInputError("trainer.model = 'none' has no steps to measure: choose a model with --model")
    source = "the inputs" if config.input else "simulated events"
    sizes = sizes or (config.stream.batch_events,)
    from icestream.replay import measure_sizes, set_up_device  # torch takes seconds, which the help should not
    from services.trainer.speed import write_ceiling

    on, title = set_up_device(config)
    with with_inputs(config, int(num_batches * sizes[-1] * _SPARE)) as with_files:
        found = measure_sizes(with_files, sizes, on, num_batches=num_batches, steps=steps, seconds=seconds)
    only = found[0][1] if len(sizes) == 1 else None
    if only is not None and run_dir is not None:
        write_ceiling(run_dir, only)
    if as_json:
        rows = [
            {"batch_events": size, "ceiling": ceiling and ceiling.model_dump(), "peak_memory_bytes": peak}
            for size, ceiling, peak in found
        ]
        click.echo(json.dumps(only.model_dump() if only is not None else rows, indent=2))
    elif only is not None:
        lines = _lines(only, source) + (_comparison(run_dir, only) if run_dir is not None else [])
        click.echo("\n".join([title, *lines]))
    else:
        click.echo("\n".join([title, f"  {num_batches} batches of {source}", *_table(found)]))


def _lines(ceiling: Ceiling, source: str) -> list[str]:
    return [
        f"  {ceiling.batches} batches of {source}: {ceiling.events_per_batch:,.1f} events and"
        f" {ceiling.particles_per_batch:,.1f} particles each",
        f"  {'s/step':<14}{ceiling.s_per_step:>14.5f}  median of {ceiling.rounds} rounds; fastest"
        f" {ceiling.s_per_step_min:.5f}, slowest {ceiling.s_per_step_max:.5f}",
        f"  {'steps/s':<14}{ceiling.steps_per_s:>14,.2f}",
        f"  {'events/s':<14}{ceiling.events_per_s:>14,.1f}",
        f"  {'particles/s':<14}{ceiling.particles_per_s:>14,.1f}",
    ]


def _comparison(run_dir: Path, ceiling: Ceiling) -> list[str]:
    try:
        rate = float(json.loads((run_dir / SUMMARY_FILE).read_text()).get("session_events_per_s", 0.0))
    except FileNotFoundError:
        rate = 0.0
    if not rate:
        return [f"  {run_dir} has no summary with a pace yet: nothing to compare with"]
    return [
        f"  the last session of {run_dir} trained {rate:,.1f} events/s after its first steps:",
        f"  {'pipeline ÷ ceiling':<18}{rate / ceiling.events_per_s:>10.2f}",
    ]


def _table(found: list[SizeMeasured]) -> list[str]:
    lines = [f"  {'events':>9}{'s/step':>12}{'events/s':>12}{'particles/s':>14}{'peak MiB':>11}"]
    for size, ceiling, peak in found:
        if ceiling is None:
            lines.append(f"  {size:>9,}  out of memory: larger ones are left out")
            continue
        lines.append(
            f"  {size:>9,}{ceiling.s_per_step:>12.5f}{ceiling.events_per_s:>12,.1f}"
            f"{ceiling.particles_per_s:>14,.1f}{peak / MIB:>11,.0f}"
        )
    return lines


@contextmanager
def with_inputs(config: Config, num_events: int) -> Iterator[Config]:
    """Enter with the configuration itself, or, if it names no inputs, with a folder of ``num_events`` simulated events.

    The folder exists as long as the context. Raises BadInputError if the workload has no simulator.
    """
    if config.input:
        yield config
        return
    if (sample := registry.workload(config.workload).sample) is None:
        raise BadInputError(f"the workload {config.workload} has no simulator: name files with -i")
    with tempfile.TemporaryDirectory(prefix="icestream-bench-") as folder:
        registry.loaded(sample)(Path(folder), num_events, config.seed)
        yield config.model_copy(update={"input": (folder,)})
