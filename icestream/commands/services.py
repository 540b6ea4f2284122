"""Commands `icestream fetcher`, `decoder`, `trainer` and `outputs`: one service of a run each.

What a service imports is imported when it starts: each process has only its own code, and a decoder must set numbers of
threads before numpy and Arrow.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import click

from common import options
from common.errors import BadInputError
from common.locks import attempt_of, publishing_of
from common.memory import limit_math_threads, share_one_heap
from common.paths import INVENTORY_FOLDER, make_run_dir, own_files_only, shard_dir
from common.process import PARENT_VARIABLE, StopFlag, end_after_stop, end_with_parent, start_logging, tell_thread_errors
from icestream.commands.options import model_option
from icestream.run_config import load_run_config
from services.config import root
from workloads.base.interface import lazy

logger = logging.getLogger(__name__)

_GRACE_S = 10.0
"""Time for the last copies, beyond that of the final synchronisation."""


@click.command(
    epilog="Example: icestream fetcher --run-dir runs/osdf -i 'data/**/*.parquet' -c configs/demo.toml",
    cls=options.InputCommand,
)
@options.run_dir_option
@options.input_option
@options.ranges_option
@options.shard_options
@click.option(
    "--inventory",
    type=click.Path(file_okay=False, path_type=Path),
    hidden=True,
    help="Folder of the lists of files, which all shards share. Default: inventory/ in the run directory.",
)
@options.config_options
def fetcher(
    run_dir: Path,
    inputs: tuple[str, ...],
    ranges: str | None,
    shard: int | None,
    on_machine: int,
    inventory: Path | None,
    toml: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Start a run's fetcher: it expands the inputs, stages files, plans units and distributes them to decoders."""
    from services.fetcher.ledger import LEDGER_FILE, DamagedLedger, damage_named, set_aside
    from services.fetcher.service import FetcherService
    from services.fetcher.shared_folder import SharedFolder

    start_logging("fetcher")
    end_with_parent(signal.SIGKILL)  # its state is always saved
    stop = StopFlag()
    make_run_dir(run_dir)
    flags = {"input": options.absolute(inputs) or None, "fetcher.ranges": ranges}
    config = load_run_config(run_dir, toml=toml, assignments=assignments, flags=flags)
    root.require_open_files(config)
    of_shard = config.of_shard(shard, on_machine)
    ledger = shard_dir(run_dir, of_shard.stream.shard) / LEDGER_FILE
    shared = SharedFolder()
    if of_shard.stream.shard is not None:
        make_run_dir(ledger.parent)
    if of_shard.stream.shard is not None and not config.stream.is_mixed:
        folder = inventory or run_dir / INVENTORY_FOLDER
        make_run_dir(folder)
        shared = SharedFolder(
            folder, of_shard.stream.shard, config.stream.shards, publishing_of(attempt_of(os.environ))
        )
    while not stop:
        try:
            with damage_named(ledger), contextlib.closing(FetcherService(run_dir, of_shard, shared)) as service:
                if not of_shard.stream.shard:
                    root.store_config(run_dir, config)  # decoders and the trainer read it from there
                service.run(stop)
            return
        except DamagedLedger as error:
            aside = set_aside(ledger)
            logger.error("%s; it is %s now, and the inputs are listed again", error, aside)


@click.command(epilog="Example: icestream decoder --run-dir runs/demo    (in another terminal, during the run)")
@options.run_dir_option
@options.shard_options
@options.config_options
def decoder(run_dir: Path, shard: int | None, on_machine: int, toml: Path | None, assignments: tuple[str, ...]) -> None:
    """Start one decoder. It joins the run in RUN_DIR, waiting for it if necessary, and leaves it on Ctrl-C."""
    start_logging("decoder")
    end_with_parent(signal.SIGKILL)  # it has no state to save
    stop = StopFlag()
    own_files_only()
    config = root.wait_for_config(run_dir, stop, toml=toml, assignments=assignments)

    def load() -> root.Config:
        return root.load_config(run_dir, toml=toml, assignments=assignments).of_shard(shard, on_machine)

    if config is not None:
        root.require_open_files(config)
        config = config.of_shard(shard, on_machine)
        share_one_heap()
        limit_math_threads(config.decoder.threads)
        from services.decoder.service import serve  # numpy and Arrow: their threads and heap must be configured before

        serve(shard_dir(run_dir, config.stream.shard), config, load, stop)


