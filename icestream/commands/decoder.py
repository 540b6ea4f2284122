"""Command `icestream decoder`."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from common.options import config_options, run_dir_option, shard_options
from common.process import StopFlag, end_with_parent, start_logging
from common.run_dir import own_files_only, shard_dir
from services.config.open_files import require_open_files
from services.config.root import Config, load_config
from services.config.wait import wait_for_config
from services.decoder.cores import limit_math_threads, pin_to_own_cores
from services.decoder.heap import share_one_heap


@click.command(epilog="Example: icestream decoder --run-dir runs/demo    (in another terminal, during the run)")
@run_dir_option
@shard_options
@config_options
def decoder(run_dir: Path, shard: int | None, on_machine: int, toml: Path | None, assignments: tuple[str, ...]) -> None:
    """Start one decoder. It joins the run in RUN_DIR, waiting for it if necessary, and leaves it on Ctrl-C."""
    start_logging("decoder")
    end_with_parent(signal.SIGKILL)  # it has no state to save
    stop = StopFlag()
    own_files_only()
    config = wait_for_config(run_dir, stop, toml=toml, assignments=assignments)

    def load() -> Config:
        return load_config(run_dir, toml=toml, assignments=assignments).of_shard(shard, on_machine)

    if config is not None:
        require_open_files(config)
        config = config.of_shard(shard, on_machine)
        share_one_heap()
        limit_math_threads(config.decoder.threads)
        cores = pin_to_own_cores(config.decoder.affinity, config.decoder.threads)
        from services.decoder.service import serve  # numpy and Arrow: their threads and heap must be configured before

        try:
            serve(shard_dir(run_dir, config.stream.shard), config, load, stop)
        finally:
            cores.release()
