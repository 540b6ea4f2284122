"""Attention over events of different lengths: padding, packing, or one of torch's ragged forms.

Question: sensors of events attend to each other, and events have 10 to 1,000 sensors. Which form of one attention
layer is fastest on this device, forward and backward? All forms have the same result, which is checked first.

    python -m benchmarks.bench_direction_attention [--repeats 10] [--device cpu]

Forms: `padded` (all events to the longest, one call with a mask), `groups` (the model's: of similar length, on a
GPU one), `sorted_16` and `sorted_4` (groups of 16 and 4 events), `loop` (one call an event), `nested` (torch's
nested tensors, layout jagged), `block_diagonal` (all sensors in one sequence, masked), and `flex` (FlexAttention with a
mask of events, compiled; left out where torch can't compile it or it has no gradient).

Table: CPU milliseconds (on CUDA: elapsed ones) of forward and backward of queries, keys and values that are there
already, for batches of events: `toy` (64 events of the toy detector's lengths, chosen sensors), `toy 256`,
`similar` (64 events of 32 to 40), and `mixed` (64 events, of which 3 have 500 to 1,000 sensors). The last line is JSON.
Reading: the smallest number of a column; `padded` and `groups` differ where lengths do.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import statistics
import time
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base.segments import Segments
from workloads.direction.models.transformer import Padding

HEADS, WIDTH = 4, 64
MOST_PAIRS = 1 << 26
"""Scores of block_diagonal beyond which it is left out: 1 GiB for four heads."""
SLOW_MS = 1000.0

Form = Callable[[Tensor, Segments], Tensor]


def lengths(seed: int = 1) -> dict[str, list[int]]:
    """Numbers of sensors of the events of each batch. The toy's: about 33."""
    random = torch.Generator().manual_seed(seed)

    def toy(num_events: int) -> list[int]:
        normal = torch.randn(num_events, generator=random)
        counts: list[int] = (3.4 + 0.45 * normal).exp().round().clamp(8, 120).long().tolist()
        return counts

    return {
        "toy": toy(64),
        "toy 256": toy(256),
        "similar": torch.randint(32, 41, (64,), generator=random).tolist(),
        "mixed": [*toy(61), 500, 750, 1000],
    }


