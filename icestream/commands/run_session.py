"""A run on this machine, from what was given on the command line to its summary, and what --fresh deletes before."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from common.errors import USER_ERROR_EXIT_CODE, BadInputError
from common.locks import LOCKS_FOLDER, RunLock, patience
from common.options import absolute
from common.own_code import is_own, require_module
from common.paths import CONFIG_FILE, INVENTORY_FOLDER, SHARDS_FOLDER, make_run_dir, shard_dirs, user_path
from common.run_words import counted
from common.status import STATUS_FOLDER, TrainerStatus, read_status
from common.summary import ExitStatus, Summary, build_summary, summary_lines, write_summary
from common.text import shown
from icestream.commands import checks
from icestream.run_config import load_run_config
from services.config.root import Config, require_named_model, store_config, unused_settings
from services.supervisor.child import TRAINER, OutputsProcess, secrets_allowed, service_command, service_of
from services.supervisor.progress import Display, RunRecord, supervisor_log
from services.supervisor.supervisor import CommandFor, Processes, SessionOutcome, Supervisor, TrainerGroup
from workloads import registry
from workloads.base.checkpoint import newest_checkpoint
from workloads.registry import NO_MODEL, section_name

_NEW_WORK = ("input", "workload", "seed", "source", "stream", "outputs")
"""Branches whose change is work for a finished run."""
_MOST_SHOWN = 20
"""Inputs that the introduction names."""
_ENDING_S = 10.0
"""Longest wait for the services of a run that was just killed."""


def resolved_config(
    run_dir: Path, fresh: bool, toml: Path | None, assignments: Sequence[str], flags: Mapping[str, Any], nodes: int = 1
) -> Config:
    """Return the configuration; for a fresh run without the stored one of the old run. Raises BadInputError.

    Each of the ``nodes`` has local.trainers trainers.
    """
    stored: Path | dict[str, Any] = {} if fresh or not run_dir.is_dir() else run_dir
    config = load_run_config(stored, toml=toml, assignments=assignments, flags=dict(flags))
    checks.require_shares(config.stream, nodes, config.local.trainers)
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
    """Return the configuration with absolute paths: a run must not depend on the folder that it was started from."""
    validation, where = config.trainer.validation, config.outputs.destination
    validation = validation.model_copy(update={"input": absolute(validation.input)})
    start_from = config.trainer.start_from and str(user_path(config.trainer.start_from).absolute())
    done = config.fetcher.done and config.fetcher.done.absolute()
    destination = absolute((where,))[0] if where else where
    return config.model_copy(
        update={
            "trainer": config.trainer.model_copy(update={"validation": validation, "start_from": start_from}),
            "fetcher": config.fetcher.model_copy(update={"done": done}),
            "outputs": config.outputs.model_copy(update={"destination": destination}),
        }
    )


def run_session(
    run_dir: Path,
    toml: Path | None,
    assignments: Sequence[str],
    flags: Mapping[str, Any],
    *,
    fresh: bool,
    new_plan: bool,
    yes: bool,
) -> int:
    """Run to the end, unless the run is complete already; return the exit code.

    ``yes``: delete without a question. Raises BadInputError before anything is deleted or started.
    """
    checks.refuse_folder_of_nodes(run_dir)
    config = with_absolute_paths(resolved_config(run_dir, fresh, toml, assignments, flags))
    for warning in unused_settings(config, toml=toml, assignments=assignments):
        click.secho(f"Warning: {warning}", err=True, fg="yellow")
    start_from, run = config.trainer.start_from, run_dir.resolve()
    begins = Path(start_from).resolve()
    if fresh and start_from and (begins == run or run / "checkpoints" in (begins, *begins.parents)):
        raise BadInputError(
            f"--fresh would delete {start_from}, which the run is to start from: use another --run-dir, or copy the"
            " checkpoint first"
        )
    is_listed = any(run_dir.glob("ledger.sqlite")) or any(run_dir.glob("inventory/files-*"))
    checks.check_before_start(run_dir, config, lists_inputs=fresh or new_plan or not is_listed)
    make_run_dir(run_dir)
    with RunLock(run_dir, "run", "icestream run"):
        if fresh or new_plan:
            with contextlib.ExitStack() as locks:  # services of a run that was just killed get a moment to end
                locks.enter_context(RunLock(run_dir, "trainer", "icestream run", patience(_ENDING_S)))
                for folder in {run_dir, *shard_dirs(run_dir)}:
                    locks.enter_context(RunLock(folder, "fetcher", "icestream run", patience(_ENDING_S)))
                if fresh:
                    delete_own_contents(run_dir, yes)
                delete_inventory(run_dir)
        return _run_as(run_dir, config, fresh=fresh, new_plan=new_plan)


def _run_as(run_dir: Path, config: Config, *, fresh: bool, new_plan: bool) -> int:
    stored = run_dir / CONFIG_FILE
    former_config = stored.read_text() if stored.exists() else None
    former_status = read_status(run_dir, "trainer", TrainerStatus)
    is_saved = former_status is not None and (run_dir / former_status.checkpoint).is_file()
    former = json.loads(former_config) if former_config is not None and is_saved else {}
    if line := already_complete(former, config, former_status):
        click.echo("\n".join(filter(None, (line, next_line(run_dir, config, "finished")))))
        return 0
    if former_config is not None and not new_plan:
        checks.require_plan_of_checkpoint(run_dir, json.loads(former_config), config)
    store_config(run_dir, config)
    if not fresh and config.outputs.destination:
        from services.outputs import restore_if_gone

        if brought := restore_if_gone(run_dir, config):
            click.echo(shown(brought))
    click.echo(introduction(run_dir, config, "new, with stored settings" if former_config and not fresh else "new"))
    began_s = time.time()

    def command_for(name: str) -> list[str]:
        command = service_command(name, run_dir, config.stream.shards, config.trainer.model)
        return [*command, "--new-plan"] if new_plan and service_of(name) == TRAINER else command

    outcome = supervise(run_dir, config, command_for, config.stream.shards_of_node(), take_over=fresh)
    status = read_status(run_dir, "trainer", TrainerStatus)
    trained = status is not None and status != former_status and status.state != "starting"
    if outcome.exit_code == USER_ERROR_EXIT_CODE and former_config is not None and not trained:
        # Refused before any training, for example for a changed plan: the stored configuration stays valid.
        stored.write_text(former_config)  # in place: it keeps its mode
    # A former session's counts are of a former plan, perhaps, and its shards' records are deleted with it.
    inventory = run_dir / INVENTORY_FOLDER
    imbalance = checks.imbalance_of_shards(inventory, config, status) if status != former_status else ""
    summary = summary_of(outcome, config, status, imbalance)
    write_summary(run_dir, summary)
    former_step = former_status.step if former_status is not None else 0
    if summary.error is None or (trained and status is not None and status.step != former_step):
        click.echo("\n".join(summary_lines(summary)))  # else zeros, or numbers of the former session
    if summary.error:
        click.secho(f"Error: {summary.error}", err=True, fg="red")
    if line := next_line(run_dir, config, summary.exit_status):
        click.echo(line)
    tables = sorted((run_dir / "profile").glob("*.txt"), key=lambda path: path.stat().st_mtime)
    if config.trainer.profile_steps and tables and tables[-1].stat().st_mtime >= began_s:
        click.echo(f"\n{tables[-1].read_text()}in {tables[-1].parent}, with a trace for https://ui.perfetto.dev")
    return summary.exit_code


def introduction(run_dir: Path, config: Config, how: str) -> str:
    """Return the lines about a run that is about to start. ``how``: if it doesn't resume."""
    how = how if newest_checkpoint(run_dir) is None else "resumes from its newest checkpoint"
    decoders = "decoders as needed" if config.local.decoders == "auto" else counted(config.local.decoders, "decoder")
    trainers = "trainer" if config.local.trainers == 1 else f"{config.local.trainers} trainers"
    if config.stream.shards > 1:
        decoders = f"{decoders} for each of {config.stream.shards} shards"
    more = f", … ({len(config.input)} in all)" if len(config.input) > _MOST_SHOWN else ""
    return "\n".join(
        [
            f"run directory  {run_dir} ({how})",
            f"inputs         {', '.join(map(shown, config.input[:_MOST_SHOWN]))}{more}",
            f"processes      fetcher, {decoders}, {trainers}; logs in {run_dir / 'logs'}",
            f"TensorBoard    icestream tensorboard {run_dir}",
        ]
    )


