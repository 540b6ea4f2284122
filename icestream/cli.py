"""Command `icestream`: a table of verbs, each imported only when it is called."""

from __future__ import annotations

import difflib
import errno
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import get_args

import click
from click.shell_completion import CompletionItem

from common.errors import TRY_AGAIN_EXIT_CODE, USER_ERROR_EXIT_CODE, BadInputsError, IcestreamError, TryAgainError
from common.paths import CONFIG_FILE, open_in_run
from common.process import PARENT_VARIABLE, redact_tracebacks
from common.text import shown
from icestream.verbs import FrontDoor
from icestream.version import version_lines
from workloads import registry
from workloads.base.interface import Section

_LONGEST_ERROR = 8000
_PLACES = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR)
"""Error numbers of a file or folder that may not be used as the command wants to."""


VERBS: dict[str, tuple[Section, str]] = {
    "run": ("Run", "Start every service on this machine and show progress."),
    "stop": ("Run", "Stop a run with a checkpoint, from any terminal of its machine."),
    "config": ("Run", "Print the resolved configuration, or every key with its meaning."),
    "migrate": ("Run", "Print what an old command of cr_muons, or iceaggr's configuration, is here."),
    "doctor": ("Run", "Check configuration, machine, inputs, token before a run."),
    "status": ("Look", "Show how a run is doing, or how it ended."),
    "logs": ("Look", "Print or follow the logs of a run's services, merged by time."),
    "ls": ("Look", "List runs with their state, speed and size."),
    "ranges": ("Look", "Show the state of a run's ranges: done, running, to come."),
    "tensorboard": ("Look", "Start TensorBoard on runs."),
    "inspect": ("Data", "Print the content of files, and the settings to use them."),
    "convert": ("Data", "Write files of any layout in the layout for fastest reading."),
    "plan": ("Data", "Print a run's plan, bytes and slots without running it."),
    "outputs": ("Results", "Copy a run's checkpoints and TensorBoard files elsewhere."),
    "fetcher": ("Machines", "Start a run's fetcher: stages files, distributes units."),
    "decoder": ("Machines", "Start one decoder: joins a run, and may leave it."),
    "trainer": ("Machines", "Start a run's trainer."),
    "slurm": ("Machines", "Print a job script for several machines under Slurm."),
    "token": ("Machines", "Show the token that a run would use, and if it suffices."),
}
"""Section and summary of each command in `icestream --help`; own_command() knows its code."""

_MODULES = {"stop": "status", "logs": "status", "ls": "status", "ranges": "plan"} | dict.fromkeys(
    ("outputs", "fetcher", "decoder", "trainer"), "services"
)
"""Modules of commands that are not in one of their own name."""


def own_command(name: str) -> click.Command:
    """Return the command of a verb in VERBS, imported only now: torch, Arrow and others take seconds."""
    command: click.Command = getattr(import_module(f"icestream.commands.{_MODULES.get(name, name)}"), name)
    return command


