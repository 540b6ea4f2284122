"""Report of an evaluation: its results, their files, the table as text, the page, and the options of the command.

Imports no torch.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path, PurePath
from typing import Any, NamedTuple, Self, get_type_hints

import click

from common.atomic_file import AS_UMASK_SAYS, replace_file
from common.errors import BadInputError
from common.options import (
    OutputPath,
    PathText,
    absolute,
    checked_seed,
    config_options,
    device_option,
    given_path,
    input_option,
    token_file_option,
)
from common.paths import user_path
from workloads.base.checkpoint import CHECKPOINT_FOLDER, run_dir_of
from workloads.base.report.metric import (
    MEANINGS,
    NOTHING,
    Floor,
    Metric,
    floor_with_error,
    in_order,
    ratio,
    ratio_text,
    verdict,
    verdict_text,
    with_error,
)

FORMAT = 1
REPORT_JSON = "report.json"
REPORT_HTML = "report.html"


@dataclass(frozen=True)
class ReportWords:
    """The texts of one workload. Those marked HTML are inserted in the page without escaping."""

    subject: str
    """HTML; holds {checkpoint}, {model} and {step}."""
    headline: tuple[str, ...]
    """Names of the metrics that are shown first, in this order."""
    sizes: Mapping[str, str]
    """Label on the page of each of MetricReport.sizes."""
    sizes_line: str
    """The sizes in one line of text; holds each as {name}."""
    about_numbers: str
    """HTML; holds {floor}."""
    floors: Mapping[str, str]
    """HTML: method of finding the floor, for each floor_kind; may hold sizes as {name}."""
    about_plots: str
    """HTML; may hold {generated}: the run that is drawn."""
    which_model: str = ""
    """Advice on the choice between two models, for a report of two runs."""


@dataclass(frozen=True)
class MetricReport:
    """All metrics by name, in the order in which they are shown, and the size of their sample."""

    metrics: Mapping[str, Metric]
    sizes: Mapping[str, int]
    """Numbers of events and particles by their keys in `report.json`; at least `events`."""
    floor_kind: str
    """Method of finding the floors: a key of ReportWords.floors."""
    notes: tuple[str, ...] = ()
    """Remarks that a reader must know, a line each."""
    floors: Mapping[str, Floor] = field(default_factory=dict)
    """Floors that depend on real events alone: for a report on another model, also of metrics that this one lacks."""


@dataclass(frozen=True)
class Picture:
    """One picture of a report."""

    name: str
    """Name of the file, without its suffix."""
    title: str
    caption: str
    png: bytes


@dataclass(frozen=True)
class Beside:
    """The run that is shown beside the one of the report: the same real events, the same floors."""

    provenance: Mapping[str, Any]
    """Its model: at least checkpoint, model and step."""
    metrics: Mapping[str, Metric]


@dataclass(frozen=True)
class Outcome:
    """The results of one evaluation."""

    report: MetricReport
    pictures: Sequence[Picture]
    provenance: Mapping[str, Any]
    """Model, data and programs of the evaluation, without secrets: at least checkpoint, model, step and date."""
    missed: Mapping[str, str]
    """Missed thresholds, by metric."""
    warnings: Sequence[str]
    """Reasons not to believe the numbers."""
    beside: Beside | None = None

    def shown_metrics(self, words: ReportWords) -> tuple[dict[str, Metric], dict[str, Metric]]:
        """Return headline and other metrics; those that only the run beside has are without a value."""
        metrics = dict(self.report.metrics)
        for name, metric in self.beside.metrics.items() if self.beside else ():
            metrics.setdefault(name, replace(metric, value=math.nan, error=math.nan))
        return in_order(metrics, words.headline)


def names(own: Mapping[str, Any], beside: Beside) -> tuple[str, str]:
    """Return names of the report's ``own`` run and of the one beside: their models, or, if equal, their folders.

    If these are the same as well, names of the checkpoint files, or their paths.
    """
    first, second = (Path(str(provenance["checkpoint"])) for provenance in (own, beside.provenance))
    for name, other in (
        (str(own["model"]), str(beside.provenance["model"])),
        (_folder(first), _folder(second)),
        (first.name, second.name),
    ):
        if name != other:
            return name, other
    return str(first), str(second)


def _folder(checkpoint: Path) -> str:
    return (run_dir_of(checkpoint) or checkpoint.absolute().parent).name


def title(outcome: Outcome) -> str:
    """Return the title of a report: the run, or the checkpoint outside of one, and its step."""
    path = PurePath(str(outcome.provenance["checkpoint"]))
    run = path.parent.parent if path.parent.name == CHECKPOINT_FOLDER else path
    return f"Evaluation: {run}, step {outcome.provenance['step']:,}"


class FloorCount(NamedTuple):
    """The number of metrics at their floor among those that have one."""

    at_floor: int
    of: int

    @classmethod
    def among(cls, metrics: Mapping[str, Metric]) -> FloorCount:
        """Return the count of these metrics."""
        verdicts = [verdict(metric) for metric in metrics.values()]
        return cls(verdicts.count("at floor"), len(verdicts) - verdicts.count("no floor"))

    def __str__(self) -> str:
        return f"{self.at_floor} of {self.of}"


def at_floor(outcome: Outcome, words: ReportWords) -> list[tuple[str, FloorCount, FloorCount]]:
    """Return name, count of headline metrics, and of all, of each run that has any headline metric with a floor.

    The name is that in the heads of columns; empty if it is the only run.
    """
    runs = {"": outcome.report.metrics}
    if beside := outcome.beside:
        runs = dict(zip(names(outcome.provenance, beside), (outcome.report.metrics, beside.metrics), strict=True))
    counts = [
        (name, FloorCount.among(in_order(metrics, words.headline)[0]), FloorCount.among(metrics))
        for name, metrics in runs.items()
    ]
    return [(name, headline, total) for name, headline, total in counts if headline.of]


def conclusion(outcome: Outcome, words: ReportWords) -> list[str]:
    """Return the last lines of a report in plain text."""
    runs = at_floor(outcome, words)
    if not runs:
        return []
    headline = ", ".join(f"{name} {count}".lstrip() for name, count, _ in runs)
    totals = " and ".join(str(total) for _, _, total in runs)
    line = f"headline metrics at floor: {headline} (all: {totals})"
    return [line, *([words.which_model] if outcome.beside and words.which_model else [])]


def not_at_floor(outcome: Outcome, words: ReportWords) -> str:
    """Return headline metrics off or near their floor in one line: the first thing to read. Empty without floors."""
    headline, _ = in_order(outcome.report.metrics, words.headline)
    failed = {word: [name for name in headline if verdict(headline[name]) == word] for word in ("off", "near")}
    if any(failed.values()):
        return "; ".join(f"{word}: {', '.join(metrics)}" for word, metrics in failed.items() if metrics)
    return "all headline metrics are at their floor" if FloorCount.among(headline).of else ""


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return the contents of `report.json`. A number that is not finite is null."""
    report, beside = outcome.report, outcome.beside
    return {
        "format": FORMAT,
        **outcome.provenance,
        **report.sizes,
        "floor_kind": report.floor_kind,
        "warnings": list(outcome.warnings),
        "notes": list(report.notes),
        "thresholds_missed": dict(outcome.missed),
        "pictures": [f"{picture.name}.png" for picture in outcome.pictures],
        "metrics": _metrics(report.metrics),
        **({"beside": {"provenance": dict(beside.provenance), "metrics": _metrics(beside.metrics)}} if beside else {}),
    }


