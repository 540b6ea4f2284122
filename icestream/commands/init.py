"""Command `icestream init`: a commented TOML file of the most important settings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from common.errors import BadInputError
from icestream.commands.model_option import model_option
from icestream.commands.toml_text import toml_line
from services.config.root import Config, load_config, settings, value_of
from services.config.trainer import NO_MODEL

EXAMPLES = """\b
Examples:
  icestream init mine.toml && icestream run -c mine.toml -i 'data/*.parquet' --run-dir runs/mine
  icestream init --model likelihood likelihood.toml
  icestream init --workload direction -           # to the terminal
"""
SETTINGS = (
    *("input", "seed", "epochs"),
    *("source.fields", "source.depth_kind", "source.nulls"),
    *("stream.batch_events", "stream.unit_events", "stream.max_particles", "stream.max_particles_per_event"),
    *("stream.held_out", "stream.slots", "stream.slot_mib"),
    *("token.file", "fetcher.ranges", "fetcher.cache_dir", "fetcher.disk_budget_gib", "fetcher.max_bad_files"),
    *("trainer.device", "trainer.precision", "trainer.threads", "trainer.max_steps", "trainer.checkpoint_every"),
    *("trainer.keep_checkpoints", "trainer.start_from"),
    *("trainer.validation.input", "trainer.validation.events", "trainer.validation.every"),
    *("outputs.destination", "local.decoders", "local.trainers"),
)
"""Settings that a new run is likely to need, besides those of its model."""
_HEAD = """\
# Settings of an icestream run: icestream run -c {name} -i 'data/*.parquet' --run-dir runs/mine
# Each line "#key = value" shows a default: remove the # to change it. All settings, with their
# meanings: icestream config --keys; of one: icestream config KEY. Options of the command win over this file.
"""


@click.command(epilog=EXAMPLES)
@click.argument("file", default="icestream.toml", type=click.Path(allow_dash=True, dir_okay=False, path_type=Path))
@click.option("--workload", help="Content of the files: muons, direction, …. Default: that of the model, else muons.")
@model_option
def init(file: Path, workload: str | None, model: str | None) -> None:
    """Write a TOML file of the most important settings, with their defaults and meanings, to FILE.

    FILE is icestream.toml by default, - for the terminal; an existing one is never replaced.
    """
    config = load_config({}, flags={"workload": workload, "trainer.model": model}, environment={})
    text = template(config, "mine.toml" if str(file) == "-" else str(file))
    if str(file) == "-":
        click.echo(text, nl=False)
        return
    try:
        with file.open("x") as opened:
            opened.write(text)
    except FileExistsError:
        raise BadInputError(f"{file}: exists already; choose another name, or - to print") from None
    except OSError as error:
        raise BadInputError(f"{file}: can't be written ({error.strerror})") from None
    click.echo(f"{file}: edit it, then icestream run -c {file} -i 'data/*.parquet' --run-dir runs/mine")


def template(config: Config, name: str) -> str:
    """Content of the file for the workload and model of ``config``."""
    section = f"trainer.{config.trainer.model}."
    lines = [*_HEAD.format(name=name).splitlines(), "", toml_line("workload", config.workload)]
    former = ""
    for key, field in settings():
        table, _, leaf = key.rpartition(".")
        is_of_model = config.trainer.model != NO_MODEL and table == section[:-1]
        if key not in (*SETTINGS, "trainer.model") and not is_of_model:
            continue
        if table != former:
            lines += ["", f"[{table}]"]
            former = table
        lines += ["", *_comment(field.description or "")]
        value = value_of(config, key)
        shown = toml_line(
            leaf, "PATH" if value is None else value
        )  # the settings without a value are files and folders
        lines.append(shown if key == "trainer.model" else f"#{shown}")
    return "\n".join(lines) + "\n"


def _comment(text: str) -> Iterator[str]:
    return (f"# {line}" for line in textwrap.wrap(" ".join(text.split()), 100))
