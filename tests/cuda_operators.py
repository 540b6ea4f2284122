"""Operators whose CUDA kernels are not deterministic, by torch's own list, found on the CPU.

torch names them in the docstring of `use_deterministic_algorithms`, as Python functions and modules. RAISING and
REPLACED say which ATen operators those are, forward and backward; test_deterministic_operators.py compares both tables
with the docstring of the installed torch. Conditions that can't hold on CUDA (CPU tensors) have no operator.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from own_operators import call_inside
from torch.utils._python_dispatch import TorchDispatchMode

Arguments = Mapping[str, Any]
Condition = Callable[[Arguments], bool]

ROOT = Path(__file__).resolve().parents[1]


def _always(_: Arguments) -> bool:
    return True


def _is_floating(arguments: Arguments) -> bool:
    dtype = arguments.get("dtype") or arguments["self"].dtype
    return bool(dtype.is_floating_point or dtype.is_complex)


def _differentiated(*modules: str) -> dict[str, dict[str, Condition]]:
    """Entries of modules that torch lists for their gradients alone."""
    names = {
        "MaxPool3d": "max_pool3d_with_indices_backward",
        "FractionalMaxPool2d": "fractional_max_pool2d_backward",
        "FractionalMaxPool3d": "fractional_max_pool3d_backward",
        "AvgPool3d": "avg_pool3d_backward",
        "CTCLoss": "_ctc_loss_backward",
    }
    entries = {}
    for module in modules:
        snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", module).lower()
        snake = re.sub(r"_?pad(\d)d", r"_pad\1d", snake)
        operator = names.get(module, f"_{snake}_backward" if snake == "adaptive_avg_pool2d" else f"{snake}_backward")
        entries[f"torch.nn.{module} when attempting to differentiate a CUDA tensor"] = {operator: _always}
    return entries


_CONVOLUTIONS: dict[str, Condition] = {"convolution": _always, "convolution_backward": _always}

REPLACED: dict[str, dict[str, Condition]] = {
    **{f"torch.nn.Conv{n}d when called on CUDA tensor": _CONVOLUTIONS for n in (1, 2, 3)},
    **{f"torch.nn.ConvTranspose{n}d when called on CUDA tensor": _CONVOLUTIONS for n in (1, 2, 3)},
    **_differentiated("ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d", "MaxPool3d"),
    "torch.bmm when called on sparse-dense CUDA tensors": {"bmm": lambda a: a["self"].is_sparse},
    "torch.Tensor.__getitem__ when attempting to differentiate a CPU tensor and the index is a list of tensors": {},
    "torch.Tensor.index_put with accumulate=False": {
        name: lambda a: not a["accumulate"] for name in ("index_put", "_index_put_impl", "_unsafe_index_put")
    },
    "torch.Tensor.index_put with accumulate=True when called on a CPU tensor": {},
    "torch.Tensor.put_ with accumulate=True when called on a CPU tensor": {},
    "torch.Tensor.scatter_add_ when called on a CUDA tensor": {"scatter_add": _always},
    "torch.gather when called on a CUDA tensor that requires grad": {"scatter_add": _always},
    "torch.index_add when called on CUDA tensor": {"index_add": _always},
    "torch.index_select when attempting to differentiate a CUDA tensor": {"index_add": _always},
    "torch.repeat_interleave when attempting to differentiate a CUDA tensor": {"index_add": _always},
    "torch.Tensor.index_copy when called on a CPU or CUDA tensor": {"index_copy": _always},
    "torch.Tensor.scatter when src type is Tensor and called on CUDA tensor": {"scatter": lambda a: "src" in a},
    "torch.Tensor.scatter_reduce when reduce='sum' or reduce='mean' and called on CUDA tensor": {
        "scatter_reduce": lambda a: a["reduce"] in ("sum", "mean")
    },
}
"""Operators that the deterministic mode replaces by slower ones, by their entry in the docstring."""

RAISING: dict[str, dict[str, Condition]] = {
    **_differentiated("AvgPool3d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool2d"),
    **_differentiated("FractionalMaxPool2d", "FractionalMaxPool3d", "CTCLoss"),
    **_differentiated("ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d"),
    **{f"torch.nn.MaxUnpool{n}d": {f"max_unpool{max(n, 2)}d": _always} for n in (1, 2, 3)},
    "torch.nn.functional.interpolate when attempting to differentiate a CUDA tensor and one of the following modes is"
    " used: - linear - bilinear - bicubic - trilinear": {
        f"upsample_{mode}_backward": _always for mode in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d")
    },
    "torch.nn.NLLLoss when called on a CUDA tensor": {
        name: _always for name in ("nll_loss", "nll_loss_forward", "nll_loss2d", "nll_loss2d_forward")
    },
    "torch.nn.EmbeddingBag when attempting to differentiate a CUDA tensor when mode='max'": {
        "_embedding_bag_backward": lambda a: a["mode"] == 2,
        "_embedding_bag_dense_backward": lambda a: a["mode"] == 2,
    },
    "torch.Tensor.put_ when accumulate=False": {"put": lambda a: not a["accumulate"]},
    "torch.Tensor.put_ when accumulate=True and called on a CUDA tensor": {"put": lambda a: a["accumulate"]},
    "torch.histc when called on a CUDA tensor": {"histc": _always},
    "torch.bincount when called on a CUDA tensor and weights tensor is given": {
        "bincount": lambda a: a["weights"] is not None
    },
    "torch.median with indices output when called on a CUDA tensor": {
        name: lambda a: "dim" in a for name in ("median", "nanmedian")
    },
    "torch.nn.functional.grid_sample when attempting to differentiate a CUDA tensor": {
        "grid_sampler_2d_backward": _always,
        "grid_sampler_3d_backward": _always,
    },
    "torch.cumsum when called on a CUDA tensor when dtype is floating point or complex": {"cumsum": _is_floating},
    "torch.Tensor.scatter_reduce when reduce='prod' and called on CUDA tensor": {
        "scatter_reduce": lambda a: a["reduce"] == "prod"
    },
    "torch.Tensor.resize_ when called with a quantized tensor": {"resize": lambda a: a["self"].is_quantized},
}
"""Operators without a deterministic CUDA kernel: the deterministic mode raises."""


def entries_of_torch() -> tuple[set[str], set[str]]:
    """Entries of the installed torch's docstring: replaced, raising. Plain text, on one line each."""
    text = torch.use_deterministic_algorithms.__doc__ or ""
    _, *lists = re.split(r"normally-nondeterministic operations will.*?``mode=True``:\n", text, flags=re.DOTALL)
    replaced, raising = (_entries(one) for one in lists)
    return replaced, raising


