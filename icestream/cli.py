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
from inspect import cleandoc
from pathlib import Path
from typing import get_args

import click
from click.shell_completion import CompletionItem

from common.errors import TRY_AGAIN_EXIT_CODE, USER_ERROR_EXIT_CODE, BadInputsError, IcestreamError, TryAgainError
from common.process import PARENT_VARIABLE
from common.redact import shown
from common.redacted_log import redact_tracebacks
from common.run_dir import CONFIG_FILE, open_in_run
from icestream.front import FrontDoor
from icestream.version import version_lines
from workloads import registry
from workloads.base.verb import Section, Verb

_LONGEST_ERROR = 8000
_PLACES = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR)
"""Error numbers of a file or folder that may not be used as the command wants to."""


VERBS = {
    "run": Verb("icestream.commands.run:run", "Start every service on this machine and show progress.", "Run"),
    "stop": Verb(
        "icestream.commands.stop:stop", "Stop a run with a checkpoint, from any terminal of its machine.", "Run"
    ),
    "config": Verb(
        "icestream.commands.config:config", "Print the resolved configuration, or every key with its meaning.", "Run"
    ),
    "init": Verb("icestream.commands.init:init", "Write a commented file of the most important settings.", "Run"),
    "doctor": Verb(
        "icestream.commands.doctor.command:doctor", "Check configuration, machine, inputs, token before a run.", "Run"
    ),
    "status": Verb("icestream.commands.status.command:status", "Show how a run is doing, or how it ended.", "Look"),
    "logs": Verb(
        "icestream.commands.logs:logs", "Print or follow the logs of a run's services, merged by time.", "Look"
    ),
    "ls": Verb("icestream.commands.ls:ls", "List runs with their state, speed and size.", "Look"),
    "ranges": Verb(
        "icestream.commands.ranges:ranges", "Show the state of a run's ranges: done, running, to come.", "Look"
    ),
    "tensorboard": Verb(
        "icestream.commands.tensorboard.command:tensorboard",
        "Start TensorBoard on runs, or collect their files.",
        "Look",
    ),
    "inspect": Verb(
        "icestream.commands.inspect.command:inspect",
        "Print the content of files, and the settings to use them.",
        "Data",
    ),
    "convert": Verb(
        "icestream.commands.convert.command:convert",
        "Write files of any layout in the layout for fastest reading.",
        "Data",
    ),
    "plan": Verb(
        "icestream.commands.plan.command:plan", "Print a run's plan, bytes and slots without running it.", "Data"
    ),
    "outliers": Verb(
        "icestream.commands.outliers.command:outliers", "Merge the outlier files of a run into large ones.", "Data"
    ),
    "outputs": Verb(
        "icestream.commands.outputs:outputs", "Copy a run's checkpoints and TensorBoard files elsewhere.", "Results"
    ),
    "fetcher": Verb(
        "icestream.commands.fetcher:fetcher", "Start a run's fetcher: stages files, distributes units.", "Machines"
    ),
    "decoder": Verb(
        "icestream.commands.decoder:decoder", "Start one decoder: joins a run, and may leave it.", "Machines"
    ),
    "trainer": Verb("icestream.commands.trainer:trainer", "Start a run's trainer.", "Machines"),
    "node": Verb(
        "icestream.commands.node.command:node", "Run one of several nodes of a run, on its machine.", "Machines"
    ),
    "ray": Verb("icestream.commands.ray.command:ray", "Train on several machines of a Ray cluster.", "Machines"),
    "slurm": Verb(
        "icestream.commands.slurm.command:slurm", "Print a job script for several machines under Slurm.", "Machines"
    ),
    "token": Verb("icestream.commands.token:token", "Get a token for the inputs, or show the one in use.", "Machines"),
    "keys": Verb("icestream.commands.keys:keys", "Make the certificates of a trainer on another machine.", "Machines"),
    "bench": Verb(
        "icestream.commands.bench.command:bench", "Measure this machine's speed: the trainer's ceiling.", "Machines"
    ),
    "completion": Verb(
        "icestream.commands.completion:completion",
        "Print the lines that complete commands and options with Tab.",
        "Machines",
    ),
}