def supervise(
    run_dir: Path,
    config: Config,
    command_for: CommandFor,
    shards: Sequence[int],
    group: TrainerGroup | None = None,
    *,
    take_over: bool = False,
) -> SessionOutcome:
    """Run the services of this machine until the end, with the display and the copies of the results.

    ``shards``, ``group``: see Supervisor. ``take_over``: another run's copies at the destination are replaced.
    """
    secrets = secrets_allowed(config)
    with supervisor_log(run_dir) as log, Display(run_dir, Console()) as display:

        def say(text: str) -> None:
            log.info("%s", text)
            display.say(text)

        outputs = OutputsProcess(run_dir, config, say, take_over=take_over)
        record = RunRecord(run_dir)

        def watch(processes: Processes) -> None:
            record.watch(processes)
            display.watch(processes)
            outputs.watch()

        outputs.start()
        try:
            supervisor = Supervisor(
                run_dir, config.local, command_for, shards=shards, group=group, secrets=secrets, watch=watch, say=say
            )
            outcome = supervisor.run()
            log.info("%s, exit code %d", outcome.exit_status, outcome.exit_code)
            record.ended(outcome)
            return outcome
        finally:
            outputs.close()


def summary_of(outcome: SessionOutcome, config: Config, status: TrainerStatus | None, imbalance: str) -> Summary:
    """Return the summary of a session; ``imbalance``: the sum over the shards that is wrong, in words."""
    return build_summary(
        status,
        exit_status=outcome.exit_status,
        exit_code=outcome.exit_code,
        seconds=outcome.seconds,
        restarts=outcome.restarts,
        error=outcome.error,
        imbalance=imbalance,
        sets=[shown(text) for text in config.input] if config.stream.is_mixed else (),
    )


