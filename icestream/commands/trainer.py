"""Command `icestream trainer`."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from common.attempt import attempt_of
from common.deadline import end_after_stop
from common.options import config_options, device_option, profile_option, run_dir_option
from common.process import PARENT_VARIABLE, StopFlag, end_with_parent, start_logging, tell_thread_errors
from common.run_dir import INVENTORY_FOLDER, own_files_only
from common.status import TrainerStatus
from icestream.commands.model_option import model_option
from services.config.given import require_named_model
from services.config.open_files import require_open_files
from services.config.root import Config, load_config
from services.config.trainer import NO_MODEL
from services.config.wait import wait_for_config
from services.trainer.speed.device_environment import prepare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from common.unit_arrays import UnitArrays

RANK_LOST_EXIT_CODE = 1


@click.command(
    epilog="""\b
Examples:
  icestream trainer --run-dir runs/demo --device cuda
  icestream trainer --run-dir runs/demo --connect tcp://data-node:5570 --keys keys/for-trainer
  torchrun --nproc-per-node 4 -m icestream trainer --run-dir runs/demo
"""
)
@run_dir_option
@device_option()
@click.option("--max-steps", type=int, help="Stop after this many optimiser steps in all. 0: no limit.")
@model_option
@profile_option
@click.option("--new-plan", is_flag=True, help="Keep the weights although inputs, seed or stream settings changed.")
@click.option("--connect", metavar="tcp://HOST:PORT", help="The run's fetcher is on another machine; see --keys.")
@click.option(
    "--keys", type=click.Path(file_okay=False, path_type=Path), help="Folder `for-NAME` made by `icestream keys`."
)
@config_options
def trainer(
    run_dir: Path,
    device: str | None,
    max_steps: int | None,
    model: str | None,
    profile_steps: int | None,
    new_plan: bool,
    connect: str | None,
    keys: Path | None,
    toml: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Start a run's trainer: it waits for the fetcher, resumes from the newest checkpoint, and saves on Ctrl-C.

    With --connect, the run directory is the trainer's own and needs a copy of the run's config.json (or -c with the
    same file).
    """
    rank = os.environ.get("RANK", "")
    start_logging("trainer" if rank in ("", "0") else f"trainer-{rank}")
    tell_thread_errors()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a lost rank is reported here, in one line
    # Several nodes have one state: a part of it that outlives its node is of no use, and would stop all others.
    end_with_parent(signal.SIGTERM if attempt_of(os.environ) is None else signal.SIGKILL)
    stop = StopFlag()
    own_files_only()
    flags = {
        "trainer.device": device,
        "trainer.max_steps": max_steps,
        "trainer.model": model,
        "trainer.profile_steps": profile_steps,
        "transport.connect": connect,
        "transport.keys": keys,
    }
    config: Config | None = load_config(run_dir, toml=toml, assignments=assignments, flags=flags)
    if config is not None and not config.transport.connect:  # else no process stores a configuration here
        config = wait_for_config(run_dir, stop, toml=toml, assignments=assignments, flags=flags)
    if config is None:
        return
    require_open_files(config)
    require_named_model(config, toml=toml, assignments=assignments, flags=flags)
    if PARENT_VARIABLE in os.environ:
        end_after_stop(config.local.stop_timeout_s)  # the supervisor may be gone, and nobody else kills this process
    from common.summary import build_summary, summary_lines, write_summary
    from icestream.commands.shards_sum import imbalance_of_shards

    started_s = time.monotonic()
    if config.trainer.model == NO_MODEL:
        from services.trainer.counting.service import run_counting

        status = run_counting(run_dir, config, stop, accept_new_plan=new_plan)
    else:
        status = _train(run_dir, config, stop, new_plan=new_plan)
    if PARENT_VARIABLE in os.environ or status is None or rank not in ("", "0"):
        return  # `icestream run` writes the summary: it knows the restarts
    finished = status.state == "finished"
    summary = build_summary(
        status,
        exit_status="finished" if finished else "interrupted",
        exit_code=0,
        seconds=time.monotonic() - started_s,
        imbalance=imbalance_of_shards(run_dir / INVENTORY_FOLDER, config, status),
    )
    write_summary(run_dir, summary)
    click.echo("\n".join(summary_lines(summary)))
    if summary.error:
        click.secho(f"Error: {summary.error}", err=True, fg="red")
        sys.exit(summary.exit_code)


def _train(run_dir: Path, config: Config, stop: StopFlag, *, new_plan: bool) -> TrainerStatus | None:
    """Train (see run_trainer); the process ends here if another rank is gone."""
    prepare(os.environ, deterministic=config.trainer.deterministic)
    from services.trainer.ranks.ranks import RankLost  # after the wait: torch takes seconds
    from services.trainer.service import run_trainer

    try:
        return run_trainer(run_dir, config, stop, _read_validation_events, accept_new_plan=new_plan)
    except RankLost as lost:
        logging.getLogger(__name__).error("%s: this rank ends too; all resume from the newest checkpoint", lost)
        logging.shutdown()
        os._exit(RANK_LOST_EXIT_CODE)  # the device may wait for the other rank for ever


def _read_validation_events(config: Config, run_dir: Path) -> Iterator[UnitArrays]:
    """Events of the validation block, from files. Imports the decoder's code only here, since few runs need it."""
    from icestream.reading.validation import read_validation_events

    return read_validation_events(config, run_dir)
