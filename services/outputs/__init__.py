"""Outputs: copies of checkpoints and TensorBoard files at a destination, and their restore."""
