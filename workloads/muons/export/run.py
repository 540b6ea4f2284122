"""Work of `icestream export`: a folder with checked programs, in torch.export and ONNX, and the model card.

Shape suffixes: E events, P particles, K mixture components.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import math
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.atomic_file import part_of_one_writer
from common.errors import BadInputError, missing_extra
from common.text import without_secrets
from workloads.base.checkpoint import TrainedRun, versions
from workloads.base.random_streams import stream_seed
from workloads.base.report.page import REPORT_JSON, default_output
from workloads.muons.export import FORMATS, Format
from workloads.muons.export.functions import PRIMARY, CountsFunction, FunctionInput, GeneratorFunction, ModelFunctions
from workloads.muons.generation import Trained, load_trained
from workloads.muons.models.config import MAX_COUNT
from workloads.muons.models.count_head import CountMixture
from workloads.muons.models.standardise import DEPTH_OFFSET_M, Standardise
from workloads.muons.purposes import MuonPurpose

CARD, CARD_JSON = "MODEL_CARD.md", "model_card.json"

_PROGRAM = """\
import numpy as np
import {package}

random = np.random.default_rng(1)
primary = np.array([[1e6, 0.5, 56.0, 1500.0], [1e5, 0.2, 1.0, 2000.0]], np.float32)  # energy, zenith, A, vertical depth

def draw_counts(weights, means, shapes):
    edges = weights.cumsum(1)
    component = (random.random((len(weights), 1)) * edges[:, -1:] > edges).sum(1).clip(max=weights.shape[1] - 1)
    rows = np.arange(len(weights))
    mean, shape = means[rows, component], shapes[rows, component]
    return random.poisson(random.gamma(shape, mean / shape)).clip(max={max_count})


{counts}

num_events, num_muons = len(counts), counts.sum()
inputs = {{
{inputs}
}}
{muons}  # energy_gev, x_m, y_m; event by event
"""
_LINES = {
    "pt2": {
        "package": "torch",
        "counts": """\
mixture = torch.export.load("counts.pt2").module()(torch.from_numpy(primary))
counts = draw_counts(*(tensor.detach().numpy() for tensor in mixture))""",
        "muons": """\
generator = torch.export.load("generator.pt2").module()
muons = generator(*map(torch.from_numpy, inputs.values())).detach().numpy()""",
    },
    "onnx": {
        "package": "onnxruntime",
        "counts": """\
counts = draw_counts(*onnxruntime.InferenceSession("counts.onnx").run(None, {"primary": primary}))""",
        "muons": """\
generator = onnxruntime.InferenceSession("generator.onnx")
(muons,) = generator.run(None, inputs)""",
    },
}
"""The differences between the programs of the formats."""


def program(suffix: str, inputs: Sequence[FunctionInput], *, max_count: int) -> str:
    """Program that draws muons, to be run in the folder of the files with this suffix."""
    lines = "\n".join(f'    "{one.name}": {one.program},' for one in inputs)
    return _PROGRAM.format(inputs=lines, max_count=max_count, **_LINES[suffix])


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
    files: Mapping[str, Mapping[str, Any]],
    report: Mapping[str, Any] | None,
    licence: str,
) -> dict[str, Any]:
    """Contents of the card, without secrets as a checkpoint's configuration is."""
    generator, counts = functions
    run, evaluation = trained.run, None
    configuration = json.loads(run.config_json)
    if report is not None:
        evaluation = {key: value for key, value in report.items() if key not in ("metrics", "beside")}
    inputs = {one.name: one.text for one in generator.inputs}
    return {
        "format": 1,
        "model": run.model,
        "purpose": "muon bundles underground, for a given primary",
        "parameters": _size(generator) - _size(generator.count_head),
        "count_parameters": _size(counts),
        "functions": {
            "generator": {"inputs": inputs, "outputs": {"muons": OUTPUT}},
            "counts": {"inputs": {"primary": PRIMARY.text}, "outputs": COUNT_OUTPUTS},
        },
        "max_count": MAX_COUNT,
        "training": {
            "inputs": configuration["input"],
            "source": configuration["source"],
            "events": run.events_trained,
            "steps": run.step,
            "checkpoint": run.path.name,
            "config_digest": run.config_digest,
        },
        "covered": covered(generator.standardise),
        "metrics": None if report is None else report.get("metrics", {}),
        "evaluation": evaluation,
        "limits": LIMITS,
        "licence": licence or NO_LICENCE,
        "files": files,
        "versions": versions(("icestream", "torch", "numpy"), optional=_ONNX_PACKAGES),
        "configuration": configuration,
    }