class LazyGroup(click.Group):
    """Click group that imports a command's module when the command is called, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*VERBS, *dict.fromkeys(verb for name in registry.names() for verb in registry.verbs(name))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Command by name; for a workload's verb, that of the first workload that has it."""
        verb = VERBS.get(cmd_name)
        for name in registry.names():
            verb = verb or registry.verbs(name).get(cmd_name)
        return imported(verb) if verb is not None else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Command and its arguments. A workload's verb: that of `--workload NAME`, else of a run that is named."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and (near := difflib.get_close_matches(args[0], known, n=1)):
            raise click.UsageError(f"No such command {args[0]!r}; did you mean {near[0]!r}?", ctx)
        cmd_name, command, rest = super().resolve_command(ctx, args)
        if cmd_name is None or cmd_name in VERBS:
            return cmd_name, command, rest
        wanted, rest = without_workload(rest)
        having = [name for name in registry.names() if cmd_name in registry.verbs(name)]
        if wanted is None and len(having) > 1:
            wanted = workload_of_run(rest)
        if wanted is None:
            wanted = having[0]
        if wanted not in having:
            raise click.BadParameter(f"{wanted!r} has no {cmd_name}; those that have: {', '.join(having)}", ctx)
        others = [name for name in having if name != wanted]
        return cmd_name, naming_others(imported(registry.verbs(wanted)[cmd_name]), cmd_name, others), rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section, those of workloads with the workload's name."""
        for section in get_args(Section):
            with formatter.section(section):
                formatter.write_dl([(name, text) for name, text, where in listed() if where == section])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands that begin so. click's own would import each of them."""
        found = [CompletionItem(name, help=text) for name, text, _ in listed() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


def listed() -> list[tuple[str, str, Section]]:
    """Name, summary and section of every command."""
    found: list[tuple[str, str, Section]] = [(name, verb.summary, verb.section) for name, verb in VERBS.items()]
    of_workloads: dict[str, dict[str, Verb]] = {}
    for workload in registry.names():
        for name, verb in registry.verbs(workload).items():
            of_workloads.setdefault(name, {})[workload] = verb
    for name, verbs in of_workloads.items():
        text = "; ".join(f"{verb.summary.rstrip('.')} ({workload})" for workload, verb in verbs.items())
        found.append((name, f"{text}.", next(iter(verbs.values())).section))
    return found


def imported(verb: Verb) -> click.Command:
    """Click command of a verb."""
    command = registry.imported(verb.target)
    assert isinstance(command, click.Command)
    return command


def naming_others(command: click.Command, verb: str, others: Sequence[str]) -> click.Command:
    """Copy of the command whose help names the other workloads that have the verb."""
    command = copy(command)
    lines = [
        f"With other options for the workload {name}: icestream {verb} --workload {name} --help" for name in others
    ]
    command.epilog = "\n\n".join([cleandoc(command.epilog or ""), *lines])
    return command


def without_workload(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Value of `--workload` among the arguments, if present, and all other arguments."""
    rest: list[str] = []
    wanted = None
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--":
            return wanted, [*rest, argument, *remaining]  # what follows are no options
        if argument == "--workload":
            wanted = next(remaining, None)
            if wanted is None:
                raise click.BadOptionUsage("--workload", "Option '--workload' requires an argument.")
        elif argument.startswith("--workload="):
            wanted = argument.partition("=")[2]
        else:
            rest.append(argument)
    return wanted, rest


def workload_of_run(arguments: Sequence[str]) -> str | None:
    """Workload of the first argument that is a run directory, or a checkpoint in one; None without such an argument."""
    # Options and their values are no paths; beside data may be a file of that name that is of no run.
    for path in (Path(text).resolve() for text in arguments if Path(text).exists()):
        for folder in (path, *path.parents[:2]):
            with (
                suppress(OSError, ValueError, AttributeError, RecursionError, IcestreamError),
                open_in_run(folder / CONFIG_FILE) as file,
            ):
                found = json.load(file).get("workload")
                if isinstance(found, str):
                    return found
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
    """Line about an error that the user can mend: a full disk, or a place where nothing may be read or written.

    Empty for any other error.
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
    """Text in one line that a terminal can show."""
    return shown(" ".join(text.split()), _LONGEST_ERROR)
