"""Environment of a trainer: it is read, and set before torch is loaded. Imports no library."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from common.errors import BadInputError
from common.paths import cache_folder
from common.process import MAX_TRAINERS, RANKS_FILE_VARIABLE

RANKS_TIMEOUT_S = 1800.0
"""Time that data-parallel trainers wait for each other before they give up: at the start, and at each step. Longer than
the ten minutes that one of them may wait for its fetcher."""
HOW = "start them with `icestream run --trainers N`, or with `torchrun … -m icestream run`"


@dataclass(frozen=True)
class RankPlace:
    """Place of one of ``size`` ranks; torchrun's names are in the comments."""

    rank: int
    """RANK"""
    size: int
    """WORLD_SIZE, 2 or more"""
    local_rank: int
    """LOCAL_RANK: number on this machine, and of its GPU"""
    local_size: int
    """LOCAL_WORLD_SIZE: ranks on this machine"""
    address: str
    """MASTER_ADDR: address of the machine of rank 0; empty if all ranks are on one machine"""
    file: str = ""
    """_ICESTREAM_RANKS_FILE: file in which the ranks of `icestream run` find each other"""

    @property
    def is_local(self) -> bool:
        """True if all ranks are on this machine."""
        return self.address in ("", "localhost", "::1") or self.address.startswith("127.")


def place_from(environment: Mapping[str, str]) -> RankPlace | None:
    """Place among the ranks; None for a single trainer. Raises BadInputError if a part of it is missing or wrong."""
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        return None
    try:
        rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        if size == 1:
            return None
        local_rank = int(environment["LOCAL_RANK"])
        local_size = int(environment.get("LOCAL_WORLD_SIZE", local_rank + 1))
    except (KeyError, ValueError) as error:
        raise BadInputError(f"RANK, WORLD_SIZE, LOCAL_RANK or LOCAL_WORLD_SIZE: {error}; {HOW}") from None
    if size > MAX_TRAINERS:
        raise BadInputError(f"WORLD_SIZE = {size}: at most {MAX_TRAINERS} trainers")
    return RankPlace(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        address=environment.get("MASTER_ADDR", ""),
        file=environment.get(RANKS_FILE_VARIABLE, ""),
    )


def device_of(name: str, place: RankPlace, num_gpus: int) -> str:
    """Device of a rank for ``trainer.device`` = ``name``. Raises BadInputError if there are too few GPUs."""
    if name.startswith("cuda:"):
        raise BadInputError(
            f"trainer.device = {name!r} is one GPU for {place.size} ranks: use --device cuda, each rank takes its own"
        )
    if name == "cpu" or (name == "auto" and num_gpus == 0):
        return "cpu"
    if place.local_size > num_gpus or place.local_rank >= num_gpus:
        raise BadInputError(
            f"{place.local_size} ranks on this machine, but torch sees {num_gpus} GPUs: each rank takes one; start "
            "fewer, or use --device cpu"
        )
    return f"cuda:{place.local_rank}"


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