def covered(standardise: Standardise) -> dict[str, dict[str, float]]:
    """Mean ± SPREADS standard deviations of the training's primaries, in physical units."""
    pairs = list(zip(standardise.condition_mean_C.tolist(), standardise.condition_spread_C.tolist(), strict=True))
    low, high = ([mean + sign * SPREADS * spread for mean, spread in pairs] for sign in (-1, 1))

    def zenith_rad(cosine: float) -> float:
        return math.acos(min(max(cosine, -1.0), 1.0))

    return {
        "energy_gev": {"from": 10 ** low[0], "to": 10 ** high[0]},
        "zenith_rad": {"from": zenith_rad(high[2]), "to": zenith_rad(low[2])},
        "mass_a": {"from": max(10 ** low[3], 1.0), "to": 10 ** high[3]},
        "depth_m": {"from": max(10 ** low[4] - DEPTH_OFFSET_M, 0.0), "to": 10 ** high[4] - DEPTH_OFFSET_M},
    }


_MARKDOWN = """\
# Model card: muon bundles underground

A generator of the kind `{model}` ({parameters:,} weights, and {count_parameters:,} for the number of muons), trained \
with icestream on {training[events]:,} events in {training[steps]:,} steps (`{training[checkpoint]}`). For a primary \
and a number of muons it gives their energies and positions. A second function gives the distribution of that number.

## Training data

{training_inputs}

`source` settings: {source}. The depth that the model takes is vertical, whatever the files had.

## How good it is

{quality}

## Limits

{limit_lines}

Primaries of the training, about: mean ± {spreads:g} standard deviations (of lg E, cos zenith, lg A, lg depth). A \
range may end beyond the largest value that there was: that of the mass does if nuclei are few.

| | from about | to about |
| --- | --- | --- |
{ranges}

## How to use it

{input_lines}
- → `muons` {output}

The number of muons follows a mixture of negative binomials. `counts` gives, for `primary`:

{count_lines}

To draw N: a component with the probabilities `weights`, a rate from a Gamma distribution of its shape and mean, N \
from a Poisson distribution of that rate. icestream cuts N down to {max_count:,}.

{programs}## Files

| file | bytes | largest relative difference to the trained model | sha256 |
| --- | --- | --- | --- |
{file_lines}

Written with {with_versions}. The whole configuration of the training stands in `{card_json}`.

## Licence

{licence}.
"""


def as_markdown(card: Mapping[str, Any], inputs: Sequence[FunctionInput]) -> str:
    """Card as Markdown. ``inputs``: of the generator."""
    training = card["training"]
    values = {
        "training_inputs": [f"- `{text}`" for text in training["inputs"]],
        "quality": _quality(card),
        "limit_lines": [f"- {text}" for text in card["limits"]],
        "ranges": [f"| {name} | {one['from']:.4g} | {one['to']:.4g} |" for name, one in card["covered"].items()],
        "input_lines": [f"- `{one.name}` {one.text}" for one in inputs],
        "count_lines": [f"- `{name}` {text}" for name, text in COUNT_OUTPUTS.items()],
        "file_lines": [
            f"| {name} | {file['bytes']:,} | {file['difference_to_trained']:.1e} | `{file['sha256']}` |"
            for name, file in card["files"].items()
        ],
    }
    return _MARKDOWN.format(
        **card,
        **{name: "\n".join(lines) for name, lines in values.items()},
        source=", ".join(f"{key} = {value}" for key, value in training["source"].items()),
        with_versions=", ".join(f"{name} {version}" for name, version in card["versions"].items()),
        programs="".join(
            f"With {names['package']} and numpy alone:\n\n```python\n"
            f"{program(suffix, inputs, max_count=card['max_count']).rstrip()}\n```\n\n"
            for suffix, names in _LINES.items()
            if f"generator.{suffix}" in card["files"]
        ),
        spreads=SPREADS,
        output=OUTPUT,
        card_json=CARD_JSON,
    )


