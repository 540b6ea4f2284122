"""Names of a run's services, and the command of each."""

from __future__ import annotations

from pathlib import Path

from common.own_code import is_own
from common.python_command import python_command

FETCHER = "fetcher"
TRAINER = "trainer"
LOGS_FOLDER = "logs"


def service_of(name: str) -> str:
    """Service of the process ``name``: decoder-1 is a decoder."""
    return name.partition("-")[0]


def fetcher_name(shard: int | None) -> str:
    """Process name of the fetcher of a shard; None: of a run without shards."""
    return FETCHER if shard is None else f"{FETCHER}-{shard:03d}"


def decoder_name(shard: int | None, index: int) -> str:
    """Process name of a decoder: decoder-1, or decoder-002-1 in shard 2."""
    return f"decoder-{index}" if shard is None else f"decoder-{shard:03d}-{index}"


def shard_of(name: str) -> int | None:
    """Shard of a fetcher or decoder; None in a run without shards, and for a trainer."""
    service, *numbers = name.split("-")
    is_of_shard = len(numbers) == {FETCHER: 1, "decoder": 2}.get(service)
    return int(numbers[0]) if is_of_shard else None


def service_command(name: str, run_dir: Path, on_machine: int = 1, model: str = "") -> list[str]:
    """Command of the real service, with this interpreter and this package.

    ``on_machine``: shards of this machine. ``model``: that of the run; a trainer runs the user's own only if told so.
    """
    command = python_command("icestream", service_of(name), "--run-dir", str(run_dir))
    if service_of(name) == TRAINER and is_own(model):
        command += ["--model", model]
    shard = shard_of(name)
    return command if shard is None else [*command, "--shard", str(shard), "--on-machine", str(on_machine)]
