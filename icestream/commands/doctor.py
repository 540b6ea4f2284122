"""Command `icestream doctor`: checks of configuration, machine, inputs and token before a run."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click
import pynvml

from common import options
from common.errors import USER_ERROR_EXIT_CODE, BadInputError, BadInputsError, IcestreamError
from common.files.inputs import expand, local_path
from common.files.local import expand_lists
from common.files.remotes import Remotes
from common.locks import NO_LOCKS, holder_of, try_lock
from common.memory import available_memory_bytes
from common.pelican.answers import BadTokenError
from common.pelican.token_claims import needs
from common.pelican.tokens import FoundTokens
from common.plan import SourceFile
from common.run_words import binary_words, counted
from common.text import shown
from icestream.commands.inspect import describe
from icestream.commands.run_session import resolved_config
from icestream.reading import file_settings, staging
from icestream.run_config import load_run_config
from icestream.version import version_lines
from services.config.root import Config, open_files_needed
from services.config.settings import make_ranges
from workloads.registry import NO_MODEL

_PROCESS_BYTES = 200 << 20
"""Memory of a fetcher or decoder, at most; a trainer's depends on its model."""
_MOST_FILES = 20
_MOST_READ_BYTES = 256 << 20
_MOST_SHOWN = 5
_LONGEST = 2000
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}
EXAMPLES = """\b
Examples:
  icestream doctor                                  # this machine
  icestream doctor -i 'data/*.parquet' -c mine.toml --device cuda
  icestream doctor runs/mine                        # for an existing run, before it is resumed

\b
Exit codes: 0 a run can start, 2 there is a problem.
"""


class Finding(NamedTuple):
    """Result of one check."""

    level: Literal["ok", "warning", "problem"]
    """A problem ends a run, or keeps it from its start; a warning does not."""
    name: str
    text: str


