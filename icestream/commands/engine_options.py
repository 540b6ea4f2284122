"""Options of the commands that start nodes with an engine, and the check of the number of nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from common.errors import BadInputError
from common.options import config_options
from common.run_dir import CONFIG_FILE


class EngineCommand(click.Command):
    """Command whose unknown options are those of `icestream run`, for every node."""

    ignore_unknown_options = True


def engine_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options --nodes, --shared, --run-dir, --gpus, --config, --set, and all others as ``options``."""
    folder = click.Path(file_okay=False, path_type=Path)
    decorators = (
        click.option("--nodes", type=click.IntRange(min=1), required=True, help="Nodes, each on a machine of its own."),
        click.option(
            "--shared",
            type=folder,
            required=True,
            help="Folder that all machines see: checkpoints and all other results.",
        ),
        click.option(
            "--run-dir",
            type=folder,
            required=True,
            help="Folder on each machine's own disk; node I uses node-I in it.",
        ),
        click.option("--gpus", type=click.IntRange(min=0), default=0, show_default=True, help="GPUs of each node."),
        config_options,
        click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF RUN]..."),
    )
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def checked_shards(nodes: int, shared: Path, toml: Path | None, assignments: Sequence[str]) -> int:
    """Number of shards of the run in ``shared``, new or begun. Raises BadInputError unless the nodes divide it."""
    from services.config.root import load_config

    stored: Path | dict[str, Any] = shared if (shared / CONFIG_FILE).exists() else {}
    shards = load_config(stored, toml=toml, assignments=assignments).stream.shards
    if shards % nodes:
        raise BadInputError(
            f"--nodes {nodes}, but stream.shards = {shards}, of which each node takes the same number: use a divisor of"
            f" {shards}, or other --set stream.shards=… (another order of the data)"
        )
    return shards


def set_words(assignments: Sequence[str]) -> list[str]:
    """Words of a command line that repeat the assignments."""
    return [word for assignment in assignments for word in ("--set", assignment)]
