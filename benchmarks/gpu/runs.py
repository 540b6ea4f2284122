"""Runs of `icestream run` from simulated files: do they train, how fast, and is the GPU busy?

Busy by NVML: the part of the time in which any kernel ran. By torch's profile of some steps: the time of kernels and
copies, those that overlap once, over the time from the first to the last one, in which the profiler slows the host
down; and over the time of as many steps without it.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.page import ROOT
from benchmarks.gpu.processes import Channel, Setting, end_with_parent
from services.trainer.speed import PROFILE_FOLDER, START_UP_STEPS, WARM_UP_STEPS
from workloads.muons.simulator.config import preset
from workloads.muons.simulator.write import DatasetPlan, write_dataset

MOST_DECODERS, PROFILED_STEPS = 8, 10
WARM_STEPS = WARM_UP_STEPS + PROFILED_STEPS + START_UP_STEPS
"""Steps after which a run's pace counts."""
ON_DEVICE, ON_HOST = {"kernel", "gpu_memcpy", "gpu_memset"}, {"cpu_op"}
"""Categories of a trace."""
_STOP_S = 8.0
_SETTINGS = {128_000: ["stream.slot_mib=32", "trainer.log_every=5"]}
"""Events of a batch -> further settings."""


def trains(setting: Setting, channel: Channel) -> None:
    """Row: both phases of the WGAN's training in a short run."""
    words = ["trainer.max_steps=20", "trainer.wgan.likelihood_steps=10", "stream.batch_events=256", "epochs=0"]
    with tempfile.TemporaryDirectory(prefix="icestream-gpu-") as folder:
        write_dataset(Path(folder, "data"), preset("bench"), DatasetPlan(4000, 4, seed=1))
        channel.send("say", "icestream run")
        begun_s = time.monotonic()
        last = _run(Path(folder, "run"), setting, words, channel.left_s - _STOP_S, 1)[-1]
    losses = ", ".join(f"{name} {value:.3g}" for name, value in last["losses"].items())
    channel.row("runs", run="trains", losses=losses, steps=last["step"], whole_s=time.monotonic() - begun_s)
    if last["step"] < 20:
        channel.send("failures", f"icestream run: {last['step']} of 20 steps")


def from_files(setting: Setting, channel: Channel) -> None:
    """Row for each batch size: events/s, waits for data, and how busy the GPU is."""
    decoders = max(1, min(MOST_DECODERS, len(os.sched_getaffinity(0)) - 2))
    with tempfile.TemporaryDirectory(prefix="icestream-gpu-") as folder:
        channel.send("say", f"writing {setting.files_events:,} events in 16 files")
        write_dataset(Path(folder, "data"), preset("bench"), DatasetPlan(setting.files_events, 16, seed=1))

        def measure(events: int, limit_s: float) -> None:
            words = [f"stream.batch_events={events}", f"trainer.profile_steps={PROFILED_STEPS}", "epochs=1000"]
            words += ["trainer.wgan.likelihood_steps=1", *_SETTINGS.get(events, ())]
            run_dir = Path(folder, f"run-{events}")
            found = figures(_run(run_dir, setting, words, limit_s, decoders), run_dir)
            channel.row("runs", run=f"batches of {events:,}", decoders=decoders, **found)

        for number, events in enumerate(setting.run_events):
            what = f"a run with {decoders} decoders, batches of {events:,}"
            if channel.has(_STOP_S + 10.0, what):
                limit_s = (channel.left_s - 3.0) / (len(setting.run_events) - number) - _STOP_S
                channel.attempt(what, partial(measure, events, limit_s))


def _run(run_dir: Path, setting: Setting, words: list[str], limit_s: float, decoders: int) -> list[dict[str, Any]]:
    """Statuses of the trainer during a run on `data` beside it, which is stopped after ``run_s`` of warm steps or at
    its limit. Raises SystemExit with the last line of an error if it fails."""
    command = [sys.executable, "-m", "icestream", "run", "-i", str(run_dir.with_name("data"))]
    command += ["--run-dir", str(run_dir), "--decoders", str(decoders), "--device", setting.device]
    command += [word for one in words for word in ("--set", one)]
    status, log, seen = run_dir / "status" / "trainer.json", run_dir.with_suffix(".log"), []
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, preexec_fn=end_with_parent)
    end_s, is_warm = time.monotonic() + limit_s, False
    while process.poll() is None and time.monotonic() < end_s:
        time.sleep(0.2)
        seen += [json.loads(status.read_text())] if status.exists() else []  # replaced as a whole when it is written
        if not is_warm and seen and seen[-1]["step"] >= WARM_STEPS:
            end_s, is_warm = min(end_s, time.monotonic() + setting.run_s), True
    was_stopped = process.poll() is None
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if (process.returncode and not was_stopped) or not status.exists():
        lines = log.read_text().strip().splitlines() or ["no output"]
        errors = [line for line in lines if "error" in line.lower()] or lines
        raise SystemExit(f"icestream run ended with {process.returncode}: {errors[-1].strip()[:300]}")
    return [*seen, json.loads(status.read_text())]


def figures(statuses: list[dict[str, Any]], run_dir: Path) -> dict[str, float | None]:
    """Return the figures of a run: medians of its statuses after the first steps."""
    warm = [one for one in statuses if one["step"] >= WARM_STEPS]
    if not warm:
        raise SystemExit(f"only {statuses[-1]['step']} steps, too few to measure")

    def median(name: str, of: list[dict[str, Any]] = warm) -> float | None:
        values = [one[name] for one in of if one[name] is not None]
        return statistics.median(values) if values else None

    on_gpu = [one["gpu"] for one in warm if one["gpu"] is not None]
    found = {"steps": warm[-1]["step"], "events_per_s": warm[-1]["session_events_per_s"]}
    found |= {"waited_share": median("wait_fraction"), "copied_bytes_per_s": median("copied_bytes_per_s")}
    found |= {"GPU_busy_by_NVML_share": median("utilisation", on_gpu)}
    found |= {"its_memory_busy_share": median("memory_utilisation", on_gpu)}
    for trace in run_dir.glob(f"{PROFILE_FOLDER}/*.trace.json.gz"):
        with gzip.open(trace) as file:
            busy_s, window_s = busy_in(json.load(file)["traceEvents"], ON_DEVICE if on_gpu else ON_HOST)
        found["busy_in_profile_share"] = busy_s / window_s if window_s else None
        found["busy_without_profiler_share"] = busy_s / PROFILED_STEPS * (median("batches_per_s") or 0.0)
    return found


def busy_in(events: Iterable[dict[str, Any]], categories: set[str]) -> tuple[float, float]:
    """Return the seconds in which any event of these categories ran, and those from the first to the last of them."""
    chosen = (one for one in events if one.get("cat") in categories and "dur" in one)
    spans = sorted((one["ts"], one["ts"] + one["dur"]) for one in chosen)
    busy, end = 0.0, spans[0][0] if spans else 0.0
    for first, last in spans:
        busy += max(last - max(first, end), 0.0)
        end = max(end, last)
    return busy / 1e6, (end - spans[0][0]) / 1e6 if spans else 0.0
