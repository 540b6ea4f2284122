"""Triton without a GPU: its interpreter, and its compiler for an H100.

The compiler and assembler find what the interpreter lets through, as a wrong type.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton reads it when it is imported: this can't be changed for one test."""


def compiles_kernels(test: Any) -> Any:
    """Mark a test that compiles kernels for rows of ``dtype``: statistics of bfloat16 are of another type, float32."""
    for mark in (
        pytest.mark.process,
        pytest.mark.slow,
        pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing"),
        pytest.mark.parametrize("dtype", ["bf16", "fp64"]),
    ):
        test = mark(test)
    return test


@pytest.fixture
def triton_device() -> torch.device:
    """Device of the Triton kernels: interpreted, they read the memory of the CPU.

    A test file names it `device`. It is in no conftest.py: `python -m benchmarks.gpu` runs the tests without them.
    """
    if INTERPRETED:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device; Triton's interpreter makes this test in another process")
    return torch.device("cuda")


def cases(sizes: Mapping[str, Any], of_every_type: str) -> list[Any]:
    """Return parameters: all sizes of all types of rows.

    The interpreter, which takes a second for each, gets all types of one size, and float32 of the others.
    """
    return [
        pytest.param(size, dtype, id=f"{name}-{dtype}")
        for name, size in sizes.items()
        for dtype in (torch.float32, torch.float64, torch.bfloat16)
        if not INTERPRETED or dtype == torch.float32 or name == of_every_type
    ]


_NUMBERS = {"num_events", "num_particles", "num_tiles", "D"}


def compile_for_h100(
    kernel: Any,
    rows: Collection[str],
    dtype: str,
    settings: Mapping[str, Any],
    unused: Collection[str] = (),
    others: Mapping[str, str] | None = None,
) -> None:
    """Compile a kernel. ``rows``: arguments of ``dtype``, others are in ``others`` or wide; None is given for those in
    ``unused``."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    wide = "fp64" if dtype == "fp64" else "fp32"
    accumulator = getattr(triton.language, f"float{wide[2:]}")
    constants = {"ACC": accumulator, **settings, **dict.fromkeys(unused)}
    signature = {}
    for name in kernel.arg_names:
        element = (others or {}).get(name) or (dtype if name in rows else wide)
        signature[name] = (
            "constexpr" if name in constants else "i32" if name in _NUMBERS else "*" + element.removeprefix("*")
        )
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    with TemporaryDirectory() as cache, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", cache)
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert compiled.asm["cubin"]
    lines = compiled.asm["ptx"].splitlines()
    assert not [line for line in lines if line.strip().startswith(("atom", "red."))]