@click.command(epilog=EXAMPLES, cls=options.RunCommand)
@options.run_argument(default="run")
@options.input_option
@options.ranges_option
@options.device_option()
@options.token_file_option
@options.config_options
def doctor(
    run_dir: Path,
    inputs: tuple[str, ...],
    ranges: str | None,
    device: str | None,
    token_file: Path | None,
    toml: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Check configuration, machine, inputs and token before a run, and report all problems. Nothing is started.

    RUN: directory of an existing run, with its stored settings, or of the one to come.
    Of local files some, spread over all, are looked at as a run does it; of remote ones the first is fetched.
    """
    flags = {
        "input": options.absolute(inputs) or None,
        "fetcher.ranges": ranges,
        "trainer.device": device,
        "token.file": token_file,
    }
    problems = 0
    for finding in findings(run_dir, toml, assignments, flags):
        problems += finding.level == "problem"
        level = click.style(f"{finding.level:<8}", fg=_COLOURS[finding.level])
        click.echo(f"{level} {finding.name:<14} {shown(finding.text, _LONGEST)}")
    if problems:
        click.echo(f"{counted(problems, 'problem')}")
        sys.exit(USER_ERROR_EXIT_CODE)


def findings(run_dir: Path, toml: Path | None, assignments: Sequence[str], flags: dict[str, Any]) -> Iterator[Finding]:
    """Run all checks. With mistakes in the configuration, the machine is checked for the default one."""
    yield Finding("ok", "versions", ", ".join(version_lines()))
    try:
        config = load_run_config(run_dir, toml=toml, assignments=assignments, flags=flags)
        if config.input:
            config = resolved_config(run_dir, False, toml, assignments, flags)
    except BadInputError as error:
        lines = error.lines if isinstance(error, BadInputsError) else (str(error),)
        yield from (Finding("problem", "configuration", line) for line in lines)
        yield Finding("warning", "inputs", "not checked: the configuration has to be correct for that")
        yield from check_machine(Config(), run_dir)
        return
    yield Finding("ok", "configuration", f"workload {config.workload}, model {config.trainer.model}")
    yield from check_machine(config, run_dir)
    yield from check_tokens(config)
    yield from check_inputs(config)


# ------------------------------------------------------------------ machine


def check_machine(config: Config, run_dir: Path) -> Iterator[Finding]:
    """Check this machine for a run of ``config`` in ``run_dir``. Files that are made to try are removed."""
    yield check_cores(config, len(os.sched_getaffinity(0)))
    yield check_memory(config, available_memory_bytes())
    yield check_open_files(config, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield check_folder(run_dir)
    yield from check_cache(config, run_dir)
    yield from check_device(config)


def check_cores(config: Config, usable: int) -> Finding:
    """Check the CPU cores."""
    decoders = config.local.decoders_at_start * config.decoder.threads
    text = f"{counted(usable, 'core')} usable"
    if decoders > usable:
        return Finding("warning", "cores", f"{text}, and the decoders have {decoders} threads: lower --decoders")
    return Finding("ok", "cores", text)


def check_memory(config: Config, available: int) -> Finding:
    """Check the memory that control groups and other processes leave."""
    arena = config.stream.slots * config.stream.slot_bytes
    needed = arena + (1 + config.local.decoders_at_start + config.local.trainers) * _PROCESS_BYTES
    sizes = f"the arena takes {binary_words(arena)}, with all processes about {binary_words(needed)}"
    text = f"{binary_words(available)} available; {sizes}"
    if arena > available:
        return Finding("problem", "memory", f"{text}: lower stream.slots or stream.slot_mib")
    if needed > available:
        return Finding("warning", "memory", f"{text}: lower --decoders, stream.slots or stream.slot_mib")
    return Finding("ok", "memory", text)


def check_open_files(config: Config, limit: int) -> Finding:
    """Check the hard limit of open files, up to which each process raises its own."""
    needed = open_files_needed(config)
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return Finding("ok", "open files", "no limit" if limit == resource.RLIM_INFINITY else f"limit {limit:,}")
    return Finding("problem", "open files", f"limit {limit:,}, needed are about {needed:,}: ulimit -n {needed}")


def check_folder(run_dir: Path) -> Finding:
    """Check the run directory, or the place where it is to be made: writable, locks, in use, space."""
    holder = holder_of(run_dir, "run")
    if holder is not None and holder.is_alive() is not False:
        return Finding("problem", "run directory", f"{run_dir} is in use by {holder}: icestream status {run_dir}")
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
        return Finding("problem", "run directory", f"{folder} {why}; choose another --run-dir")
    free = shutil.disk_usage(folder).free
    text = f"{run_dir}: writable, with locks, {binary_words(free)} free"
    return Finding("warning" if free < 1 << 30 else "ok", "run directory", text)


def check_cache(config: Config, run_dir: Path) -> Iterator[Finding]:
    """Check the space for remote files; no finding if all inputs are local."""
    if not any("://" in text for text in config.input):
        return
    cache = config.fetcher.cache_dir or run_dir / "cache"
    folder = next(path for path in (cache.absolute(), *cache.absolute().parents) if path.is_dir())
    free, budget = shutil.disk_usage(folder).free, int(config.fetcher.disk_budget_gib * 2**30)
    text = f"{cache}: {binary_words(free)} free, budget {binary_words(budget)}"
    if free < budget:
        yield Finding("warning", "cache", f"{text}: lower fetcher.disk_budget_gib, or choose another fetcher.cache_dir")
    else:
        yield Finding("ok", "cache", text)


def check_device(config: Config) -> Iterator[Finding]:
    """Check GPUs and torch; the device is looked up as the trainer does it."""
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
    """Find GPUs by NVML, with their driver; none without NVIDIA's library."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            free = f"{binary_words(memory.free)} of {binary_words(memory.total)} free"
            yield Finding("ok", f"GPU {index}", f"{pynvml.nvmlDeviceGetName(handle)}, {free}, driver {driver}")
    except pynvml.NVMLError as error:
        yield Finding("warning", "GPU", f"NVML: {error}")
    finally:
        pynvml.nvmlShutdown()


# ------------------------------------------------------------------ inputs


def check_inputs(config: Config) -> Iterator[Finding]:
    """Check the inputs: how many files, and whether some of them, spread over all, can be used."""
    if not config.input:
        yield Finding("warning", "inputs", "none given: name them with -i/--input")
        return
    try:
        config.require_sets()
        first, *others = make_ranges(config.input, config.fetcher.ranges)
        with Remotes(config.remote_access()) as remotes:
            files = expand(first.inputs, remotes)
            of_range = f" in range {first.name}, of {len(others) + 1}" if others else ""
            size = binary_words(sum(file.size_bytes for file in files))
            yield Finding("ok", "inputs", f"{counted(len(files), 'file')}, {size}{of_range}")
            yield from _check_files(config, files, remotes)
    except IcestreamError as error:
        yield Finding("problem", "inputs", str(error))


def spread(files: Sequence[SourceFile]) -> Sequence[SourceFile]:
    """Return some of the files, the first among them: all but a few if they are local, one if it has to be fetched."""
    if any(local_path(file.url) is None for file in files):
        return files[:1]
    step = max(1, len(files) // _MOST_FILES)
    return files[::step][:_MOST_FILES]


def _check_files(config: Config, files: Sequence[SourceFile], remotes: Remotes) -> Iterator[Finding]:
    schema, chosen = config.stored_workload(), spread(files)
    bad: list[str] = []
    with staging(schema, file_settings(config), remotes, chosen) as bring:
        for index, file in enumerate(chosen):
            try:
                staged = bring(index, file)
            except BadInputError as error:
                bad.append(str(error))
                continue
            if index == 0 and file.size_bytes <= _MOST_READ_BYTES:
                found = describe(Path(staged.path), shown(file.url), schema, num_events=0)
                bad += found.problems
                words = f"{found.kind} of {config.workload}, {found.events:,} events, {found.particles:,} particles"
                yield Finding("ok", "first file", f"{found.name}: {words}")
    yield from (Finding("problem", "file", shown(text)) for text in bad[:_MOST_SHOWN])
    if len(bad) > _MOST_SHOWN:
        yield Finding("problem", "file", f"… and {len(bad) - _MOST_SHOWN} more")
    if not bad:
        yield Finding("ok", "files", f"{len(chosen)} of {len(files)} looked at, all usable")


def check_tokens(config: Config) -> Iterator[Finding]:
    """Check the token of each federation among the inputs and outputs; the token itself is not shown."""
    outputs = [config.outputs.destination] if config.outputs.destination else []
    try:
        wanted = needs(list(expand_lists(config.input)), outputs, storage_prefix=config.token.storage_prefix)
    except IcestreamError as error:
        yield Finding("problem", "token", str(error))
        return
    for need in wanted:
        source = FoundTokens(need, config.token)
        try:
            text = source.check()
        except BadTokenError as error:
            yield Finding("problem", "token", f"{need.federation}: {error}")
        else:
            yield Finding("warning" if source.not_covered() else "ok", "token", f"{need.federation}: {text}")
