"""Command `icestream outputs`."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from common.deadline import end_after_stop
from common.errors import BadInputError
from common.options import config_options, run_dir_option
from common.process import StopFlag, end_with_parent, start_logging
from common.run_dir import own_files_only
from services.config.wait import wait_for_config

_GRACE_S = 10.0


@click.command(epilog="Example: icestream outputs --run-dir runs/osdf    (`icestream run` starts it by itself)")
@run_dir_option
@click.option("--take-over", is_flag=True, help="Replace another run's copies at the destination.")
@config_options
def outputs(run_dir: Path, take_over: bool, toml: Path | None, assignments: tuple[str, ...]) -> None:
    """Copy a run's checkpoints and TensorBoard files to outputs.destination until Ctrl-C, then the remaining ones."""
    start_logging("outputs")
    end_with_parent(signal.SIGTERM)
    stop = StopFlag()
    own_files_only()
    config = wait_for_config(run_dir, stop, toml=toml, assignments=assignments)
    if config is None:
        return
    if not config.outputs.destination:
        raise BadInputError("outputs.destination is not set: name a directory or a pelican:// URL")
    end_after_stop(config.outputs.final_sync_s + _GRACE_S)
    from services.outputs.service import serve  # aiohttp

    serve(run_dir, config, stop, take_over=take_over)
