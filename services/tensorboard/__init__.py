"""`icestream tensorboard`."""