def already_complete(former: Mapping[str, Any], config: Config, status: TrainerStatus | None) -> str:
    """Return a line about a run that has all its steps; empty if there may be something to do.

    ``former``: configuration of the run as stored, ``status``: that of its last trainer.
    """
    if status is None or status.state not in ("finished", "stopped"):
        return ""
    now = config.model_dump(mode="json")
    most, model = config.trainer.max_steps, former.get("trainer", {}).get("model")
    if model != config.trainer.model or any(former.get(key) != now[key] for key in _NEW_WORK):
        return ""
    section = section_name(model)
    if former["trainer"].get(section) != now["trainer"].get(
        section
    ):  # refused or taken by the trainer, which knows why
        return ""
    if status.state == "stopped":
        is_done = 0 < most <= status.step
        return f"Already at step {status.step:,}: raise --max-steps {most} to continue." if is_done else ""
    if status.max_steps and status.step >= status.max_steps:
        is_longer = most == 0 or most > status.step
        remedy = "Raise --max-steps to continue."
    else:  # the plan ended
        is_longer = config.epochs == 0 or config.epochs > max(1, status.epochs)
        remedy = "Raise --epochs to continue."
    return "" if is_longer else f"Already complete ({status.step:,} steps). {remedy}"


def next_line(run_dir: Path, config: Config, exit_status: ExitStatus) -> str:
    """Return the command that comes next; empty if the error says what to do."""
    place, model = shlex.quote(str(run_dir)), config.trainer.model
    if exit_status == "interrupted":
        return f"Resume: icestream run --run-dir {place}" + (f" --model {model}" if is_own(model) else "")
    if exit_status != "finished" or model == NO_MODEL:
        return ""
    if is_own(model):  # no command can evaluate it
        return f"Next, in Python: icestream.load({str(run_dir)!r}, model={model!r})"
    if "evaluate" in registry.verbs(config.workload):
        return f"Next: icestream evaluate {place} -i HELD_OUT_FILES"
    return ""


