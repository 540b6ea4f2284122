"""Command-line options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from common.user_path import user_path


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


def model_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Option --model, also under its former name --generator."""
    return click.option(
        "--model",
        "--generator",
        "model",
        metavar="NAME",
        help="Model to train, one of the workload's; none: only count the events, to measure the speed of the pipeline"
        " alone.",
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
