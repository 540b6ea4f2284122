"""Command `icestream fetcher`."""

from __future__ import annotations

import contextlib
import logging
import signal
from pathlib import Path

import click

from common.options import InputCommand, absolute, config_options, input_option, ranges_option, run_dir_option
from common.process import StopFlag, end_with_parent, start_logging
from common.run_dir import make_run_dir
from icestream.reading.workload import load_run_config
from services.config.root import Config, store_config
from services.fetcher.inventory.ledger import LEDGER_FILE, DamagedLedger, damage_named, set_aside
from services.fetcher.service import FetcherService

logger = logging.getLogger(__name__)


@click.command(
    epilog="Example: icestream fetcher --run-dir runs/osdf -i 'data/**/*.parquet' -c configs/demo.toml",
    cls=InputCommand,
)
@run_dir_option
@input_option
@ranges_option
@config_options
def fetcher(
    run_dir: Path, inputs: tuple[str, ...], ranges: str | None, toml: Path | None, assignments: tuple[str, ...]
) -> None:
    """Start a run's fetcher: it expands the inputs, stages files, plans units and distributes them to decoders."""
    start_logging("fetcher")
    end_with_parent(signal.SIGKILL)  # its state is always saved
    stop = StopFlag()
    if warning := make_run_dir(run_dir):
        logger.warning("%s", warning)
    flags = {"input": absolute(inputs) or None, "fetcher.ranges": ranges}
    config = load_run_config(run_dir, toml=toml, assignments=assignments, flags=flags)
    while not stop:
        try:
            _serve(run_dir, config, stop)
            return
        except DamagedLedger as error:
            aside = set_aside(run_dir / LEDGER_FILE)
            logger.error("%s; it is %s now, and the inputs are listed again", error, aside)


def _serve(run_dir: Path, config: Config, stop: StopFlag) -> None:
    with damage_named(run_dir / LEDGER_FILE), contextlib.closing(FetcherService(run_dir, config)) as service:
        store_config(run_dir, config)  # decoders and the trainer read it from there
        service.run(stop)
