"""Trainer: the loop over batches, and its state."""
