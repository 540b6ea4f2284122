"""Rows that `icestream status` shows, from a snapshot. Pure."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from common.durations import duration
from common.redact import shown
from common.run_words import binary_words, counted, gpu_words, loss_words, restart_words, work_words
from icestream.commands.status.snapshot import RunSnapshot

Rows = tuple[tuple[str, str], ...]
_RESUMABLE = ("interrupted", "failed", "killed")


def rows_of(run: RunSnapshot, now_s: float) -> Rows:
    """Rows of (label, text) for people."""
    rows = [
        ("run", f"{run.run_dir}{_in_brackets(run.workload, run.model, run.device)}"),
        ("state", state_words(run, now_s)),
        *_training_rows(run),
        *_flow_rows(run),
        ("checkpoint", _checkpoint_words(run)),
        ("health", _health_words(run)),
        ("restarts", restart_words(run.restarts) or "none"),
        *_machine_rows(run, now_s),
        *_next_rows(run),
    ]
    return tuple((label, shown(text, 1000)) for label, text in rows if text)


def done_share(run: RunSnapshot) -> float | None:
    """Part of the run that is done, by steps; None if it is unknown."""
    if run.state == "finished":
        return 1.0
    return min(1.0, run.step / run.expected_steps) if run.expected_steps else None


def state_words(run: RunSnapshot, now_s: float) -> str:
    """State with its times and its reason."""
    text: str = run.state
    if run.is_alive:
        since = f" for {duration(now_s - run.started_s)}" if run.started_s is not None else ""
        return f"{text}{since}: {run.reason}"
    if run.changed_s is not None and run.state not in ("new", "unknown"):
        text += f" {duration(now_s - run.changed_s)} ago"
    return f"{text}: {run.reason}" if run.reason else text


def _training_rows(run: RunSnapshot) -> list[tuple[str, str]]:
    if not run.step and not run.is_alive:
        return []
    of_steps = ""
    if run.expected_steps and run.state != "finished":
        of_steps = f" of {'' if run.expected_steps == run.max_steps else 'about '}{run.expected_steps:,}"
    of_epochs = f"/{run.epochs}" if run.epochs else ""
    epoch = min(run.epoch + 1, run.epochs) if run.epochs else run.epoch + 1
    if run.nodes and run.is_alive:
        return [("step", f"{run.step:,}{of_steps} (newest checkpoint)")]
    if run.nodes and not run.trained_s:  # no summary of this end
        return [("step", f"{run.step:,}{of_steps}")]
    time = f"trained for {duration(run.trained_s)}"
    if run.is_alive:
        time += f", ETA {duration(run.eta_s) if run.eta_s is not None else 'unknown'}"
    mean = f"{run.mean_events_per_s:,.0f} events/s on average, {run.events_trained:,} events trained"
    now = f"{run.events_per_s:,.0f} events/s, {run.particles_per_s:,.0f} particles/s, waits for data"
    return [
        ("step", f"{run.step:,}{of_steps}, epoch {epoch}{of_epochs}"),
        ("time", time),
        ("speed", f"{now} {100 * run.wait_share:.0f} %" if run.is_alive else ""),
        ("", mean),
        ("compute", work_words(run.flops_per_s, run.copied_bytes_per_s)),
        ("losses", loss_words(run.losses)),
    ]


def _flow_rows(run: RunSnapshot) -> list[tuple[str, str]]:
    bad = f", {run.files_bad:,} bad (logs/fetcher.log)" if run.files_bad else ""
    return [
        ("files", f"{run.files:,} in all epochs{bad}" if run.files else ""),
        ("problem", run.problem),
        *(("warning", warning) for warning in run.warnings),
        ("bottleneck", run.bottleneck),
        ("last hour", run.bottleneck_hour),
    ]


def _checkpoint_words(run: RunSnapshot) -> str:
    if run.checkpoint is None:
        return "none"
    return f"step {run.checkpoint.step:,}, {duration(run.checkpoint.age_s)} ago ({run.checkpoint.path})"


def _health_words(run: RunSnapshot) -> str:
    health = run.health
    parts = [health.state if health.state == "healthy" else f"{health.state}: {health.reason}"]
    if health.rollbacks:
        parts.append(f"went back to a good checkpoint {counted(health.rollbacks, 'time')}")
    if health.unhealthy_steps:
        parts.append(f"{counted(health.unhealthy_steps, 'line')} in health.jsonl")
    return ", ".join(parts)


def _machine_rows(run: RunSnapshot, now_s: float) -> list[tuple[str, str]]:
    disk = f"{gib(run.disk.free_bytes)} free of {gib(run.disk.total_bytes)}"
    if run.disk.budget_bytes:
        disk += f"; staged {gib(run.disk.staged_bytes)} of {gib(run.disk.budget_bytes)}"
    token = ""
    if run.token_expires_s is not None and run.is_alive:
        left_s = run.token_expires_s - now_s
        token = f"expires in {duration(left_s)}" if left_s > 0 else f"expired {duration(-left_s)} ago"
    names = [f"{one.name} {one.pid}{_in_brackets(gib(one.memory_bytes))}" for one in run.processes]
    return [("GPU", gpu_words(run.gpu)), ("disk", disk), ("token", token), ("processes", ", ".join(names))]


def _next_rows(run: RunSnapshot) -> list[tuple[str, str]]:
    if run.nodes or run.shared:
        again = run.state in (*_RESUMABLE, "new", "unknown")
        return [("next", f"start all nodes (again), by your engine or by hand: {run_command(run)}")] if again else []
    if run.state == "new":
        return [("next", f"start it: {run_command(run)}")]
    return [("next", f"resume: {run_command(run)}")] if run.state in _RESUMABLE else []


def run_command(run: RunSnapshot) -> str:
    """Command that starts the run, or resumes it."""
    if run.nodes or run.shared:
        shared, own = (run.shared, quote(run.run_dir)) if run.shared else (run.run_dir, "RUN_DIR")
        nodes = run.nodes or "N"
        of_all = f"--node I --nodes {nodes} --master HOST:PORT"
        return f"icestream node {of_all} --shared {quote(str(Path(shared)))} --run-dir {own}"
    return f"icestream run --run-dir {quote(str(Path(run.run_dir)))}"


def gib(number: int | None) -> str:
    """Bytes as people read them."""
    return "" if number is None else binary_words(number)


def _in_brackets(*parts: str) -> str:
    text = ", ".join(part for part in parts if part)
    return f" ({text})" if text else ""
