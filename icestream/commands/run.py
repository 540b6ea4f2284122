"""Command `icestream run`: every service on this machine, from the start to the summary."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from common.errors import USER_ERROR_EXIT_CODE, BadInputError
from common.file_lock import RunLock, patience
from common.options import (
    absolute,
    config_options,
    input_option,
    model_option,
    profile_option,
    ranges_option,
    run_dir_option,
    token_file_option,
)
from common.redact import shown
from common.run_dir import CONFIG_FILE, make_run_dir
from common.user_path import user_path

if TYPE_CHECKING:
    from common.status import TrainerStatus
    from services.config.root import Config
    from services.supervisor.supervisor import SessionOutcome

OWN_CONTENTS = (
    "config.json",
    "config.part",
    "summary.json",
    "summary.part",
    "audit.jsonl",
    "audit-rank*.jsonl",
    "ledger.sqlite*",
    "checkpoints",
    "outliers",
    "logs",
    "status",
    "sockets",
    "tensorboard",
    "profile",
    "ceiling.json",
    "ceiling.part",
    "evaluation",
    "health.jsonl",
    "validation.pt",
    "validation.json",
    "validation.units",
    "validation.part",
    "wandb",
    "cache",
    "outputs.json",
    "outputs.part",
)
"""Files and folders made by icestream in a run directory: `--fresh` deletes only these."""

_ENDING_S = 10.0

EXAMPLES = """\b
Examples:
  icestream run -i demo --run-dir runs/demo
  icestream run -i 'data/*.parquet' --decoders 4 --epochs 3 --device cuda --run-dir runs/mine
  icestream run --run-dir runs/mine                  # resumes
  icestream run -i 'pelican://osg-htc.org/…/{range}/*.parquet' --ranges 0:99000:1000 --run-dir runs/osdf
  icestream run -c configs/demo.toml --set stream.batch_events=512 --fresh --run-dir runs/mine

