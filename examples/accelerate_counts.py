"""Accelerate on a stream: the number of muons of a bundle.

    icestream simulate demo --events 20000
    accelerate launch examples/accelerate_counts.py demo 2   # files, epochs

Started again, it goes on behind its last checkpoint.
"""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

import icestream

files, epochs = sys.argv[1], int(sys.argv[2])
checkpoint = Path("runs/accelerate")
accelerator = Accelerator()
model = nn.Sequential(nn.Linear(4, 32), nn.SiLU(), nn.Linear(32, 1))
optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
model, optimiser = accelerator.prepare(model, optimiser)
loss_sum = nn.PoissonNLLLoss(reduction="sum")

# Not prepared: each rank gets its share of a batch, on its device.
device = accelerator.device.type
stream = icestream.stream(files, device=device, batch_events=500)
accelerator.register_for_checkpointing(stream)
if checkpoint.exists():
    accelerator.load_state(checkpoint)

steps = 0
while stream.epoch < epochs:
    for batch in stream:
        log_mean = model(batch["primary"].log1p()).squeeze(1)
        # Gradients are averaged over the ranks: this is the mean over all
        # events of the batch, wherever they are.
        mean = loss_sum(log_mean, batch.counts) / batch.total_events
        accelerator.backward(mean * accelerator.num_processes)
        optimiser.step()
        optimiser.zero_grad()
        steps += 1
        if steps % 20 == 0 or batch.is_last:
            accelerator.save_state(checkpoint)
stream.close()
accelerator.print(f"{steps} steps, {stream.counters.events_trained} events")
accelerator.end_training()
