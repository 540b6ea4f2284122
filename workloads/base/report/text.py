"""Table of an evaluation, in plain text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workloads.base.report.metric import Metric
from workloads.base.report.numbers import floor_with_error, ratio_text, with_error
from workloads.base.report.outcome import MetricReport
from workloads.base.report.verdict import in_order, verdict
from workloads.base.report.words import ReportWords

_HEAD = ("metric", "value ± error", "floor ± error", "ratio", "unit", "verdict")


def lines(report: MetricReport, words: ReportWords) -> Iterator[str]:
    """Lines of the table: headline metrics, the others, and notes."""
    headline, others = in_order(report.metrics, words.headline)
    rows = [_row(name, metric) for name, metric in (headline | others).items()]
    widths = [max(map(len, column)) for column in zip(_HEAD, *rows, strict=True)]
    yield _line(_HEAD, widths)
    for index, row in enumerate(rows):
        if index in (0, len(headline)):
            yield "─" * (sum(widths) + 2 * (len(widths) - 1))
        yield _line(row, widths)
    yield ""
    yield f"{words.sizes_line.format_map(report.sizes)}; floor: {report.floor_kind}"
    yield from (f"note: {note}" for note in report.notes)


def _row(name: str, metric: Metric) -> tuple[str, ...]:
    return name, with_error(metric), floor_with_error(metric), ratio_text(metric), metric.unit, verdict(metric)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    texts = [
        cell.rjust(width) if 1 <= index <= 3 else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(texts).rstrip()


def missed_lines(missed: Mapping[str, str]) -> Iterator[str]:
    """Lines of the missed thresholds, one each."""
    yield from (f"missed: {name}: {why}" for name, why in missed.items())
