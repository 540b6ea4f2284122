"""Run from files: events a second, the time that the trainer waits for data, and the part in which the GPU is busy.

`icestream run` on simulated files of this machine, with its own measurements: those of the status file.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.gpu.channel import Channel
from benchmarks.gpu.processes import end_with_parent
from benchmarks.gpu.setting import Setting

ROOT = Path(__file__).resolve().parents[2]
FILES = 16
MOST_DECODERS = 8
WARM_STEPS = 20
BATCHES: dict[int, tuple[str, ...]] = {
    8_192: (),
    128_000: ("stream.slot_mib=32", "trainer.log_every=5"),
}
"""Events of a batch -> further settings."""
_STOP_S = 8.0


def run(setting: Setting, channel: Channel) -> None:
    """Row for each batch size."""
    missing = missing_packages()
    if missing:
        channel.leave_out(f"a run from files: not installed: {', '.join(missing)}")
        return
    from workloads.muons.simulator.config import preset
    from workloads.muons.simulator.write import DatasetPlan, write_dataset

    decoders = max(1, min(MOST_DECODERS, len(os.sched_getaffinity(0)) - 2))
    batches = BATCHES if setting.is_cuda else {128: ("trainer.log_every=5", "trainer.wgan.critic_steps=1")}
    with tempfile.TemporaryDirectory(prefix="icestream-gpu-") as folder:
        data = Path(folder, "data")
        channel.say(f"writing {setting.run_events:,} events in {FILES} files")
        write_dataset(data, preset("bench"), DatasetPlan(setting.run_events, FILES, seed=1))
        for number, (batch_events, settings) in enumerate(batches.items()):
            limit_s = (channel.left_s - 3.0) / (len(batches) - number) - _STOP_S
            if limit_s < 5.0:
                channel.leave_out(f"batches of {batch_events:,}: no time was left")
                continue
            channel.say(f"a run with {decoders} decoders, batches of {batch_events:,}, at most {limit_s:.0f} s")
            words = [f"stream.batch_events={batch_events}", *settings]
            seen = watch(Path(folder, str(batch_events)), data, decoders, setting, words, limit_s)
            channel.row(batch_events=batch_events, decoders=decoders, **measured(seen))


def watch(
    run_dir: Path, data: Path, decoders: int, setting: Setting, settings: list[str], limit_s: float
) -> list[dict[str, Any]]:
    """Statuses of the trainer during one run, which is stopped at its limit. Raises SystemExit if it fails."""
    command = [sys.executable, "-m", "icestream", "run", "-i", str(data), "--run-dir", str(run_dir)]
    command += ["--decoders", str(decoders), "--device", setting.device]
    # More passes than there is time for: it is stopped. The pass over the files is then no matter of the start.
    settings = [f"epochs={1000 if setting.is_cuda else 1}", "trainer.wgan.likelihood_steps=1", *settings]
    for one in settings:
        command += ["--set", one]
    seen: list[dict[str, Any]] = []
    log = run_dir.with_suffix(".log")
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, preexec_fn=end_with_parent
        )
        end_s = time.monotonic() + limit_s
        while process.poll() is None and time.monotonic() < end_s:
            time.sleep(0.2)
            status = status_of(run_dir)
            if status and (not seen or status["step"] > seen[-1]["step"]):
                seen.append(status)
        was_stopped = process.poll() is None
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.returncode and not was_stopped:
        raise SystemExit(f"the run ended with {process.returncode}: {log.read_text().strip().splitlines()[-1][:300]}")
    final = status_of(run_dir)
    return [*seen, final] if final else seen


def status_of(run_dir: Path) -> dict[str, Any]:
    """Newest status of the trainer; empty before the first."""
    try:
        status: dict[str, Any] = json.loads((run_dir / "status" / "trainer.json").read_text())
    except (OSError, ValueError):
        return {}
    return status


def measured(seen: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of a run, from its statuses: medians after the first steps."""
    warm = [one for one in seen if one["step"] >= WARM_STEPS]
    if not warm:
        return {"note": f"only {seen[-1]['step'] if seen else 0} steps: too few to measure"}
    on_gpu = [one["gpu"] for one in warm if one["gpu"] is not None]
    return {
        "steps": warm[-1]["step"],
        "events_per_s": warm[-1]["session_events_per_s"],
        "waited": statistics.median(one["wait_fraction"] for one in warm),
        "copied_bytes_per_s": _median(one["copied_bytes_per_s"] for one in warm),
        "gpu_busy": _median(one["utilisation"] for one in on_gpu),
        "memory_busy": _median(one["memory_utilisation"] for one in on_gpu),
    }


def _median(values: Iterable[float | None]) -> float | None:
    """Median of those that were measured; None if none was."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def missing_packages() -> list[str]:
    """Dependencies of icestream that are not installed: a run needs them all."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    missing = []
    for requirement in wanted:
        name = requirement.partition(">")[0].partition("[")[0]
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    return missing
