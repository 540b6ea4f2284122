"""Checks of a run before it starts, and of its sums at its end."""

from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import glob
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.config import StreamConfig
from common.errors import BadInputError, TransientError
from common.files.inputs import require_local
from common.files.local import named_inputs
from common.own_code import require_module
from common.paths import CONFIG_FILE, NODE_FILE, RUN_ID_FILE, user_path
from common.plan import SlotCapacity, plan_hash
from common.status import TrainerStatus
from common.summary import PlannedShard, ShardEvents, imbalance, planned_name, planned_shard
from common.text import shown
from common.where import Where
from services.config.root import Config, load_config, require_open_files
from services.config.settings import make_ranges
from services.fetcher.shared_folder import list_path, num_files
from services.trainer.agreement import shares_of_rank
from services.trainer.checks import config_for_checkpoint, require_same_plan
from workloads.base.checkpoint import find_checkpoint, newest_checkpoint, read_checkpoint

_CUDA_DRIVER = "libcuda.so.1"


def check_before_start(run_dir: Path, config: Config, *, lists_inputs: bool) -> None:
    """Raise BadInputError for a mistake that needs no process to be found.

    ``lists_inputs``: the inputs are yet to be listed, and are checked, too.
    """
    require_open_files(config)
    config.require_sets()
    make_ranges(config.input, config.fetcher.ranges, config.fetcher.done)
    schema = config.stored_workload()
    SlotCapacity(schema, config.stream)
    if config.stream.where:
        Where(config.stream.where, schema)
    if config.stream.transform:
        require_module(config.stream.transform, "stream.transform")
    refuse_data_folder(run_dir, config)
    if config.trainer.start_from:
        try:
            find_checkpoint(Path(config.trainer.start_from))
        except BadInputError as error:
            raise BadInputError(f"--start-from {error}") from None
    check_device(config.trainer.device)
    if lists_inputs and not config.fetcher.ranges:  # missing ranges may be skipped
        for text in config.input:
            require_input(text)
    for text in config.trainer.validation.input:
        require_input(text)


def refuse_folder_of_nodes(run_dir: Path) -> None:
    """Raise BadInputError for the shared folder, or a run directory, of one of several nodes."""
    if any((run_dir / name).exists() for name in (RUN_ID_FILE, NODE_FILE)):
        raise BadInputError(
            f"{run_dir}: a run of several nodes; go on with --shared and torchrun (--nnodes 1 on a single machine), or"
            " use another --run-dir"
        )


def require_plan_of_checkpoint(run_dir: Path, former: Mapping[str, Any], config: Config) -> None:
    """Raise BadInputError, as the trainer does, if the run's newest checkpoint belongs to another plan by its settings.

    ``former``: configuration as stored. The checkpoint is read, which takes seconds, only if that is of another plan.
    Other files behind the inputs are seen by the fetcher alone.
    """
    checkpoint = newest_checkpoint(run_dir)
    if checkpoint is None:
        return
    before = load_config(former, environment={})
    now = plan_hash(config.stored_workload(), config.stream, config.seed)
    if plan_hash(before.stored_workload(), before.stream, before.seed) == now:
        return
    if before.trainer.model != config.trainer.model:
        return  # the trainer refuses it, in other words
    try:
        content = read_checkpoint(checkpoint)
    except BadInputError:
        return  # the trainer looks for another, or says what to do
    require_same_plan(content, now, config_for_checkpoint(config))


def require_input(text: str) -> None:
    """Raise BadInputError if a local input has no file. Remote ones, and errors of the machine, are left to others."""
    if text.startswith("@"):
        if not user_path(text.removeprefix("@")).is_file():
            raise BadInputError(f"{text}: no such list of inputs")
    elif "://" not in text:
        with contextlib.suppress(TransientError):
            require_local(text)


def refuse_data_folder(run_dir: Path, config: Config) -> None:
    """Raise BadInputError if the run directory is no run yet, and the folder of the data or inside of an input:
    what the run writes would be read as data later."""
    if (run_dir / CONFIG_FILE).exists():
        return
    place = run_dir.resolve()
    for text in named_inputs(config.input):
        if "://" in text:
            continue
        path = Path(text)
        folder = path if path.is_dir() else path.parent
        if not glob.has_magic(str(folder)) and folder.resolve() == place:
            raise BadInputError(
                f"the run directory {shown(str(run_dir))} is the folder of the input {shown(text)}: choose one"
                " elsewhere, for example ../runs/mine"
            )
        if _reads_below(path, place):
            raise BadInputError(
                f"the run directory {shown(str(run_dir))} lies inside of the input {shown(text)}, which would read its"
                " files, too: choose one elsewhere, or name the files, for example -i '*.parquet'"
            )


