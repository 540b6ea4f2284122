"""Command `icestream config`: the settings of a run, with their defaults and meanings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args, get_origin

import click

from common.errors import BadInputError
from common.options import config_options
from common.paths import CONFIG_FILE
from common.text import shown
from icestream.commands.snapshot import require_run_dir
from services.config.root import Config, full_key, load_config, settings, value_of
from services.config.settings import model_names
from workloads.registry import section_name

CONFIG_EXAMPLES = """\b
Examples:
  icestream config stream.batch_events             # value, default and meaning; `stream`: of the whole section
  icestream config runs/mine stream                # the same of a run
  icestream config runs/mine --changed             # only what differs from the defaults, as TOML
  icestream config runs/mine                       # everything, as JSON
  icestream config --keys | less                   # every key with its default and meaning
"""


@click.command(epilog=CONFIG_EXAMPLES)
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
        lines = (f"{key} = {field.default!r}\n    {_meaning(field.description)}" for key, field in settings())
        click.echo("\n".join(lines))
        return
    if named is None and words and ("/" in words[0] or (Path(words[0]) / CONFIG_FILE).is_file()):
        named, words = Path(words[0]), words[1:]
    if named is not None:
        require_run_dir(named)
    run_dir = named or Path("run")
    found = load_config(run_dir, toml=toml, assignments=assignments)
    if changed and words:
        raise BadInputError(
            f"--changed prints all changed settings: leave out {shown(' '.join(words))}, or name the directory of a run"
        )
    if changed:
        click.echo("\n".join(changed_lines(found)) or "# every setting has its default")
    elif words:
        stored = load_config(run_dir, environment={}) if (run_dir / CONFIG_FILE).is_file() else None
        click.echo("\n".join(line for name in words for line in described(found, name, stored)))
    else:
        click.echo(found.model_dump_json(indent=2))


def changed_lines(config: Config) -> Iterator[str]:
    """Return TOML lines of the values that differ from the defaults."""
    defaults = Config()
    for key, _ in settings():
        value, default = value_of(config, key), value_of(defaults, key)
        if value != default:
            yield toml_line(key, value) + ("" if default is None else f"  # default: {toml_value(default)}")


def described(config: Config, name: str, stored: Config | None = None) -> Sequence[str]:
    """Return value, default and meaning of a key, or of each key of a section. Raises BadInputError for an unknown one.

    Of `trainer`: without the sections of other models than that of ``config``. ``stored``: configuration of the run.
    """
    fields, defaults = dict(settings()), Config()
    wanted = [key for key in fields if key.startswith(f"{name}.")] or [full_key(name, "icestream config")]
    others = []
    if name == "trainer":
        sections = dict.fromkeys(f"trainer.{section_name(model)}" for model in model_names())
        sections.pop(f"trainer.{section_name(config.trainer.model)}", None)
        others = [section for section in sections if any(key.startswith(f"{section}.") for key in fields)]
    lines = []
    for key in wanted:
        if key.startswith(tuple(f"{section}." for section in others)):
            continue
        value, default = value_of(config, key), value_of(defaults, key)
        note = "the default" if value == default else f"default: {default!r}"
        if stored is not None and value == value_of(stored, key):
            note = f"stored by the run; {note}"
        if get_origin(fields[key].annotation) is Literal:
            note += f"; one of {', '.join(map(repr, get_args(fields[key].annotation)))}"
        lines += [f"{toml_line(key, value)}  ({note})", f"    {_meaning(fields[key].description)}"]
    return [*lines, f"# of other models: icestream config {' '.join(others)}"] if others else lines


def _meaning(description: str | None) -> str:
    return " ".join((description or "").split())


# ------------------------------------------------------------------ TOML


def toml_value(value: object) -> str:
    """Return the TOML expression of a value. Raises TypeError for one that TOML does not have, such as None."""
    match value:
        case bool() | int() | float() | str():  # finite numbers and texts are written as in JSON, but for one sign
            return json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f")
        case Path():
            return toml_value(str(value))
        case Mapping():
            return "{" + ", ".join(f"{_key(str(key))} = {toml_value(inner)}" for key, inner in value.items()) + "}"
        case Sequence():
            return "[" + ", ".join(map(toml_value, value)) + "]"
    raise TypeError(f"{value!r} is no TOML value")


def toml_line(key: str, value: object) -> str:
    """Return the line `key = value`; for None, which can't be written, a comment: the key is left out to have it."""
    return f"# {key} is not set" if value is None else f"{key} = {toml_value(value)}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
