"""Table of an evaluation, in plain text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workloads.base.report.beside import value_heads
from workloads.base.report.metric import Metric
from workloads.base.report.numbers import plain, ratio_text, with_error
from workloads.base.report.outcome import Outcome
from workloads.base.report.verdict import in_order, verdict
from workloads.base.report.words import ReportWords

_NUMBERS = (1, 2, 3, 6)
"""Columns that are aligned on the right."""


def lines(outcome: Outcome, words: ReportWords) -> Iterator[str]:
    """Lines of the table: headline metrics, the others, and notes."""
    report, beside = outcome.report, outcome.beside
    headline, others = in_order(report.metrics, words.headline)
    value, other_value = value_heads(outcome.provenance["model"], beside)
    head: tuple[str, ...] = ("metric", value, "floor", "ratio", "unit", "verdict")
    rows = [_row(name, metric) for name, metric in (headline | others).items()]
    if beside:
        head = (*head, other_value, "verdict")
        rows = [(*row, *beside.cells(row[0])) for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    yield _line(head, widths)
    for index, row in enumerate(rows):
        if index in (0, len(headline)):
            yield "─" * (sum(widths) + 2 * (len(widths) - 1))
        yield _line(row, widths)
    yield ""
    yield f"{words.sizes_line.format_map(report.sizes)}; floor: {report.floor_kind}"
    if beside:
        yield "beside: {checkpoint} ({model}, step {step:,})".format_map(beside.provenance)
    yield from (f"note: {note}" for note in report.notes)


def _row(name: str, metric: Metric) -> tuple[str, ...]:
    return name, with_error(metric), plain(metric.floor), ratio_text(metric), metric.unit, verdict(metric)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    texts = [
        cell.rjust(width) if index in _NUMBERS else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(texts).rstrip()


def missed_lines(missed: Mapping[str, str]) -> Iterator[str]:
    """Lines of the missed thresholds, one each."""
    yield from (f"missed: {name}: {why}" for name, why in missed.items())
