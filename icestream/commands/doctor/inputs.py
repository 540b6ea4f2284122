"""Checks of the inputs: listed, staged and planned as a run does it, and of the tokens for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.errors import BadInputError, IcestreamError
from common.files.inputs import expand, local_path
from common.files.list_files import expand_lists
from common.files.remotes import Remotes
from common.pelican.tokens.errors import BadTokenError
from common.pelican.tokens.scopes import needs
from common.pelican.tokens.source import FoundTokens
from common.plan import SourceFile
from common.redact import shown
from common.run_words import counted
from icestream.commands.doctor.finding import Finding
from icestream.commands.inspect.describe import describe
from icestream.commands.status.view import gib
from icestream.reading.staging import staging
from services.config.root import Config
from services.fetcher.inventory.ranges import make_ranges
from workloads.base.front import FileSettings

_MOST_FILES = 20
_MOST_READ_BYTES = 256 << 20
_MOST_SHOWN = 5


def check_inputs(config: Config) -> Iterator[Finding]:
    """Findings on the inputs: how many files, and whether some of them, spread over all, can be used."""
    if not config.input:
        yield Finding("warning", "inputs", "none given: name them with -i/--input")
        return
    try:
        first, *others = make_ranges(config.input, config.fetcher.ranges)
        with Remotes(config.remote_access()) as remotes:
            files = expand(first.inputs, remotes)
            of_range = f" in range {first.name}, of {len(others) + 1}" if others else ""
            size = gib(sum(file.size_bytes for file in files))
            yield Finding("ok", "inputs", f"{counted(len(files), 'file')}, {size}{of_range}")
            yield from _check_files(config, files, remotes)
    except IcestreamError as error:
        yield Finding("problem", "inputs", str(error))


def spread(files: Sequence[SourceFile]) -> Sequence[SourceFile]:
    """Some of the files, the first among them: all but a few if they are local, one if it has to be fetched."""
    if any(local_path(file.url) is None for file in files):
        return files[:1]
    step = max(1, len(files) // _MOST_FILES)
    return files[::step][:_MOST_FILES]


def _check_files(config: Config, files: Sequence[SourceFile], remotes: Remotes) -> Iterator[Finding]:
    schema, chosen = config.stored_workload(), spread(files)
    settings = FileSettings(
        config.input, config.source, config.stream, config.remote_access(), config.fetcher.cache_dir
    )
    bad: list[str] = []
    with staging(schema, settings, remotes, chosen) as bring:
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
    """Findings on the token of each federation among the inputs and outputs; the token itself is not shown."""
    outputs = [config.outputs.destination] if config.outputs.destination else []
    try:
        wanted = needs(list(expand_lists(config.input)), outputs, storage_prefix=config.token.storage_prefix)
    except IcestreamError as error:
        yield Finding("problem", "token", str(error))
        return
    for need in wanted:
        source = FoundTokens(need, config.token)
        try:
            text = asyncio.run(source.check())
        except BadTokenError as error:
            yield Finding("problem", "token", f"{need.federation}: {error}")
        else:
            yield Finding("warning" if source.not_covered() else "ok", "token", f"{need.federation}: {text}")
