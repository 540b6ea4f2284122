"""Options of the commands, and arguments of the Python functions, that several of them share."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import click

from common.errors import BadInputError
from common.paths import require_place, user_path


def no_bool(seed: Any) -> Any:
    """Return the seed. Raises ValueError for True and False, which Python takes for 1 and 0: another argument was
    meant."""
    if isinstance(seed, bool):
        raise ValueError("a whole number")
    return seed


def checked_seed(seed: Any) -> int:
    """Return the seed as an int. Raises BadInputError for anything but a whole number of at least 0."""
    try:
        number = operator.index(no_bool(seed))
    except (TypeError, ValueError):
        raise BadInputError(f"seed = {seed!r}: expected a whole number") from None
    if number < 0:
        raise BadInputError(f"seed = {number}: must not be negative")
    return number


class InputCommand(click.Command):
    """Command with -i or --run-dir that says what an extra argument should have been: a glob in quotes, or an option.

    The shell puts the files of a glob that is not quoted in its place. One of them may be taken for a RUN.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            files = [text for text in given if not text.startswith("-") and Path(text).is_file()]
            options = {name for param in self.params for name in param.opts}
            follow = {"-i": "inputs follow -i", "--run-dir": "the folder of a run follows --run-dir"}
            remedy = ", ".join(text for name, text in follow.items() if name in options).capitalize()
            if len(files) > 1:
                remedy = "Quote globs, so that the shell leaves them alone: -i 'x/*/*.parquet'"
            is_run = isinstance(error, click.BadParameter) and getattr(error.param, "name", "") == "run_dir" and files
            if not remedy or not (is_run or error.message.startswith("Got unexpected extra")):
                raise
            raise click.UsageError(f"{error.format_message()}. {remedy}", ctx) from None


class RunCommand(InputCommand):
    """Command about the run RUN, its first argument. `--run-dir RUN`, as `icestream run` has it, is understood, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, _run_first(args))
        except click.MissingParameter as error:
            raise click.UsageError(f"{error.format_message()} `icestream ls runs/` lists runs.", ctx) from None


def _run_first(args: list[str]) -> list[str]:
    """Arguments with the value of --run-dir at the front, without the option."""
    for index, text in enumerate(args):
        if text == "--":
            break
        if text == "--run-dir" and index + 1 < len(args):
            return [args[index + 1], *args[:index], *args[index + 2 :]]
        if text.startswith("--run-dir="):
            return [text.partition("=")[2], *args[:index], *args[index + 1 :]]
    return args


class OutputPath(click.Path):
    """Path of an output, checked before any work. Raises BadInputError for one where nothing can be written."""

    def __init__(self, *, file_okay: bool = True) -> None:
        super().__init__(file_okay=file_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Path of the text."""
        place: Any = super().convert(value, param, ctx)
        require_place(place)
        return place


def output_option(help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Required option -o/--output with this help."""
    return click.option("-o", "--output", "out", type=OutputPath(), required=True, help=help)


def device_option(default: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Option --device; without ``default`` that of the configuration."""
    return click.option(
        "--device", default=default, show_default=default is not None, help="auto, cpu, cuda or cuda:N."
    )


def run_argument(*, default: str | None = None) -> Callable[..., Any]:
    """Argument RUN, the directory of a run; for a RunCommand. With ``default`` it may be left out."""
    kind = click.Path(file_okay=False, path_type=Path)
    if default is None:
        return click.argument("run_dir", metavar="RUN", type=kind)
    return click.argument("run_dir", metavar="[RUN]", type=kind, default=default)


run_dir_option = click.option(
    "--run-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("run"),
    show_default=True,
    help="Folder of one run: configuration, ledger, checkpoints, logs. An existing run is resumed.",
)


def together(*options: Callable[..., Any]) -> Callable[..., Any]:
    """Return the decorator that adds all of these, in the order of the help."""
    return lambda function: reduce(lambda decorated, option: option(decorated), reversed(options), function)


config_options = together(
    click.option(
        "-c",
        "--config",
        "toml",
        type=click.Path(dir_okay=False, path_type=Path),
        help="TOML file with any part of the configuration; options win over it.",
    ),
    click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set one configuration key, e.g. --set stream.batch_events=512. Repeatable.",
    ),
)


input_option = click.option(
    "-i",
    "--input",
    "inputs",
    multiple=True,
    help="File, directory, glob (quoted), URL, or @FILE with one of these a line. Repeatable.",
)


ranges_option = click.option(
    "--ranges",
    metavar="FIRST:LAST:STEP",
    help="Train range after range: 0:99000:1000 puts 0000000-0000999 … 0099000-0099999 in for {range} in each -i.",
)


done_option = click.option(
    "--done",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Leave out the files named in this list, the training_checkpoint.json of the old script.",
)


shard_options = together(
    click.option(
        "--on-machine",
        type=click.IntRange(min=1),
        default=1,
        hidden=True,
        help="Shards of this machine, which share its disk budget, transfers and cores.",
    ),
    click.option("--shard", type=click.IntRange(min=0), hidden=True, help="Number of its shard."),
)
"""Options of a fetcher or decoder in a run with several shards, which `icestream run` gives."""


profile_option = click.option(
    "--profile-steps",
    type=click.IntRange(min=0),
    metavar="N",
    help="Profile N steps after the first few: prints a table, and writes a trace into RUN_DIR/profile/.",
)


token_file_option = click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that holds the token of the federation: its name, never the token itself.",
)


def absolute(inputs: tuple[str, ...]) -> tuple[str, ...]:
    """Inputs with local paths made absolute: a run must not depend on the folder that it was started from."""
    return tuple(
        text if "://" in text else "@" * text.startswith("@") + str(user_path(text.removeprefix("@")).absolute())
        for text in inputs
    )


PathText = str | os.PathLike[str]
Paths = PathText | Iterable[PathText]


def given_path(value: object, name: str) -> Path:
    """Return the absolute path that was given as the argument ``name``. Raises BadInputError."""
    if not _is_path(value):
        raise BadInputError(f"{name} = {value!r}: expected a path")
    return user_path(value).absolute()  # type: ignore[arg-type]


def given_inputs(value: object, name: str) -> tuple[str, ...]:
    """Return the inputs that were given as the argument ``name``, one or several in order, with absolute paths.

    Any iterable is read once. Raises BadInputError, also for what has no order or whose keys would be taken.
    """
    if _is_path(value):
        return absolute((os.fspath(value),))  # type: ignore[call-overload]
    if isinstance(value, Mapping):
        raise BadInputError(f"{name} is a mapping, of which only the keys would be read: give list({name}.values())")
    if isinstance(value, set | frozenset):
        raise BadInputError(f"{name} is a set, which has another order in each process: give sorted({name})")
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise BadInputError(f"{name} = {value!r}: expected a path, or several")
    several = tuple(value)
    for one in several:
        if not _is_path(one):
            raise BadInputError(f"{name} has {one!r} in it: expected paths")
    return absolute(tuple(map(os.fspath, several)))


def _is_path(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, os.PathLike) and isinstance(os.fspath(value), str))
