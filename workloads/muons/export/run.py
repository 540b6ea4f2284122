"""Work of `icestream export`: a folder with model and card from a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from common.errors import BadInputError
from common.redact import without_secrets
from workloads.base.report.outcome import REPORT_JSON
from workloads.base.report.provenance import default_output
from workloads.base.versions import versions
from workloads.muons.export import formats
from workloads.muons.export.card import as_json, as_markdown, of_another_model
from workloads.muons.export.export import CARD, CARD_JSON, NewFolder, export_functions, functions_of
from workloads.muons.export.format_names import FORMATS, Format
from workloads.muons.generation.load import Trained, load_trained

_PACKAGES = ("icestream", "torch", "numpy")
_OPTIONAL = ("onnx", "onnxscript", "onnxruntime")


def run_export(
    checkpoint: Path, out: Path, wanted: tuple[Format, ...], report_path: Path | None, licence: str, *, force: bool
) -> Iterator[str]:
    """Lines about the written files; the options are the command's. Raises BadInputError."""
    formats.require(wanted)
    trained = load_trained(checkpoint, torch.device("cpu"))
    functions = functions_of(trained)
    report = read_report(report_path or default_report(trained.run.path), must_exist=report_path is not None)
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
    if functions.counts is None:
        yield ("no distribution of counts: the model has none (count_head = 'mse')")
    yield (f"{out / CARD}: {_told_metrics(trained, report)}")


def default_report(checkpoint: Path) -> Path:
    """Path of the report that `icestream evaluate` writes for a checkpoint."""
    return default_output(checkpoint) / REPORT_JSON


def read_report(path: Path, *, must_exist: bool) -> dict[str, Any] | None:
    """Report of an evaluation, or None if there is none. Raises BadInputError."""
    if not path.exists() and not must_exist:
        return None
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror}; write one with icestream evaluate") from None
    except ValueError as error:
        raise BadInputError(f"{path}: not JSON ({error})") from None
    metrics = report.get("metrics") if isinstance(report, dict) else None
    if not isinstance(metrics, dict):
        raise BadInputError(f"{path}: not a report of icestream evaluate: it has no metrics")
    if bad := [name for name, metric in metrics.items() if not _is_metric(metric)]:
        raise BadInputError(f"{path}: not a report of icestream evaluate: {bad[0]!r} has no value, error and floor")
    text: dict[str, Any] = json.loads(without_secrets(json.dumps(report, ensure_ascii=False)))
    return text


def _is_metric(metric: object) -> bool:
    """True for numbers, or null, as value, error and floor."""
    return isinstance(metric, dict) and all(
        isinstance(metric.get(name), int | float | None) for name in ("value", "error", "floor")
    )


def _told_metrics(trained: Trained, report: dict[str, Any] | None) -> str:
    if report is None:
        return "no metrics in it: there is no report of an evaluation (icestream evaluate)"
    if reason := of_another_model(report, trained.run.step):
        return f"with metrics, but {reason}: evaluate it anew"
    return f"with {len(report['metrics'])} metrics"
