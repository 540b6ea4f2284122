"""Command `icestream slurm`: a job script for a run on several machines, with torchrun on each."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from common.errors import BadInputError
from common.options import InputCommand, config_options
from common.paths import CONFIG_FILE, require_private, user_path
from common.process import python_command
from common.text import shown, without_secrets
from icestream.commands.options import run_options

EXAMPLES = """\b
Example:
  icestream slurm --nodes 1-4 --gpus 8 --shared /shared/mine --run-dir /tmp/mine -c mine.toml -i '/data/*.parquet' \\
    --device cuda --set stream.shards=8 > job.sbatch && sbatch job.sbatch
"""

SCRIPT = """\
#!/bin/bash
# A run on several machines, made by `icestream slurm`. Add what your site asks for, such as #SBATCH --partition.
# Each start goes on from the newest checkpoint. After the loss of a machine Slurm puts the job back into the queue.
#SBATCH --job-name={{name}} --output=icestream-%j.log --open-mode=append
#SBATCH --nodes={{nodes}} --exclusive --mem=0{{gpus}}
#SBATCH --time={{time}} --requeue
# To this script, two minutes before the end of the time. Not SIGTERM, which is that of `scancel`.
#SBATCH --signal=B:USR1@120

# Seen by all machines: checkpoints and all other results.
SHARED={{shared}}
# On each machine's own disk.
RUN_DIR={{run_dir}}
# Every user of a machine sees the arguments of its processes: no passwords here.
OPTIONS=({{options}})
TORCHRUN=({{torchrun}})

# The machines meet in a file, another one at each start. Who writes to it, or reaches a port, runs programs as you.
meeting=$SHARED/.slurm-$SLURM_JOB_ID again=
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 PYTHONSAFEPATH=1
umask 077
mkdir -p "$SHARED" && chmod go-w "$SHARED" && rm -f "$meeting".* || exit 1
trap 'again=yes; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
trap again= TERM
# A task whose torchrun is killed ends alone. The run is finished if any of the others says so.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --cpu-bind=none --no-kill --kill-on-bad-exit=0 \\
    --wait=0 bash -c 'trap : TERM; "$@" && touch "$0"' "$meeting.finished" "${TORCHRUN[@]}" \\
    --nnodes={{fewest}}:"$SLURM_JOB_NUM_NODES" --nproc-per-node={{trainers}} --max-restarts=20 --rdzv-backend=c10d \\
    --rdzv-endpoint="$meeting.${SLURM_RESTART_COUNT:-0}" --rdzv-id="$SLURM_JOB_ID" --rdzv-conf=store_type=file \\
    -m icestream run --shared "$SHARED" --run-dir "$RUN_DIR" "${OPTIONS[@]}" &
while wait $!; code=$?; kill -0 $! 2>/dev/null; do :; done  # a signal ends a `wait` early
[ ! -e "$meeting.finished" ] || again= code=0
rm -f "$meeting".*
[ -z "$again" ] || exec scontrol requeue "$SLURM_JOB_ID"
exit "$code"
"""

TIME = re.compile(r"\d+(-\d+)?(:\d+){0,2}|UNLIMITED", re.ASCII)
"""Pattern of Slurm's times: minutes, minutes:seconds, hours:minutes:seconds, days-hours, …"""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
NODES = re.compile(r"([1-9]\d{0,4})(?:-([1-9]\d{0,4}))?", re.ASCII)


_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command(epilog=EXAMPLES, context_settings={"ignore_unknown_options": True})  # they are of `icestream run`
@click.option("--nodes", required=True, metavar="N|MIN-MAX", help="Machines; a range: as many as are free.")
@click.option("--gpus", type=click.IntRange(min=0), default=0, show_default=True, help="GPUs of each machine.")
@click.option(
    "--trainers",
    type=click.IntRange(min=1),
    help="Trainers of each machine. Default: one per GPU, else local.trainers of the configuration.",
)
@click.option("--shared", type=_FOLDER, required=True, help="Folder that all machines see: checkpoints and results.")
@click.option("--run-dir", type=_FOLDER, required=True, help="Folder on each machine's own disk.")
@click.option("--time", default="24:00:00", show_default=True, help="Time limit of one job, in Slurm's form.")
@click.option("--name", default="icestream", show_default=True, help="Name of the job.")
@config_options
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF RUN]...")
def slurm(
    nodes: str,
    gpus: int,
    trainers: int | None,
    shared: Path,
    run_dir: Path,
    time: str,
    name: str,
    toml: Path | None,
    assignments: tuple[str, ...],
    options: tuple[str, ...],
) -> None:
    """Print a job script for Slurm, to be read and changed: `icestream run` by torchrun on each of several machines.

    Any other option is one of `icestream run`. A lost machine or the end of the time puts the job back into the queue;
    it goes on from the last checkpoint. Nothing is submitted.
    """
    fewest, trainers = checked_nodes(nodes, trainers or gpus, shared, toml, assignments, options)
    words = [*options, *(word for assignment in assignments for word in ("--set", assignment))]
    words += ["-c", str(toml.absolute())] if toml is not None else []
    shared, run_dir = user_path(shared).absolute(), user_path(run_dir).absolute()
    click.echo(script(name, time, nodes, fewest, gpus, trainers, shared, run_dir, words), nl=False)


