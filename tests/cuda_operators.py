"""Operators whose CUDA kernels are not deterministic, found on the CPU, forward and backward.

They are the ATen operators of the Python functions and modules that torch 2.13 lists in the docstring of
`use_deterministic_algorithms`, without those for images and speech.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

Arguments = Mapping[str, Any]
Condition = Callable[[Arguments], bool]

ROOT = Path(__file__).resolve().parents[1]


def _always(_: Arguments) -> bool:
    return True


def _is_floating(arguments: Arguments) -> bool:
    dtype = arguments.get("dtype") or arguments["self"].dtype
    return bool(dtype.is_floating_point or dtype.is_complex)


REPLACED: dict[str, Condition] = {
    **dict.fromkeys(("scatter_add", "index_add", "index_copy"), _always),
    **dict.fromkeys(("index_put", "_index_put_impl", "_unsafe_index_put"), lambda a: not a["accumulate"]),
    "bmm": lambda a: a["self"].is_sparse,
    "scatter": lambda a: "src" in a,
    "scatter_reduce": lambda a: a["reduce"] in ("sum", "mean"),
}
"""Operators that the deterministic mode replaces by slower ones."""

RAISING: dict[str, Condition] = {
    **dict.fromkeys(("grid_sampler_2d_backward", "grid_sampler_3d_backward"), _always),
    **dict.fromkeys(("nll_loss", "nll_loss_forward", "nll_loss2d", "nll_loss2d_forward"), _always),
    **dict.fromkeys(("_embedding_bag_backward", "_embedding_bag_dense_backward"), lambda a: a["mode"] == 2),
    **dict.fromkeys(("median", "nanmedian"), lambda a: "dim" in a),
    **dict.fromkeys(("put", "histc"), _always),
    "bincount": lambda a: a["weights"] is not None,
    "cumsum": _is_floating,
    "scatter_reduce": lambda a: a["reduce"] == "prod",
    "resize": lambda a: a["self"].is_quantized,
}
"""Operators without a deterministic CUDA kernel: the deterministic mode raises."""


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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__.rstrip("_")
        for kind, table in (("raising", RAISING), ("replaced", REPLACED)):
            if name in table and table[name](_arguments(func, args, kwargs)):
                self.found.add((kind, name, _our_file()))
        return func(*args, **kwargs)


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
