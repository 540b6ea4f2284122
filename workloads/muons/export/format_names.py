"""Names of the formats, for the command line: formats.py needs torch."""

from __future__ import annotations

from typing import Literal

Format = Literal["pt2", "onnx"]
FORMATS: tuple[Format, ...] = ("pt2", "onnx")
