"""Place of a process among the ranks, from the environment set by torchrun (or `icestream run --trainers`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import BadInputError
from common.messages import MAX_TRAINERS
from common.rank_variables import RANKS_FILE_VARIABLE

_HOW = "start trainers with torchrun, or with `icestream run --trainers N`"


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
    """MASTER_ADDR: address of rank 0"""
    port: int
    """MASTER_PORT"""
    attempt: str = "0"
    """TORCHELASTIC_RESTART_COUNT: torchrun's store outlives the ranks that it restarts"""
    agent_keeps_store: bool = False
    """TORCHELASTIC_USE_AGENT_STORE: torchrun itself listens there"""

    file: str = ""
    """_ICESTREAM_RANKS_FILE: rendezvous file of the ranks of `icestream run`; no address, no port"""

    @property
    def is_local(self) -> bool:
        """True if all ranks are on this machine: they meet in a file, or at a loopback address."""
        is_loopback = self.address in ("localhost", "::1") or self.address.startswith("127.")
        return bool(self.file) or is_loopback


def place_from(environment: Mapping[str, str]) -> RankPlace | None:
    """Place among the ranks; None for a single trainer. Raises BadInputError if a part of it is missing or wrong."""
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        return None
    rank, size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    if size == 1 and rank == 0:
        return None
    if rank >= size:
        raise BadInputError(f"RANK = {rank} must be below WORLD_SIZE = {size}: {_HOW}")
    if size > MAX_TRAINERS:
        raise BadInputError(f"WORLD_SIZE = {size}: at most {MAX_TRAINERS} trainers")
    local_rank = _number(environment, "LOCAL_RANK")
    file, address = environment.get(RANKS_FILE_VARIABLE, ""), environment.get("MASTER_ADDR", "")
    if not address and not file:
        raise BadInputError(f"RANK = {rank} of {size}, but MASTER_ADDR is not set: {_HOW}")
    return RankPlace(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=_number(environment, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in environment else local_rank + 1,
        address=address,
        port=0 if file else _number(environment, "MASTER_PORT"),
        attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
        agent_keeps_store=environment.get("TORCHELASTIC_USE_AGENT_STORE", "") == "True",
        file=file,
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


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not (text.isascii() and text.isdecimal()):
        raise BadInputError(f"{name} = {text!r} in the environment: expected a number; {_HOW}")
    return int(text)