_NUMBERS_OF_A_METRIC = ("value", "error", "floor", "floor_error", "floor_spread")


def _metrics(metrics: Mapping[str, Metric]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            **{key: _finite(getattr(metric, key)) for key in _NUMBERS_OF_A_METRIC},
            "ratio": _finite(ratio(metric)),
            "unit": metric.unit,
            "better": metric.better,
            "verdict": verdict(metric),
            "meaning": metric.meaning,
        }
        for name, metric in metrics.items()
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def default_output(checkpoint: Path) -> Path:
    """Return `RUN/evaluation`, or a folder beside a checkpoint that lies elsewhere."""
    run_dir = run_dir_of(checkpoint)
    return run_dir / "evaluation" if run_dir else checkpoint.parent / f"{checkpoint.stem}-evaluation"


def store(folder: Path, outcome: Outcome, html: str) -> None:
    """Write pictures, `report.html` and, last, `report.json`: if it exists, all the others do."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REPORT_JSON).unlink(missing_ok=True)
    for picture in outcome.pictures:
        (folder / f"{picture.name}.png").write_bytes(picture.png)
    (folder / REPORT_HTML).write_text(html, encoding="utf-8")
    text = json.dumps(as_json(outcome), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    replace_file(folder / REPORT_JSON, text, durable=False, mode=AS_UMASK_SAYS)


# ---- Table and page.

_NUMBERS = (1, 2, 3, 6)
"""Columns of numbers, which are aligned on the right."""
_VERDICTS = (5, 7)

_STYLE = """
:root { color-scheme: light dark; --text: #1c2126; --dim: #5a646e; --page: #ffffff; --card: #f4f6f8; --line: #d5dbe1;
  --good: #00704f; --near: #8a5a00; --bad: #b3261e; --link: #0b5cad; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8ec; --dim: #9aa5b1; --page: #14181c; --card: #1d2329;
  --line: #38424c; --good: #4fd1a5; --near: #f0b755; --bad: #ff8a80; --link: #7db8f7; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 2rem 1.5rem 4rem; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; } h2 { font-size: 1.25rem; margin: 2.4rem 0 .6rem; }
h3 { font-size: 1.05rem; margin: 0 0 .2rem; }
p { margin: .4rem 0; } .dim { color: var(--dim); } a { color: var(--link); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; white-space: nowrap; } td.number, th.number { text-align: right; white-space: nowrap; }
code { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: .92em; }
.verdict { font-weight: 600; white-space: nowrap; }
.at-floor { color: var(--good); } .near { color: var(--near); } .off { color: var(--bad); }
.warning, .missed { border-left: .3rem solid var(--bad); background: var(--card); padding: .7rem 1rem; margin: 1rem 0; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .8rem; margin: 1.2rem 0; }
.card { background: var(--card); border-radius: .5rem; padding: .7rem 1rem; }
.card b { display: block; font-size: 1.2rem; }
figure { margin: 1.6rem 0 2.2rem; } figure img { display: block; max-width: 100%; height: auto; background: #ffffff;
  border: 1px solid var(--line); border-radius: .4rem; margin-top: .5rem; }
nav a { margin-right: .9rem; white-space: nowrap; }
summary { cursor: pointer; }
@media print { body { max-width: none; } figure { break-inside: avoid; } }
"""


def _heads(outcome: Outcome) -> list[str]:
    """Return the heads of the table; of two runs, values stand below the names of their runs."""
    value, others = "value ± error", []
    if outcome.beside:
        value, other = (f"{name} ± error" for name in names(outcome.provenance, outcome.beside))
        others = [other, "verdict"]
    return ["metric", value, "floor ± error", "ratio", "unit", "verdict", *others]


def _rows(metrics: Mapping[str, Metric], outcome: Outcome) -> Iterator[list[str]]:
    """Yield the cells of each metric, as texts, below the heads."""
    for name, metric in metrics.items():
        cells = [name, with_error(metric.value, metric.error), floor_with_error(metric), ratio_text(metric)]
        cells += [metric.unit, verdict_text(metric)]
        if outcome.beside:
            other = outcome.beside.metrics.get(name)
            cells += [with_error(other.value, other.error), verdict_text(other)] if other else [NOTHING, NOTHING]
        yield cells


def lines(outcome: Outcome, words: ReportWords) -> Iterator[str]:
    """Yield title and what is off its floor, then the table: headline metrics, the others, and notes."""
    report = outcome.report
    headline, others = outcome.shown_metrics(words)
    heads, rows = _heads(outcome), list(_rows(headline | others, outcome))
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    yield title(outcome)
    if failed := not_at_floor(outcome, words):
        yield failed
    yield ""
    yield _line(heads, widths)
    for index, row in enumerate(rows):
        if index in (0, len(headline)):
            yield "─" * (sum(widths) + 2 * (len(widths) - 1))
        yield _line(row, widths)
    yield ""
    yield f"{words.sizes_line.format_map(report.sizes)}; floor: {report.floor_kind}"
    if outcome.beside:
        yield "beside: {checkpoint} ({model}, step {step:,})".format_map(outcome.beside.provenance)
    yield from (f"note: {note}" for note in report.notes)


def _line(cells: list[str], widths: list[int]) -> str:
    texts = [
        cell.rjust(width) if index in _NUMBERS else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(texts).rstrip()


def page(outcome: Outcome, words: ReportWords) -> str:
    """Return `report.html`: one self-contained file that opens from disk. It loads nothing from elsewhere."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title(outcome))}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(_body(outcome, words))
        + "\n</body>\n</html>\n"
    )