def _entries(text: str) -> set[str]:
    found: list[list[str]] = []
    for line in text.splitlines():
        indented = len(line) - len(line.lstrip())
        if line.strip().startswith("* "):
            found.append([line.strip()[2:]])
        elif line.strip() and indented > 8:
            found[-1].append(line.strip())
        elif line.strip():
            break
    return {re.sub(r"(:\w+:)?`+([^`]*)`+", r"\2", " ".join(lines)) for lines in found}


@contextmanager
def recorded_operators() -> Iterator[set[tuple[str, str, str]]]:
    """Set that collects the operators of both tables: "raising" or "replaced", operator, file in this repository."""
    recorder = _Recorder()
    with recorder:
        yield recorder.found


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[str, str, str]] = set()
        self._tables = {"raising": _by_operator(RAISING), "replaced": _by_operator(REPLACED)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__.rstrip("_")
        for kind, table in self._tables.items():
            if name in table and any(holds(_arguments(func, args, kwargs)) for holds in table[name]):
                self.found.add((kind, name, _our_file()))
        return call_inside(self, func, args, kwargs)


def _by_operator(table: dict[str, dict[str, Condition]]) -> dict[str, list[Condition]]:
    conditions: dict[str, list[Condition]] = {}
    for operators in table.values():
        for name, condition in operators.items():
            conditions.setdefault(name, []).append(condition)
    return conditions


def _arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, defaults included."""
    schema = func._schema.arguments
    named = {one.name: one.default_value for one in schema if one.has_default_value()}
    return named | {one.name: value for one, value in zip(schema, args, strict=False)} | kwargs


def _our_file() -> str:
    """File of the innermost frame in this repository, relative to it; in a backward pass, that which started it."""
    frame: Any = sys._getframe()
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path != Path(__file__) and path.is_relative_to(ROOT) and ".venv" not in path.parts:
            return str(path.relative_to(ROOT))
        frame = frame.f_back
    return "?"
