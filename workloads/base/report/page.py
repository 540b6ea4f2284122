"""Report of an evaluation: its results, their files, the table as text, the page, and the options of the command.

Imports no torch.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path, PurePath
from typing import Any, Self, get_type_hints

import click

from common import options as option_types
from common.atomic_file import AS_UMASK_SAYS, replace_file
from common.errors import BadInputError
from common.paths import user_path
from workloads.base.checkpoint import CHECKPOINT_FOLDER, run_dir_of
from workloads.base.report import metric as judging

FORMAT = 1
REPORT_JSON = "report.json"
REPORT_HTML = "report.html"


@dataclass(frozen=True)
class ReportWords:
    """The texts of one workload. Those marked HTML are inserted in the page without escaping."""

    subject: str
    """HTML; holds {checkpoint}, {model} and {step}."""
    headline: Mapping[str, judging.Fault]
    """Metrics that are shown first, in this order, with words for what is wrong with the model."""
    sizes_line: str
    """MetricReport.sizes in one line of text; holds each as {name}."""
    about_numbers: str
    """HTML; holds {floor}."""
    floors: Mapping[str, str]
    """HTML: method of finding the floor, for each floor_kind; may hold sizes as {name}."""
    about_plots: str
    """HTML."""
    decisive: str = ""
    """Headline metric by which one model is better than another; empty: the better one is nearer in more of them."""


@dataclass(frozen=True)
class MetricReport:
    """All metrics by name, in the order in which they are shown, and the size of their sample."""

    metrics: Mapping[str, judging.Metric]
    sizes: Mapping[str, int]
    """Numbers of events and particles by their keys in `report.json`; at least `events`."""
    floor_kind: str
    """Method of finding the floors: a key of ReportWords.floors."""
    notes: tuple[str, ...] = ()
    """Remarks that a reader must know, a line each."""
    floors: Mapping[str, judging.Floor] = field(default_factory=dict)
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
    """The run that is shown beside the one of the report, on the same real events."""

    provenance: Mapping[str, Any]
    """Its model: at least checkpoint, model and step."""
    metrics: Mapping[str, judging.Metric]


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

    @property
    def runs(self) -> dict[str, Mapping[str, judging.Metric]]:
        """Metrics of the run, and of the one beside it, by their names; see names."""
        if self.beside is None:
            return {str(self.provenance["model"]): self.report.metrics}
        first, second = names(self.provenance, self.beside.provenance)
        return {first: self.report.metrics, second: self.beside.metrics}

    def shown_metrics(self, words: ReportWords) -> tuple[dict[str, judging.Metric], dict[str, judging.Metric]]:
        """Return headline and other metrics; those that only the run beside has are without a value."""
        metrics = dict(self.report.metrics)
        for name, metric in self.beside.metrics.items() if self.beside else ():
            metrics.setdefault(name, replace(metric, value=math.nan, error=math.nan))
        return judging.in_order(metrics, words.headline)


def names(own: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, str]:
    """Return names of two runs by their provenance: their models, or, if equal, their folders, file names, or paths of
    checkpoints."""
    models = (str(own["model"]), str(other["model"]))
    first, second = (Path(str(provenance["checkpoint"])) for provenance in (own, other))
    candidates = (models, (_folder(first), _folder(second)), (first.name, second.name))
    return next((pair for pair in candidates if pair[0] != pair[1]), (str(first), str(second)))


def _folder(checkpoint: Path) -> str:
    return (run_dir_of(checkpoint) or checkpoint.absolute().parent).name


def title(outcome: Outcome) -> str:
    """Return the title of a report: the run, or the checkpoint outside of one, and its step."""
    path = PurePath(str(outcome.provenance["checkpoint"]))
    run = path.parent.parent if path.parent.name == CHECKPOINT_FOLDER else path
    return f"Evaluation: {run}, step {outcome.provenance['step']:,}"


def count_at_floor(metrics: Mapping[str, judging.Metric]) -> tuple[int, int]:
    """Return the number of metrics at their floor, and of those that have one."""
    verdicts = [judging.verdict(metric) for metric in metrics.values()]
    return verdicts.count("at floor"), len(verdicts) - verdicts.count("no floor")


_MOST_FAULTS = 4
"""Most faults of a model in the first sentence."""


def decision(outcome: Outcome, words: ReportWords) -> str:
    """Return the sentence to read first: which model is better, by how much, and what is off in words of physics.

    Better is the model that is nearer to the truth in the decisive metric, or in more of the headline metrics; see
    lead. Empty without floors.
    """
    runs = {name: judging.in_order(metrics, words.headline)[0] for name, metrics in outcome.runs.items()}
    if not any(count_at_floor(metrics)[1] for metrics in runs.values()):
        return ""
    order, parts = list(runs), []
    if outcome.beside:
        first, second = runs.values()
        both = {key: (first[key], second[key]) for key in words.headline if key in first and key in second}
        decisive = both.get(words.decisive)
        wins = _wins(both.values())
        scores = _wins([decisive]) if decisive else wins
        if scores[1] > scores[0]:
            order, wins = order[::-1], wins[::-1]
        size = f" ({_difference(*decisive, words.headline[words.decisive][0])})" if decisive else ""
        nearer = f"nearer to the truth in {wins[0]} of {len(both)} headline metrics"
        if scores[0] != scores[1]:
            parts = [f"{order[0]} is better{size}, {nearer} ({order[1]} in {wins[1]})"]
        else:
            parts = [
                f"neither of {' and '.join(order)} is better{size}: {order[0]} is {nearer}, {order[1]} in {wins[1]}"
            ]
    counts = []
    for name in order:
        (at_floor, of), (all_at_floor, of_all) = count_at_floor(runs[name]), count_at_floor(outcome.runs[name])
        counts.append(f"{name} {at_floor} of {of} (all: {all_at_floor} of {of_all})")
    parts.append(f"headline metrics at the floor: {', '.join(counts)}")
    faults = [f"{name}'s {text}" for name in reversed(order) if (text := _faults(runs[name], words))]
    sentence = "; ".join([*parts, *(faults or ["nothing is seen to be off"])])
    return sentence if outcome.beside else sentence[:1].upper() + sentence[1:]  # else a run's name is first


def _wins(pairs: Collection[tuple[judging.Metric, judging.Metric]]) -> tuple[int, int]:
    """Return in how many metrics the first, and the second, of two models is nearer to the truth."""
    return sum(judging.is_nearer(*pair) for pair in pairs), sum(judging.is_nearer(*pair[::-1]) for pair in pairs)


def _difference(metric: judging.Metric, other: judging.Metric, subject: str) -> str:
    """Return by how much two models differ in a metric: "1.07 ± 0.08° in mean angles, 13 σ"."""
    difference, error = judging.lead(metric, other)
    size = f"{judging.with_error(abs(difference), error)} {metric.unit}".replace(" °", "°").rstrip()
    return f"{size} in {subject}" + (f", {abs(difference) / error:.2g} σ" if error > 0 else "")


def _faults(headline: Mapping[str, judging.Metric], words: ReportWords) -> str:
    """Return what is off, then what is near its floor: "energies are 2 % too low, bundles 5 % too wide"."""
    found: dict[str, str] = {}
    for grade in ("off", "near"):
        for name, metric in headline.items():
            if judging.verdict(metric) == grade:
                subject, less, more = words.headline[name]
                found.setdefault(subject, judging.fault_words(metric, less, more))
    texts = [f"{subject} {'' if index else 'are '}{what}" for index, (subject, what) in enumerate(found.items())]
    others = [f"and {len(texts) - _MOST_FAULTS} more"] if len(texts) > _MOST_FAULTS else []
    return ", ".join(texts[:_MOST_FAULTS] + others)


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


def _metrics(metrics: Mapping[str, judging.Metric]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            **{key: _finite(getattr(metric, key)) for key in _NUMBERS_OF_A_METRIC},
            "ratio": _finite(judging.ratio(metric)),
            "sigmas": _finite(judging.sigmas(metric)),
            "shift": _finite(metric.shift),
            "unit": metric.unit,
            "better": metric.better,
            "verdict": judging.verdict(metric),
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

_TEXTS = ("metric", "verdict")
"""Heads of the columns that hold no numbers and are aligned on the left."""
_HINTS = {
    "× floor": "the value of a distance in floors, 1 for a perfect model",
    "σ": "distance from the floor in standard deviations of a perfect model's value",
}

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
table { border-collapse: collapse; width: 100%; font-size: .92em; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .45rem; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; white-space: nowrap; } td.number, th.number { text-align: right; white-space: pre; }
code { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: .92em; }
.verdict { font-weight: 600; white-space: nowrap; }
.at-floor { color: var(--good); } .near { color: var(--near); } .off { color: var(--bad); }
.warning, .missed { border-left: .3rem solid var(--bad); background: var(--card); padding: .7rem 1rem; margin: 1rem 0; }
figure { margin: 1.6rem 0 2.2rem; } figure img { display: block; max-width: 100%; height: auto; background: #ffffff;
  border: 1px solid var(--line); border-radius: .4rem; margin-top: .5rem; }
.decision { font-size: 1.15rem; font-weight: 600; } nav { font-size: .9em; margin-top: 1.2rem; }
nav a { margin-right: .9rem; white-space: nowrap; }
@media (prefers-color-scheme: dark) { figure img { filter: invert(.9) hue-rotate(180deg); } }
summary { cursor: pointer; }
@media print { body { max-width: none; } figure { break-inside: avoid; } }
"""