class LazyGroup(click.Group):
    """Click group that imports a command's module when the command is called, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, _, _ in listed()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name; for a workload's verb, that of the first workload that has it."""
        if cmd_name in VERBS:
            return own_command(cmd_name)
        having = _workloads_with(cmd_name)
        return registry.loaded(registry.verbs(having[0])[cmd_name].command) if having else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return a command and its arguments. A workload's verb: of `--workload NAME`, else of a run that is named."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and (near := difflib.get_close_matches(args[0], known, n=1)):
            raise click.UsageError(f"No such command {args[0]!r}; did you mean {near[0]!r}?", ctx)
        cmd_name, command, others = super().resolve_command(ctx, args)
        if cmd_name is None or cmd_name in VERBS:
            return cmd_name, command, others
        wanted, others = without_workload(others)
        having = _workloads_with(cmd_name)
        if wanted is None:
            wanted = (workload_of_run(others) if len(having) > 1 else None) or having[0]
        if wanted not in having:
            raise click.BadParameter(f"{wanted!r} has no {cmd_name}; those that have: {', '.join(having)}", ctx)
        command = copy(registry.loaded(registry.verbs(wanted)[cmd_name].command))
        lines = [
            f"With other options for the workload {name}: icestream {cmd_name} --workload {name} --help"
            for name in having
            if name != wanted
        ]
        command.epilog = "\n\n".join([cleandoc(command.epilog or ""), *lines])
        return cmd_name, command, others

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section, those of workloads with the workload's name."""
        for section in get_args(Section):
            with formatter.section(section):
                formatter.write_dl([(name, text) for name, text, where in listed() if where == section])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the names of commands that begin so. click's own would import each of them."""
        names = [CompletionItem(name, help=text) for name, text, _ in listed() if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


def _workloads_with(verb: str) -> list[str]:
    return [name for name in registry.names() if verb in registry.verbs(name)]


def listed() -> list[tuple[str, str, Section]]:
    """Return name, summary and section of every command; of a verb of several workloads the first one's summary."""
    lines: list[tuple[str, str, Section]] = [(name, summary, section) for name, (section, summary) in VERBS.items()]
    for name in dict.fromkeys(verb for workload in registry.names() for verb in registry.verbs(workload)):
        having = _workloads_with(name)
        verb = registry.verbs(having[0])[name]
        lines.append((name, f"{verb.summary.rstrip('.')} ({', '.join(having)}).", verb.section))
    return lines


def without_workload(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Return the value of `--workload` among the arguments, if present, and all other arguments."""
    others: list[str] = []
    wanted = None
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--":
            return wanted, [*others, argument, *remaining]  # what follows are no options
        if argument == "--workload":
            wanted = next(remaining, None)
            if wanted is None:
                raise click.BadOptionUsage("--workload", "Option '--workload' requires an argument.")
        elif argument.startswith("--workload="):
            wanted = argument.partition("=")[2]
        else:
            others.append(argument)
    return wanted, others


def workload_of_run(arguments: Sequence[str]) -> str | None:
    """Return the workload of the first argument that is a run directory, or a checkpoint in one; None without one."""
    # Options and their values are no paths; beside data may be a file of that name that is of no run.
    for path in (Path(text).resolve() for text in arguments if Path(text).exists()):
        for folder in (path, *path.parents[:2]):
            with (
                suppress(OSError, ValueError, AttributeError, RecursionError, IcestreamError),
                open_in_run(folder / CONFIG_FILE) as file,
            ):
                workload = json.load(file).get("workload")
                if isinstance(workload, str):
                    return workload
    return None


def _print_version(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo("\n".join(version_lines()))
        context.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: icestream simulate demo --events 20000 && icestream run -i demo --run-dir runs/demo",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print versions and exit.",
)
@click.pass_context
def cli(context: click.Context) -> None:
    """Stream ragged particle-physics data into training: fetcher, decoders and trainer as separate processes."""
    context.obj = FrontDoor()


def main() -> None:
    """Run the command; an expected error is a line on standard error for each mistake, and exit code 2."""
    redact_tracebacks()
    try:
        cli(prog_name="icestream")
    except BadInputsError as error:
        fail(error.title, error.lines)
    except TryAgainError as error:
        fail(str(error), exit_code=TRY_AGAIN_EXIT_CODE)
    except IcestreamError as error:
        fail(str(error))
    except Exception as error:
        if not (remedy := remedy_of(error)):
            raise
        fail(remedy)


def remedy_of(error: Exception) -> str:
    """Return a line about an error that the user can mend; empty for any other one.

    A full disk, or a place where nothing may be read or written.
    """
    name, number = getattr(error, "filename", None), getattr(error, "errno", None)
    if number in (errno.ENOSPC, errno.EDQUOT) or getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":
        where = f" while writing {name}" if name else ""
        return f"the disk is full{where}: free some space and give the same command again"
    is_service = PARENT_VARIABLE in os.environ  # what the machine says to a run's process is tried again
    if isinstance(error, OSError) and name and number in _PLACES and not is_service:
        return f"{name}: {str(error.strerror).lower()}; choose another place, or change its permissions"
    return ""


def fail(text: str, lines: Sequence[str] = (), exit_code: int = USER_ERROR_EXIT_CODE) -> None:
    """Print the error, one line for each mistake if there are several, and exit, with the user's error code mostly."""
    click.echo(f"Error: {one_line(text)}{':' if lines else ''}", err=True)
    for line in lines:
        click.echo(f"  - {one_line(line)}", err=True)
    sys.exit(exit_code)


def one_line(text: str) -> str:
    """Return a text in one line that a terminal can show."""
    return shown(" ".join(text.split()), _LONGEST_ERROR)
