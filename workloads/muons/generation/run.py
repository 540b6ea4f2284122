"""Work of `icestream generate`: files of bundles from primaries and a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch

from common.config import SourceConfig
from common.errors import BadInputError
from common.files.remotes import Remotes
from common.slow_progress import SlowProgress
from workloads.base.device import device_named
from workloads.base.front import Front
from workloads.muons.generation.files import FilePrimaries
from workloads.muons.generation.load import Trained, load_trained
from workloads.muons.generation.options import GenerateOptions
from workloads.muons.generation.primaries import WantedCounts
from workloads.muons.generation.simulated import simulated_primaries
from workloads.muons.generation.stream import CountRule, Counts
from workloads.muons.generation.stream import generate as generate_events
from workloads.muons.generation.write import BundleWriter

_LARGEST_CONSTANT = 10**9


@dataclass
class _Total:
    events: int = 0
    muons: int = 0
    capped: int = 0


def run_generate(front: Front, options: GenerateOptions) -> str:
    """One line of what was written. Raises BadInputError."""
    _check_options(options.inputs, options.preset_name, options.events, options.counts, options.counts_column)
    kind, constant = parse_counts(options.counts)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    trained = load_trained(options.checkpoint, device_named(options.device))
    settings = front.file_settings(options.inputs, toml=options.toml, assignments=options.assignments)
    source = merged_source(settings.source, trained.run.source, options.depth_kind)
    settings, depth = replace(settings, source=source), source.depth_kind
    most = trained.max_count if options.max_count is None else options.max_count
    rule = CountRule(kind, constant, most)
    writer = BundleWriter(
        options.out,
        rows_per_file=options.rows_per_file,
        force=options.force,
        provenance=_provenance(trained, options.counts, most, depth, options.seed),
    )
    total = _Total()
    started_s = time.perf_counter()
    with ExitStack() as stack:
        progress = stack.enter_context(SlowProgress("events generated", options.events or 0))
        if options.preset_name is not None:
            assert options.events is not None
            primaries = simulated_primaries(options.preset_name, options.events, depth, options.seed)
            known = options.events
        else:
            wanted = WantedCounts(options.counts_column) if kind == "column" else None
            files = FilePrimaries(settings, stack.enter_context(Remotes(settings.access)), wanted, options.out)
            primaries, known = files.primaries(), 0
        stack.enter_context(writer)
        for generated in generate_events(primaries, trained.generator, rule, depth, options.seed):
            writer.write(generated)
            total.events += len(generated.counts_E)
            total.muons += len(generated.muons_P3)
            total.capped += generated.num_capped
            progress.reach(total.events, known or files.num_rows)
    rate = total.events / max(time.perf_counter() - started_s, 1e-9)
    capped = f"{total.capped:,} capped at {most:,} muons" if total.capped else "none capped"
    return (
        f"{options.out}: {total.events:,} events, {total.muons:,} muons, {capped}, "
        f"{len(writer.paths)} file{'s' * (len(writer.paths) != 1)}, {rate:,.0f} events/s "
        f"(step {trained.run.step:,} of {trained.run.path})"
    )


def parse_counts(text: str) -> tuple[Counts, int]:
    """Parsed option `--counts`: ``constant:7`` -> ("constant", 7). Raises BadInputError."""
    if text == "sampled":
        return "sampled", 0
    if text == "column":
        return "column", 0
    kind, _, number = text.partition(":")
    if kind == "constant" and number.isdecimal() and int(number) <= _LARGEST_CONSTANT:
        return "constant", int(number)
    raise BadInputError(
        f"--counts {text}: expected sampled, column, or constant:N with a whole number N of at most"
        f" {_LARGEST_CONSTANT:,}"
    )


def merged_source(source: SourceConfig, trained: SourceConfig, depth_kind: str | None) -> SourceConfig:
    """Settings of these files; unset ones are taken from the training's files."""
    told = {name: getattr(source, name) for name in source.model_fields_set}
    if depth_kind is not None:
        told["depth_kind"] = depth_kind
    return trained.model_copy(update=told)


def _check_options(
    inputs: Sequence[str], preset_name: str | None, events: int | None, counts: str, counts_column: str
) -> None:
    if preset_name is None and not inputs:
        raise BadInputError("no primaries: name files with them, or use --primaries-from PRESET --events N")
    if preset_name is not None and inputs:
        raise BadInputError(f"--primaries-from {preset_name} and {inputs[0]}: use one of both")
    if (preset_name is None) != (events is None):
        raise BadInputError("--primaries-from and --events belong together")
    if preset_name is not None and counts == "column":
        raise BadInputError("--counts column reads numbers of muons from files: not with --primaries-from")
    if counts_column and counts != "column":
        raise BadInputError(f"--counts-column {counts_column} needs --counts column, and not {counts}")


def _provenance(trained: Trained, counts: str, max_count: int, depth_kind: str, seed: int) -> dict[str, str | int]:
    return {
        "model": trained.run.model,
        "step": trained.run.step,
        "events_trained": trained.run.events_trained,
        "counts": counts,
        "max_count": max_count,
        "depth_kind": depth_kind,
        "seed": seed,
    }
