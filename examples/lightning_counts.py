"""Lightning on streams: the number of muons of a bundle, with validation.

    icestream simulate demo --events 20000
    python examples/lightning_counts.py demo 2   # files, epochs

Started again, it goes on behind its last checkpoint, at any batch.
"""

import sys

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from icestream.lightning import StreamDataModule


class Counts(lightning.LightningModule):
    """Poisson distribution of the number of muons."""

    def __init__(self):
        super().__init__()
        hidden, out = nn.Linear(4, 32), nn.Linear(32, 1)
        self.layers = nn.Sequential(hidden, nn.SiLU(), out)

    def training_step(self, batch, index):
        """Return the loss, a mean over the events."""
        log_mean = self.layers(batch["primary"].log1p()).squeeze(1)
        return nn.functional.poisson_nll_loss(log_mean, batch.counts)

    def validation_step(self, batch, index):
        """Log the loss of events that no training sees."""
        loss = self.training_step(batch, index)
        self.log("validation", loss, batch_size=len(batch))

    def configure_optimizers(self):
        """Return the optimiser."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


files, epochs = sys.argv[1], int(sys.argv[2])
held_out = {"stream.held_out": 0.1}
data = StreamDataModule(files, batch_events=500, settings=held_out)
last = ModelCheckpoint("runs/lightning", every_n_train_steps=10, save_last=True)
trainer = lightning.Trainer(max_epochs=epochs, callbacks=[last], logger=False)
trainer.fit(Counts(), data, ckpt_path="last")
loss = trainer.callback_metrics["validation"]
print(f"step {trainer.global_step}, validation {loss:.4f}")
