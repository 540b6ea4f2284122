"""Command line of an evaluation: its options, and what it prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from common.options import OutputPath, absolute, config_options, device_option, input_option, token_file_option
from common.user_path import user_path
from workloads.base.report.at_floor import conclusion
from workloads.base.report.outcome import REPORT_HTML, Outcome
from workloads.base.report.text import lines, missed_lines
from workloads.base.report.words import ReportWords

MISSED_EXIT_CODE = 3
"""Another than that of an internal error (1)."""

_OPTIONS = (
    click.argument("checkpoint", type=click.Path(path_type=Path)),
    input_option,
    click.option(
        "--events",
        type=click.IntRange(min=0),
        default=40_000,
        show_default=True,
        help="Most events, from all over the files. 0: all. Errors shrink with their square root.",
    ),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Same seed, same report."),
    click.option(
        "-o",
        "--output",
        type=OutputPath(file_okay=False),
        help="Folder of the report. Default: evaluation/ in the run directory, or beside the checkpoint.",
    ),
    click.option(
        "--thresholds",
        type=click.Path(dir_okay=False, path_type=Path),
        help="TOML file with lines such as `METRIC = 0.02`. The exit code is 3 if one is not kept.",
    ),
    device_option("auto"),
    click.option(
        "--threads",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="CPU threads of torch. The networks are small: more of them gain little, and lose much on a busy machine.",
    ),
    click.option("--bootstraps", type=click.IntRange(min=2), default=100, show_default=True, help="For the errors."),
    token_file_option,
    config_options,
)


def evaluation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of EvaluationOptions, under its names; see typed_options."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def typed_options(inputs: tuple[str, ...], token_file: Path | None, options: dict[str, Any]) -> dict[str, Any]:
    """Arguments of EvaluationOptions from what click passes: absolute inputs; the token file is a setting."""
    assignments = options["assignments"]
    if token_file is not None:
        assignments = (*assignments, f"token.file={user_path(token_file).absolute()}")
    return {**options, "inputs": absolute(inputs), "assignments": assignments}


def tell(outcome: Outcome, folder: Path, words: ReportWords) -> None:
    """Print the report. Raises SystemExit with MISSED_EXIT_CODE if thresholds are missed."""
    for line in missed_lines(outcome.missed):
        click.echo(line, err=True)
    click.echo("\n".join(lines(outcome, words)))
    for warning in outcome.warnings:
        click.echo(f"WARNING: {warning}")
    for line in conclusion(outcome, words):
        click.echo(line)
    click.echo(f"report: {folder / REPORT_HTML}")
    if outcome.missed:
        raise SystemExit(MISSED_EXIT_CODE)
