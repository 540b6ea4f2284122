"""Hyper-parameters compared on the same batches: the number of muons.

    icestream simulate demo --events 20000
    python examples/sweep_counts.py demo

The processes of the streams are started once, for all trials.
"""

import itertools
import sys

import torch
from torch import nn

import icestream

device = "cuda" if torch.cuda.is_available() else "cpu"


def loss_of(model, batch):
    """Return the mean loss of a batch."""
    log_mean = model(batch["primary"].log1p()).squeeze(1)
    return nn.functional.poisson_nll_loss(log_mean, batch.counts)


def trial(train, validation, width, lr):
    """Train for an epoch, and return the loss of the validation."""
    torch.manual_seed(0)
    hidden, out = nn.Linear(4, width), nn.Linear(width, 1)
    model = nn.Sequential(hidden, nn.SiLU(), out).to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=lr)
    for batch in train:
        optimiser.zero_grad()
        loss_of(model, batch).backward()
        optimiser.step()
    with torch.no_grad():
        losses = [loss_of(model, batch).item() for batch in validation]
    return sum(losses) / len(losses)


# With restart each loop begins with the first batch, not where one ended.
files, held_out = sys.argv[1], {"stream.held_out": 0.1}
same = {"restart": True, "batch_events": 500, "settings": held_out}
with (
    icestream.stream(files, part="train", **same) as train,
    icestream.stream(files, part="held_out", **same) as validation,
):
    for width, lr in itertools.product((16, 64), (1e-3, 1e-2)):
        loss = trial(train, validation, width, lr)
        print(f"width {width}, lr {lr}: {loss:.4f}")