def _body(outcome: Outcome, words: ReportWords) -> Iterator[str]:
    report, about, beside = outcome.report, outcome.provenance, outcome.beside
    headline, others = outcome.shown_metrics(words)
    yield f"<h1>{escape(title(outcome))}</h1>"
    subject = words.subject.format(
        checkpoint=f"<code>{escape(str(about['checkpoint']))}</code>",
        model=escape(str(about["model"])),
        step=f"{about['step']:,}",
    )
    yield f'<p class="dim">{subject} · {escape(str(about["date"]))}</p>'
    if beside:
        escaped = {key: escape(value) if isinstance(value, str) else value for key, value in beside.provenance.items()}
        text = "Beside it, on the same real events: <code>{checkpoint}</code> ({model}, step {step:,})"
        yield f'<p class="dim">{text.format_map(escaped)}</p>'
    for name, why in outcome.missed.items():
        yield f'<p class="missed"><strong>Threshold missed:</strong> <code>{escape(name)}</code>: {escape(why)}</p>'
    if failed := not_at_floor(outcome, words):
        yield f"<p><strong>{escape(failed[:1].upper() + failed[1:])}</strong></p>"
    for warning in outcome.warnings:
        yield f'<p class="warning"><strong>Warning:</strong> {escape(warning)}</p>'
    yield from _cards(outcome, words)
    if beside and words.which_model:
        yield f'<p class="dim">{escape(words.which_model)}</p>'
    yield "<h2>Numbers</h2>"
    yield f"<p>{words.about_numbers.format(floor=words.floors[report.floor_kind].format_map(report.sizes))}</p>"
    yield from _table(headline, outcome)
    if others:
        yield f"<details><summary>{len(others)} more</summary>"
        yield from _table(others, outcome)
        yield "</details>"
    yield '<p class="dim">' + "; ".join(f"<em>{name}</em>: {text}" for name, text in MEANINGS.items()) + ".</p>"
    if report.notes:
        yield "<h2>Notes</h2><ul>" + "".join(f"<li>{escape(note)}</li>" for note in report.notes) + "</ul>"
    yield "<h2>Plots</h2>"
    drawn = f"{names(about, beside)[0]} (the run beside is not drawn)" if beside else "generated"
    yield f'<p class="dim">{words.about_plots.format(generated=escape(drawn))}</p>'
    links = (f'<a href="#{escape(picture.name)}">{escape(picture.title)}</a>' for picture in outcome.pictures)
    yield "<nav>" + " ".join(links) + "</nav>"
    yield from map(_figure, outcome.pictures)
    yield "<h2>What was evaluated</h2>"
    yield '<div class="wide"><table>'
    for key, value in about.items():
        yield f"<tr><th>{escape(key.replace('_', ' '))}</th><td>{_value(value)}</td></tr>"
    yield "</table></div>"
    yield '<p class="dim">The same numbers for programs: <code>report.json</code> beside this file.</p>'


