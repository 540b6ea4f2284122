"""Work of `icestream export`: a folder with model and card from a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from common.errors import BadInputError
from common.redact import without_secrets
from workloads.base.report.outcome import REPORT_JSON
from workloads.base.report.provenance import default_output
from workloads.base.trained_run import TrainedRun
from workloads.base.versions import versions
from workloads.muons.export import formats
from workloads.muons.export.card import as_json, as_markdown, of_another_model
from workloads.muons.export.export import CARD, CARD_JSON, NewFolder, export_functions, functions_of
from workloads.muons.export.format_names import FORMATS, Format
from workloads.muons.generation.load import load_trained

_PACKAGES = ("icestream", "torch", "numpy")
_OPTIONAL = ("onnx", "onnxscript", "onnxruntime")
_OF_THE_FIRST = ("muons_generated", "notes", "thresholds_missed", "pictures", "beside")
"""Keys of a report that are about its first run alone."""


def run_export(
    checkpoint: Path, out: Path, wanted: tuple[Format, ...], report_path: Path | None, licence: str, *, force: bool
) -> Iterator[str]:
    """Lines about the written files; the options are the command's. Raises BadInputError."""
    formats.require(wanted)
    trained = load_trained(checkpoint, torch.device("cpu"))
    functions = functions_of(trained)
    place = report_path or default_report(trained.run.path)
    report = read_report(place, trained.run, must_exist=report_path is not None)
    folder = NewFolder(out, force=force)
    with folder as part:
        files = export_functions(functions, part, [name for name in FORMATS if name in wanted])
        configuration = json.loads(trained.run.config_json)
        card = as_json(
            trained, functions, files, report, configuration, versions(_PACKAGES, optional=_OPTIONAL), licence
        )
        (part / CARD_JSON).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        (part / CARD).write_text(as_markdown(card, functions.generator.inputs), encoding="utf-8")
    for file in files:
        yield (
            f"{out / file.name}: {file.size_bytes:,} bytes, differs from the trained model by at most "
            f"{file.difference:.1e} (relative)"
        )
    yield (f"{out / CARD}: {_told_metrics(card)}")


def default_report(checkpoint: Path) -> Path:
    """Path of the report that `icestream evaluate` writes for a checkpoint."""
    return default_output(checkpoint) / REPORT_JSON


def read_report(path: Path, run: TrainedRun, *, must_exist: bool) -> dict[str, Any] | None:
    """Report of an evaluation, or None if there is none. Raises BadInputError.

    If the run was evaluated beside another one, its own part of that report.
    """
    if not path.exists() and not must_exist:
        return None
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror}; write one with icestream evaluate") from None
    except ValueError as error:
        raise BadInputError(f"{path}: not JSON ({error})") from None
    report = _own_part(report, run) if isinstance(report, dict) else {}
    metrics = report.get("metrics")
    if not isinstance(metrics, dict):
        raise BadInputError(f"{path}: not a report of icestream evaluate: it has no metrics")
    if bad := [name for name, metric in metrics.items() if not _is_metric(metric)]:
        raise BadInputError(f"{path}: not a report of icestream evaluate: {bad[0]!r} has no value, error and floor")
    text: dict[str, Any] = json.loads(without_secrets(json.dumps(report, ensure_ascii=False)))
    return text


def _own_part(report: dict[str, Any], run: TrainedRun) -> dict[str, Any]:
    """Report of the run itself if it is the one beside, else the report as it is."""
    beside = report.get("beside")
    if not isinstance(beside, dict) or not isinstance(about := beside.get("provenance"), dict):
        return report
    if _is_about(report, run) or not _is_about(about, run):
        return report
    of_both = {key: value for key, value in report.items() if key not in _OF_THE_FIRST}
    return {**of_both, **about, "metrics": beside.get("metrics")}


def _is_about(provenance: Mapping[str, Any], run: TrainedRun) -> bool:
    own = {"model": run.model, "step": run.step, "config_digest": run.config_digest}
    return all(provenance.get(key) == value for key, value in own.items())


def _is_metric(metric: object) -> bool:
    """True for numbers, or null, as value, error and floor."""
    return isinstance(metric, dict) and all(
        isinstance(metric.get(name), int | float | None) for name in ("value", "error", "floor")
    )


def _told_metrics(card: Mapping[str, Any]) -> str:
    if card["metrics"] is None:
        return "no metrics in it: there is no report of an evaluation (icestream evaluate)"
    if reason := of_another_model(card):
        return f"with metrics, but {reason}: evaluate it again"
    return f"with {len(card['metrics'])} metrics"