def _reads_below(path: Path, place: Path) -> bool:
    """Return True if an input, a folder or a glob with `**`, takes files of the folder ``place``, at any depth."""
    folder, is_deep, _ = str(path.absolute()).partition("/**")
    if not is_deep and not path.is_dir():
        return False
    pattern = folder if glob.has_magic(folder) else glob.escape(str(Path(folder).resolve()))
    return any(fnmatch.fnmatchcase(str(above), pattern) for above in (place, *place.parents))


def check_device(name: str) -> None:
    """Raise BadInputError for a CUDA device that the driver does not have. Needs no torch, which takes seconds."""
    if not name.startswith("cuda"):
        return
    found = num_cuda_devices()
    if found == 0:
        raise BadInputError(f"trainer.device = {name!r}: there is no CUDA device here; use --device cpu")
    index = int(name.partition(":")[2] or 0)
    if index >= found:
        raise BadInputError(f"trainer.device = {name!r}: the CUDA devices here are cuda:0 to cuda:{found - 1}")


def num_cuda_devices() -> int:
    """Return the number of CUDA devices of the driver (CUDA_VISIBLE_DEVICES counts)."""
    try:
        driver = ctypes.CDLL(_CUDA_DRIVER)
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def possible_nodes(stream: StreamConfig, trainers: int) -> tuple[int, ...]:
    """Return the numbers of nodes, in order, that can share the run's shards. ``trainers``: of each node."""
    return tuple(nodes for nodes in range(1, stream.shards + 1) if not _obstacle(stream, nodes, trainers))


def usable_nodes(stream: StreamConfig, nodes: int, trainers: int) -> int:
    """Return the largest number of nodes, of those that there are, that can share the run's shards.

    Raises BadInputError if no number of nodes can.
    """
    fitting = [number for number in possible_nodes(stream, trainers) if number <= nodes]
    if not fitting:
        require_shares(stream, nodes, trainers)
    return fitting[-1]


def require_shares(stream: StreamConfig, nodes: int, trainers: int) -> None:
    """Raise BadInputError if the nodes can't share the shards evenly. ``trainers``: of each node."""
    if obstacle := _obstacle(stream, nodes, trainers):
        if stream.shards > 1:
            possible = ", ".join(map(str, possible_nodes(stream, trainers))) or "none"
            obstacle += f"; possible numbers of nodes with {trainers} trainers each: {possible}"
        raise BadInputError(obstacle)


def _obstacle(stream: StreamConfig, nodes: int, trainers: int) -> str:
    """Return the reason that the nodes can't share the shards; empty if they can."""
    needed = nodes * trainers
    if stream.is_mixed and nodes > 1:
        return f"{nodes} nodes, but stream.weights mixes its sets on one node"
    if stream.shards == 1 < nodes:
        return (
            f"{nodes} nodes, but stream.shards = 1, and each node runs shards of its own; for a new run: --set"
            f" stream.shards={nodes}, or a multiple of it"
        )
    if stream.shards % nodes:
        return f"{nodes} nodes: stream.shards = {stream.shards} must be a multiple of it"
    try:
        shares_of_rank(stream, 0, needed)
    except BadInputError as error:
        return str(error)
    return ""


def imbalance_of_shards(shared_dir: Path, config: Config, status: TrainerStatus | None) -> str:
    """Return the sum over the shards that is wrong, in words; empty if all are right, and for a run without shards.

    ``shared_dir``: folder of the inventory, which the fetchers of all shards share; ``status``: of the first trainer.
    """
    if status is None or not status.shards or config.stream.is_mixed:  # sets have no end that is planned
        return ""
    by_steps = 0 < status.max_steps <= status.step
    by_fewer_epochs = 0 < config.epochs <= status.epoch  # it had come further when its epochs were lowered
    is_complete = status.state == "finished" and not (by_steps or by_fewer_epochs)
    # There may be lists of other inputs, too, which the run has refused.
    ranges = make_ranges(config.input, config.fetcher.ranges, config.fetcher.done)
    files = [num_files(list_path(shared_dir, one)) for one in ranges]
    blocks = config.epochs * sum(math.ceil(number / config.stream.block_files) for number in files)
    shards = [
        ShardEvents(shard, _planned(shared_dir, shard, config.stream, blocks if is_complete else 0), counters)
        for shard, counters in enumerate(status.shards)
    ]
    return imbalance(shards, files=sum(files) * config.epochs if config.epochs else None, is_complete=is_complete)


def _planned(shared_dir: Path, shard: int, stream: StreamConfig, blocks: int) -> PlannedShard:
    """Return the sum of a shard's record. ``blocks``: number in all epochs of the run; 0: unknown, or without end."""
    path = shared_dir / planned_name(shard)
    if not path.exists():
        return PlannedShard()
    with path.open() as lines:
        return planned_shard(lines, len(range(shard, blocks, stream.shards)) if blocks else None)
