"""Export of a trained generator: torch.export, ONNX, model card."""

from typing import Literal

Format = Literal["pt2", "onnx"]
FORMATS: tuple[Format, ...] = ("pt2", "onnx")
