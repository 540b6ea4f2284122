"""Command `icestream doctor`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from common.errors import USER_ERROR_EXIT_CODE, BadInputError, BadInputsError
from common.options import (
    RunCommand,
    absolute,
    config_options,
    device_option,
    input_option,
    ranges_option,
    run_argument,
    token_file_option,
)
from common.redact import shown
from common.run_words import counted
from icestream.commands.doctor.finding import Finding

EXAMPLES = """\b
Examples:
  icestream doctor                                  # this machine
  icestream doctor -i 'data/*.parquet' -c mine.toml --device cuda
  icestream doctor runs/mine                        # for an existing run, before it is resumed

\b
Exit codes: 0 a run can start, 2 there is a problem.
"""
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}
_LONGEST = 2000


@click.command(epilog=EXAMPLES, cls=RunCommand)
@run_argument(default="run")
@input_option
@ranges_option
@device_option()
@token_file_option
@config_options
def doctor(
    run_dir: Path,
    inputs: tuple[str, ...],
    ranges: str | None,
    device: str | None,
    token_file: Path | None,
    toml: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Check configuration, machine, inputs and token before a run, and report all problems. Nothing is started.

    RUN: directory of an existing run, with its stored settings, or of the one to come.
    Of local files some, spread over all, are looked at as a run does it; of remote ones the first is fetched.
    """
    flags = {
        "input": absolute(inputs) or None,
        "fetcher.ranges": ranges,
        "trainer.device": device,
        "token.file": token_file,
    }
    problems = 0
    for finding in findings(run_dir, toml, assignments, flags):
        problems += finding.level == "problem"
        level = click.style(f"{finding.level:<8}", fg=_COLOURS[finding.level])
        click.echo(f"{level} {finding.name:<14} {shown(finding.text, _LONGEST)}")
    if problems:
        click.echo(f"{counted(problems, 'problem')}")
        sys.exit(USER_ERROR_EXIT_CODE)


def findings(run_dir: Path, toml: Path | None, assignments: Sequence[str], flags: dict[str, Any]) -> Iterator[Finding]:
    """Findings of all checks. With mistakes in the configuration, the machine is checked for the default one."""
    from icestream.commands.doctor.inputs import check_inputs, check_tokens
    from icestream.commands.doctor.machine import check_machine
    from icestream.commands.run import resolved_config
    from icestream.reading.workload import load_run_config
    from icestream.version import version_lines
    from services.config.root import Config

    yield Finding("ok", "versions", ", ".join(version_lines()))
    try:
        config = load_run_config(run_dir, toml=toml, assignments=assignments, flags=flags)
        if config.input:
            config = resolved_config(run_dir, False, toml, assignments, flags)
    except BadInputError as error:
        lines = error.lines if isinstance(error, BadInputsError) else (str(error),)
        yield from (Finding("problem", "configuration", line) for line in lines)
        yield Finding("warning", "inputs", "not checked: the configuration has to be correct for that")
        yield from check_machine(Config(), run_dir)
        return
    yield Finding("ok", "configuration", f"workload {config.workload}, model {config.trainer.model}")
    yield from check_machine(config, run_dir)
    yield from check_tokens(config)
    yield from check_inputs(config)
