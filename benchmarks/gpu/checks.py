"""Does it train, and right: a short run, checks of the step, memory, two ranks, marked tests; and runs from files.

Busy by NVML: the part of the time in which any kernel ran. By torch's profile of some steps: the time of kernels and
copies, those that overlap once, over the time from the first to the last one, in which the profiler slows the host
down; and over the time of as many steps without it.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.bench_step import compare
from benchmarks.gpu.page import ROOT
from benchmarks.gpu.processes import SMALL, Channel, Setting, end_with_parent
from benchmarks.gpu.steps import SEED, batch_of, set_matmul_precision, simulated, timed
from services.trainer.environment import WORKSPACE_VARIABLE, be_deterministic
from services.trainer.ranks import Ranks
from services.trainer.speed import PROFILE_FOLDER, START_UP_STEPS, WARM_UP_STEPS, memory_scalars
from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.muons.models.config import WganConfig
from workloads.muons.models.wgan import WganTask
from workloads.muons.simulator.config import preset
from workloads.muons.simulator.write import DatasetPlan, write_dataset

STEPS, RANKS, LARGEST_EVENTS, LARGEST_EVERY = 3, 2, 400, 50
MOST_GROWN_MIB = 8  # CUDA's allocator reserves 2 MiB at a time
MARKED = re.compile(r"^\s*@pytest\.mark\.cuda|marks=pytest\.mark\.cuda|^pytestmark = .*mark\.cuda", re.MULTILINE)
MOST_DECODERS, PROFILED_STEPS = 8, 10
WARM_STEPS = WARM_UP_STEPS + PROFILED_STEPS + START_UP_STEPS  # then a run's pace counts
ON_DEVICE, ON_HOST = {"kernel", "gpu_memcpy", "gpu_memset"}, {"cpu_op"}  # categories of a trace
_STOP_S = 8.0
_SETTINGS = {128_000: ["stream.slot_mib=32", "trainer.log_every=5"]}  # events of a batch -> further settings


def trains(setting: Setting, channel: Channel) -> None:
    """Row: both phases of the WGAN's training in a short run."""
    words = ["trainer.max_steps=20", "trainer.wgan.likelihood_steps=10", "stream.batch_events=256", "epochs=0"]
    with tempfile.TemporaryDirectory(prefix="icestream-gpu-") as folder:
        write_dataset(Path(folder, "data"), preset("bench"), DatasetPlan(4000, 4, seed=1))
        last = _run(Path(folder, "run"), setting, words, channel.left_s - _STOP_S, 1)[-1]
    losses = ", ".join(f"{name} {value:.3g}" for name, value in last["losses"].items())
    channel.row("runs", run="trains", losses=losses, steps=last["step"], seconds=last["seconds"])
    if last["step"] < 20:
        channel.send("failures", f"icestream run: {last['step']} of 20 steps")


def from_files(setting: Setting, channel: Channel) -> None:
    """Row for each batch size: events/s, waits for data, and how busy the GPU is."""
    decoders = max(1, min(MOST_DECODERS, len(os.sched_getaffinity(0)) - 2))
    with tempfile.TemporaryDirectory(prefix="icestream-gpu-") as folder:
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


def _task(setting: Setting, precision: str = "float32", **context: Any) -> WganTask:
    config = WganConfig(network=dict(setting.network), likelihood_steps=1)
    return WganTask(config, StepContext(torch.device(setting.device), SEED, bf16=precision == "bf16", **context))


def _weights(task: WganTask) -> list[Tensor]:
    return [value for one in task.networks.modules().values() for value in one.state_dict().values()]


