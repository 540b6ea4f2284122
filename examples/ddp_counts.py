"""Data-parallel training on a stream: the number of muons of a bundle.

    icestream simulate demo --events 20000
    torchrun --nproc-per-node 2 examples/ddp_counts.py demo 2

The losses are the same for any number of ranks, but for rounding.
"""

import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import icestream

files, epochs = sys.argv[1], int(sys.argv[2])
cuda = torch.cuda.is_available()
distributed.init_process_group("nccl" if cuda else "gloo")
rank, ranks = distributed.get_rank(), distributed.get_world_size()
device = f"cuda:{distributed.get_node_local_rank()}" if cuda else "cpu"

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 32), nn.SiLU(), nn.Linear(32, 1))
model = DistributedDataParallel(model.to(device))
optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_sum = nn.PoissonNLLLoss(reduction="sum")

with icestream.stream(files, batch_events=500, seed=1) as stream:
    while stream.epoch < epochs:
        for batch in stream:  # this rank's share, which may be empty
            log_mean = model(batch["primary"].log1p()).squeeze(1)
            mean = loss_sum(log_mean, batch.counts) / batch.total_events
            optimiser.zero_grad()
            # DDP averages the gradients over the ranks: with this factor
            # they are those of the mean over all events of the batch.
            (mean * ranks).backward()
            optimiser.step()
        distributed.all_reduce(mean.detach_())
        if rank == 0:
            print(f"epoch {stream.epoch}: loss {mean.item():.4f}")
distributed.destroy_process_group()