\b
Exit codes: 0 finished, 130 interrupted (checkpoint written), 2 an error that you can fix, 1 a bug.
"""


@click.command(name="run", epilog=EXAMPLES)
@input_option
@ranges_option
@run_dir_option
@click.option("--workload", help="Content of the files: muons, …. Default: detected from their columns, else muons.")
@click.option("--decoders", metavar="N|auto", help="Decoder processes; auto: as many as the load needs.")
@click.option("--trainers", type=int, help="Trainer processes that train together, one per GPU.")
@click.option("--device", help="auto, cpu, cuda or cuda:N.")
@click.option("--start-from", metavar="CHECKPOINT", help="Start with the weights of another run: fine-tuning.")
@click.option("--epochs", type=int, help="Number of passes over the inputs. 0: without end.")
@click.option("--max-steps", type=int, help="Stop after this many optimiser steps in all. 0: no limit.")
@model_option
@profile_option
@click.option("--seed", type=int, help="Seed of the order of the data and of the weights.")
@click.option("--strict/--no-strict", default=None, help="Stop at the first bad file.")
@token_file_option
@config_options
@click.option(
    "--fresh",
    is_flag=True,
    help="Start from nothing: delete icestream's files in the run directory, its inputs included.",
)
@click.option("--yes", is_flag=True, help="Don't ask before --fresh deletes.")
@click.option(
    "--new-plan", is_flag=True, help="Continue with the weights although inputs, seed or stream settings changed."
)
def run(
    inputs: tuple[str, ...],
    ranges: str | None,
    run_dir: Path,
    workload: str | None,
    decoders: str | None,
    trainers: int | None,
    device: str | None,
    start_from: str | None,
    epochs: int | None,
    max_steps: int | None,
    model: str | None,
    profile_steps: int | None,
    seed: int | None,
    strict: bool | None,
    token_file: Path | None,
    toml: Path | None,
    assignments: tuple[str, ...],
    fresh: bool,
    yes: bool,
    new_plan: bool,
) -> None:
    """Start every service on this machine and show progress.

    A fetcher, decoders and a trainer run as separate processes; one that dies is started again. Ctrl-C writes a
    checkpoint and stops; the same command resumes from there. The end is a summary, also in RUN_DIR/summary.json.
    """
    from common.status import TrainerStatus
    from common.status_files import read_status
    from services.config.root import store_config

    flags = {
        "input": absolute(inputs) or None,
        "workload": workload,
        "fetcher.ranges": ranges,
        "local.decoders": decoders,
        "local.trainers": trainers,
        "trainer.device": device,
        "trainer.start_from": start_from,
        "epochs": epochs,
        "trainer.max_steps": max_steps,
        "trainer.model": model,
        "trainer.profile_steps": profile_steps,
        "seed": seed,
        "fetcher.strict": strict,
        "token.file": user_path(token_file).absolute() if token_file else None,
    }
    config = _with_absolute_paths(_resolve(run_dir, fresh, toml, assignments, flags))
    if fresh:
        _keep_what_it_starts_from(run_dir, config.trainer.start_from)
    if warning := make_run_dir(run_dir):
        click.secho(f"Warning: {warning}", err=True, fg="yellow")
    with RunLock(run_dir, "run", "icestream run"):
        if fresh or new_plan:
            with _without_services(run_dir):
                if fresh:
                    _delete_own_contents(run_dir, yes)
                for path in run_dir.glob("ledger.sqlite*"):  # the inventory is a part of the plan
                    path.unlink()
        former_config = _read_if_there(run_dir / CONFIG_FILE)
        former_status = read_status(run_dir, "trainer", TrainerStatus)
        store_config(run_dir, config)
        if not fresh and config.outputs.destination:
            from services.outputs.restore import restore_if_gone

            if brought := restore_if_gone(run_dir, config):
                click.echo(shown(brought))
        click.echo(_introduction(run_dir, config, resumes=_has_checkpoint(run_dir)))
        began_s = time.time()
        outcome = _supervise(run_dir, config, new_plan=new_plan, fresh=fresh)
        status = read_status(run_dir, "trainer", TrainerStatus)
        trained = status is not None and status != former_status and status.state != "starting"
        if outcome.exit_code == USER_ERROR_EXIT_CODE and former_config is not None and not trained:
            # Refused before any training, for example for a changed plan: the stored configuration stays valid.
            (run_dir / CONFIG_FILE).write_text(former_config)  # in place: it keeps its mode
        exit_code = _finish(run_dir, outcome, status)
        if config.trainer.profile_steps:
            _show_profile(run_dir, began_s)
    sys.exit(exit_code)


def _resolve(
    run_dir: Path, fresh: bool, toml: Path | None, assignments: Sequence[str], flags: dict[str, Any]
) -> Config:
    """Configuration; for a fresh run without the stored one of the old run. Called before any deletion."""
    from icestream.reading.workload import load_run_config

    stored: Path | dict[str, Any] = {} if fresh or not run_dir.is_dir() else run_dir
    config = load_run_config(stored, toml=toml, assignments=assignments, flags=flags)
    if "lanes" not in config.stream.model_fields_set:  # neither set nor stored: the number of trainers
        flags = flags | {"stream.lanes": config.local.trainers}
        config = load_run_config(stored, toml=toml, assignments=assignments, flags=flags)
    if config.stream.lanes % config.local.trainers:
        raise BadInputError(
            f"local.trainers = {config.local.trainers}, but stream.lanes = {config.stream.lanes}, of which each trainer"
            f" takes the same number: use --set stream.lanes={config.local.trainers} (another order of the data: with"
            " --fresh, or --new-plan to keep the weights), or other --trainers"
        )
    if not config.input:
        forgotten = " (--fresh forgets those of the former run)" if fresh else ""
        raise BadInputError(
            f"no input given, and none stored in {run_dir}{forgotten}: name files, directories, globs or URLs with"
            " -i/--input; `icestream simulate demo` writes a data set to try"
        )
    return config


def _with_absolute_paths(config: Config) -> Config:
    """Configuration with absolute paths: a run must not depend on the folder that it was started from."""
    validation = config.trainer.validation
    validation = validation.model_copy(update={"input": absolute(validation.input)})
    start_from = config.trainer.start_from and str(user_path(config.trainer.start_from).absolute())
    trainer = config.trainer.model_copy(update={"validation": validation, "start_from": start_from})
    config = config.model_copy(update={"trainer": trainer})
    where = config.outputs.destination
    if not where or "://" in where:
        return config
    outputs = config.outputs.model_copy(update={"destination": absolute((where,))[0]})
    return config.model_copy(update={"outputs": outputs})


def _keep_what_it_starts_from(run_dir: Path, start_from: str) -> None:
    """Raise BadInputError if --fresh would delete the checkpoint that the run is to start from."""
    begins, run = Path(start_from).resolve(), run_dir.resolve()
    if start_from and (begins == run or run / "checkpoints" in (begins, *begins.parents)):
        raise BadInputError(
            f"--fresh would delete {start_from}, which the run is to start from: use another --run-dir, or copy the"
            " checkpoint first"
        )


@contextlib.contextmanager
def _without_services(run_dir: Path) -> Iterator[None]:
    """Exclude services started by hand; those of a run that was just killed get a moment to end."""
    with (
        RunLock(run_dir, "fetcher", "icestream run", patience(_ENDING_S)),
        RunLock(run_dir, "trainer", "icestream run", patience(_ENDING_S)),
    ):
        yield


def _delete_own_contents(run_dir: Path, yes: bool) -> None:
    """Delete icestream's files, after confirmation. Links are removed, not followed."""
    found = sorted(path for pattern in OWN_CONTENTS for path in run_dir.glob(pattern))
    if not found:
        return
    names = ", ".join(path.name for path in found)
    if not yes:
        if not _can_ask():
            raise BadInputError(
                f"--fresh would delete from {run_dir}: {names}; there is no terminal to ask on: add --yes to agree"
            )
        if not click.confirm(f"Delete from {run_dir}: {names}?"):
            raise BadInputError("nothing was deleted; without --fresh the run goes on where it stopped")
    for path in found:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _can_ask() -> bool:
    return sys.stdin.isatty()


