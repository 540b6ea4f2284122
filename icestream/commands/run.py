"""Command `icestream run`: every service on this machine, from the start to the summary."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from common.errors import USER_ERROR_EXIT_CODE, BadInputError
from common.file_lock import RunLock
from common.options import InputCommand, absolute, run_dir_option
from common.own_code import is_own, require_module
from common.redact import shown
from common.run_dir import CONFIG_FILE, INVENTORY_FOLDER, make_run_dir
from common.user_path import user_path
from icestream.commands.fresh import delete_inventory, delete_own_contents, keep_what_it_starts_from, without_services
from icestream.commands.run_options import run_flags, run_options

if TYPE_CHECKING:
    from common.status import TrainerStatus
    from services.config.root import Config
    from services.supervisor.session import SessionOutcome

EXAMPLES = """\b
Examples:
  icestream run -i demo --run-dir runs/demo
  icestream run -i 'data/*.parquet' --decoders 4 --epochs 3 --device cuda --run-dir runs/mine
  icestream run --run-dir runs/mine                  # resumes
  icestream run -i demo --model likelihood -c configs/demo-likelihood.toml --run-dir runs/demo-likelihood
  icestream run -i 'pelican://osg-htc.org/…/{range}/*.parquet' --ranges 0:99000:1000 --run-dir runs/osdf
  icestream run -c configs/demo.toml --set stream.batch_events=512 --fresh --run-dir runs/mine

\b
Exit codes: 0 finished, 130 interrupted (checkpoint written), 2 input or configuration error, 1 internal error.
"""


@click.command(name="run", epilog=EXAMPLES, cls=InputCommand)
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
@click.option("-v", "--verbose", is_flag=True, help="Without a terminal: show the queues below each progress line.")
def run(
    run_dir: Path,
    toml: Path | None,
    assignments: tuple[str, ...],
    fresh: bool,
    yes: bool,
    new_plan: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Start every service on this machine and show progress.

    A fetcher, decoders and a trainer run as separate processes; one that dies is started again. Ctrl-C writes a
    checkpoint and stops; the same command resumes from there. The end is a summary, also in RUN_DIR/summary.json.
    """
    from icestream.commands.run_checks import check_before_start, refuse_folder_of_nodes
    from services.config.given import unused_settings

    refuse_folder_of_nodes(run_dir)
    config = with_absolute_paths(resolved_config(run_dir, fresh, toml, assignments, run_flags(options)))
    for warning in unused_settings(config, toml=toml, assignments=assignments):
        click.secho(f"Warning: {warning}", err=True, fg="yellow")
    if fresh:
        keep_what_it_starts_from(run_dir, config.trainer.start_from)
    lists = (*run_dir.glob("ledger.sqlite"), *run_dir.glob("inventory/files-*"))
    is_listed = bool(lists) and not (fresh or new_plan)
    check_before_start(run_dir, config, lists_inputs=not is_listed)
    make_run_dir(run_dir)
    with RunLock(run_dir, "run", "icestream run"):
        if fresh or new_plan:
            with without_services(run_dir):
                if fresh:
                    delete_own_contents(run_dir, yes)
                delete_inventory(run_dir)
        exit_code = _session(run_dir, config, new_plan=new_plan, fresh=fresh, verbose=verbose)
    sys.exit(exit_code)