def attend(rows_GND: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of padded events. (G, N, 3 D) -> (G, N, D)."""
    query, key, value = rows_GND.unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)


def groups(rows_TD: Tensor, segments: Segments) -> Tensor:
    """The model's form."""
    padding = Padding.of(segments)
    masks = [present_GN[:, None, None] for present_GN in padding.groups]
    return padding.packed([attend(rows, mask) for rows, mask in zip(padding.padded(rows_TD), masks, strict=True)])


def padded_in(events_of_group: int) -> Form:
    """Sorted by length, in groups of this many events."""

    def form(rows_TD: Tensor, segments: Segments) -> Tensor:
        order_E = segments.counts_E.argsort(stable=True)
        result_TD = torch.empty_like(rows_TD[:, : rows_TD.shape[1] // 3])
        for events_G in order_E.split(events_of_group):
            inside_N = torch.arange(int(segments.counts_E[events_G].max()), device=rows_TD.device)
            present_GN = inside_N < segments.counts_E[events_G].unsqueeze(1)
            source_GN = torch.where(present_GN, segments.starts_E[events_G].unsqueeze(1) + inside_N, 0)
            result_GND = attend(rows_TD[source_GN], present_GN[:, None, None])
            result_TD = result_TD.index_put((source_GN[present_GN],), result_GND[present_GN])
        return result_TD

    return form


def loop(rows_TD: Tensor, segments: Segments) -> Tensor:
    """One call an event."""
    events = rows_TD.split(segments.counts_E.tolist())
    return torch.cat([attend(event.unsqueeze(0), None).squeeze(0) for event in events])


def nested(rows_TD: Tensor, segments: Segments) -> Tensor:
    """Nested tensors, layout jagged."""
    offsets = F.pad(segments.counts_E.cumsum(0), (1, 0))
    longest = int(segments.counts_E.max())
    query, key, value = (
        torch.nested.nested_tensor_from_jagged(of.contiguous(), offsets, min_seqlen=1, max_seqlen=longest).transpose(
            1, 2
        )
        for of in rows_TD.unflatten(1, (3, HEADS, -1)).unbind(1)
    )
    result = F.scaled_dot_product_attention(query, key, value).transpose(1, 2)
    return result.values().flatten(1)


def block_diagonal(rows_TD: Tensor, segments: Segments) -> Tensor:
    """All sensors in one sequence."""
    same_TT = segments.event_P.unsqueeze(1) == segments.event_P
    return attend(rows_TD.unsqueeze(0), same_TT).squeeze(0)


def flex_form() -> Form:
    """FlexAttention, compiled."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, dynamic=True)

    def form(rows_TD: Tensor, segments: Segments) -> Tensor:
        event_T, num = segments.event_P, len(rows_TD)
        mask = create_block_mask(
            lambda batch, head, q, k: event_T[q] == event_T[k], None, None, num, num, device=rows_TD.device.type
        )
        query, key, value = (of.transpose(0, 1)[None] for of in rows_TD.unflatten(1, (3, HEADS, -1)).unbind(1))
        result: Tensor = compiled(query, key, value, block_mask=mask)
        return result[0].transpose(0, 1).flatten(1)

    return form


def milliseconds(form: Form, rows_TD: Tensor, segments: Segments, repeats: int) -> float:
    """Median time of forward and backward; of one call if that takes a second."""
    on_cuda = rows_TD.is_cuda
    clock = time.perf_counter if on_cuda else time.process_time
    taken = []
    for _ in range(repeats + 2):
        rows_TD.grad = None
        if on_cuda:
            torch.cuda.synchronize()
        start = clock()
        form(rows_TD, segments).square().sum().backward()
        if on_cuda:
            torch.cuda.synchronize()
        taken.append(1e3 * (clock() - start))
        if taken[-1] > SLOW_MS:
            return taken[-1]
    return statistics.median(taken[2:])


def measure(device: torch.device, repeats: int) -> dict[str, dict[str, float | None]]:
    """Milliseconds by form and batch; None where a form is left out."""
    everyone: dict[str, Form] = {
        "padded": padded_in(1 << 30),
        "groups": groups,
        "sorted_16": padded_in(16),
        "sorted_4": padded_in(4),
        "loop": loop,
        "nested": nested,
        "block_diagonal": block_diagonal,
        "flex": flex_form(),
    }
    found: dict[str, dict[str, float | None]] = {name: {} for name in everyone}
    for batch, counts in lengths().items():
        torch.manual_seed(0)
        segments = Segments.from_counts(torch.tensor(counts, device=device), sum(counts))
        rows_TD = torch.randn(sum(counts), 3 * WIDTH, device=device, requires_grad=True)
        expected = loop(rows_TD, segments)
        for name, form in everyone.items():
            found[name][batch] = None
            if name == "block_diagonal" and sum(counts) ** 2 > MOST_PAIRS:
                continue
            try:
                torch.testing.assert_close(form(rows_TD, segments), expected, rtol=1e-3, atol=1e-4)
                found[name][batch] = round(milliseconds(form, rows_TD, segments, repeats), 2)
            except RuntimeError as error:  # what torch has not on this device is a result, too; a wrong one is an error
                print(f"{name}, {batch}: {type(error).__name__}: {str(error).strip().splitlines()[0][:150]}")
    return found


def main() -> None:
    """Table, and JSON in the last line."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # torch's reasons for each backend that it does not take
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(torch.device(arguments.device), arguments.repeats)
    batches = list(lengths())
    print(f"{'ms':16s}" + "".join(f"{batch:>10s}" for batch in batches))
    for name, row in found.items():
        values = (row[batch] for batch in batches)
        print(f"{name:16s}" + "".join(f"{'-' if value is None else format(value, '.2f'):>10s}" for value in values))
    print(json.dumps({"torch": torch.__version__, "machine": platform.machine(), "ms": found}))


if __name__ == "__main__":
    main()