def _cards(outcome: Outcome, words: ReportWords) -> Iterator[str]:
    """Yield cards with the number of headline metrics at their floor, of each run, and the sizes of the sample."""
    sizes = outcome.report.sizes
    text = f"headline metrics at the floor of {sizes['events']:,} events; smaller differences are not seen"
    cards = [(str(count), f"{name}: {text}" if name else text) for name, count, _ in at_floor(outcome, words)]
    cards += [(f"{sizes[name]:,}", label) for name, label in words.sizes.items()]
    yield '<div class="cards">'
    for number, label in cards:
        yield f'<div class="card"><b>{escape(number)}</b><span class="dim">{escape(label)}</span></div>'
    yield "</div>"


def _table(metrics: Mapping[str, Metric], outcome: Outcome) -> Iterator[str]:
    heads = "".join(
        f'<th class="number">{escape(head)}</th>' if index in _NUMBERS else f"<th>{head}</th>"
        for index, head in enumerate(_heads(outcome))
    )
    yield f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>'
    for (name, *cells), metric in zip(_rows(metrics, outcome), metrics.values(), strict=True):
        row = f'<td><code>{escape(name)}</code><br><span class="dim">{escape(metric.meaning)}</span></td>'
        for index, cell in enumerate(cells, 1):
            kind = "number" if index in _NUMBERS else f"verdict {cell.replace(' ', '-')}" if index in _VERDICTS else ""
            row += f'<td class="{kind}">{escape(cell)}</td>' if kind else f"<td>{escape(cell)}</td>"
        yield f"<tr>{row}</tr>"
    yield "</tbody></table></div>"


