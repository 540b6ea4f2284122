"""Command `icestream`: a table of verbs, each imported only when it is called."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from inspect import cleandoc
from pathlib import Path

import click

from common.errors import USER_ERROR_EXIT_CODE, IcestreamError
from common.redact import shown
from common.redacted_log import redact_tracebacks
from common.run_dir import CONFIG_FILE
from icestream.front import FrontDoor
from workloads import registry
from workloads.base.verb import Verb

_LONGEST_ERROR = 8000


VERBS = {
    "run": Verb("icestream.commands.run:run", "Start every service on this machine and show progress."),
    "inspect": Verb(
        "icestream.commands.inspect.command:inspect", "Print the content of files, and the settings to use them."
    ),
    "convert": Verb(
        "icestream.commands.convert.command:convert", "Write files of any layout in the layout for fastest reading."
    ),
    "plan": Verb("icestream.commands.plan.command:plan", "Print a run's plan, bytes and slots without running it."),
    "ranges": Verb("icestream.commands.ranges:ranges", "Show the state of a run's ranges: done, running, to come."),
    "fetcher": Verb("icestream.commands.fetcher:fetcher", "Start a run's fetcher: stages files, distributes units."),
    "decoder": Verb("icestream.commands.decoder:decoder", "Start one decoder: joins a run, and may leave it."),
    "trainer": Verb("icestream.commands.trainer:trainer", "Start a run's trainer."),
    "outputs": Verb("icestream.commands.outputs:outputs", "Copy a run's checkpoints and TensorBoard files elsewhere."),
    "outliers": Verb(
        "icestream.commands.outliers.command:outliers", "Merge the outlier files of a run into large ones."
    ),
    "bench": Verb("icestream.commands.bench.command:bench", "Measure this machine's speed: the trainer's ceiling."),
    "tensorboard": Verb(
        "icestream.commands.tensorboard.command:tensorboard", "Collect the TensorBoard files of many runs."
    ),
    "token": Verb("icestream.commands.token:token", "Get a token for the inputs, or show the one in use."),
    "keys": Verb("icestream.commands.keys:keys", "Make the certificates of a trainer on another machine."),
    "config": Verb(
        "icestream.commands.config:config", "Print the resolved configuration, or every key with its meaning."
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
        sections: dict[str, Mapping[str, Verb]] = {"Commands": VERBS}
        sections |= {f"Commands of the workload {name}": registry.verbs(name) for name in registry.names()}
        for title, verbs in sections.items():
            if verbs:
                with formatter.section(title):
                    formatter.write_dl([(name, verb.summary) for name, verb in verbs.items()])


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
            with suppress(OSError, ValueError, AttributeError, RecursionError):
                found = json.loads((folder / CONFIG_FILE).read_text()).get("workload")
                if isinstance(found, str):
                    return found
    return None


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: icestream simulate demo --events 20000 && icestream run -i demo --run-dir runs/demo",
)
@click.version_option(package_name="icestream")
@click.pass_context
def cli(context: click.Context) -> None:
    """Stream ragged particle-physics data into training: fetcher, decoders and trainer as separate processes."""
    context.obj = FrontDoor()


def main() -> None:
    """Run the command; an expected error is one line on standard error and exit code 2."""
    redact_tracebacks()
    try:
        cli(prog_name="icestream")
    except IcestreamError as error:
        fail(str(error))
    except Exception as error:
        if not _is_full_disk(error):
            raise
        name = getattr(error, "filename", None)
        where = f" while writing {name}" if name else ""
        fail(f"the disk is full{where}: free some space and give the same command again")


def _is_full_disk(error: Exception) -> bool:
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return full or getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"


def fail(text: str) -> None:
    """Print one line and exit with the user's error code."""
    click.echo(f"Error: {shown(' '.join(text.split()), _LONGEST_ERROR)}", err=True)
    sys.exit(USER_ERROR_EXIT_CODE)
