"""Model card of an exported model: contents, training data, quality, limits of use. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch.nn import Module

from workloads.muons.export.export import CARD_JSON, Exported
from workloads.muons.export.functions import ModelFunctions
from workloads.muons.export.inputs import PRIMARY, FunctionInput
from workloads.muons.export.usage import snippets
from workloads.muons.generation.load import Trained
from workloads.muons.models.standardise import DEPTH_OFFSET_M, Standardise

NO_LICENCE = "none stated; ask who trained it. The terms of the training data may apply"
SPREADS = 2.0
"""Half width of the covered range, in standard deviations of the training's primaries."""

OUTPUT = "(P, 3) float32: energy_gev, x_m, y_m across the shower axis"
COUNT_OUTPUTS = {
    "weights": "(E, K): probabilities of K components",
    "means": "(E, K): mean number of muons of each",
    "shapes": "(E, K): shape of each; variance = mean + mean² / shape",
}
LIMITS = (
    "The conditions outside the ranges below were hardly seen in training: there the model extrapolates.",
    "If it was trained on icestream's simulator, it knows toy showers: no detector, no magnetic field, no hadronic "
    "physics. It must not stand in for a simulation in a physics result.",
    "It gives each event muons that fit the primary on average. Correlations that it was not evaluated on, and rare "
    "events (the largest bundles, the highest energies), may be wrong.",
    "An estimate of a rare background, or a tail beyond the training's statistics, must not rest on it.",
)


def as_json(
    trained: Trained,
    functions: ModelFunctions,
    files: Sequence[Exported],
    report: Mapping[str, Any] | None,
    configuration: Mapping[str, Any],
    versions: Mapping[str, str],
    licence: str,
) -> dict[str, Any]:
    """Contents of the card. ``configuration`` must be without secrets."""
    return {
        "format": 1,
        "model": trained.run.model,
        "purpose": "muon bundles underground, for a given primary",
        "parameters": _num_weights(functions.generator.network),
        "count_parameters": _num_weights(functions.counts),
        "functions": {
            "generator": {
                "inputs": {one.name: one.text for one in functions.generator.inputs},
                "outputs": {"muons": OUTPUT},
            },
            "counts": {"inputs": {"primary": PRIMARY.text}, "outputs": COUNT_OUTPUTS},
        },
        "max_count": trained.max_count,
        "training": {
            "inputs": configuration["input"],
            "source": configuration["source"],
            "events": trained.run.events_trained,
            "steps": trained.run.step,
            "checkpoint": trained.run.path.name,
            "config_digest": trained.run.config_digest,
        },
        "covered": covered(functions.generator.standardise),
        "metrics": None if report is None else report.get("metrics", {}),
        "evaluation": None
        if report is None
        else {key: value for key, value in report.items() if key not in ("metrics", "beside")},
        "limits": LIMITS,
        "licence": licence or NO_LICENCE,
        "files": {
            file.name: {
                "sha256": file.sha256,
                "bytes": file.size_bytes,
                "difference_to_trained": file.difference,
            }
            for file in files
        },
        "versions": dict(versions),
        "configuration": dict(configuration),
    }


def covered(standardise: Standardise) -> dict[str, dict[str, float]]:
    """Mean ± SPREADS standard deviations of the training's primaries, in physical units."""
    mean, spread = standardise.condition_mean_C.tolist(), standardise.condition_spread_C.tolist()

    def interval(index: int) -> tuple[float, float]:
        return mean[index] - SPREADS * spread[index], mean[index] + SPREADS * spread[index]

    def zenith_rad(cosine: float) -> float:
        return math.acos(min(max(cosine, -1.0), 1.0))

    energy, cosine, mass, depth = interval(0), interval(2), interval(3), interval(4)
    return {
        "energy_gev": _range(10 ** energy[0], 10 ** energy[1]),
        "zenith_rad": _range(zenith_rad(cosine[1]), zenith_rad(cosine[0])),
        "mass_a": _range(max(10 ** mass[0], 1.0), 10 ** mass[1]),
        "depth_m": _range(max(10 ** depth[0] - DEPTH_OFFSET_M, 0.0), 10 ** depth[1] - DEPTH_OFFSET_M),
    }


