"""Options of the commands that start nodes with an engine, and the checks before it has to place them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from common.options import InputCommand, config_options
from common.private_path import require_private
from common.run_dir import CONFIG_FILE
from icestream.commands.run_options import run_options


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
        click.option(
            "--gpus",
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="GPUs reserved for each node; --trainers of them are used.",
        ),
        config_options,
        click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF RUN]..."),
    )
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


@click.command(cls=InputCommand, add_help_option=False)
@run_options
def _options_of_run(**_: Any) -> None:
    """Options that an engine's command gives to each node."""


def checked_nodes(
    nodes: int, shared: Path, toml: Path | None, assignments: Sequence[str], options: Sequence[str]
) -> tuple[int, ...]:
    """Numbers of nodes on which the run in ``shared``, new or begun, can go on; says on standard error which of them a
    loss leads to. Raises UsageError for options that no node knows, and BadInputError unless ``nodes`` is among the
    numbers: else a job would wait for its machines to find it."""
    from icestream.commands.possible_nodes import possible_nodes, require_shares
    from services.config.root import load_config

    try:
        given = _options_of_run.make_context("node", list(options)).params
    except click.UsageError as error:
        raise click.UsageError(error.format_message(), click.get_current_context()) from None
    if shared.exists():  # also before its first run: the job believes what nodes leave there
        require_private(shared, "--shared")
    stored: Path | dict[str, Any] = shared if (shared / CONFIG_FILE).exists() else {}
    flags = {"local.trainers": given["trainers"]}
    config = load_config(stored, toml=toml, assignments=assignments, flags=flags)
    stream, trainers = config.stream, config.local.trainers
    require_shares(stream, nodes, trainers)
    possible = possible_nodes(stream, trainers)
    if nodes > 1:
        click.echo(_after_a_loss(nodes, possible, trainers), err=True)
    return possible


def _after_a_loss(nodes: int, possible: Sequence[int], trainers: int) -> str:
    """Line about the numbers of nodes that a run of ``nodes`` can fall back to."""
    if fewer := ", ".join(str(number) for number in reversed(possible) if number < nodes):
        return f"{nodes} nodes; with fewer machines: {fewer}"
    return (
        f"WARNING: {nodes} nodes, and no fewer can share the run's shards with {trainers} trainers each:"
        " after the loss of a machine the run waits for another one"
    )


def set_words(assignments: Sequence[str]) -> list[str]:
    """Words of a command line that repeat the assignments."""
    return [word for assignment in assignments for word in ("--set", assignment)]
