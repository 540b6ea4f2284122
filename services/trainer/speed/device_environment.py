"""What torch reads from the environment before it is loaded, and how it is made deterministic."""

from __future__ import annotations

from collections.abc import MutableMapping

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The first is read by every version of torch that we run with, the second by those since 2.9."""
WORKSPACE_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"


def prepare(environment: MutableMapping[str, str], *, deterministic: bool) -> None:
    """Before torch is imported. What the user has set stays.

    Expandable segments: ragged batches would otherwise leave the device's memory in pieces that fit no later batch.
    The workspace: cuBLAS gives the same bits every time only with one of a fixed size.
    """
    if not any(name in environment for name in ALLOCATOR_VARIABLES):
        environment[ALLOCATOR_VARIABLES[0]] = "expandable_segments:True"
    if deterministic:
        environment.setdefault(WORKSPACE_VARIABLE, ":4096:8")


def be_deterministic() -> None:
    """From now on only algorithms that give the same bits every time; one that has no such form raises RuntimeError."""
    import torch

    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
