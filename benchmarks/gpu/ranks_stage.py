"""Two ranks on one device: the same weights, and the time of a step.

nccl refuses two ranks on one card. The sums go over gloo, through the host: their time says nothing about nccl.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.gpu.channel import Channel
from benchmarks.gpu.data import simulated
from benchmarks.gpu.processes import last_line
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.timing import median
from benchmarks.gpu.variants import SEED
from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.muons.models.config import WganConfig
from workloads.muons.models.wgan import WganTask

RANKS = 2
_TIMEOUT = timedelta(seconds=60)


def run(setting: Setting, channel: Channel) -> None:
    """Row: seconds a step of two ranks with half of a batch each, and whether their weights are the same."""
    if not dist.is_available() or not dist.is_gloo_available():
        channel.leave_out("two ranks: this torch has no gloo")
        return
    num_events = min(setting.events)
    channel.say(f"{RANKS} ranks, {num_events:,} events in all")
    events = simulated(num_events)
    fork = multiprocessing.get_context("fork")  # this process has not touched the device
    with tempfile.TemporaryDirectory(prefix="icestream-gpu-") as folder:
        ends: list[Connection] = []
        for rank in range(RANKS):
            receiving, sending = fork.Pipe(duplex=False)
            fork.Process(target=_rank, args=(rank, Path(folder, "store"), setting, events, sending)).start()
            sending.close()
            ends.append(receiving)
        answers = [_answer(end, max(channel.left_s - 1.0, 0.0)) for end in ends]
    problems = [answer for answer in answers if isinstance(answer, str)]
    if problems:
        raise SystemExit("; ".join(problems))
    (seconds, sums), *others = (answer for answer in answers if not isinstance(answer, str))
    same = all(torch.equal(sums, other) for _, other in others)
    channel.row(ranks=RANKS, events=num_events, seconds=seconds, outcome="the same weights" if same else "they differ")
    if not same:
        channel.fail("the weights of the ranks differ")


def _answer(end: Connection, wait_s: float) -> tuple[float, Tensor] | str:
    """Findings of a rank, or its error."""
    try:
        if not end.poll(wait_s):
            return "a rank did not answer in time"
        kind, content = end.recv()
    except EOFError:
        return "a rank died"
    return content if kind == "error" else (content[0], torch.tensor(content[1], dtype=torch.float64))


def _rank(rank: int, store: Path, setting: Setting, events: Microbatch, sending: Connection) -> None:
    """One rank, in its process."""
    try:
        sending.send(("done", _steps(rank, store, setting, events)))
    except Exception as error:  # noqa: BLE001  it is named by the other process
        traceback.print_exc()
        sending.send(("error", f"rank {rank}: {last_line(error)}"))


def _steps(rank: int, store: Path, setting: Setting, events: Microbatch) -> tuple[float, list[float]]:
    device = torch.device(setting.device)
    meeting = dist.FileStore(str(store), RANKS)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=meeting, rank=rank, world_size=RANKS, timeout=_TIMEOUT)
    half = events.num_events // RANKS
    share = events.part(rank * half, (rank + 1) * half).to(device)
    batch = Batch((share,)).among(RANKS * half, int(events.host_offsets_E1[RANKS * half]))
    task = WganTask(WganConfig.model_validate(setting.section), StepContext(device, SEED, sum_over_ranks=_sum))
    seconds = median(lambda: task.step(batch), device, repeats=setting.repeats, limit_s=1e9).whole_s
    sums = [
        float(value.double().sum()) for one in task.networks.modules().values() for value in one.state_dict().values()
    ]
    dist.destroy_process_group()
    return seconds, sums


def _sum(tensors: Sequence[Tensor]) -> None:
    """Sum over the ranks, in place: one exchange for each dtype, as the trainer's."""
    with torch.no_grad():
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            same = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.reshape(-1) for tensor in same])
            dist.all_reduce(flat)
            for tensor, part in zip(same, flat.split([tensor.numel() for tensor in same]), strict=True):
                tensor.copy_(part.view_as(tensor))