def of_another_model(card: Mapping[str, Any]) -> str:
    """Reason why the card's metrics belong to another model; empty if their report shows none."""
    found, training = card["evaluation"] or {}, card["training"]
    own = {"model": card["model"], "step": training["steps"], "config_digest": training["config_digest"]}
    other = [f"{key} {found[key]} and not {value}" for key, value in own.items() if found.get(key) not in (None, value)]
    return f"they are of {', '.join(other)}" if other else ""


def _quality(card: Mapping[str, Any]) -> list[str]:
    if card["metrics"] is None:
        return ["It was not evaluated (`icestream evaluate`): nothing is known of its quality."]
    rows = [[metric.get(column) for column in ("value", "error", "floor")] for metric in card["metrics"].values()]
    texts = [" | ".join("" if number is None else f"{number:.4g}" for number in row) for row in rows]
    reason = of_another_model(card)
    return [
        "From `icestream evaluate`. The floor is the same number between real and independent real events.",
        *([f"**Not of this model**: {reason}."] if reason else []),
        "",
        "| metric | value | error | floor |",
        "| --- | --- | --- | --- |",
        *(f"| {name} | {text} |" for name, text in zip(card["metrics"], texts, strict=True)),
    ]


LARGEST_DIFFERENCE = 1e-4
"""Largest allowed difference, relative to the larger of value and 1. Rounding: 1e-6 to 1e-5 (energies are 10^x)."""

Function = Callable[..., Sequence[Tensor]]
"""Exported function: tensors in, tensors out."""
_BOUND = 1e-5
"""Distance of a uniform number from a bound between components within which rounding may choose the other one."""
_LEAST_COMPARED = 0.5
"""Least part of the muons that is compared."""
_SIZES = ((1, 0), (3, 0), (1, 1), (1, 300), (40, 1), (200, 3000), (257, 64))


def typical_primaries(standardise: Standardise, num: int, random: torch.Generator) -> Tensor:
    """Primaries in the training's range: with its mean and spread in each condition. (E, 4)."""
    drawn_EC = standardise.condition_mean_C + standardise.condition_spread_C * torch.randn(num, 5, generator=random)
    lg_energy_E, _, cos_zenith_E, lg_mass_E, lg_depth_E = drawn_EC.unbind(1)
    return torch.stack(
        [
            10**lg_energy_E,
            cos_zenith_E.clamp(0.15, 1).acos(),
            10 ** lg_mass_E.clamp_min(0),
            (10**lg_depth_E - DEPTH_OFFSET_M).clamp_min(0),
        ],
        1,
    )


def generator_inputs(
    function: GeneratorFunction, num_events: int, num_particles: int, seed: int = 1
) -> tuple[Tensor, ...]:
    """Arguments of an exported generator; some events have no particles."""
    random = torch.Generator().manual_seed(stream_seed(MuonPurpose.EXPORT_GENERATOR, seed))
    event_P = torch.randint(0, num_events, (num_particles,), generator=random).sort().values

    def made(one: FunctionInput) -> Tensor:
        rows = num_events if one.rows == "events" else num_particles
        shape = (rows, one.width) if one.width else (rows,)
        match one.kind:
            case "primary":
                return typical_primaries(function.standardise, num_events, random)
            case "counts":
                return torch.bincount(event_P, minlength=num_events)
            case "event":
                return event_P
            case "normal":
                return torch.randn(shape, generator=random)
            case "uniform":
                return torch.rand(shape, generator=random)

    return tuple(made(one) for one in function.inputs)


def generator_difference(found: Function, function: GeneratorFunction) -> float:
    """Largest relative difference over cases with no, one and many particles and events; infinite for other shapes."""
    cases = [generator_inputs(function, *sizes, seed) for seed, sizes in enumerate(_SIZES)]
    sure = torch.cat([_sure(function, inputs) for inputs in cases])
    if sure.sum() < _LEAST_COMPARED * len(sure):
        return math.inf
    return max(muons_difference(found, function, inputs) for inputs in cases)


