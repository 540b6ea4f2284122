"""Ceilings: rates of a large matrix product and of a large copy, and the cost of starting a kernel.

Shares of the roofline on the page are relative to these, not to a data sheet.
"""

from __future__ import annotations

import torch

from benchmarks.gpu.channel import Channel
from benchmarks.gpu.precision import PRECISIONS, set_matmul_precision
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.timing import best, once

WIDTH = 128
"""Width of the networks' layers."""
_CALLS = 200


def run(setting: Setting, channel: Channel) -> None:
    """Rows: what, precision, FLOP/s or bytes/s."""
    device = torch.device(setting.device)
    for precision in PRECISIONS:
        if precision == "tf32" and not setting.is_cuda:
            continue
        channel.say(f"matrix products, {precision}")
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        set_matmul_precision(precision)
        for what, rows, width in (("matmul", setting.matrix, setting.matrix), ("layer", 64 * setting.matrix, WIDTH)):
            left = torch.randn(rows, width, device=device, dtype=dtype)
            right = torch.randn(width, width, device=device, dtype=dtype)
            out = torch.empty(rows, width, device=device, dtype=dtype)
            seconds = best(lambda a=left, b=right, c=out: torch.mm(a, b, out=c), device, repeats=4 * setting.repeats)
            channel.row(
                what=what,
                precision=precision,
                shape=f"{rows} × {width} by {width} × {width}",
                flop_per_s=2 * rows * width * width / seconds,
            )
    num_bytes = setting.copy_mib << 20
    channel.say(f"copies of {setting.copy_mib} MiB")
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = best(lambda: target.copy_(source), device, repeats=4 * setting.repeats)
    channel.row(what="device memory", shape="read and written", bytes_per_s=2 * num_bytes / seconds)
    _kernels(device, channel)


def _kernels(device: torch.device, channel: Channel) -> None:
    """Host time of one operator on a single element, and of the kernel behind it."""
    one = torch.zeros(1, device=device)

    def work() -> None:
        for _ in range(_CALLS):
            one.add_(1)

    once(work, device)
    found = min((once(work, device) for _ in range(5)), key=lambda times: times.whole_s)
    channel.row(what="smallest operator, host", shape=f"{_CALLS} in a row", seconds=found.host_s / _CALLS)
    channel.row(what="smallest operator, device", shape=f"{_CALLS} in a row", seconds=found.whole_s / _CALLS)