@click.command(
    epilog="""\b
Examples:
  icestream trainer --run-dir runs/demo --device cuda
  torchrun --nproc-per-node 4 -m icestream trainer --run-dir runs/demo
"""
)
@options.run_dir_option
@options.device_option()
@click.option("--max-steps", type=int, help="Stop after this many optimiser steps in all. 0: no limit.")
@model_option
@options.profile_option
@click.option("--new-plan", is_flag=True, help="Keep the weights although inputs, seed or stream settings changed.")
@options.config_options
def trainer(run_dir: Path, new_plan: bool, toml: Path | None, assignments: tuple[str, ...], **given: Any) -> None:
    """Start a run's trainer: it waits for the fetcher, resumes from the newest checkpoint, and saves on Ctrl-C."""
    rank = os.environ.get("RANK", "")
    start_logging("trainer" if rank in ("", "0") else f"trainer-{rank}")
    tell_thread_errors()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a lost rank is reported here, in one line
    # Several nodes have one state: a part of it that outlives its node is of no use, and would stop all others.
    end_with_parent(signal.SIGTERM if attempt_of(os.environ) is None else signal.SIGKILL)
    stop = StopFlag()
    own_files_only()
    flags = {f"trainer.{name}": value for name, value in given.items()}
    config = root.wait_for_config(run_dir, stop, toml=toml, assignments=assignments, flags=flags)
    if config is None:
        return
    root.require_open_files(config)
    root.require_named_model(config, toml=toml, assignments=assignments, flags=flags)
    if PARENT_VARIABLE in os.environ:
        end_after_stop(root.STOP_TIMEOUT_S)  # the supervisor may be gone, and nobody else kills this process
    from common.summary import build_summary, summary_lines, write_summary
    from icestream.commands.checks import imbalance_of_shards
    from services.trainer.environment import prepare

    started_s = time.monotonic()
    prepare(os.environ, deterministic=config.trainer.deterministic)
    from services.trainer.ranks import RankLost  # after the wait: torch takes seconds
    from services.trainer.service import run_trainer

    try:
        read_events = lazy("icestream.reading", "read_validation_events")  # the decoder's code: few runs need it
        status = run_trainer(run_dir, config, stop, lambda *of: read_events()(*of), accept_new_plan=new_plan)
    except RankLost as lost:
        logger.error("%s: this rank ends too; all resume from the newest checkpoint", lost)
        logging.shutdown()
        os._exit(1)  # the device may wait for the other rank for ever
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


@click.command(epilog="Example: icestream outputs --run-dir runs/osdf    (`icestream run` starts it by itself)")
@options.run_dir_option
@click.option("--take-over", is_flag=True, help="Replace another run's copies at the destination.")
@options.config_options
def outputs(run_dir: Path, take_over: bool, toml: Path | None, assignments: tuple[str, ...]) -> None:
    """Copy a run's checkpoints and TensorBoard files to outputs.destination until Ctrl-C, then the remaining ones."""
    start_logging("outputs")
    end_with_parent(signal.SIGTERM)
    stop = StopFlag()
    own_files_only()
    config = root.wait_for_config(run_dir, stop, toml=toml, assignments=assignments)
    if config is None:
        return
    if not config.outputs.destination:
        raise BadInputError("outputs.destination is not set: name a directory or a pelican:// URL")
    end_after_stop(root.FINAL_SYNC_S + _GRACE_S)
    from services.outputs import serve

    serve(run_dir, config, stop, take_over=take_over)
