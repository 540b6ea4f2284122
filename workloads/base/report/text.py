"""Table of an evaluation, in plain text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workloads.base.report.at_floor import not_at_floor, title
from workloads.base.report.beside import value_heads, with_those_beside
from workloads.base.report.metric import Metric
from workloads.base.report.numbers import floor_with_error, ratio_text, verdict_text, with_error
from workloads.base.report.outcome import Outcome
from workloads.base.report.verdict import in_order
from workloads.base.report.words import ReportWords

_NUMBERS = (1, 2, 3, 6)
"""Columns that are aligned on the right."""


def lines(outcome: Outcome, words: ReportWords) -> Iterator[str]:
    """Title and what is off its floor, then the table: headline metrics, the others, and notes."""
    report, beside = outcome.report, outcome.beside
    headline, others = in_order(with_those_beside(report.metrics, beside), words.headline)
    value, other_value = value_heads(outcome.provenance, beside)
    head: tuple[str, ...] = ("metric", value, "floor ± error", "ratio", "unit", "verdict")
    rows = [_row(name, metric) for name, metric in (headline | others).items()]
    if beside:
        head = (*head, other_value, "verdict")
        rows = [(*row, *beside.cells(row[0])) for row in rows]
    yield title(outcome)
    if failed := not_at_floor(outcome, words):
        yield failed
    yield ""
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
    return name, with_error(metric), floor_with_error(metric), ratio_text(metric), metric.unit, verdict_text(metric)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    texts = [
        cell.rjust(width) if index in _NUMBERS else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(texts).rstrip()


def missed_lines(missed: Mapping[str, str]) -> Iterator[str]:
    """Lines of the missed thresholds, one each."""
    yield from (f"missed: {name}: {why}" for name, why in missed.items())