def _session(run_dir: Path, config: Config, *, new_plan: bool, fresh: bool, verbose: bool) -> int:
    """Run with this configuration until the end, unless the run is complete already; the exit code."""
    from common.status import TrainerStatus
    from common.status_files import read_status
    from icestream.commands.run_checks import require_plan_of_checkpoint
    from icestream.commands.run_end import already_complete, next_line
    from icestream.commands.shards_sum import imbalance_of_shards
    from services.config.root import store_config
    from workloads.base.checkpoint import newest_checkpoint

    former_config = _read_if_there(run_dir / CONFIG_FILE)
    former_status = read_status(run_dir, "trainer", TrainerStatus)
    is_saved = former_status is not None and (run_dir / former_status.checkpoint).is_file()
    former = json.loads(former_config) if former_config is not None and is_saved else {}
    if line := already_complete(former, config, former_status):
        click.echo("\n".join(filter(None, (line, next_line(run_dir, config, "finished")))))
        return 0
    if former_config is not None and not new_plan:
        require_plan_of_checkpoint(run_dir, json.loads(former_config), config)
    store_config(run_dir, config)
    if not fresh and config.outputs.destination:
        from services.outputs.restore import restore_if_gone

        if brought := restore_if_gone(run_dir, config):
            click.echo(shown(brought))
    click.echo(_introduction(run_dir, config, resumes=newest_checkpoint(run_dir) is not None))
    began_s = time.time()
    outcome = _supervise(run_dir, config, new_plan=new_plan, fresh=fresh, verbose=verbose)
    status = read_status(run_dir, "trainer", TrainerStatus)
    trained = status is not None and status != former_status and status.state != "starting"
    former_step = former_status.step if former_status is not None else 0
    made_steps = trained and status is not None and status.step != former_step
    if outcome.exit_code == USER_ERROR_EXIT_CODE and former_config is not None and not trained:
        # Refused before any training, for example for a changed plan: the stored configuration stays valid.
        (run_dir / CONFIG_FILE).write_text(former_config)  # in place: it keeps its mode
    # A former session's counts are of a former plan, perhaps, and its shards' records are deleted with it.
    imbalance = imbalance_of_shards(run_dir / INVENTORY_FOLDER, config, status) if status != former_status else ""
    exit_code = _finish(run_dir, config, outcome, status, imbalance, made_steps=made_steps)
    if config.trainer.profile_steps:
        _show_profile(run_dir, began_s)
    return exit_code


def resolved_config(
    run_dir: Path, fresh: bool, toml: Path | None, assignments: Sequence[str], flags: dict[str, Any], nodes: int = 1
) -> Config:
    """Configuration; for a fresh run without the stored one of the old run. Called before any deletion.

    Each of the ``nodes`` has local.trainers trainers.
    """
    from icestream.commands.possible_nodes import require_shares
    from icestream.reading.workload import load_run_config
    from services.config.given import require_named_model

    stored: Path | dict[str, Any] = {} if fresh or not run_dir.is_dir() else run_dir
    config = load_run_config(stored, toml=toml, assignments=assignments, flags=flags)
    require_shares(config.stream, nodes, config.local.trainers)
    if not config.input:
        forgotten = " (--fresh forgets those of the former run)" if fresh else ""
        missing = "" if run_dir.is_dir() else " (no such folder)"
        raise BadInputError(
            f"no input given, and none stored in {run_dir}{forgotten or missing}: name files, directories, globs or"
            " URLs with -i/--input; `icestream simulate demo` writes a data set to try"
        )
    require_named_model(config, toml=toml, assignments=assignments, flags=flags)
    if is_own(config.trainer.model):
        require_module(config.trainer.model)
    return config


def with_absolute_paths(config: Config) -> Config:
    """Configuration with absolute paths: a run must not depend on the folder that it was started from."""
    validation = config.trainer.validation
    validation = validation.model_copy(update={"input": absolute(validation.input)})
    start_from = config.trainer.start_from and str(user_path(config.trainer.start_from).absolute())
    trainer = config.trainer.model_copy(update={"validation": validation, "start_from": start_from})
    done = config.fetcher.done and config.fetcher.done.absolute()
    fetcher = config.fetcher.model_copy(update={"done": done})
    config = config.model_copy(update={"trainer": trainer, "fetcher": fetcher})
    where = config.outputs.destination
    if not where or "://" in where:
        return config
    outputs = config.outputs.model_copy(update={"destination": absolute((where,))[0]})
    return config.model_copy(update={"outputs": outputs})


