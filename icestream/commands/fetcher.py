"""Command `icestream fetcher`."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from pathlib import Path

import click

from common.attempt import attempt_of, publishing_of
from common.options import (
    InputCommand,
    absolute,
    config_options,
    input_option,
    ranges_option,
    run_dir_option,
    shard_options,
)
from common.process import StopFlag, end_with_parent, start_logging
from common.run_dir import INVENTORY_FOLDER, make_run_dir, shard_dir
from icestream.reading.workload import load_run_config
from services.config.open_files import require_open_files
from services.config.root import store_config
from services.fetcher.inventory.ledger import LEDGER_FILE, DamagedLedger, damage_named, set_aside
from services.fetcher.inventory.shared_folder import SharedFolder
from services.fetcher.service import FetcherService

logger = logging.getLogger(__name__)


@click.command(
    epilog="Example: icestream fetcher --run-dir runs/osdf -i 'data/**/*.parquet' -c configs/demo.toml",
    cls=InputCommand,
)
@run_dir_option
@input_option
@ranges_option
@shard_options
@click.option(
    "--inventory",
    type=click.Path(file_okay=False, path_type=Path),
    hidden=True,
    help="Folder of the lists of files, which all shards share. Default: inventory/ in the run directory.",
)
@config_options
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
    start_logging("fetcher")
    end_with_parent(signal.SIGKILL)  # its state is always saved
    stop = StopFlag()
    make_run_dir(run_dir)
    flags = {"input": absolute(inputs) or None, "fetcher.ranges": ranges}
    config = load_run_config(run_dir, toml=toml, assignments=assignments, flags=flags)
    require_open_files(config)
    of_shard = config.of_shard(shard, on_machine)
    ledger = shard_dir(run_dir, of_shard.stream.shard) / LEDGER_FILE
    shared = SharedFolder()
    if of_shard.stream.shard is not None:
        make_run_dir(ledger.parent)
        folder = inventory or run_dir / INVENTORY_FOLDER
        make_run_dir(folder)
        shared = SharedFolder(
            folder, of_shard.stream.shard, config.stream.shards, publishing_of(attempt_of(os.environ))
        )
    while not stop:
        try:
            with damage_named(ledger), contextlib.closing(FetcherService(run_dir, of_shard, shared)) as service:
                if not of_shard.stream.shard:
                    store_config(run_dir, config)  # decoders and the trainer read it from there
                service.run(stop)
            return
        except DamagedLedger as error:
            aside = set_aside(ledger)
            logger.error("%s; it is %s now, and the inputs are listed again", error, aside)