def muons_difference(found: Function, function: GeneratorFunction, inputs: tuple[Tensor, ...]) -> float:
    """Largest relative difference for these inputs, without muons that rounding may change: see FunctionInput.

    Such a muon may be another one in another program, and as good.
    """
    found_P3, expected_P3 = found(*inputs)[0], function.trained_muons(inputs)
    if found_P3.shape != expected_P3.shape:
        return math.inf
    sure_P = _sure(function, inputs)
    return _difference([found_P3[sure_P]], [expected_P3[sure_P]])


def _sure(function: GeneratorFunction, inputs: tuple[Tensor, ...]) -> Tensor:
    """True for muons that no number near the bound of two components decides. -> (P,) bool."""
    expected_P3 = function.trained_muons(inputs)
    sure_P = torch.ones(len(expected_P3), dtype=torch.bool)
    if any(one.chooses for one in function.inputs):
        for step in (-_BOUND, _BOUND):
            pairs = zip(function.inputs, inputs, strict=True)
            moved = tuple(values + step if one.chooses else values for one, values in pairs)
            sure_P &= (function.trained_muons(moved) == expected_P3).all(1)
    return sure_P


@torch.no_grad()
def counts_difference(found: Function, function: CountsFunction) -> float:
    """Largest relative difference of the distribution of counts."""
    worst = 0.0
    for seed, num_events in enumerate((1, 2, 300)):
        random = torch.Generator().manual_seed(stream_seed(MuonPurpose.EXPORT_COUNTS, seed))
        primary_E4 = typical_primaries(function.standardise, num_events, random)
        mixture: CountMixture = function.count_head(function.standardise.conditions(primary_E4))
        worst = max(worst, _difference(found(primary_E4), [values_EK.exp() for values_EK in mixture]))
    return worst


def _difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        if one.shape != other.shape:
            return math.inf
        if one.numel():
            relative = ((one - other).abs() / other.abs().clamp_min(1)).max()
            worst = max(worst, float(relative.nan_to_num(math.inf)))
    return worst


