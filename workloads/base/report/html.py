"""`report.html`: one self-contained file that opens from disk. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from workloads.base.report.at_floor import at_floor, not_at_floor, title
from workloads.base.report.beside import names, value_heads, with_those_beside
from workloads.base.report.metric import Metric
from workloads.base.report.numbers import NOTHING, floor_with_error, ratio_text, verdict_text, with_error
from workloads.base.report.outcome import Outcome, Picture
from workloads.base.report.verdict import MEANINGS, in_order
from workloads.base.report.words import ReportWords

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


def page(outcome: Outcome, words: ReportWords) -> str:
    """The whole page. It loads nothing from elsewhere."""
    heading = title(outcome)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(heading)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(_body(outcome, words))
        + "\n</body>\n</html>\n"
    )


def _body(outcome: Outcome, words: ReportWords) -> Iterator[str]:
    report, told = outcome.report, outcome.provenance
    headline, others = in_order(with_those_beside(report.metrics, outcome.beside), words.headline)
    yield f"<h1>{escape(title(outcome))}</h1>"
    subject = words.subject.format(
        checkpoint=f"<code>{escape(str(told['checkpoint']))}</code>",
        model=escape(str(told["model"])),
        step=f"{told['step']:,}",
    )
    yield f'<p class="dim">{subject} · {escape(str(told["date"]))}</p>'
    if beside := outcome.beside:
        text = "Beside it, on the same real events: <code>{checkpoint}</code> ({model}, step {step:,})"
        yield f'<p class="dim">{text.format_map(_escaped(beside.provenance))}</p>'
    for name, why in outcome.missed.items():
        yield f'<p class="missed"><strong>Threshold missed:</strong> <code>{escape(name)}</code>: {escape(why)}</p>'
    if failed := not_at_floor(outcome, words):
        yield f"<p><strong>{escape(failed[:1].upper() + failed[1:])}</strong></p>"
    for warning in outcome.warnings:
        yield f'<p class="warning"><strong>Warning:</strong> {escape(warning)}</p>'
    yield '<div class="cards">'
    yield from _cards_at_floor(outcome, words)
    yield from (_card(f"{report.sizes[name]:,}", label) for name, label in words.sizes.items())
    yield "</div>"
    if outcome.beside and words.which_model:
        yield f'<p class="dim">{escape(words.which_model)}</p>'
    yield "<h2>Numbers</h2>"
    yield f"<p>{words.about_numbers.format(floor=words.floors[report.floor_kind])}</p>"
    yield from _table(headline, outcome)
    if others:
        yield f"<details><summary>{len(others)} more</summary>"
        yield from _table(others, outcome)
        yield "</details>"
    yield '<p class="dim">' + "; ".join(f"<em>{name}</em>: {text}" for name, text in MEANINGS.items()) + ".</p>"
    if report.notes:
        yield "<h2>Notes</h2><ul>" + "".join(f"<li>{escape(note)}</li>" for note in report.notes) + "</ul>"
    yield "<h2>Plots</h2>"
    drawn = f"{names(told, beside)[0]} (the run beside is not drawn)" if beside else "generated"
    yield f'<p class="dim">{words.about_plots.format(generated=escape(drawn))}</p>'
    links = (f'<a href="#{escape(one.name)}">{escape(one.title)}</a>' for one in outcome.pictures)
    yield "<nav>" + " ".join(links) + "</nav>"
    yield from map(_figure, outcome.pictures)
    yield "<h2>What was evaluated</h2>"
    yield '<div class="wide"><table>'
    yield from (f"<tr><th>{escape(_words(key))}</th><td>{_value(value)}</td></tr>" for key, value in told.items())
    yield "</table></div>"
    yield '<p class="dim">The same numbers for programs: <code>report.json</code> beside this file.</p>'


def _cards_at_floor(outcome: Outcome, words: ReportWords) -> Iterator[str]:
    """Cards with the number of headline metrics at their floor, of each run."""
    text = (
        f"headline metrics at the floor of {outcome.report.sizes['events']:,} events; smaller differences are not seen"
    )
    for run in at_floor(outcome, words):
        yield _card(str(run.headline), f"{run.name}: {text}" if run.name else text)


def _card(number: str, text: str) -> str:
    return f'<div class="card"><b>{escape(number)}</b><span class="dim">{escape(text)}</span></div>'


def _table(metrics: Mapping[str, Metric], outcome: Outcome) -> Iterator[str]:
    value, other_value = map(escape, value_heads(outcome.provenance, outcome.beside))
    numbers = (value, "floor ± error", "ratio")
    yield '<div class="wide"><table><thead><tr><th>metric</th>'
    yield "".join(f'<th class="number">{name}</th>' for name in numbers) + "<th>unit</th><th>verdict</th>"
    if outcome.beside:
        yield f'<th class="number">{other_value}</th><th>verdict</th>'
    yield "</tr></thead><tbody>"
    for name, metric in metrics.items():
        cells = "".join(map(_number, (with_error(metric), floor_with_error(metric), ratio_text(metric))))
        yield f'<tr><td><code>{escape(name)}</code><br><span class="dim">{escape(metric.meaning)}</span></td>{cells}'
        yield f"<td>{escape(metric.unit)}</td>{_verdict(verdict_text(metric))}"
        if outcome.beside:
            other, word = outcome.beside.cells(name)
            yield _number(other) + _verdict(word)
        yield "</tr>"
    yield "</tbody></table></div>"


def _number(text: str) -> str:
    return f'<td class="number">{escape(text)}</td>'


def _verdict(word: str) -> str:
    return f'<td class="verdict {word.replace(" ", "-")}">{word}</td>'


def _figure(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode()
    return (
        f'<figure id="{escape(picture.name)}"><h3>{escape(picture.title)}</h3><figcaption class="dim">'
        f'{escape(picture.caption)}</figcaption><img alt="{escape(picture.title)}" src="data:image/png;base64,{data}">'
        "</figure>"
    )


def _escaped(provenance: Mapping[str, Any]) -> dict[str, Any]:
    return {key: escape(value) if isinstance(value, str) else value for key, value in provenance.items()}


def _words(key: str) -> str:
    return key.replace("_", " ")


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{escape(str(key))} {escape(str(one))}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return "<br>".join(escape(str(one)) for one in value)
    return NOTHING if value is None else escape(f"{value:,}" if isinstance(value, int) else str(value))
