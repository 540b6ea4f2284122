"""Command `icestream run`: every service on this machine, or on each of several, from the start to the summary."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from common.errors import USER_ERROR_EXIT_CODE, BadInputError, IcestreamError, TryAgainError
from common.options import InputCommand, run_dir_option
from common.process import LAUNCH_VARIABLE, StopFlag, end_with
from icestream.commands.options import run_flags, run_options

EXAMPLES = """\b
Examples:
  icestream run -i demo --run-dir runs/demo
  icestream run -i 'data/*.parquet' --decoders 4 --epochs 3 --device cuda --run-dir runs/mine
  icestream run --run-dir runs/mine                  # resumes
  icestream run -i demo --model likelihood -c configs/demo-likelihood.toml --run-dir runs/demo-likelihood
  icestream run -i 'pelican://osg-htc.org/…/{range}/*.parquet' --ranges 0:99000:1000 --run-dir runs/osdf
  icestream run -c configs/demo.toml --set stream.batch_events=512 --fresh --run-dir runs/mine
  torchrun --nnodes 1:4 --nproc-per-node 8 … -m icestream run --shared /shared/mine --run-dir /local/mine -i …

\b
Exit codes: 0 finished, 130 interrupted (checkpoint written), 2 input or configuration error, 1 internal error; on one
of several machines 75: another one is gone, and torchrun starts all again.
"""


class _RunCommand(InputCommand):
    """Command that torchrun may start: only the first process of a machine does anything, and says what is wrong."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if LAUNCH_VARIABLE in os.environ and os.environ.get("LOCAL_RANK", "0") != "0":
            ctx.exit()
        with mistakes_end_torchrun():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with mistakes_end_torchrun():
            return super().invoke(ctx)


@click.command(name="run", epilog=EXAMPLES, cls=_RunCommand)
@run_dir_option
@run_options
@click.option(
    "--fresh",
    is_flag=True,
    help="Start over: delete checkpoints, logs and saved settings in RUN_DIR. Your data files are not touched; give -i"
    " again.",
)
@click.option("--yes", is_flag=True, help="Don't ask before --fresh deletes.")
@click.option(
    "--new-plan", is_flag=True, help="Continue with the weights although inputs, seed or stream settings changed."
)
@click.option(
    "--shared",
    type=click.Path(file_okay=False, path_type=Path),
    help="On several machines, started by torchrun: folder that all of them see, with checkpoints and all other"
    " results. RUN_DIR is then on each machine's own disk.",
)
def run(
    run_dir: Path,
    toml: Path | None,
    assignments: tuple[str, ...],
    fresh: bool,
    yes: bool,
    new_plan: bool,
    shared: Path | None,
    **options: Any,
) -> None:
    """Start every service on this machine and show progress.

    A fetcher, decoders and a trainer run as separate processes; one that dies is started again. Ctrl-C writes a
    checkpoint and stops; the same command resumes from there. The end is a summary, also in RUN_DIR/summary.json.
    """
    from services.supervisor.meeting import place_of_node

    flags = run_flags(options)
    place = place_of_node(os.environ)
    if place is not None:
        if flags["local.trainers"] not in (None, place.trainers):
            raise BadInputError(f"--trainers {flags['local.trainers']}, but torchrun --nproc-per-node {place.trainers}")
        flags["local.trainers"] = place.trainers
    if place is not None and shared is not None:
        if fresh or new_plan:
            raise BadInputError("--fresh and --new-plan are for one machine; to start over, choose another --shared")
        from icestream.commands.node_session import NodeSession

        sys.exit(NodeSession(place, shared.absolute(), run_dir, toml, assignments, flags, StopFlag()).run())
    if shared is not None:
        raise BadInputError(f"--shared {shared}: for several machines, `torchrun … -m icestream run` on each")
    if place is not None and place.nodes > 1:
        raise BadInputError(f"{place.nodes} machines need --shared, a folder that all of them see")
    from icestream.commands.run_session import run_session  # takes a second, which the help should not

    sys.exit(run_session(run_dir, toml, assignments, flags, fresh=fresh, new_plan=new_plan, yes=yes))


@contextmanager
def mistakes_end_torchrun() -> Iterator[None]:
    """Let this process end with its torchrun, and torchrun with a user's mistake, which each restart would repeat."""
    if LAUNCH_VARIABLE not in os.environ:
        yield
        return
    torchrun = os.getppid()
    end_with(torchrun, signal.SIGTERM)
    code: object = 0
    try:
        yield
    except TryAgainError:
        raise
    except (IcestreamError, click.UsageError):
        code = USER_ERROR_EXIT_CODE
        raise
    except SystemExit as end:
        code = end.code
        raise
    finally:
        if code == USER_ERROR_EXIT_CODE and os.getppid() == torchrun:  # it may be dead, and its children another's
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it passes the signal on, and the mistake is yet to be told
            os.kill(torchrun, signal.SIGTERM)