_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def write_program(
    module: nn.Module,
    example: tuple[Tensor, ...],
    rows: tuple[str, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
    path: Path,
) -> None:
    """Write to ``path``, in its suffix's format. ``rows`` names dimension 0 of each input: equal names, equal size.

    The example's sizes must differ from each other, and from 0 and 1: else torch treats them as constants.
    """
    module.eval()
    sizes = {name: torch.export.Dim.DYNAMIC for name in rows}
    shapes = tuple({0: sizes[name]} for name in rows)
    if path.suffix == ".pt2":
        torch.export.save(torch.export.export(module, example, dynamic_shapes=shapes), path)
        return
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of torchvision
    with warnings.catch_warnings():  # of torch's about its own use of what it deprecates
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        names: Any = {"input_names": list(inputs), "output_names": list(outputs)}
        program: Any = torch.onnx.export(module, example, dynamo=True, dynamic_shapes=shapes, verbose=False, **names)
        program.save(path, external_data=False)


def load_program(path: Path, inputs: Sequence[str]) -> Function:
    """Function of an exported file, loaded as by a user."""
    if path.suffix == ".pt2":
        module = torch.export.load(path).module()

        def exported(*tensors: Tensor) -> Sequence[Tensor]:
            with torch.no_grad():
                found = module(*tensors)
            return [found] if isinstance(found, Tensor) else list(found)

        return exported
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(*tensors: Tensor) -> Sequence[Tensor]:
        feed = {name: tensor.numpy() for name, tensor in zip(inputs, tensors, strict=True)}
        return [torch.from_numpy(array) for array in session.run(None, feed)]

    return run


OWN_FILES = frozenset(
    {CARD, CARD_JSON} | {f"{name}.{suffix}" for name in ("generator", "counts") for suffix in FORMATS}
)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def export_functions(
    functions: ModelFunctions, folder: Path, wanted: Sequence[Format]
) -> dict[str, dict[str, int | float | str]]:
    """Write and check each function in each format. -> name -> about the file, as in the card.

    Raises BadInputError if one disagrees with the trained modules.
    """
    generator, counts = functions
    example = generator_inputs(generator, 5, 11)
    rows = tuple(one.rows for one in generator.inputs)
    written = {}
    for suffix in wanted:
        path = folder / f"generator.{suffix}"
        write_program(generator, example, rows, generator.names, ("muons",), path)
        written[path.name] = _checked(path, generator_difference(load_program(path, generator.names), generator))
        path = folder / f"counts.{suffix}"
        write_program(counts, example[:1], ("events",), ("primary",), tuple(COUNT_OUTPUTS), path)
        written[path.name] = _checked(path, counts_difference(load_program(path, ("primary",)), counts))
    return written


@contextmanager
def new_folder(out: Path, *, force: bool) -> Iterator[Path]:
    """Context of a folder that is written completely or not at all; it replaces an existing one only with ``force``.

    Raises BadInputError if ``out`` can't be used.
    """
    out = out.resolve()  # a link's target is replaced, and "." has a name
    if out.exists() and not out.is_dir():
        raise BadInputError(f"{out} is a file: name a folder")
    there = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if there - OWN_FILES:
        raise BadInputError(
            f"{out} holds more than an exported model, such as {min(there - OWN_FILES)}: choose another folder"
        )
    if there and not force:
        raise BadInputError(f"{out} holds a model: choose another folder, or replace it with --force")
    part = part_of_one_writer(out)
    part.mkdir(parents=True)
    try:
        yield part
        if out.is_dir():
            shutil.rmtree(out)
        part.replace(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _checked(path: Path, difference: float) -> dict[str, int | float | str]:
    if not difference <= LARGEST_DIFFERENCE:
        raise BadInputError(
            f"{path.name} differs from the trained model by {difference:.2g} (relative; up to "
            f"{LARGEST_DIFFERENCE:g} is rounding): nothing was written; try another version of torch or "
            "onnxruntime"
        )
    contents = path.read_bytes()
    digest = hashlib.sha256(contents).hexdigest()
    return {"sha256": digest, "bytes": len(contents), "difference_to_trained": difference}


_OF_THE_FIRST = ("muons_generated", "notes", "thresholds_missed", "pictures", "beside")
"""Keys of a report that are about its first run alone."""


def run_export(
    checkpoint: Path, out: Path, wanted: tuple[Format, ...], report_path: Path | None, licence: str, *, force: bool
) -> Iterator[str]:
    """Lines about the written files; the options are the command's. Raises BadInputError."""
    if "onnx" in wanted and not all(map(importlib.util.find_spec, _ONNX_PACKAGES)):
        raise missing_extra("ONNX", "export", "use --format pt2")
    trained = load_trained(checkpoint, torch.device("cpu"))
    sampler = trained.generator
    functions = GeneratorFunction(sampler), CountsFunction(sampler.standardise, sampler.count_head)
    place = report_path or default_output(trained.run.path) / REPORT_JSON  # where `icestream evaluate` puts it
    report = read_report(place, trained.run, must_exist=report_path is not None)
    with new_folder(out, force=force) as part:
        files = export_functions(functions, part, [name for name in FORMATS if name in wanted])
        card = as_json(trained, functions, files, report, licence)
        (part / CARD_JSON).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        (part / CARD).write_text(as_markdown(card, functions[0].inputs), encoding="utf-8")
    for name, file in files.items():
        yield (
            f"{out / name}: {file['bytes']:,} bytes, differs from the trained model by at most "
            f"{file['difference_to_trained']:.1e} (relative)"
        )
    told = f"with {len(card['metrics'] or ())} metrics"
    if card["metrics"] is None:
        told = "no metrics in it: there is no report of an evaluation (icestream evaluate)"
    elif reason := of_another_model(card):
        told = f"with metrics, but {reason}: evaluate it again"
    yield f"{out / CARD}: {told}"


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
    if not isinstance(metrics, dict) or not all(
        isinstance(metric, dict) and isinstance(metric.get(name), int | float | None)
        for metric in metrics.values()
        for name in ("value", "error", "floor")
    ):
        raise BadInputError(f"{path}: not a report of icestream evaluate: it has no metrics, or one without numbers")
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