def _introduction(run_dir: Path, config: Config, *, resumes: bool) -> str:
    from common.run_words import counted

    inputs = ", ".join(shown(text) for text in config.input)
    how = "resumes from its newest checkpoint" if resumes else "new"
    decoders = "decoders as needed" if config.local.decoders == "auto" else counted(config.local.decoders, "decoder")
    trainers = "trainer" if config.local.trainers == 1 else f"{config.local.trainers} trainers"
    if config.stream.shards > 1:
        decoders = f"{decoders} for each of {config.stream.shards} shards"
    return "\n".join(
        [
            f"run directory  {run_dir} ({how})",
            f"inputs         {inputs}",
            f"processes      fetcher, {decoders}, {trainers}; logs in {run_dir / 'logs'}",
            f"TensorBoard    icestream tensorboard {run_dir}",
        ]
    )


def _supervise(run_dir: Path, config: Config, *, new_plan: bool, fresh: bool, verbose: bool) -> SessionOutcome:
    from rich.console import Console

    from services.supervisor.environment import secrets_allowed
    from services.supervisor.names import LOGS_FOLDER, TRAINER, service_command, service_of
    from services.supervisor.outputs_process import OutputsProcess, outputs_command
    from services.supervisor.progress import Display
    from services.supervisor.restart import RestartPolicy
    from services.supervisor.run_record import RunRecord
    from services.supervisor.session import Processes
    from services.supervisor.supervisor import Supervisor
    from services.supervisor.supervisor_log import supervisor_log

    def command_for(name: str) -> list[str]:
        command = service_command(name, run_dir, config.stream.shards, config.trainer.model)
        return [*command, "--new-plan"] if new_plan and service_of(name) == TRAINER else command

    secrets = secrets_allowed(config)
    with supervisor_log(run_dir) as log, Display(run_dir, Console(), verbose=verbose) as display:

        def say(text: str) -> None:
            log.info("%s", text)
            display.say(text)

        outputs = OutputsProcess(
            outputs_command(run_dir, take_over=fresh) if config.outputs.destination else [],
            run_dir / LOGS_FOLDER / "outputs.log",
            RestartPolicy(config.local.restart_min_s, config.local.restart_max_s),
            config.outputs.final_sync_s,
            say,
            secrets["outputs"],
        )

        record = RunRecord(run_dir)

        def watch(processes: Processes) -> None:
            record.watch(processes)
            display.watch(processes)
            outputs.watch()

        outputs.start()
        try:
            shards = range(config.stream.shards) if config.stream.shards > 1 else ()
            supervisor = Supervisor(
                run_dir, config.local, command_for, shards=shards, secrets=secrets, watch=watch, say=say
            )
            outcome = supervisor.run()
            log.info("%s, exit code %d", outcome.exit_status, outcome.exit_code)
            record.ended(outcome)
            return outcome
        finally:
            outputs.close()


def _finish(
    run_dir: Path,
    config: Config,
    outcome: SessionOutcome,
    status: TrainerStatus | None,
    imbalance: str,
    *,
    made_steps: bool,
) -> int:
    """Write and show the summary and what to do next, and return the exit code of the command.

    ``imbalance``: sum over the shards that is wrong, in words.

    ``made_steps``: this session did; else an error does not follow zeros, or numbers of the former session.
    """
    from common.summary import build_summary, summary_lines, write_summary
    from icestream.commands.run_end import next_line

    summary = build_summary(
        status,
        exit_status=outcome.exit_status,
        exit_code=outcome.exit_code,
        seconds=outcome.seconds,
        restarts=outcome.restarts,
        error=outcome.error,
        imbalance=imbalance,
    )
    write_summary(run_dir, summary)
    if made_steps or summary.error is None:
        click.echo("\n".join(summary_lines(summary)))
    if summary.error:
        click.secho(f"Error: {summary.error}", err=True, fg="red")
    if line := next_line(run_dir, config, summary.exit_status):
        click.echo(line)
    return summary.exit_code


def _show_profile(run_dir: Path, since_s: float) -> None:
    """Print the newest table written by the trainer since then (in seconds since 1970)."""
    tables = sorted((run_dir / "profile").glob("*.txt"), key=lambda path: path.stat().st_mtime)
    if tables and tables[-1].stat().st_mtime >= since_s:
        click.echo(f"\n{tables[-1].read_text()}in {tables[-1].parent}, with a trace for https://ui.perfetto.dev")


def _read_if_there(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
