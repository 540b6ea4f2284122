"""Command-line options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from common.output_place import require_place
from common.user_path import user_path


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


class RenamedOption(click.Option):
    """Option with former names, which work for one more release and are not shown."""

    def __init__(self, names: Sequence[str], former: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(list(names), **attributes)
        self._former = list(former)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        shown = self.opts
        self.opts = [*shown, *self._former]
        super().add_to_parser(parser, ctx)
        self.opts = shown


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
    """Required option -o/--output with this help; its former name is --out."""
    return click.option(
        "-o", "--output", "out", cls=RenamedOption, former=["--out"], type=OutputPath(), required=True, help=help
    )


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


def run_dir_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Option --run-dir."""
    return click.option(
        "--run-dir",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("run"),
        show_default=True,
        help="Folder of one run: configuration, ledger, checkpoints, logs. An existing run is resumed.",
    )(function)


def config_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options --config and --set."""
    function = click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set one configuration key, e.g. --set stream.batch_events=512. Repeatable.",
    )(function)
    return click.option(
        "-c",
        "--config",
        "toml",
        type=click.Path(dir_okay=False, path_type=Path),
        help="TOML file with any part of the configuration.",
    )(function)


def input_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Option -i/--input."""
    return click.option(
        "-i",
        "--input",
        "inputs",
        multiple=True,
        help="File, directory, glob (quoted), URL, or @FILE with one of these a line. Repeatable.",
    )(function)


def ranges_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Option --ranges."""
    return click.option(
        "--ranges",
        metavar="FIRST:LAST:STEP",
        help="Train range after range: 0:99000:1000 puts 0000000-0000999 … 0099000-0099999 in for {range} in each -i.",
    )(function)


def done_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Option --done."""
    return click.option(
        "--done",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Leave out the files named in this list, the training_checkpoint.json of the old script.",
    )(function)


def shard_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options of a fetcher or decoder in a run with several shards, which `icestream run` gives."""
    function = click.option("--shard", type=click.IntRange(min=0), hidden=True, help="Number of its shard.")(function)
    return click.option(
        "--on-machine",
        type=click.IntRange(min=1),
        default=1,
        hidden=True,
        help="Shards of this machine, which share its disk budget, transfers and cores.",
    )(function)


def profile_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Option --profile-steps."""
    return click.option(
        "--profile-steps",
        type=click.IntRange(min=0),
        metavar="N",
        help="Profile N steps after the first few: prints a table, and writes a trace into RUN_DIR/profile/.",
    )(function)


def token_file_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Option --token-file."""
    return click.option(
        "--token-file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="File that holds the token of the federation: its name, never the token itself.",
    )(function)


def absolute(inputs: tuple[str, ...]) -> tuple[str, ...]:
    """Inputs with local paths made absolute: a run must not depend on the folder that it was started from."""
    return tuple(text if "://" in text else _absolute(text) for text in inputs)


def _absolute(text: str) -> str:
    is_list, path = text.startswith("@"), text.removeprefix("@")
    return "@" * is_list + str(user_path(path).absolute())
