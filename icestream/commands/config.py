"""Command `icestream config`: the settings of a run, and all available keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from common.errors import BadInputError
from common.options import config_options
from common.redact import shown
from common.run_dir import CONFIG_FILE
from icestream.commands.toml_text import toml_line, toml_value
from services.config.root import Config, full_key, load_config, settings, value_of
from services.config.trainer import model_names

EXAMPLES = """\b
Examples:
  icestream config stream.batch_events             # value, default and meaning; `stream`: of the whole section
  icestream config runs/mine stream                # the same of a run
  icestream config runs/mine --changed             # only what differs from the defaults, as TOML
  icestream config runs/mine                       # everything, as JSON
  icestream config --keys | less                   # every key with its default and meaning
"""


@click.command(epilog=EXAMPLES)
@click.argument("words", metavar="[RUN] [KEY]...", nargs=-1)
@click.option("--keys", is_flag=True, help="List every key with its default and meaning instead.")
@click.option("--changed", is_flag=True, help="Print only what differs from the defaults, as TOML.")
@click.option("--run-dir", "named", type=click.Path(file_okay=False, path_type=Path), hidden=True)
@config_options
def config(
    words: tuple[str, ...],
    keys: bool,
    changed: bool,
    named: Path | None,
    toml: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Print the resolved configuration as JSON, or of each KEY (or section) its value, default and meaning.

    RUN: directory of a run, whose stored settings count; without one the defaults are shown.
    """
    if keys:
        click.echo(
            "\n".join(f"{key} = {field.default!r}\n    {_meaning(field.description)}" for key, field in settings())
        )
        return
    named, names = (Path(words[0]), words[1:]) if named is None and words and _is_run(words[0]) else (named, words)
    if named is not None and not (named / CONFIG_FILE).is_file():
        why = f"it has no {CONFIG_FILE}" if named.is_dir() else "no such folder"
        raise BadInputError(f"{named}: not a run directory ({why}); without one the defaults are shown")
    run_dir = named or Path("run")
    found = load_config(run_dir, toml=toml, assignments=assignments)
    if changed and names:
        raise BadInputError(
            f"--changed prints all changed settings: leave out {shown(' '.join(names))}, or name the directory of a run"
        )
    if changed:
        click.echo("\n".join(changed_lines(found)) or "# every setting has its default")
    elif names:
        stored = load_config(run_dir, environment={}) if (run_dir / CONFIG_FILE).is_file() else None
        click.echo("\n".join(line for name in names for line in described(found, name, stored)))
    else:
        click.echo(found.model_dump_json(indent=2))


def _is_run(word: str) -> bool:
    return "/" in word or (Path(word) / CONFIG_FILE).is_file()


def changed_lines(config: Config) -> Iterator[str]:
    """TOML lines of the values that differ from the defaults."""
    defaults = Config()
    for key, _ in settings():
        value, default = value_of(config, key), value_of(defaults, key)
        if value != default:
            yield toml_line(key, value) + ("" if default is None else f"  # default: {toml_value(default)}")


def described(config: Config, name: str, stored: Config | None = None) -> Sequence[str]:
    """Value, default and meaning of a key, or of each key of a section. Raises BadInputError for an unknown one.

    Of `trainer`: without the sections of other models than that of ``config``. ``stored``: configuration of the run.
    """
    fields = dict(settings())
    wanted = [key for key in fields if key.startswith(f"{name}.")] or [full_key(name, "icestream config")]
    others = [f"trainer.{model}" for model in model_names() if model != config.trainer.model]
    others = [
        section for section in others if name == "trainer" and any(key.startswith(f"{section}.") for key in fields)
    ]
    defaults = Config()
    lines = []
    for key in wanted:
        if key.startswith(tuple(f"{section}." for section in others)):
            continue
        value, default = value_of(config, key), value_of(defaults, key)
        note = "the default" if value == default else f"default: {default!r}"
        if stored is not None and value == value_of(stored, key):
            note = f"stored by the run; {note}"
        lines += [f"{toml_line(key, value)}  ({note})", f"    {_meaning(fields[key].description)}"]
    return [*lines, f"# of other models: icestream config {' '.join(others)}"] if others else lines


def _meaning(description: str | None) -> str:
    return " ".join((description or "").split())
