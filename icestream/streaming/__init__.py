"""Stream of batches in the caller's own process, which is the trainer: `icestream.stream`."""
