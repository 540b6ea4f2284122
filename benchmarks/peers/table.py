"""Page of the findings, in Markdown."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.peers.accounting import Account
from benchmarks.peers.claims import CLAIMS, QUESTIONS
from benchmarks.peers.features import FEATURES, WHERE
from benchmarks.peers.loaders import Peer, version_of
from benchmarks.peers.measure import Resume, Speed

PLAIN, ALL = "", "all"
"""Variants of a measurement besides those with one feature: none switched on, and all that a loader has."""


@dataclass
class Findings:
    """All that was measured of one loader."""

    peer: Peer
    prepared: tuple[float, int] | None = None
    """Seconds and bytes of the conversion."""
    speeds: dict[str, list[Speed]] = field(default_factory=dict)
    """Features that are switched on, by variant."""
    resume: Resume | None = None
    errors: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.peer.title


@dataclass
class Setting:
    """Circumstances of the measurements."""

    command: str
    events: int
    copies: int
    source_bytes: int
    batch_events: int
    workers: int
    seconds: float
    resume_events: int
    resume_batch_events: int
    other_workers: int
    loads: list[float]
    commit: str
    minutes: float


def page(day: str, setting: Setting, findings: Sequence[Findings]) -> str:
    """The whole page."""
    present = [one for one in findings if not one.peer.missing]
    parts = [_head(day, setting), _speeds(setting, present), _with_features(setting, present)]
    parts += [_resumes(setting, present), _claims(present), _words(present)]
    missing = [f"{one.name}: not installed ({', '.join(one.peer.missing)})" for one in findings if one.peer.missing]
    errors = [f"{one.name}: {error}" for one in present for error in one.errors]
    if missing or errors:
        parts.append("## Missing\n\n" + "\n".join(f"- {line}" for line in missing + errors))
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(day: str, setting: Setting) -> str:
    packages = ", ".join(f"{name} {version_of(name)}" for name in ("torch", "pyarrow", "numpy"))
    rows = [
        ["command", f"`{setting.command}` ({setting.minutes:.0f} minutes)"],
        ["hardware", f"{platform.machine()}, {os.cpu_count()} cores, no GPU used"],
        ["load", f"{min(setting.loads):.1f} to {max(setting.loads):.1f} (1-minute averages before each measurement)"],
        ["versions", f"Python {platform.python_version()}, {packages}; icestream {setting.commit}"],
    ]
    return f"# icestream beside other loaders, {day}\n\n" + _table(["", ""], rows)


def _speeds(setting: Setting, findings: Iterable[Findings]) -> str:
    findings = [one for one in findings if PLAIN in one.speeds]
    if not findings:
        return ""
    header = ["loader", "rewritten", "seconds, MB", "events/s", "CPU µs/event", "start-up, s", "memory, MB"]
    rows = []
    for one in findings:
        seconds, size = one.prepared or (0.0, 0)
        row = [one.name, one.peer.conversion or "nothing", f"{seconds:.1f}, {size / 1e6:.1f}" if one.prepared else "0"]
        speeds = one.speeds[PLAIN]
        row += [_spread([s.events_per_s for s in speeds], 0), _spread([s.cpu_us for s in speeds], 2)]
        row += [_spread([s.startup_s for s in speeds], 1), _spread([s.peak_bytes / 1e6 for s in speeds], 0)]
        rows.append(row)
    return (
        "## Speed\n\n"
        f"{setting.events:,} events of 10 files in two sets ({setting.source_bytes / 1e6:.1f} MB, Parquet);"
        f" {setting.copies} times (copies) for all but MosaicML Streaming and Energon. Batches of"
        f" {setting.batch_events:,}, {setting.workers} workers, a window of {setting.seconds:g} s after the first"
        " batches. Median (smallest to largest). Conversion and start-up from the start of a process. Memory: peak of"
        " the sum of PSS over all processes.\n\n" + _table(header, rows)
    )


def _with_features(setting: Setting, findings: Iterable[Findings]) -> str:
    variants = [variant for variant in (*FEATURES, ALL) if any(variant in one.speeds for one in findings)]
    if not variants:
        return ""
    rows = []
    for one in findings:
        for variant in variants:
            speeds = one.speeds.get(variant, [])
            if not speeds:
                continue
            features = one.peer.has if variant == ALL else (variant,)
            share = f"{statistics.median(s.share for s in speeds):.3f}" if "mix" in features else "-"
            row = [one.name, ", ".join(features), _spread([s.events_per_s for s in speeds], 0)]
            rows.append([*row, _spread([s.cpu_us for s in speeds], 2), share])
    header = ["loader", "switched on", "events/s", "CPU µs/event", "share of the first set, 0.7 asked"]
    return (
        "## With features\n\n"
        f"As above, with a filter (`{WHERE}`, in the loader's own form; a sixth of the events stay), both sets mixed"
        " 7:3, a transform of the muons in the workers (log10 of the energies) and a further column of the events."
        " Events are those delivered, after the filter. Each batch looked at was filtered, transformed and complete."
        "\n\n" + _table(header, rows)
    )


def _resumes(setting: Setting, findings: Iterable[Findings]) -> str:
    rows = [
        [
            one.name,
            _told(one.resume.stopped),
            _told(one.resume.others),
            _told(one.resume.ended),
            _told(one.resume.killed),
            one.resume.left,
            f"{one.resume.mixing:.2f}",
        ]
        for one in findings
        if one.resume
    ]
    if not rows:
        return ""
    header = [
        "loader",
        "stopped, continued",
        f"with {_workers(setting.other_workers)}",
        "at the end of an epoch",
        "`kill -9`",
    ]
    header += ["left by `kill -9`", "mixing, chi²/dof"]
    return (
        "## Resume\n\n"
        f"{setting.resume_events:,} events, batches of {setting.resume_batch_events:,}, 2 workers. Stopped after"
        " batch 37 of the epoch with the state saved then, and continued to its end in a new process; `kill -9` after"
        " batch 37, continued from the state of batch 30; stopped behind the last batch of an epoch, and the next epoch"
        " read. Compared with undisturbed epochs of the same seed: events"
        " lost / repeated / out of order (fewest that would have to be moved).\n\n" + _table(header, rows)
    )


def _claims(findings: Iterable[Findings]) -> str:
    findings = list(findings)
    claims = [CLAIMS[one.peer.module] for one in findings]
    answers = zip(*(one.answers for one in claims), strict=True)
    rows = [[question, *row] for question, row in zip(QUESTIONS, answers, strict=True)]
    pages = [
        f"- {one.name}: " + ", ".join(f"({number}) {name}" for number, name in enumerate(of.pages, start=1))
        for one, of in zip(findings, claims, strict=True)
    ]
    return (
        "## Who has what\n\n"
        'By the documentation of each, with the number of the page that says so. "own code": the user writes it, as'
        ' the page says. "-": the documentation has nothing of it. What was measured of the first four is above.'
        "\n\n" + _table(["", *(one.name for one in findings)], rows) + "\n\nPages:\n\n" + "\n".join(pages)
    )


def _words(findings: Iterable[Findings]) -> str:
    rows = [[one.name, one.peer.versions or "this commit", one.peer.shuffle, one.peer.state] for one in findings]
    return "## How each was used\n\n" + _table(["loader", "version", "shuffle", "state"], rows)


def _told(result: Account | str) -> str:
    if isinstance(result, str):
        return f"refused or failed ({result.replace('|', '/')})"
    exact = not (result.lost or result.repeated or result.moved)
    numbers = "exact" if exact else f"{result.lost:,} / {result.repeated:,} / {result.moved:,}"
    if result.empty_loops:
        return f"an empty loop, then {numbers}" if result.empty_loops == 1 else "two empty loops"
    return f"**{numbers}**" if exact else numbers


def _workers(number: int) -> str:
    return "1 worker" if number == 1 else f"{number} workers"


def _spread(values: Sequence[float], digits: int) -> str:
    if not values:
        return "failed"
    middle = f"{statistics.median(values):,.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