def _figure(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode()
    return (
        f'<figure id="{escape(picture.name)}"><h3>{escape(picture.title)}</h3><figcaption class="dim">'
        f'{escape(picture.caption)}</figcaption><img alt="{escape(picture.title)}" src="data:image/png;base64,{data}">'
        "</figure>"
    )


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{escape(str(key))} {escape(str(item))}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "<br>".join(escape(str(item)) for item in value)
    return NOTHING if value is None else escape(f"{value:,}" if isinstance(value, int) else str(value))


@dataclass(frozen=True, eq=False)
class EvaluationReport(Mapping[str, Metric]):
    """The metrics by name: `report["n_mean"].value`, `.error`, `.floor`, `.unit`, `.meaning`. Printed: the table."""

    outcome: Outcome
    words: ReportWords

    def __getitem__(self, name: str) -> Metric:
        return self.outcome.report.metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.outcome.report.metrics)

    def __len__(self) -> int:
        return len(self.outcome.report.metrics)

    def __str__(self) -> str:
        warnings = (f"WARNING: {warning}" for warning in self.warnings)
        return "\n".join([*lines(self.outcome, self.words), *warnings])

    __repr__ = __str__

    @property
    def warnings(self) -> Sequence[str]:
        """Reasons not to believe the numbers."""
        return self.outcome.warnings

    @property
    def missed(self) -> Mapping[str, str]:
        """Missed thresholds, by metric."""
        return self.outcome.missed

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Checkpoint, data, settings and versions of programs."""
        return self.outcome.provenance

    def write(self, folder: PathText) -> Path:
        """Write `report.html`, `report.json` and the plots, as `icestream evaluate` does. Returns the page's path."""
        place = given_path(folder, "folder")
        store(place, self.outcome, page(self.outcome, self.words))
        return place / REPORT_HTML


# ---- Options and output of the command.

_MIN_EVENTS = 100
MISSED_EXIT_CODE = 3
"""Another than that of an internal error (1)."""


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Validated options of an evaluation. Raises BadInputError."""

    checkpoint: Path
    inputs: tuple[str, ...]
    events: int = 40_000
    """Largest number of events; 0: all."""
    seed: int = 0
    output: Path | None = None
    """Folder of the report; None: the default one."""
    write: bool = True
    """Write the report, and not only return it."""
    thresholds: Path | None = None
    device: str = "auto"
    threads: int = 1
    """CPU threads of torch."""
    bootstraps: int = 100
    toml: Path | None = None
    assignments: tuple[str, ...] = ()

    @classmethod
    def given(cls, **options: Any) -> Self:
        """Return the options that were given to `icestream.evaluate`: paths may be texts. Raises BadInputError."""
        paths = {name for name, kind in get_type_hints(cls).items() if kind in (Path, Path | None)}
        values: dict[str, Any] = {
            name: given_path(value, name) if name in paths and value is not None else value
            for name, value in options.items()
        }
        return cls(**values)

    def __post_init__(self) -> None:
        checked_seed(self.seed)
        if self.events and self.events < _MIN_EVENTS:
            raise BadInputError(
                f"--events {self.events}: at least {_MIN_EVENTS} are needed to say anything; 0 takes all"
            )


_OPTIONS = (
    click.argument("checkpoint", type=click.Path(path_type=Path)),
    input_option,
    click.option(
        "--events",
        type=click.IntRange(min=0),
        default=40_000,
        show_default=True,
        help="Most events, from all over the files. 0: all. Errors shrink with their square root.",
    ),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Same seed, same report."),
    click.option(
        "-o",
        "--output",
        type=OutputPath(file_okay=False),
        help="Folder of the report. Default: evaluation/ in the run directory, or beside the checkpoint.",
    ),
    click.option(
        "--thresholds",
        type=click.Path(dir_okay=False, path_type=Path),
        help="TOML file with lines such as `METRIC = 0.02`. The exit code is 3 if one is not kept.",
    ),
    device_option("auto"),
    click.option(
        "--threads",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="CPU threads of torch. The networks are small: more of them gain little, and lose much on a busy machine.",
    ),
    click.option("--bootstraps", type=click.IntRange(min=2), default=100, show_default=True, help="For the errors."),
    token_file_option,
    config_options,
)


def evaluation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of EvaluationOptions, under its names; see typed_options."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def typed_options(inputs: tuple[str, ...], token_file: Path | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of EvaluationOptions from those of click: absolute inputs; the token file is a setting."""
    assignments = options["assignments"]
    if token_file is not None:
        assignments = (*assignments, f"token.file={user_path(token_file).absolute()}")
    return {**options, "inputs": absolute(inputs), "assignments": assignments}


def tell(outcome: Outcome, folder: Path, words: ReportWords) -> None:
    """Print the report. Raises SystemExit with MISSED_EXIT_CODE if thresholds are missed."""
    for name, why in outcome.missed.items():
        click.echo(f"missed: {name}: {why}", err=True)
    click.echo("\n".join(lines(outcome, words)))
    for warning in outcome.warnings:
        click.echo(f"WARNING: {warning}")
    for line in conclusion(outcome, words):
        click.echo(line)
    click.echo(f"report: {folder / REPORT_HTML}")
    if outcome.missed:
        raise SystemExit(MISSED_EXIT_CODE)
