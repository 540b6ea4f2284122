"""Environment that torch reads when it is loaded, and its deterministic mode."""

from __future__ import annotations

from collections.abc import MutableMapping

from common.private_path import cache_folder

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Variables of torch's allocator: all our versions of torch read the first, those since 2.9 also the second."""
CODE_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
"""Variables with the folders of compiled code, and their names in icestream's cache."""
WORKSPACE_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"


def prepare(environment: MutableMapping[str, str], *, deterministic: bool) -> None:
    """Prepare the environment before torch is imported. Variables that the user has set stay.

    Expandable segments: ragged batches would otherwise fragment the device's memory into pieces that fit no later
    batch. The workspace: cuBLAS gives the same bits every time only with a workspace of fixed size. The caches: what
    lies there is run, and torch's own place, /tmp/torchinductor_$USER, is a name that anybody can take first.
    """
    if not any(name in environment for name in ALLOCATOR_VARIABLES):
        environment[ALLOCATOR_VARIABLES[0]] = "expandable_segments:True"
    for name, folder in CODE_CACHES.items():
        environment.setdefault(name, str(cache_folder(environment) / folder))
    if deterministic:
        environment.setdefault(WORKSPACE_VARIABLE, ":4096:8")


def be_deterministic() -> None:
    """Use only algorithms that give the same bits every time; one without such a variant raises RuntimeError."""
    import torch

    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
