"""Replay ceiling by the size of a batch, until one does not fit the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import torch
from pydantic import BaseModel, ConfigDict

from common.own_memory import MIB
from icestream.commands.bench.batches import batches_from_files, events_for
from icestream.commands.bench.units import with_inputs
from services.config.root import Config
from services.trainer.ranks.ranks import Ranks
from services.trainer.service import step_context, training_of
from services.trainer.speed.gpu_sampler import start_gpu_sampler
from services.trainer.speed.memory import peak_bytes, reset_peak
from services.trainer.speed.replay import Ceiling, measure


class SizeTrial(BaseModel):
    """Result for one size of a batch."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    batch_events: int
    ceiling: Ceiling | None
    """None: its batches or a step on them did not fit the memory."""
    gpu_busy: float | None = None
    """Part of the time in which a kernel ran; None where it is not measured."""
    peak_memory_bytes: int
    """Maximum in tensors on CUDA; else the maximum resident memory of the process so far."""


def measure_sizes(
    config: Config, sizes: Sequence[int], device: torch.device, *, num_batches: int, steps: int, seconds: float
) -> list[SizeTrial]:
    """Trials with ``sizes`` events in a batch, in that order, up to the first size that does not fit the memory."""
    trials: list[SizeTrial] = []
    with with_inputs(config, events_for(_with_size(config, max(sizes)), num_batches)) as with_files:
        for size in sizes:
            of_size = _with_size(with_files, size)
            reset_peak(device)
            busy: list[float] = []
            ceiling = None
            try:
                batches = batches_from_files(of_size, num_batches, device)
                task = training_of(of_size).task(of_size.trainer.of_model, step_context(of_size, device, Ranks.alone()))
                with _sampled(device, busy):
                    ceiling = measure(task, batches, device, seconds=seconds, steps=steps)
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not _is_out_of_memory(error):
                    raise
            trials.append(
                SizeTrial(
                    batch_events=size,
                    ceiling=ceiling,
                    gpu_busy=busy[0] if busy else None,
                    peak_memory_bytes=peak_bytes(device),
                )
            )
            if ceiling is None:
                break
    return trials


def sweep_lines(trials: Sequence[SizeTrial]) -> list[str]:
    """Table of the trials, for people; the GPU's column only where it was measured."""
    has_gpu = any(trial.gpu_busy is not None for trial in trials)
    head = f"  {'events':>9}{'s/step':>12}{'events/s':>12}{'particles/s':>14}{'peak MiB':>11}"
    lines = [head + (f"{'GPU busy':>10}" if has_gpu else "")]
    for trial in trials:
        if (ceiling := trial.ceiling) is None:
            lines.append(f"  {trial.batch_events:>9,}  out of memory: the sweep ends here")
            continue
        line = (
            f"  {trial.batch_events:>9,}{ceiling.s_per_step:>12.5f}{ceiling.events_per_s:>12,.1f}"
            f"{ceiling.particles_per_s:>14,.1f}{trial.peak_memory_bytes / MIB:>11,.0f}"
        )
        lines.append(line + (f"{trial.gpu_busy:>10.0%}" if trial.gpu_busy is not None else ""))
    return lines


def _with_size(config: Config, size: int) -> Config:
    return config.model_copy(update={"stream": config.stream.model_copy(update={"batch_events": size})})


@contextmanager
def _sampled(device: torch.device, busy: list[float]) -> Iterator[None]:
    """Context that appends the GPU's mean utilisation at its end, where there is one."""
    sampler = start_gpu_sampler(device)
    if sampler is None:
        yield
        return
    with closing(sampler):
        yield
        busy.extend(sampler.read().values())


def _is_out_of_memory(error: Exception) -> bool:
    """True for memory of the device or the host; torch raises a plain RuntimeError for the latter."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in str(error)