# ------------------------------------------------------------------ --fresh and --new-plan

OWN_CONTENTS = (
    *("config.json", "config.part", "summary.json", "summary.part", "audit.jsonl", "audit-rank*.jsonl"),
    *("ledger.sqlite*", "shards", "inventory", "checkpoints", "outliers", "invalid", "logs", "status", "sockets"),
    *("tensorboard", "profile", "evaluation", "health.jsonl"),
    *("validation.pt", "validation.json", "validation.units", "validation.part", "wandb", "cache"),
    *("outputs.json", "outputs.part"),
)
"""Files and folders made by icestream in a run directory: `--fresh` deletes only these."""

_RECORDS = tuple(f"{name}-[0-9][0-9][0-9]*" for name in ("planned", "begun", ".begun", "bad", "epochs"))
_OWN_BELOW = {
    SHARDS_FOLDER: (f"[0-9][0-9][0-9]/{LOCKS_FOLDER}/fetcher",),
    INVENTORY_FOLDER: ("files-*.jsonl", ".files-*", *_RECORDS),
}
"""Names that icestream makes in folders whose names users give to theirs, too; a shard's is told by its lock."""


def delete_inventory(run_dir: Path) -> None:
    """Delete the list of files, and what is known of shards: they are a part of the plan."""
    shards = _own_below(run_dir / SHARDS_FOLDER)
    for folder in (run_dir, *shards):
        for path in folder.glob("ledger.sqlite*"):
            path.unlink()
    for folder in shards:
        shutil.rmtree(folder / STATUS_FOLDER, ignore_errors=True)
    if _is_own(run_dir / INVENTORY_FOLDER):
        _delete(run_dir / INVENTORY_FOLDER)


def delete_own_contents(run_dir: Path, yes: bool) -> None:
    """Delete icestream's files, after confirmation. Links are removed, not followed."""
    own = sorted(path for pattern in OWN_CONTENTS for path in run_dir.glob(pattern) if _is_own(path))
    if not own:
        return
    names = ", ".join(path.name for path in own)
    if not yes:
        if not _can_ask():
            raise BadInputError(
                f"--fresh would delete from {run_dir}: {names}; there is no terminal to ask on: add --yes to agree"
            )
        if not click.confirm(f"Delete from {run_dir}: {names}?"):
            raise BadInputError("nothing was deleted; without --fresh the run resumes where it stopped")
    for path in own:
        _delete(path)


def _is_own(path: Path) -> bool:
    return path.name not in _OWN_BELOW or bool(_own_below(path))


def _own_below(folder: Path) -> list[Path]:
    """Return the paths that icestream made in a folder of _OWN_BELOW."""
    if folder.is_symlink():
        return []
    paths = (path for pattern in _OWN_BELOW[folder.name] for path in folder.glob(pattern))
    return [folder / path.relative_to(folder).parts[0] for path in paths]


def _delete(path: Path) -> None:
    """Delete a file, a link, or a folder with everything that icestream made in it."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    elif path.name in _OWN_BELOW:
        for own in _own_below(path):
            _delete(own)
        with contextlib.suppress(OSError):  # there is more in it
            path.rmdir()
    else:
        shutil.rmtree(path)


def _can_ask() -> bool:
    return sys.stdin.isatty()
