"""Options that several commands share: of a model, of a run, and of an engine that starts a run's nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from common.options import (
    InputCommand,
    absolute,
    config_options,
    device_option,
    done_option,
    input_option,
    profile_option,
    ranges_option,
    token_file_option,
)
from common.paths import CONFIG_FILE, require_private, user_path
from workloads import registry

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def together(decorators: Sequence[Decorator]) -> Decorator:
    """Return one decorator for several, in the order of the help."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


class _ModelOption(click.Option):
    """Option whose models are looked up only for its help: that imports every workload."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        models = "; ".join(f"{one.name}: {', '.join(one.models)}" for one in registry.every_workload())
        self.help = (
            f"Model to train ({models}); package.module:NAME: one of your own (docs/how-to/custom-model.md); none: only"
            " count the events, to measure the speed of the pipeline alone. It wins over the configuration file."
        )
        return super().get_help_record(ctx)


model_option = click.option("--model", cls=_ModelOption, metavar="NAME")

run_options = together(
    [
        input_option,
        ranges_option,
        done_option,
        click.option(
            "--workload", help="Content of the files: muons, …. Default: detected from their columns, else muons."
        ),
        click.option("--decoders", metavar="N|auto", help="Decoder processes; auto: as many as the load needs."),
        click.option("--trainers", type=int, help="Trainer processes that train together, one per GPU."),
        device_option(),
        click.option("--start-from", metavar="CHECKPOINT", help="Start with the weights of another run: fine-tuning."),
        click.option("--epochs", type=int, help="Number of passes over the inputs. 0: without end."),
        click.option("--max-steps", type=int, help="Stop after this many optimiser steps in all. 0: no limit."),
        model_option,
        profile_option,
        click.option("--seed", type=int, help="Seed of the order of the data and of the weights."),
        click.option("--strict/--no-strict", default=None, help="Stop at the first bad file."),
        token_file_option,
        config_options,
    ]
)
"""Options of `icestream run` that set a run's configuration."""


def run_flags(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of run_options by their keys, without -c and --set; None: not given."""
    done, token_file = options["done"], options["token_file"]
    return {
        "input": absolute(options["inputs"]) or None,
        "workload": options["workload"],
        "fetcher.ranges": options["ranges"],
        "fetcher.done": done and user_path(str(done)).absolute(),
        "local.decoders": options["decoders"],
        "local.trainers": options["trainers"],
        "trainer.device": options["device"],
        "trainer.start_from": options["start_from"],
        "epochs": options["epochs"],
        "trainer.max_steps": options["max_steps"],
        "trainer.model": options["model"],
        "trainer.profile_steps": options["profile_steps"],
        "seed": options["seed"],
        "fetcher.strict": options["strict"],
        "token.file": user_path(token_file).absolute() if token_file else None,
    }


# ------------------------------------------------------------------ engines


class EngineCommand(click.Command):
    """Command whose unknown options are those of `icestream run`, for every node."""

    ignore_unknown_options = True


_FOLDER = click.Path(file_okay=False, path_type=Path)

engine_options = together(
    [
        click.option("--nodes", type=click.IntRange(min=1), required=True, help="Nodes, each on a machine of its own."),
        click.option(
            "--shared",
            type=_FOLDER,
            required=True,
            help="Folder that all machines see: checkpoints and all other results.",
        ),
        click.option(
            "--run-dir",
            type=_FOLDER,
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
    ]
)


@click.command(cls=InputCommand, add_help_option=False)
@run_options
def _options_of_run(**_: Any) -> None:
    """Stand for the options that an engine's command gives to each node."""


def checked_nodes(
    nodes: int, shared: Path, toml: Path | None, assignments: Sequence[str], options: Sequence[str]
) -> tuple[int, ...]:
    """Return the numbers of nodes on which the run in ``shared``, new or begun, can go on.

    Says on standard error which of them a loss leads to. Raises UsageError for options that no node knows, and
    BadInputError unless ``nodes`` is among the numbers: else a job would wait for its machines to find it.
    """
    from icestream.commands.checks import possible_nodes, require_shares
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
    trainers = config.local.trainers
    require_shares(config.stream, nodes, trainers)
    possible = possible_nodes(config.stream, trainers)
    fewer = ", ".join(str(number) for number in reversed(possible) if number < nodes)
    if fewer:
        click.echo(f"{nodes} nodes; with fewer machines: {fewer}", err=True)
    elif nodes > 1:
        click.echo(
            f"WARNING: {nodes} nodes, and no fewer can share the run's shards with {trainers} trainers each:"
            " after the loss of a machine the run waits for another one",
            err=True,
        )
    return possible


def set_words(assignments: Sequence[str]) -> list[str]:
    """Return the words of a command line that repeat the assignments."""
    return [word for assignment in assignments for word in ("--set", assignment)]