def as_markdown(card: Mapping[str, Any], inputs: Sequence[FunctionInput]) -> str:
    """Card as Markdown. ``inputs``: of the generator."""
    training = card["training"]
    lines = [
        "# Model card: muon bundles underground",
        "",
        f"A generator of the kind `{card['model']}` ({card['parameters']:,} weights, and "
        f"{card['count_parameters']:,} for the number of muons), trained with icestream on {training['events']:,} "
        f"events in {training['steps']:,} steps (`{training['checkpoint']}`). For a primary and "
        "a number of muons it gives their energies and positions. A second function gives the distribution of that "
        "number.",
        "",
        "## Training data",
        "",
        *(f"- `{text}`" for text in training["inputs"]),
        "",
        f"`source` settings: {', '.join(f'{key} = {value}' for key, value in training['source'].items())}. The depth "
        "that the model takes is vertical, whatever the files had.",
        "",
        "## How good it is",
        "",
        *_metrics(card["metrics"], of_another_model(card)),
        "",
        "## Limits",
        "",
        *(f"- {text}" for text in card["limits"]),
        "",
        f"Primaries of the training, about: mean ± {SPREADS:g} standard deviations (of lg E, cos zenith, lg A, lg "
        "depth). A range may end beyond the largest value that there was: that of the mass does if nuclei are few.",
        "",
        "| | from about | to about |",
        "| --- | --- | --- |",
        *(f"| {name} | {one['from']:.4g} | {one['to']:.4g} |" for name, one in card["covered"].items()),
        "",
        "## How to use it",
        "",
        *(f"- `{one.name}` {one.text}" for one in inputs),
        f"- → `muons` {OUTPUT}",
        "",
        *_counts(card),
        *snippets(card, inputs),
        "## Files",
        "",
        "| file | bytes | largest relative difference to the trained model | sha256 |",
        "| --- | --- | --- | --- |",
        *(
            f"| {name} | {file['bytes']:,} | {file['difference_to_trained']:.1e} | `{file['sha256']}` |"
            for name, file in card["files"].items()
        ),
        "",
        f"Written with {', '.join(f'{name} {version}' for name, version in card['versions'].items())}. The whole "
        f"configuration of the training stands in `{CARD_JSON}`.",
        "",
        "## Licence",
        "",
        f"{card['licence']}.",
        "",
    ]
    return "\n".join(lines)


def of_another_model(card: Mapping[str, Any]) -> str:
    """Reason why the card's metrics belong to another model; empty if their report shows none."""
    found, training = card["evaluation"] or {}, card["training"]
    model, step, digest = (found.get(key) for key in ("model", "step", "config_digest"))
    if model not in (None, card["model"]):
        return f"they are of a model of the kind {model}, and this one is of the kind {card['model']}"
    if step not in (None, training["steps"]):
        return f"they are of the weights at step {step}, and this model is of step {training['steps']}"
    if digest not in (None, training["config_digest"]):
        return "they are of a run with another configuration"
    return ""


def _metrics(metrics: Mapping[str, Any] | None, not_of_this: str) -> list[str]:
    if metrics is None:
        return ["It was not evaluated (`icestream evaluate`): nothing is known of its quality."]
    rows = [
        f"| {name} | {_number(one.get('value'))} | {_number(one.get('error'))} | {_number(one.get('floor'))} |"
        for name, one in metrics.items()
    ]
    return [
        "From `icestream evaluate`. The floor is the same number between real and independent real events.",
        *([f"**Not of this model**: {not_of_this}."] if not_of_this else []),
        "",
        "| metric | value | error | floor |",
        "| --- | --- | --- | --- |",
        *rows,
    ]


def _counts(card: Mapping[str, Any]) -> list[str]:
    return [
        "The number of muons follows a mixture of negative binomials. `counts` gives, for `primary`:",
        "",
        *(f"- `{name}` {text}" for name, text in COUNT_OUTPUTS.items()),
        "",
        "To draw N: a component with the probabilities `weights`, a rate from a Gamma distribution of its shape and "
        "mean, N from a Poisson distribution of that rate. icestream cuts N down to "
        f"{card['max_count']:,}.",
        "",
    ]


def _num_weights(module: Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _range(low: float, high: float) -> dict[str, float]:
    return {"from": low, "to": high}
