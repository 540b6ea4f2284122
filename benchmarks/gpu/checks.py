"""Checks on the device: losses, host syncs, deterministic bits, flat memory, two ranks, and the marked tests."""

from __future__ import annotations

import multiprocessing
import os
import re
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.bench_step import compare
from benchmarks.gpu.page import ROOT
from benchmarks.gpu.processes import SMALL, Channel, Setting
from benchmarks.gpu.steps import SEED, batch_of, set_matmul_precision, simulated, timed
from services.trainer.environment import WORKSPACE_VARIABLE, be_deterministic
from services.trainer.ranks import Ranks
from services.trainer.speed import memory_scalars
from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.muons.models.config import WganConfig
from workloads.muons.models.wgan import WganTask

STEPS, RANKS, LARGEST_EVENTS, LARGEST_EVERY = 3, 2, 400, 50
MOST_GROWN_MIB = 8  # CUDA's allocator reserves 2 MiB at a time
MARKED = re.compile(r"^\s*@pytest\.mark\.cuda|marks=pytest\.mark\.cuda|^pytestmark = .*mark\.cuda", re.MULTILINE)


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
    """Row: a step of two ranks with half of a batch each on one device, and whether their weights are the same.

    nccl refuses two ranks on one card. The sums go over gloo, through the host: their time says nothing about nccl.
    """
    fork = multiprocessing.get_context("fork")  # this process has not touched the device
    pool = ProcessPoolExecutor(RANKS, fork)  # not waited for if one fails: the other one hangs then
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
    import pytest

    def result(report: Any) -> None:
        if report.passed and getattr(report, "when", "") != "call":
            return
        text = report.longrepr[2] if report.skipped else report.longreprtext
        missing = re.search(r"No module named '[\w.]+'", text)
        outcome = "skipped" if missing else report.outcome
        reason = missing[0] if missing else " ".join(text.split())[-200:]
        channel.row("tests", test=report.nodeid, outcome=f"{outcome} {reason}".strip())
        if outcome == "failed" or (outcome == "skipped" and setting.is_cuda and not missing):
            channel.send("failures", f"{report.nodeid}: {outcome}: {reason}")

    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if MARKED.search(path.read_text())]
    channel.send("say", f"pytest on {len(files)} files")
    hooks = SimpleNamespace(pytest_runtest_logreport=result, pytest_collectreport=result)
    with tempfile.TemporaryDirectory(prefix="icestream-gpu-") as folder:
        words = ["-c", "/dev/null", "--rootdir", str(ROOT), "--noconftest", "-m", "cuda and not slow"]
        words += ["--continue-on-collection-errors", "-p", "no:xdist", "-p", "no:terminal", "--basetemp", f"{folder}/t"]
        words += ["-o", f"cache_dir={folder}", "-o", f"pythonpath={ROOT} {ROOT}/tests {ROOT}/tests/pipeline"]
        pytest.main([*words, *map(str, files)], plugins=[hooks])