def step(setting: Setting, channel: Channel) -> None:
    """Rows: the plain step's losses, no host sync, the same bits in deterministic mode."""
    os.environ.setdefault(WORKSPACE_VARIABLE, ":4096:8")  # before cuBLAS starts, in this process
    device, num_events = setting.device, min(setting.events)
    events = simulated(num_events)
    batches = [batch_of(events, size, device, events.num_particles // 3) for size in (num_events, num_events // 3)]
    set_matmul_precision("float32")

    def check(name: str, outcome: str, work: Callable[[], object]) -> None:
        if channel.attempt(name, work):
            channel.row("checks", check=name, outcome=outcome)

    def trained(precision: str, num_steps: int) -> WganTask:
        task = _task(setting, precision)
        for batch in batches * num_steps:
            task.step(batch)
        return task

    def no_sync(precision: str) -> None:
        """Steps in which CUDA's runtime raises if the host waits; the first ones may, for the standardisation."""
        task = trained(precision, 1)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for batch in batches * STEPS:
                task.step(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def same_bits(precision: str) -> None:
        """Two trainings from one seed; an operator without such a kernel raises RuntimeError."""
        pairs = list(zip(*(_weights(trained(precision, STEPS)) for _ in range(2)), strict=True))
        if apart := sum(not torch.equal(*pair) for pair in pairs):
            raise RuntimeError(f"{apart} of {len(pairs)} tensors differ")

    whole = batch_of(events, num_events, device)
    check("losses of the plain step", "the same to 1e-5", lambda: compare(whole, torch.device(device), compiled=False))
    for precision in ("float32", "bf16") if setting.is_cuda else ():
        check(f"no host sync, {precision}", f"none in {STEPS * len(batches)} steps", partial(no_sync, precision))
    be_deterministic()
    for precision in ("float32", "bf16"):
        check(f"deterministic mode, {precision}", "the same bits", partial(same_bits, precision))


def memory(setting: Setting, channel: Channel) -> None:
    """Rows at a few steps: memory over thousands of ragged batches, which must be flat from a fifth of them on."""
    device, events, random = torch.device(setting.device), simulated(20_000), np.random.default_rng(3)
    config = WganConfig(network=SMALL, likelihood_steps=1, critic_steps=1)
    task = WganTask(config, StepContext(device, SEED))
    # No other batch needs more than thrice the 400 events with the most muons.
    first = int(np.argmax(events.host_offsets_E1[LARGEST_EVENTS:] - events.host_offsets_E1[:-LARGEST_EVENTS]))
    largest, most, steps, held_mib = [(first, LARGEST_EVENTS)] * 3, setting.ragged_steps, 0, []
    while steps < most and channel.left_s > 2.0:
        parts = largest
        if steps % LARGEST_EVERY:
            sizes = [int(LARGEST_EVENTS ** random.random()) for _ in range(random.integers(1, 4))]
            parts = [(int(random.integers(events.num_events - size)), size) for size in sizes]
        task.step(Batch(tuple(events.part(first, first + size).to(device) for first, size in parts)))
        steps += 1
        if steps % LARGEST_EVERY == 0:
            found = {name.removeprefix("memory/"): value for name, value in memory_scalars(device).items()}
            held_mib.append(found["max_reserved_mib" if setting.is_cuda else "rss_mib"])
            if steps % (most // 10) == 0:
                channel.row("memory", steps=steps, **found)
    if steps < most:
        channel.send("left_out", f"steps {steps + 1:,} to {most:,}: no time was left")
    grown_mib = held_mib[-1] - held_mib[len(held_mib) // 5] if held_mib else 0.0
    if setting.is_cuda and steps > most // 10 and grown_mib > MOST_GROWN_MIB:
        channel.send("failures", f"memory grew by {grown_mib:.1f} MiB from a fifth of {steps:,} steps on")


def ranks(setting: Setting, channel: Channel) -> None:
    """Row: a step of two ranks on one device, half of a batch each. nccl refuses two on one card: sums go over gloo,
    through the host, and their time says nothing about nccl."""
    fork = multiprocessing.get_context("fork")  # this process has not touched the device
    pool = ProcessPoolExecutor(RANKS, fork)  # never waited for: if one fails, the other one hangs
    with tempfile.TemporaryDirectory(prefix="icestream-gpu-") as folder:
        (seconds, sums), (_, others) = pool.map(partial(_rank, setting, f"{folder}/store"), range(RANKS))
    if sums != others:
        raise SystemExit("the weights of the ranks differ")
    channel.row("ranks", ranks=RANKS, outcome="the same weights", events=min(setting.events), seconds=seconds)


def _rank(setting: Setting, store: str, rank: int) -> tuple[float, list[float]]:
    """One rank, in its process. -> seconds of a step, sums of the weights."""
    meeting = dist.FileStore(store, RANKS)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=meeting, rank=rank, world_size=RANKS, timeout=timedelta(seconds=60))
    events, device = simulated(min(setting.events)), torch.device(setting.device)
    half = events.num_events // RANKS
    share = Batch((events.part(rank * half, (rank + 1) * half).to(device),))
    batch = share.among(RANKS * half, int(events.host_offsets_E1[RANKS * half]))
    task = _task(setting, sum_over_ranks=Ranks.of_callers_group().sum_)
    seconds, _ = timed(lambda: task.step(batch), device, setting.repeats, 1e9)
    sums = [float(one.double().sum()) for one in _weights(task)]
    dist.destroy_process_group()
    return seconds, sums


def tests(setting: Setting, channel: Channel) -> None:
    """Row for each marked test, without what the machine may lack, the project's conftest and plug-ins of pytest. The
    slow one, memory over ragged steps, is a stage of its own."""
    files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if MARKED.search(path.read_text())]
    words = ["-m", "pytest", "-v", "-c", "/dev/null", "--rootdir", str(ROOT), "--noconftest", "-m", "cuda and not slow"]
    words += ["-p", "no:xdist", "-p", "no:cacheprovider", "-o", f"pythonpath={ROOT} {ROOT}/tests {ROOT}/tests/pipeline"]
    words += ["--continue-on-collection-errors", *files]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen([sys.executable, *words], cwd=ROOT, **pipes, preexec_fn=end_with_parent)
    lacks = ""
    for line in process.stdout or ():
        lacks = lacks or "".join(re.findall(r"No module named '[\w.]+'", line))
        if found := re.match(r"(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED.*?) +\[", line):
            channel.row("tests", test=found[1], outcome=found[2].lower())
            if found[2].startswith("SKIPPED") and setting.is_cuda:
                channel.send("failures", line.strip())
        elif line.startswith(("FAILED ", "ERROR ")):  # of the summary
            is_missing = bool(lacks) and "::" not in line
            channel.send("left_out" if is_missing else "failures", f"{line.strip()} {lacks * is_missing}")
    if process.wait() not in (0, 1, 2):
        raise SystemExit(f"pytest ended with {process.returncode}")
