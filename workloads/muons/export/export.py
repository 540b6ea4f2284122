"""Export of a trained model to a folder: checked functions in each format, and the model card."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.atomic_file import part_of_one_writer
from common.errors import BadInputError
from workloads.muons.export import check, formats
from workloads.muons.export.format_names import FORMATS, Format
from workloads.muons.export.functions import (
    COUNTS_INPUTS,
    COUNTS_OUTPUTS,
    GENERATOR_OUTPUTS,
    CountsFunction,
    GeneratorFunction,
    ModelFunctions,
)
from workloads.muons.export.likelihood import LikelihoodFunction
from workloads.muons.export.wgan import WganFunction
from workloads.muons.generation.load import Trained
from workloads.muons.models.likelihood.sampler import LikelihoodSampler
from workloads.muons.models.wgan.sampler import WganSampler

CARD, CARD_JSON = "MODEL_CARD.md", "model_card.json"
OWN_FILES = frozenset(
    {CARD, CARD_JSON} | {f"{name}.{suffix}" for name in ("generator", "counts") for suffix in FORMATS}
)


@dataclass(frozen=True)
class Exported:
    """Exported file."""

    name: str
    difference: float
    """Largest relative difference to the trained modules: see check.py."""
    sha256: str
    size_bytes: int


def functions_of(trained: Trained) -> ModelFunctions:
    """Functions of a trained model. Raises BadInputError if its kind can't be exported."""
    sampler = trained.generator
    match sampler:
        case WganSampler():
            generator: GeneratorFunction = WganFunction(sampler)
        case LikelihoodSampler():
            generator = LikelihoodFunction(sampler)
        case _:
            raise BadInputError(
                f"{trained.run.path}: a model of the kind {trained.run.model!r} can't be exported: use icestream"
                " generate"
            )
    return ModelFunctions(generator, CountsFunction(sampler.standardise, sampler.count_head))


def export_functions(functions: ModelFunctions, folder: Path, wanted: Sequence[Format]) -> list[Exported]:
    """Write and check each function in each format. Raises BadInputError if one disagrees with the trained modules."""
    found = []
    generator, counts = functions.generator, functions.counts
    for suffix in wanted:
        path = folder / f"generator.{suffix}"
        example = check.generator_inputs(generator, 5, 11)
        rows = tuple(one.rows for one in generator.inputs)
        formats.write(generator, example, rows, generator.names, GENERATOR_OUTPUTS, path)
        difference = check.generator_difference(formats.load(path, generator.names), generator)
        found.append(_checked(path, difference))
        path = folder / f"counts.{suffix}"
        formats.write(counts, example[:1], ("events",), COUNTS_INPUTS, COUNTS_OUTPUTS, path)
        difference = check.counts_difference(formats.load(path, COUNTS_INPUTS), counts)
        found.append(_checked(path, difference))
    return found


class NewFolder:
    """Folder that is written completely or not at all; it replaces an existing one only with ``force``."""

    def __init__(self, out: Path, *, force: bool) -> None:
        """Raises BadInputError if ``out`` can't be used."""
        out = out.resolve()  # a link's target is replaced, and "." has a name
        self._out = out
        self._part = part_of_one_writer(out)
        if out.exists() and not out.is_dir():
            raise BadInputError(f"{out} is a file: name a folder")
        there = {path.name for path in out.iterdir()} if out.is_dir() else set()
        if there - OWN_FILES:
            raise BadInputError(
                f"{out} holds more than an exported model, such as {min(there - OWN_FILES)}: choose another folder"
            )
        if there and not force:
            raise BadInputError(f"{out} holds a model: choose another folder, or replace it with --force")

    def __enter__(self) -> Path:
        self._part.mkdir(parents=True)
        return self._part

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                if self._out.is_dir():
                    shutil.rmtree(self._out)
                self._part.replace(self._out)
        finally:
            shutil.rmtree(self._part, ignore_errors=True)


def _checked(path: Path, difference: float) -> Exported:
    if not difference <= check.LARGEST_DIFFERENCE:
        raise BadInputError(
            f"{path.name} differs from the trained model by {difference:.2g} (relative; up to "
            f"{check.LARGEST_DIFFERENCE:g} is rounding): nothing was written; try another version of torch or "
            "onnxruntime"
        )
    return Exported(path.name, difference, hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size)
