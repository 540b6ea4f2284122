"""Formats of exported functions for other programs: torch.export and ONNX."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.extras import missing_extra
from workloads.muons.export.check import Function
from workloads.muons.export.format_names import Format

_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def require(formats: Sequence[Format]) -> None:
    """Check that the packages for ``formats`` are installed. Raises BadInputError."""
    missing = [name for name in _ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if "onnx" in formats and missing:
        raise missing_extra("ONNX", "export", "use --format pt2")


def write(
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
    with _quiet():
        program: Any = torch.onnx.export(
            module,
            example,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=list(inputs),
            output_names=list(outputs),
            verbose=False,
        )
        program.save(path, external_data=False)


def load(path: Path, inputs: Sequence[str]) -> Function:
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


@contextmanager
def _quiet() -> Iterator[None]:
    """Context without torch's own warnings: about torchvision, and about its use of its deprecated functions."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)