def checked_nodes(
    nodes: str, trainers: int, shared: Path, toml: Path | None, assignments: Sequence[str], options: Sequence[str]
) -> tuple[int, int]:
    """Return the fewest machines on which the run in ``shared``, new or begun, can go on, and the trainers of each.

    Says on standard error which numbers of machines there are. ``trainers``: 0: those of the configuration. Raises
    UsageError for options that `icestream run` does not know, and BadInputError if the machines can't share the shards.
    """
    from icestream.commands.checks import possible_nodes, require_shares, usable_nodes
    from services.config.root import load_config

    try:
        _options_of_run.make_context("run", list(options))
    except click.UsageError as error:
        raise click.UsageError(error.format_message(), click.get_current_context()) from None
    numbers = NODES.fullmatch(nodes)
    if numbers is None or int(numbers[1]) > int(numbers[2] or numbers[1]):
        raise BadInputError(f"--nodes {shown(nodes)}: expected a number, or a range such as 1-4")
    least, most = int(numbers[1]), int(numbers[2] or numbers[1])
    if shared.exists():  # also before its first run: the job believes what the machines leave there
        require_private(shared, "--shared")
    stored: Path | dict[str, Any] = shared if (shared / CONFIG_FILE).exists() else {}
    flags = {"local.trainers": trainers or None}
    config = load_config(stored, toml=toml, assignments=assignments, flags=flags)
    trainers = config.local.trainers
    require_shares(config.stream, most, trainers)
    usable_nodes(config.stream, least, trainers)
    possible = [number for number in possible_nodes(config.stream, trainers) if number <= most]
    if len(possible) > 1:
        click.echo(f"{most} machines; with fewer: {', '.join(map(str, reversed(possible[:-1])))}", err=True)
    elif most > 1:
        click.echo(
            f"WARNING: {most} machines, and no fewer can share the run's shards with {trainers} trainers each:"
            " after the loss of a machine the run waits for another one",
            err=True,
        )
    return possible[0], trainers


@click.command(cls=InputCommand, add_help_option=False)
@run_options
def _options_of_run(**_: Any) -> None:
    """Stand for the options that are given to `icestream run`."""


def script(
    name: str,
    time: str,
    nodes: str,
    fewest: int,
    gpus: int,
    trainers: int,
    shared: Path,
    run_dir: Path,
    options: Sequence[str],
) -> str:
    """Return the job script, with every text of the user quoted for bash.

    Raises BadInputError for a value that a script can't hold, or must not.
    """
    if not NAME.fullmatch(name):
        raise BadInputError(f"--name {shown(name)}: letters, digits, dots, hyphens and underscores only")
    if not TIME.fullmatch(time):
        raise BadInputError(f"--time {shown(time)}: expected Slurm's form, for example 24:00:00 or 2-12")
    for text in (str(shared), str(run_dir), *options):
        if "\0" in text:
            raise BadInputError(f"{shown(text)}: no argument has a zero byte in it")
        if without_secrets(text) != text:
            raise BadInputError(
                f"{shown(text)}: a secret would be in the script, and in the command lines that all users of a machine"
                " see: put the input into a file for you only, and name it as -i @FILE"
            )
    values = {
        "name": name,
        "nodes": nodes,
        "fewest": str(fewest),
        "gpus": f" --gpus-per-node={gpus}" if gpus else "",
        "trainers": str(trainers),
        "time": time,
        "shared": shlex.quote(str(shared)),
        "run_dir": shlex.quote(str(run_dir)),
        "torchrun": shlex.join(python_command("torch.distributed.run", anywhere=True)),
        "options": shlex.join(options),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], SCRIPT)