def _heads(outcome: Outcome) -> list[str]:
    """Return the heads of the table: values of two runs stand below their names."""
    values = [f"{name} ± error" for name in outcome.runs] if outcome.beside else ["value ± error"]
    return ["metric", "floor ± error", *(head for value in values for head in (value, *_HINTS, "verdict"))]


def _hints(outcome: Outcome) -> dict[str, str]:
    """Return the meaning of heads of the table."""
    return {**_HINTS, **({"floor": f"of {' / '.join(outcome.runs)}, where these differ"} if outcome.beside else {})}


def _rows(metrics: Mapping[str, judging.Metric], outcome: Outcome) -> Iterator[list[str]]:
    """Yield the cells of each metric, as texts, below the heads."""
    widest = max(len(metric.unit) for metric in metrics.values())
    for name, known in metrics.items():
        models = [run.get(name) or replace(known, value=math.nan, error=math.nan) for run in outcome.runs.values()]
        floors = dict.fromkeys(judging.floor_with_error(metric) for metric in models)
        cells = [name, _with_unit(" / ".join(floors), known, widest)]
        for metric in models:
            value = _with_unit(judging.with_error(metric.value, metric.error), metric, widest)
            cells += [value, *judging.multiples(metric), judging.verdict_text(metric)]
        yield cells