def _introduction(run_dir: Path, config: Config, *, resumes: bool) -> str:
    inputs = ", ".join(shown(text) for text in config.input)
    how = "resumes from its newest checkpoint" if resumes else "new"
    decoders = "decoders as needed" if config.local.decoders == "auto" else f"{config.local.decoders} decoders"
    trainers = "trainer" if config.local.trainers == 1 else f"{config.local.trainers} trainers"
    return "\n".join(
        [
            f"run directory  {run_dir} ({how})",
            f"inputs         {inputs}",
            f"processes      fetcher, {decoders}, {trainers}; logs in {run_dir / 'logs'}",
            f"TensorBoard    tensorboard --logdir {run_dir / 'tensorboard'}",
        ]
    )


def _supervise(run_dir: Path, config: Config, *, new_plan: bool, fresh: bool) -> SessionOutcome:
    from rich.console import Console

    from services.supervisor.environment import secrets_allowed
    from services.supervisor.outputs_process import OutputsProcess, outputs_command
    from services.supervisor.progress import Display
    from services.supervisor.restart import RestartPolicy
    from services.supervisor.supervisor import LOGS_FOLDER, TRAINER, Processes, Supervisor, service_command, service_of

    def command_for(name: str) -> list[str]:
        command = service_command(name, run_dir)
        return [*command, "--new-plan"] if new_plan and service_of(name) == TRAINER else command

    secrets = secrets_allowed(config)
    with Display(run_dir, Console()) as display:
        outputs = OutputsProcess(
            outputs_command(run_dir, take_over=fresh) if config.outputs.destination else [],
            run_dir / LOGS_FOLDER / "outputs.log",
            RestartPolicy(config.local.restart_min_s, config.local.restart_max_s),
            config.outputs.final_sync_s,
            display.say,
            secrets["outputs"],
        )

        def watch(processes: Processes) -> None:
            display.watch(processes)
            outputs.watch()

        outputs.start()
        try:
            supervisor = Supervisor(run_dir, config.local, command_for, secrets=secrets, watch=watch, say=display.say)
            return supervisor.run()
        finally:
            outputs.close()


def _finish(run_dir: Path, outcome: SessionOutcome, status: TrainerStatus | None) -> int:
    """Write and show the summary, and return the exit code of the command."""
    from common.summary import build_summary, summary_lines, write_summary

    summary = build_summary(
        status,
        exit_status=outcome.exit_status,
        exit_code=outcome.exit_code,
        seconds=outcome.seconds,
        restarts=outcome.restarts,
        error=outcome.error,
    )
    write_summary(run_dir, summary)
    if summary.events_read or summary.error is None:  # a run that never began has no summary
        click.echo("\n".join(summary_lines(summary)))
    if summary.error:
        click.secho(f"Error: {summary.error}", err=True, fg="red")
    return summary.exit_code


def _show_profile(run_dir: Path, since_s: float) -> None:
    """Print the newest table written by the trainer since then (in seconds since 1970)."""
    tables = sorted((run_dir / "profile").glob("*.txt"), key=lambda path: path.stat().st_mtime)
    if tables and tables[-1].stat().st_mtime >= since_s:
        click.echo(f"\n{tables[-1].read_text()}in {tables[-1].parent}, with a trace for https://ui.perfetto.dev")


def _has_checkpoint(run_dir: Path) -> bool:
    folder = run_dir / "checkpoints"
    return folder.is_dir() and any(folder.iterdir())


def _read_if_there(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
