"""Checks of the machine: cores, memory, arena, open files, disk, GPU."""

from __future__ import annotations

import importlib
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.arena import Arena
from common.errors import BadInputError
from common.file_lock import NO_LOCKS, holder_of, try_lock
from common.memory_limit import available_memory_bytes
from common.run_words import counted
from icestream.commands.doctor.finding import Finding
from icestream.commands.status.view import gib
from services.config.open_files import open_files_needed
from services.config.root import Config
from services.config.trainer import NO_MODEL

_PROCESS_BYTES = 200 << 20
"""Memory of a fetcher or decoder, at most; a trainer's depends on its model."""


def check_machine(config: Config, run_dir: Path) -> Iterator[Finding]:
    """Findings on this machine for a run of ``config`` in ``run_dir``. Files that are made to try are removed."""
    yield from check_cores(config, len(os.sched_getaffinity(0)))
    yield from check_memory(config, available_memory_bytes())
    yield from check_arena()
    yield from check_open_files(config, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield from check_folder(run_dir)
    yield from check_cache(config, run_dir)
    yield from check_device(config)


def check_cores(config: Config, usable: int) -> Iterator[Finding]:
    """Finding on the CPU cores."""
    decoders = config.local.decoders_at_start * config.decoder.threads
    text = f"{counted(usable, 'core')} usable"
    if decoders > usable:
        yield Finding("warning", "cores", f"{text}, and the decoders have {decoders} threads: lower --decoders")
    else:
        yield Finding("ok", "cores", text)


def check_memory(config: Config, available: int) -> Iterator[Finding]:
    """Finding on the memory that control groups and other processes leave."""
    arena = config.stream.slots * config.stream.slot_bytes
    needed = arena + (1 + config.local.decoders_at_start + config.local.trainers) * _PROCESS_BYTES
    text = f"{gib(available)} available; the arena takes {gib(arena)}, with all processes about {gib(needed)}"
    if arena > available:
        yield Finding("problem", "memory", f"{text}: lower stream.slots or stream.slot_mib")
    elif needed > available:
        yield Finding("warning", "memory", f"{text}: lower --decoders, stream.slots or stream.slot_mib")
    else:
        yield Finding("ok", "memory", text)


def check_arena() -> Iterator[Finding]:
    """Finding on shared memory, by making some."""
    try:
        Arena.create(1, 4096).close()
    except (OSError, BadInputError) as error:
        yield Finding("problem", "arena", f"no shared memory (memfd_create): {error}")
    else:
        yield Finding("ok", "arena", "shared memory works (memfd, no /dev/shm needed)")


def check_open_files(config: Config, limit: int) -> Iterator[Finding]:
    """Finding on the hard limit of open files, up to which each process raises its own."""
    needed = open_files_needed(config)
    if limit == resource.RLIM_INFINITY or limit >= needed:
        yield Finding("ok", "open files", "no limit" if limit == resource.RLIM_INFINITY else f"limit {limit:,}")
    else:
        yield Finding("problem", "open files", f"limit {limit:,}, needed are about {needed:,}: ulimit -n {needed}")


def check_folder(run_dir: Path) -> Iterator[Finding]:
    """Findings on the run directory, or where it is to be made: writable, locks, in use, space."""
    holder = holder_of(run_dir, "run")
    if holder is not None and holder.is_alive() is not False:
        yield Finding("problem", "run directory", f"{run_dir} is in use by {holder}: icestream status {run_dir}")
        return
    folder = next(path for path in (run_dir.absolute(), *run_dir.absolute().parents) if path.is_dir())
    try:
        with tempfile.TemporaryDirectory(prefix=".icestream-doctor-", dir=folder) as trial:
            lock = try_lock(Path(trial) / "lock")
            if lock is not None:
                os.close(lock)
    except OSError as error:
        why = f"can't be written ({error.strerror})"
        if error.errno in NO_LOCKS:
            why = f"has no locks ({error.strerror}), which keep a second host out: mount it with them"
        yield Finding("problem", "run directory", f"{folder} {why}; choose another --run-dir")
        return
    usage = shutil.disk_usage(folder)
    text = f"{run_dir}: writable, with locks, {gib(usage.free)} free"
    yield Finding("warning" if usage.free < 1 << 30 else "ok", "run directory", text)


def check_cache(config: Config, run_dir: Path) -> Iterator[Finding]:
    """Finding on the space for remote files; none if all inputs are local."""
    if not any("://" in text for text in config.input):
        return
    cache = config.fetcher.cache_dir or run_dir / "cache"
    folder = next(path for path in (cache.absolute(), *cache.absolute().parents) if path.is_dir())
    free, budget = shutil.disk_usage(folder).free, int(config.fetcher.disk_budget_gib * 2**30)
    text = f"{cache}: {gib(free)} free, budget {gib(budget)}"
    if free < budget:
        yield Finding("warning", "cache", f"{text}: lower fetcher.disk_budget_gib, or choose another fetcher.cache_dir")
    else:
        yield Finding("ok", "cache", text)


def check_device(config: Config) -> Iterator[Finding]:
    """Findings on GPUs and torch; the device is looked up as the trainer does it."""
    if config.trainer.model == NO_MODEL:
        return
    gpus = list(_gpus())
    yield from gpus
    try:
        from workloads.base.device import device_named  # torch: seconds

        device = device_named(config.trainer.device, f"trainer.device = {config.trainer.device!r}")
    except BadInputError as error:
        yield Finding("problem", "device", f"{error}; {_torch_words()}")
    except ImportError as error:
        yield Finding("problem", "device", f"torch can't be imported: {error}")
    else:
        if gpus and device.type == "cpu" and config.trainer.device == "auto":
            yield Finding("warning", "device", f"cpu, although there is a GPU: {_torch_words()}")
        else:
            yield Finding("ok", "device", f"{device}; {_torch_words()}")


def _torch_words() -> str:
    import torch

    return f"torch {torch.__version__} {f'for CUDA {torch.version.cuda}' if torch.version.cuda else 'without CUDA'}"


def _gpus() -> Iterator[Finding]:
    """GPUs by NVML, with their driver; none without NVIDIA's library."""
    nvml: Any = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return
    try:
        driver = nvml.nvmlSystemGetDriverVersion()
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            text = f"{nvml.nvmlDeviceGetName(handle)}, {gib(memory.free)} of {gib(memory.total)} free, driver {driver}"
            yield Finding("ok", f"GPU {index}", text)
    except nvml.NVMLError as error:
        yield Finding("warning", "GPU", f"NVML: {error}")
    finally:
        nvml.nvmlShutdown()