def _with_unit(text: str, metric: judging.Metric, width: int) -> str:
    return f"{text} {metric.unit:<{width}}" if width else text


def lines(outcome: Outcome, words: ReportWords) -> Iterator[str]:
    """Yield title and first sentence, then the table: headline metrics, the others, and notes."""
    report = outcome.report
    headline, others = outcome.shown_metrics(words)
    heads, rows = _heads(outcome), list(_rows(headline | others, outcome))
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    yield title(outcome)
    if sentence := decision(outcome, words):
        yield sentence
    yield ""
    yield _line(heads, heads, widths)
    for index, row in enumerate(rows):
        if index in (0, len(headline)):
            yield "─" * (sum(widths) + 2 * (len(widths) - 1))
        yield _line(row, heads, widths)
    yield ""
    yield f"{words.sizes_line.format_map(report.sizes)}; floor: {report.floor_kind}"
    yield "; ".join(f"{head}: {hint}" for head, hint in _hints(outcome).items())
    if outcome.beside:
        yield "beside: {checkpoint} ({model}, step {step:,})".format_map(outcome.beside.provenance)
    yield from (f"note: {note}" for note in report.notes)


def _line(cells: list[str], heads: list[str], widths: list[int]) -> str:
    texts = [
        cell.ljust(width) if head in _TEXTS else cell.rjust(width)
        for cell, head, width in zip(cells, heads, widths, strict=True)
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
    if sentence := decision(outcome, words):
        yield f'<p class="decision">{escape(sentence)}.</p>'
    subject = words.subject.format(
        checkpoint=f"<code>{escape(str(about['checkpoint']))}</code>",
        model=escape(str(about["model"])),
        step=f"{about['step']:,}",
    )
    sizes = words.sizes_line.format_map(report.sizes)
    yield f'<p class="dim">{subject}: {sizes} · {escape(str(about["date"]))}</p>'
    if beside:
        escaped = {key: escape(value) if isinstance(value, str) else value for key, value in beside.provenance.items()}
        text = "Beside it, on the same real events: <code>{checkpoint}</code> ({model}, step {step:,})"
        yield f'<p class="dim">{text.format_map(escaped)}</p>'
    for name, why in outcome.missed.items():
        yield f'<p class="missed"><strong>Threshold missed:</strong> <code>{escape(name)}</code>: {escape(why)}</p>'
    for warning in outcome.warnings:
        yield f'<p class="warning"><strong>Warning:</strong> {escape(warning)}</p>'
    links = {"numbers": "Numbers", "plots": "Plots", "about": "What was evaluated"}
    links |= {picture.name: picture.title for picture in outcome.pictures}
    yield "<nav>" + " ".join(f'<a href="#{escape(name)}">{escape(text)}</a>' for name, text in links.items()) + "</nav>"
    yield '<h2 id="numbers">Numbers</h2>'
    yield f"<p>{words.about_numbers.format(floor=words.floors[report.floor_kind].format_map(report.sizes))}</p>"
    told = (f"<em>{name}</em>: {text}" for name, text in (*_hints(outcome).items(), *judging.MEANINGS.items()))
    yield f'<p class="dim">{"; ".join(told)}.</p>'
    yield from _table(headline, outcome)
    if others:
        yield f"<details><summary>{len(others)} more</summary>"
        yield from _table(others, outcome)
        yield "</details>"
    if report.notes:
        yield "<h2>Notes</h2><ul>" + "".join(f"<li>{escape(note)}</li>" for note in report.notes) + "</ul>"
    yield '<h2 id="plots">Plots</h2>'
    yield f'<p class="dim">{words.about_plots}</p>'
    for picture in outcome.pictures:
        head, data = escape(picture.title), base64.b64encode(picture.png).decode()
        yield (
            f'<figure id="{escape(picture.name)}"><h3>{head}</h3><figcaption class="dim">{escape(picture.caption)}'
            f'</figcaption><img alt="{head}" src="data:image/png;base64,{data}"></figure>'
        )
    yield '<h2 id="about">What was evaluated</h2>'
    yield '<div class="wide"><table>'
    for key, value in about.items():
        yield f"<tr><th>{escape(key.replace('_', ' '))}</th><td>{_value(value)}</td></tr>"
    yield "</table></div>"
    yield '<p class="dim">The same numbers for programs: <code>report.json</code> beside this file.</p>'


def _table(metrics: Mapping[str, judging.Metric], outcome: Outcome) -> Iterator[str]:
    heads = _heads(outcome)
    kinds = ["" if head in _TEXTS else ' class="number"' for head in heads]
    cells = (
        f'<th{kind} title="{_HINTS.get(head, "")}">{escape(head)}</th>' for head, kind in zip(heads, kinds, strict=True)
    )
    yield f'<div class="wide"><table><thead><tr>{"".join(cells)}</tr></thead><tbody>'
    for (name, *texts), metric in zip(_rows(metrics, outcome), metrics.values(), strict=True):
        row = f'<td><code>{escape(name)}</code><br><span class="dim">{escape(metric.meaning)}</span></td>'
        for head, kind, text in zip(heads[1:], kinds[1:], texts, strict=True):
            of_cell = f' class="verdict {text.replace(" ", "-")}"' if head == "verdict" else kind
            row += f"<td{of_cell}>{escape(text)}</td>"
        yield f"<tr>{row}</tr>"
    yield "</tbody></table></div>"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{escape(str(key))} {escape(str(item))}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "<br>".join(escape(str(item)) for item in value)
    return judging.NOTHING if value is None else escape(f"{value:,}" if isinstance(value, int) else str(value))


@dataclass(frozen=True, eq=False)
class EvaluationReport(Mapping[str, judging.Metric]):
    """The metrics by name: `report["n_mean"].value`, `.error`, `.floor`, `.unit`, `.meaning`. Printed: the table."""

    outcome: Outcome
    words: ReportWords

    def __getitem__(self, name: str) -> judging.Metric:
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

    def write(self, folder: option_types.PathText) -> Path:
        """Write `report.html`, `report.json` and the plots, as `icestream evaluate` does. Returns the page's path."""
        place = option_types.given_path(folder, "folder")
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
    beside: Path | None = None
    """Second trained run, evaluated on the same events."""
    toml: Path | None = None
    assignments: tuple[str, ...] = ()

    @classmethod
    def given(cls, **options: Any) -> Self:
        """Return the options that were given to `icestream.evaluate`: paths may be texts. Raises BadInputError."""
        paths = {name for name, kind in get_type_hints(cls).items() if kind in (Path, Path | None)}
        values: dict[str, Any] = {
            name: option_types.given_path(value, name) if name in paths and value is not None else value
            for name, value in options.items()
        }
        return cls(**values)

    def __post_init__(self) -> None:
        option_types.checked_seed(self.seed)
        if self.events and self.events < _MIN_EVENTS:
            raise BadInputError(
                f"--events {self.events}: at least {_MIN_EVENTS} are needed to say anything; 0 takes all"
            )


evaluation_options = option_types.together(
    click.argument("checkpoint", type=click.Path(path_type=Path)),
    option_types.input_option,
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
        type=option_types.OutputPath(file_okay=False),
        help="Folder of the report. Default: evaluation/ in the run directory, or beside the checkpoint.",
    ),
    click.option(
        "--thresholds",
        type=click.Path(dir_okay=False, path_type=Path),
        help="TOML file with lines such as `METRIC = 0.02`. The exit code is 3 if one is not kept.",
    ),
    option_types.device_option("auto"),
    click.option(
        "--threads",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="CPU threads of torch. The networks are small: more of them gain little, and lose much on a busy machine.",
    ),
    click.option("--bootstraps", type=click.IntRange(min=2), default=100, show_default=True, help="For the errors."),
    click.option(
        "--beside",
        type=click.Path(path_type=Path),
        metavar="RUN",
        help="A second checkpoint or run directory, shown beside: its values, verdicts and plots, on the same events.",
    ),
    option_types.token_file_option,
    option_types.config_options,
)
"""Options of EvaluationOptions, under its names; see typed_options."""


def typed_options(inputs: tuple[str, ...], token_file: Path | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of EvaluationOptions from those of click: absolute inputs; the token file is a setting."""
    assignments = options["assignments"]
    if token_file is not None:
        assignments = (*assignments, f"token.file={user_path(token_file).absolute()}")
    return {**options, "inputs": option_types.absolute(inputs), "assignments": assignments}


def tell(outcome: Outcome, folder: Path, words: ReportWords) -> None:
    """Print the report. Raises SystemExit with MISSED_EXIT_CODE if thresholds are missed."""
    for name, why in outcome.missed.items():
        click.echo(f"missed: {name}: {why}", err=True)
    click.echo("\n".join(lines(outcome, words)))
    for warning in outcome.warnings:
        click.echo(f"WARNING: {warning}")
    if sentence := decision(outcome, words):
        click.echo(sentence)
    click.echo(f"report: {folder / REPORT_HTML}")
    if outcome.missed:
        raise SystemExit(MISSED_EXIT_CODE)
