"""Command `icestream config`: the settings of a run, and all available keys."""

from __future__ import annotations

from pathlib import Path

import click
from pydantic import BaseModel

from common.options import config_options, run_dir_option
from services.config.root import Config, load_config


@click.command(epilog="Example: icestream config --keys | less")
@click.option("--keys", is_flag=True, help="List every key with its default and meaning instead.")
@run_dir_option
@config_options
def config(keys: bool, run_dir: Path, toml: Path | None, assignments: tuple[str, ...]) -> None:
    """Print the resolved configuration as JSON, or every key with its default and meaning."""
    if keys:
        click.echo("\n".join(_describe(Config, "")))
    else:
        click.echo(load_config(run_dir, toml=toml, assignments=assignments).model_dump_json(indent=2))


def _describe(model: type[BaseModel], prefix: str) -> list[str]:
    lines = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            lines += _describe(kind, f"{prefix}{name}.")
        else:
            meaning = " ".join((field.description or "").split())
            lines.append(f"{prefix}{name} = {field.default!r}\n    {meaning}")
    return lines
