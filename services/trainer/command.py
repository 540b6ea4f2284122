"""`icestream trainer`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import click

from common.process import PARENT_VARIABLE, StopFlag, end_with_parent, start_logging
from services.options import config_options, run_dir_option
from services.wait import wait_for_config


@click.command(epilog="Example: icestream trainer --run-dir runs/demo --device cuda")
@run_dir_option
@click.option("--device", help="auto, cpu, cuda or cuda:N.")
@click.option("--max-steps", type=int, help="Stop after this many optimiser steps in all. 0: no limit.")
@click.option("--new-plan", is_flag=True, help="Keep the weights although inputs, seed or stream settings changed.")
@config_options
def trainer(
    run_dir: Path,
    device: str | None,
    max_steps: int | None,
    new_plan: bool,
    toml: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Start a run's trainer: it waits for the fetcher, goes on from the newest checkpoint, and saves on Ctrl-C."""
    start_logging("trainer")
    end_with_parent(signal.SIGTERM)
    stop = StopFlag()
    flags = {"trainer.device": device, "trainer.max_steps": max_steps}
    config = wait_for_config(run_dir, stop, toml=toml, assignments=assignments, flags=flags)
    if config is None:
        return
    from services.summary import build_summary, summary_lines, write_summary  # after the wait: torch takes seconds
    from services.trainer.service import run_trainer

    started_s = time.monotonic()
    status = run_trainer(run_dir, config, stop, accept_new_plan=new_plan)
    if PARENT_VARIABLE in os.environ or status is None:
        return  # `icestream run` writes the summary: it knows the restarts
    finished = status.state == "finished"
    summary = build_summary(
        status,
        exit_status="finished" if finished else "interrupted",
        exit_code=0,
        seconds=time.monotonic() - started_s,
    )
    write_summary(run_dir, summary)
    click.echo("\n".join(summary_lines(summary)))
