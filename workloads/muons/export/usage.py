"""Example programs that use an exported model without icestream. Pure; the tests run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workloads.muons.export.inputs import FunctionInput

_DRAW_COUNTS = """\
def draw_counts(weights, means, shapes):
    edges = weights.cumsum(1)
    component = (random.random((len(weights), 1)) * edges[:, -1:] > edges).sum(1).clip(max=weights.shape[1] - 1)
    rows = np.arange(len(weights))
    mean, shape = means[rows, component], shapes[rows, component]
    return random.poisson(random.gamma(shape, mean / shape)).clip(max={max_count})
"""
_PRIMARY = """\
primary = np.array([[1e6, 0.5, 56.0, 1500.0], [1e5, 0.2, 1.0, 2000.0]], np.float32)  # energy, zenith, A, vertical depth
"""
_INPUTS = """\
num_events, num_muons = len(counts), counts.sum()
inputs = {{
{inputs}
}}
"""
_PT2 = """\
import numpy as np
import torch

random = np.random.default_rng(1)
{primary}
{counts}
{inputs}generator = torch.export.load("generator.pt2").module()
muons = generator(*map(torch.from_numpy, inputs.values())).detach().numpy()  # energy_gev, x_m, y_m; event by event
"""
_PT2_COUNTS = """\
{draw}

mixture = torch.export.load("counts.pt2").module()(torch.from_numpy(primary))
counts = draw_counts(*(tensor.detach().numpy() for tensor in mixture))
"""
_ONNX = """\
import numpy as np
import onnxruntime

random = np.random.default_rng(1)
{primary}
{counts}
{inputs}generator = onnxruntime.InferenceSession("generator.onnx")
(muons,) = generator.run(None, inputs)  # energy_gev, x_m, y_m; event by event
"""
_ONNX_COUNTS = """\
{draw}

counts = draw_counts(*onnxruntime.InferenceSession("counts.onnx").run(None, {{"primary": primary}}))
"""


def program(suffix: str, inputs: Sequence[FunctionInput], *, max_count: int) -> str:
    """Program that draws muons, to be run in the folder of the files with this suffix."""
    whole, of_counts = (_PT2, _PT2_COUNTS) if suffix == "pt2" else (_ONNX, _ONNX_COUNTS)
    counts = of_counts.format(draw=_DRAW_COUNTS.format(max_count=max_count))
    lines = "\n".join(f'    "{one.name}": {one.program},' for one in inputs)
    return whole.format(primary=_PRIMARY, counts=counts, inputs=_INPUTS.format(inputs=lines))


def snippets(card: Mapping[str, Any], inputs: Sequence[FunctionInput]) -> list[str]:
    """Lines of Markdown: a program for each exported format."""
    lines: list[str] = []
    for suffix, needs in (("pt2", "torch and numpy"), ("onnx", "onnxruntime and numpy")):
        if f"generator.{suffix}" in card["files"]:
            text = program(suffix, inputs, max_count=card["max_count"])
            lines += [f"With {needs} alone:", "", "```python", text.rstrip(), "```", ""]
    return lines
